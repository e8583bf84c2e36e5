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
func (t *live) begin() error {
	uid, err := t.m.mayBegin(t)
	if err != nil {
		return err
	}
	for {
		a, err := t.beginning(uid)
		var result *store.Result
		if err == nil {
			result, err = t.m.o.Store.Append(context.WithoutCancel(t.ctx), a)
		}
		switch again, err := t.again(err); {
		case again:
			t.found = nil
			continue
		case errors.Is(err, store.ErrNotFound) && (uid != "" || a != nil && a.UID != ""):
			return ErrConversationGone
		case err != nil:
			return err
		case result.Replayed:
			return &seenError{&store.Seen{Created: result.Created, TurnID: result.Turn.GetId()}}
		}
		for i, n := range result.Appended {
			number(t.inputs[i], n)
		}
		t.found = nil // A history of megabytes, perhaps, while the agent takes its time.
		t.result, t.log = result, t.log.With("agent", t.entry.Name)
		t.marks = a.Events
		t.marks.Created = result.Created
		t.m.begun(t)
		close(t.decided)
		return nil
	}
}

// again says whether to try once more to begin.
func (t *live) again(err error) (bool, error) {
	if _, changed := errors.AsType[*store.VersionError](err); changed && t.ifVersion() == nil {
		return true, nil // What is to be answered may have changed as well.
	}
	if busy, ok := errors.AsType[*store.BusyError](err); ok {
		reclaimed, err := t.m.reclaim(context.WithoutCancel(t.ctx), t.line.key, busy.TurnID)
		if reclaimed || err != nil {
			return reclaimed, err
		}
	}
	return false, err
}

// ifVersion is the version that the conversation must have when the turn begins. A turn that
// interrupts was held against it when it came: the one that it cut off has added to it.
func (t *live) ifVersion() *int32 {
	if t.queued && t.interrupts() {
		return nil
	}
	return t.request.IfVersion
}

// beginning is what the store is to do to begin the turn, in the conversation with that uid; if
// that is empty, in whichever has the id.
func (t *live) beginning(uid string) (*store.Append, error) {
	onward := fromHistory(t.request)
	if t.found == nil || onward {
		if err := t.find(onward); err != nil {
			return nil, err
		}
	}
	var err error
	if t.entry, err = t.m.choose(t.request, t.found.Conversation); err != nil {
		return nil, err
	}
	t.answer.by(t.entry.Name)
	a := &store.Append{
		Tenant: t.line.tenant, ConversationID: t.line.id, UID: uid, Messages: t.inputs,
		Request: t.q, MustExist: t.request.GetMustExist(), IfVersion: t.ifVersion(),
		Begin: &parleyv1.Turn{Id: t.id, RequestId: t.request.GetRequestId(), Agent: t.entry.Name},
		// Created is what a crash would leave; the store's result will say for certain.
		Events: &storev1.TurnEvents{Started: t.events.last() + 1, AnswerPending: t.request.GetAnswerPending(), Created: t.found.Conversation == nil},
	}
	if t.queued {
		a.Begin.CreateTime = timestamppb.New(t.accepted)
	}
	if onward {
		if err := t.goOn(a); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// goOn has the turn begin with what the history holds, and only while that is as it was
// read, whatever comes in between: another conversation of the id may have the same version.
func (t *live) goOn(a *store.Append) error {
	c := t.found.Conversation
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
	history, err := t.found.Messages.Messages()
	if err != nil {
		return err
	}
	if t.request.GetAnswerPending() {
		t.input, err = pendingIn(history)
		a.Begin.InputSequence = t.input.GetSequence()
		return err
	}
	results := t.request.GetToolResults()
	answered, err := answeredBy(history, results)
	if err != nil {
		return err
	}
	for i, one := range answered {
		// Anew each time: before, it may have been another call.
		named := proto.CloneOf(results[i])
		named.Name = cmp.Or(named.GetName(), one.GetName())
		t.inputs[i].ToolResult = named
	}
	return mayStore(t.inputs, answered, t.found, t.m.o.MaxConversationBytes)
}

// find reads the conversation in which the turn is to begin. One that is to go on with the
// history needs its messages, and cannot begin without it.
func (t *live) find(onward bool) error {
	read := &store.Read{Tenant: t.line.tenant, ConversationID: t.line.id, Request: t.q}
	if onward {
		read.Newest = -1
	}
	found, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), read)
	switch {
	case errors.Is(err, store.ErrNotFound) && !onward:
		found = &store.Snapshot{}
	case err != nil:
		return err
	case found.Seen != nil:
		return &seenError{found.Seen}
	}
	t.found = found
	return nil
}

// mayBegin says whether a turn whose time has come may begin, and in which conversation: that
// of the turns ahead; empty for the first of a line.
func (m *Manager) mayBegin(t *live) (uid string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case t.line.gone:
		err = ErrConversationGone
	case t.readers == 0:
		err = errDropped
	}
	if err != nil {
		t.q = nil // Nobody is to find it any more.
		delete(m.turns, t.id)
	}
	return t.line.uid, err
}

// begun notes what the store gave the turn, and what has come up since it was asked.
func (m *Manager) begun(t *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid, t.version = t.result.Conversation.GetUid(), t.result.Conversation.GetVersion()
	switch {
	case slices.Contains(t.gone, t.uid):
		m.shut(t.line) // Again, if need be: this turn runs now.
	case len(t.line.waiting) > 0 && t.line.waiting[0].interrupts():
		t.cancel(errInterrupted)
	default:
		m.deserted(t)
	}
}
