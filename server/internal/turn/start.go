package turn

import (
	"cmp"
	"context"
	"errors"
	"slices"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// begin has the store begin the turn.
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
			setStoredFields(t.inputs[i], n)
		}
		t.conversation = nil // A history of megabytes, perhaps, while the agent takes its time.
		t.startResult, t.log = result, t.log.With("agent", t.agent.Name)
		t.eventIndexes = a.Events
		t.eventIndexes.Created = result.Created
		t.manager.recordStart(t)
		close(t.startDecided)
		return nil
	}
}

// again says whether to try once more to begin.
func (t *liveTurn) retryStart(err error) (bool, error) {
	if _, changed := errors.AsType[*store.VersionError](err); changed && t.ifVersion() == nil {
		return true, nil // What is to be answered may have changed as well.
	}
	if busy, ok := errors.AsType[*store.BusyError](err); ok {
		ended, err := t.manager.endIfAbandoned(context.WithoutCancel(t.ctx), t.queue.key, busy.TurnID)
		if ended || err != nil {
			return ended, err
		}
	}
	return false, err
}

// ifVersion is the version that the conversation must have when the turn begins. A turn that
// interrupts was held against it when it came: the one that it cut off has added to it.
func (t *liveTurn) ifVersion() *int32 {
	if t.hadToWait && t.interrupts() {
		return nil
	}
	return t.request.IfVersion
}

// beginning is what the store is to do to begin the turn, in the conversation with that uid; if
// that is empty, in whichever has the id.
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
	t.answer.setAgent(t.agent.Name)
	a := &store.Append{
		Tenant: t.queue.tenant, ConversationID: t.queue.id, UID: uid, Messages: t.inputs,
		Request: t.requestKey, MustExist: t.request.GetMustExist(), IfVersion: t.ifVersion(),
		Begin: &parleyv1.Turn{Id: t.id, RequestId: t.request.GetRequestId(), Agent: t.agent.Name},
		// Created is what a crash would leave; the store's result will say for certain.
		Events: &storev1.TurnEvents{Started: t.events.lastIndex() + 1, AnswerPending: t.request.GetAnswerPending(), Created: t.conversation.Conversation == nil},
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

// goOn has the turn begin with what the history holds, and only while that is as it was
// read, whatever comes in between: another conversation of the id may have the same version.
func (t *liveTurn) bindToHistory(a *store.Append) error {
	c := t.conversation.Conversation
	if a.UID != "" && a.UID != c.GetUid() {
		return ErrConversationGone
	}
	a.UID = c.GetUid()
	if running := c.GetActiveTurnId(); running != "" {
		return &store.BusyError{TurnID: running} // What it leaves is not there yet.
	}
	version := c.GetVersion()
	if a.IfVersion != nil && *a.IfVersion != version {
		return &store.VersionError{Current: version}
	}
	a.IfVersion = &version
	history, err := t.conversation.Messages.Messages()
	if err != nil {
		return err
	}
	if t.request.GetAnswerPending() {
		t.input, err = pendingMessage(history)
		a.Begin.InputSequence = t.input.GetSequence()
		return err
	}
	results := t.request.GetToolResults()
	answered, err := matchResults(history, results)
	if err != nil {
		return err
	}
	for i, call := range answered {
		// Anew each time: before, it may have been another call.
		named := proto.CloneOf(results[i])
		named.Name = cmp.Or(named.GetName(), call.GetName())
		t.inputs[i].ToolResult = named
	}
	return checkRetention(t.inputs, answered, t.conversation, t.manager.o.MaxConversationBytes)
}

// find reads the conversation in which the turn is to begin. One that is to go on with the
// history needs its messages, and cannot begin without it.
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

// mayBegin says whether a turn whose time has come may begin, and in which conversation: that
// of the turns ahead; empty for the first of a line.
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
		t.requestKey = nil // Nobody is to find it any more.
		delete(m.turns, t.id)
	}
	return t.queue.uid, err
}

// begun notes what the store gave the turn, and what has come up since it was asked.
func (m *Manager) recordStart(t *liveTurn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid, t.version = t.startResult.Conversation.GetUid(), t.startResult.Conversation.GetVersion()
	switch {
	case slices.Contains(t.deletedUIDs, t.uid):
		m.closeQueue(t.queue) // Again, if need be: this turn runs now.
	case len(t.queue.waiting) > 0 && t.queue.waiting[0].interrupts():
		t.cancel(errInterrupted)
	default:
		m.cancelIfUnread(t)
	}
}
