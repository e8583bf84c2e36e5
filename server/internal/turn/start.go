package turn

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/server/internal/turn/history"
	"github.com/parleyhq/parley/store"
)

// start commits the start of the turn.
func (t *liveTurn) start() error {
	uid, err := t.manager.checkStart(t)
	if err != nil {
		return err
	}
	for {
		a, err := t.startAppend(uid)
		var result *store.Result
		if err == nil {
			result, err = t.manager.o.Store.Append(context.WithoutCancel(t.ctx), a)
		}
		switch retry, err := t.retryStart(err); {
		case retry:
			t.conversation = nil
			continue
		case errors.Is(err, store.ErrNotFound) && (uid != "" || a != nil && a.UID != ""):
			return ErrConversationGone
		case err != nil:
			return err
		case result.Replayed:
			return &repeatedRequestError{&store.Seen{Created: result.Created, TurnID: result.Turn.GetId()}}
		}
		for i, n := range result.Appended {
			answer.SetStoredFields(t.inputs[i], n)
		}
		t.conversation = nil // The history may have megabytes; do not hold it while the agent answers.
		t.startResult, t.log = result, t.log.With("agent", t.agent.Name)
		t.eventIndexes = a.Events
		t.eventIndexes.Created = result.Created
		t.manager.recordStart(t)
		close(t.startDecided)
		return nil
	}
}

// retryStart reports whether to commit the start again after err. It returns the error with which
// the turn ends if not.
func (t *liveTurn) retryStart(err error) (bool, error) {
	if _, changed := errors.AsType[*store.VersionError](err); changed && t.ifVersion() == nil {
		return true, nil // The messages to be answered may have changed.
	}
	if busy, ok := errors.AsType[*store.BusyError](err); ok {
		ended, err := t.manager.endIfAbandoned(context.WithoutCancel(t.ctx), t.queue.key, busy.TurnID)
		if ended || err != nil {
			return ended, err
		}
	}
	return false, err
}

// ifVersion returns the version that the conversation must have at the start, nil if any. An
// interrupting turn was validated when it was admitted; the turn that it interrupted has changed
// the version since.
func (t *liveTurn) ifVersion() *int32 {
	if t.hadToWait && t.interrupts() {
		return nil
	}
	return t.request.IfVersion
}

// startAppend returns the append that starts the turn in the conversation with this uid. If uid is
// empty, any conversation with the id qualifies.
func (t *liveTurn) startAppend(uid string) (*store.Append, error) {
	needsHistory := dependsOnHistory(t.request)
	if t.conversation == nil || needsHistory {
		if err := t.readConversation(needsHistory); err != nil {
			return nil, err
		}
	}
	var err error
	if t.agent, err = t.manager.chooseAgent(t.request, t.conversation.Conversation); err != nil {
		return nil, err
	}
	t.answer.SetAgent(t.agent.Name)
	a := &store.Append{
		Tenant: t.queue.tenant, ConversationID: t.queue.id, UID: uid, Messages: t.inputs,
		Request: t.requestKey, MustExist: t.request.GetMustExist(), IfVersion: t.ifVersion(),
		Begin: &parleyv1.Turn{Id: t.id, RequestId: t.request.GetRequestId(), Agent: t.agent.Name},
		// A crash would leave this value of Created. The result of the store replaces it.
		Events: &storev1.TurnEvents{
			Started: t.events.LastIndex() + 1, AnswerPending: t.request.GetAnswerPending(),
			Created: t.conversation.Conversation == nil,
		},
	}
	if t.hadToWait {
		a.Begin.CreateTime = timestamppb.New(t.accepted)
	}
	if needsHistory {
		if err := t.bindToHistory(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// bindToHistory completes an append that depends on stored messages. The append succeeds only if
// the conversation is unchanged since it was read. It includes the uid, because a new conversation
// with the same id may have the same version.
func (t *liveTurn) bindToHistory(a *store.Append) error {
	c := t.conversation.Conversation
	if a.UID != "" && a.UID != c.GetUid() {
		return ErrConversationGone
	}
	a.UID = c.GetUid()
	if running := c.GetActiveTurnId(); running != "" {
		return &store.BusyError{TurnID: running} // The messages of that turn are not stored yet.
	}
	version := c.GetVersion()
	if a.IfVersion != nil && *a.IfVersion != version {
		return &store.VersionError{Current: version}
	}
	a.IfVersion = &version
	messages, err := t.conversation.Messages.Messages()
	if err != nil {
		return err
	}
	if t.request.GetAnswerPending() {
		t.input, err = history.Pending(messages)
		a.Begin.InputSequence = t.input.GetSequence()
		return err
	}
	results := t.request.GetToolResults()
	answered, err := history.MatchResults(messages, results)
	if err != nil {
		return err
	}
	for i, call := range answered {
		// Clone the result for each attempt: an earlier attempt may have named another call.
		named := proto.CloneOf(results[i])
		named.Name = cmp.Or(named.GetName(), call.GetName())
		t.inputs[i].ToolResult = named
	}
	return history.CheckRetention(t.inputs, answered, t.conversation, t.manager.o.MaxConversationBytes)
}

// readConversation reads the conversation in which the turn is to start. If needsHistory is set, it
// also reads the messages and fails if the conversation does not exist.
func (t *liveTurn) readConversation(needsHistory bool) error {
	read := &store.Read{Tenant: t.queue.tenant, ConversationID: t.queue.id, Request: t.requestKey}
	if needsHistory {
		read.Newest = -1
	}
	snapshot, err := t.manager.o.Store.Read(context.WithoutCancel(t.ctx), read)
	switch {
	case errors.Is(err, store.ErrNotFound) && !needsHistory:
		snapshot = &store.Snapshot{}
	case err != nil:
		return err
	case snapshot.Seen != nil:
		return &repeatedRequestError{snapshot.Seen}
	}
	t.conversation = snapshot
	return nil
}

// checkStart reports whether a turn may still start. It returns the uid of the conversation in
// which earlier turns of the queue ran, empty for the first turn.
func (m *Manager) checkStart(t *liveTurn) (uid string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case t.queue.deleted:
		err = ErrConversationGone
	case t.readers == 0:
		err = errDroppedFromQueue
	}
	if err != nil {
		t.requestKey = nil // No request can attach to this turn any more.
		delete(m.turns, t.id)
	}
	return t.queue.uid, err
}

// recordStart records the result of the start and handles what happened during the start.
func (m *Manager) recordStart(t *liveTurn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid, t.version = t.startResult.Conversation.GetUid(), t.startResult.Conversation.GetVersion()
	switch {
	case slices.Contains(t.deletedUIDs, t.uid):
		m.closeQueue(t.queue) // The running turn has a uid only now, so that closeQueue cancels it.
	case len(t.queue.waiting) > 0 && t.queue.waiting[0].interrupts():
		t.cancel(errInterrupted)
	default:
		m.cancelIfUnread(t)
	}
}
