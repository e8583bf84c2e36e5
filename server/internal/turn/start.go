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
func (x *execution) start() error {
	for {
		uid, err := x.manager.checkStart(x.entry)
		if err != nil {
			return err
		}
		a, err := x.startAppend(uid)
		var result *store.Result
		if err == nil {
			result, err = x.manager.o.Store.Append(context.WithoutCancel(x.live.ctx), a)
			if errors.Is(err, store.ErrUnavailable) {
				x.manager.leave(x.live.id, leftTurn{x.live.conversation, a.Events})
			}
		}
		switch retry, err := x.retryStart(err); {
		case retry:
			x.snapshot = nil
			continue
		case errors.Is(err, store.ErrNotFound) && (uid != "" || a != nil && a.UID != ""):
			return ErrConversationDeleted
		case err != nil:
			return err
		case result.Replayed:
			// The result has the turn only if it is one of the newest. A read has the id of any.
			if err := x.readConversation(false); err != nil {
				return err
			}
			return &repeatedRequestError{new(store.Seen)} // The request is no longer stored.
		}
		for i, n := range result.Appended {
			answer.SetStoredFields(x.inputs[i], n)
		}
		// The history and the records may have megabytes; do not hold them while the agent answers.
		x.snapshot, x.request.Records = nil, nil
		x.startResult, x.log = result, x.log.With("agent", x.agent.Name)
		x.eventIndexes = a.Events
		x.eventIndexes.Created = result.Created
		x.manager.recordStart(x.entry, result.Conversation)
		close(x.live.startDecided)
		return nil
	}
}

// retryStart reports whether to commit the start again after err. It returns the error with which
// the turn ends if not.
func (x *execution) retryStart(err error) (bool, error) {
	if _, changed := errors.AsType[*store.VersionError](err); changed && x.ifVersion() == nil {
		return true, nil // The messages to be answered may have changed.
	}
	busy, ok := errors.AsType[*store.BusyError](err)
	if !ok {
		return false, err
	}
	ended, endErr := x.manager.endIfAbandoned(context.WithoutCancel(x.live.ctx), x.live.conversation, busy.TurnID)
	if ended || endErr != nil {
		return ended, endErr
	}
	elsewhere := x.manager.runningError(busy.TurnID)
	switch mode := x.request.GetOnBusy(); {
	case !errors.As(elsewhere, new(*ElsewhereError)):
		return false, err
	case x.hadToWait && !x.live.interrupts:
		err := x.waitForOther(busy.TurnID)
		return err == nil, err
	case mode == parleyv1.OnBusy_ON_BUSY_QUEUE, mode == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
		return false, elsewhere
	}
	return false, err
}

// ifVersion returns the version that the conversation must have at the start, nil if any. An
// interrupting turn was validated when it was admitted; the turn that it interrupted has changed
// the version since.
func (x *execution) ifVersion() *int32 {
	if x.hadToWait && x.live.interrupts {
		return nil
	}
	return x.request.IfVersion
}

// startAppend returns the append that starts the turn in the conversation with this uid. If uid is
// empty, any conversation with the id qualifies.
func (x *execution) startAppend(uid string) (*store.Append, error) {
	needsHistory := dependsOnHistory(x.request)
	if x.snapshot == nil || needsHistory {
		if err := x.readConversation(needsHistory); err != nil {
			return nil, err
		}
	}
	if err := x.holdAgent(); err != nil {
		return nil, err
	}
	x.live.answer.SetAgent(x.agent.Name)
	a := &store.Append{
		Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, UID: uid, Messages: x.inputs,
		Request: x.requestKey, MustExist: x.request.GetMustExist(), IfVersion: x.ifVersion(),
		CreateWith: x.request.GetCreateWith(), Records: x.request.GetRecords(),
		Begin: &parleyv1.Turn{Id: x.live.id, RequestId: x.request.GetRequestId(), Agent: x.agent.Name},
		// A crash would leave this value of Created. The result of the store replaces it.
		Events: &storev1.TurnEvents{
			Started: x.live.events.LastIndex() + 1, AnswerPending: x.request.GetAnswerPending(),
			Created: x.snapshot.Conversation == nil,
		},
	}
	if x.hadToWait {
		a.Begin.CreateTime = timestamppb.New(x.live.accepted)
	}
	if needsHistory {
		if err := x.bindToHistory(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// holdAgent sets x.agent to the agent that answers and holds it. A reload of the settings does not close it before
// releaseAgent.
func (x *execution) holdAgent() error {
	x.releaseAgent()
	for {
		entry, err := x.manager.chooseAgent(x.request, x.snapshot.Conversation)
		if err != nil {
			return err
		}
		if x.manager.o.Agents.Hold(entry) {
			x.agent = entry
			return nil
		}
	}
}

// releaseAgent undoes holdAgent. If there was none, it does nothing.
func (x *execution) releaseAgent() {
	if x.agent != nil {
		x.manager.o.Agents.Release(x.agent)
		x.agent = nil
	}
}

// bindToHistory completes an append that depends on stored messages. The append succeeds only if
// the conversation is unchanged since it was read. It includes the uid, because a new conversation
// with the same id may have the same version.
func (x *execution) bindToHistory(a *store.Append) error {
	c := x.snapshot.Conversation
	if a.UID != "" && a.UID != c.GetUid() {
		return ErrConversationDeleted
	}
	a.UID = c.GetUid()
	if running := c.GetActiveTurnId(); running != "" {
		return &store.BusyError{TurnID: running} // The messages of that turn are not stored yet.
	}
	version := c.GetVersion()
	if a.IfVersion != nil && *a.IfVersion != version {
		return &store.VersionError{Current: version, Required: *a.IfVersion}
	}
	a.IfVersion = &version
	messages, err := x.snapshot.Messages.Messages()
	if err != nil {
		return err
	}
	if x.request.GetAnswerPending() {
		x.input, err = history.Pending(messages)
		a.Begin.InputSequence = x.input.GetSequence()
		return err
	}
	results := x.request.GetToolResults()
	answered, err := history.MatchResults(messages, results)
	if err != nil {
		return err
	}
	for i, call := range answered {
		// Clone the result for each attempt: an earlier attempt may have named another call.
		named := proto.CloneOf(results[i])
		named.Name = cmp.Or(named.GetName(), call.GetName())
		x.inputs[i].ToolResult = named
	}
	return history.CheckRetention(x.inputs, answered, x.snapshot, x.manager.o.MaxConversationBytes)
}

// readConversation reads the conversation in which the turn is to start. If needsHistory is set, it
// also reads the messages and fails if the conversation does not exist.
func (x *execution) readConversation(needsHistory bool) error {
	read := &store.Read{Tenant: x.live.conversation.tenant, ConversationID: x.live.conversation.id, Request: x.requestKey}
	if needsHistory {
		read.Newest, read.MaxBytes = -1, store.MaxMessageBytes
	}
	snapshot, err := x.manager.o.Store.Read(context.WithoutCancel(x.live.ctx), read)
	switch {
	case errors.Is(err, store.ErrNotFound) && !needsHistory:
		snapshot = &store.Snapshot{}
	case err != nil:
		return err
	case snapshot.Seen != nil:
		return &repeatedRequestError{snapshot.Seen}
	}
	x.snapshot = snapshot
	return nil
}

// dependsOnHistory reports whether a request depends on stored messages: answer_pending needs the
// pending message, and tool results need open calls.
func dependsOnHistory(r *parleyv1.ChatRequest) bool {
	return r.GetAnswerPending() || len(r.GetToolResults()) > 0
}

// dependsOnRecords reports whether a request depends on stored records: one of its own requires a revision.
func dependsOnRecords(r *parleyv1.ChatRequest) bool {
	return slices.ContainsFunc(r.GetRecords(), func(w *parleyv1.RecordWrite) bool { return w.IfRevision != nil })
}
