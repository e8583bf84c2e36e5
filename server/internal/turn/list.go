package turn

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// ListRequest describes a page of a list of turns.
type ListRequest struct {
	Tenant string
	// ConversationID selects the turns of one conversation. If empty, the list is that of the tenant.
	ConversationID string
	// States selects turns in one of these states. If empty, turns in any state.
	States []parleyv1.TurnState
	// Limit is the maximum number of turns, at least 1.
	Limit int
	// Position is Page.Next of the previous page. The zero value is the first page.
	Position Position
	// Elsewhere are the queued turns of the conversation, or of the tenant, that wait at other servers: those of each
	// conversation in the order of ListTurns. The caller got them before the call.
	Elsewhere []*parleyv1.Turn
}

// HasQueued reports whether the list selects queued turns.
func (l *ListRequest) HasQueued() bool {
	return len(l.States) == 0 || slices.Contains(l.States, parleyv1.TurnState_TURN_STATE_QUEUED)
}

// Page is a page of a list of turns.
type Page struct {
	// Turns, newest first. Their encoded size is at most store.MaxListBytes, unless there is only one.
	Turns []*parleyv1.Turn
	// Next is the position of the next page; the zero value on the last page.
	Next Position
}

// MaxPending is the maximum number of turns that Position.Pending contains: all that wait in a queue, one that is about
// to start and one that the store has.
const MaxPending = maxQueued + maxInterrupting + 2

// Position is a position in a list of turns.
type Position struct {
	// Pending are the ids of the turns that come next in a list of a conversation, at most MaxPending. All of them waited
	// in the queue when the list began, except possibly the last one.
	Pending []string
	// Before is store.ListTurns.Before of the turns after Pending; empty if there are none.
	Before string
}

// IsLast reports whether no turns follow. In ListRequest, it is the position of the first page.
func (p Position) IsLast() bool { return len(p.Pending) == 0 && p.Before == "" }

// List returns a page of turns. In the list of a conversation, the turn that starts last comes first; queued turns are
// in the order in which they would start now. In the list of a tenant, the turn that the manager accepted last comes
// first. Turns whose id is not a UUID of version 7 are only in the list of their conversation.
//
// A page may have fewer turns than the limit and not be the last. A turn that was accepted before the first call of a
// list, and is kept during all of its calls, is returned once, even if it starts in the meantime. A queued turn that
// starts during a call may be returned as queued. The error is store.ErrNotFound if the conversation does not exist.
func (m *Manager) List(ctx context.Context, l *ListRequest) (*Page, error) {
	switch {
	case l.ConversationID == "":
		return m.listTenant(ctx, l)
	case l.Position.IsLast():
		return m.listFirst(ctx, l)
	default:
		return m.listNext(ctx, l)
	}
}

// listFirst returns the first page of the turns of a conversation.
func (m *Manager) listFirst(ctx context.Context, l *ListRequest) (*Page, error) {
	// Read the queue before the store: a turn that starts in between is then in both, not in neither.
	queued := m.queuedTurns(l)
	stored, err := m.storedTurns(ctx, l, "", l.Limit+len(queued))
	if err != nil {
		return nil, err
	}
	for i, turn := range queued {
		at := slices.IndexFunc(stored.Turns, func(s *parleyv1.Turn) bool { return s.GetId() == turn.GetId() })
		if at >= 0 {
			// Turns that started after this one either follow in queued or were accepted after the call began.
			queued[i], stored.Turns = stored.Turns[at], stored.Turns[at+1:]
		}
	}
	page := new(pageBuilder)
	for i, turn := range queued {
		if !page.add(turn, l) {
			return page.end(pendingPosition(queued[i:], stored)), nil
		}
	}
	return page.addStored(stored, l, pendingPosition(nil, stored)), nil
}

// pendingPosition returns the position of the first of these turns: the queued ones, then those of a page of the store.
func pendingPosition(queued []*parleyv1.Turn, stored *store.TurnPage) Position {
	p := Position{Before: stored.Next}
	for _, turn := range queued {
		p.Pending = append(p.Pending, turn.GetId())
	}
	if len(stored.Turns) > 0 {
		p.Before = stored.Turns[0].GetId()
		p.Pending = append(p.Pending, p.Before)
	}
	return p
}

// listNext returns a later page of the turns of a conversation.
func (m *Manager) listNext(ctx context.Context, l *ListRequest) (*Page, error) {
	page, next := new(pageBuilder), l.Position
	for len(next.Pending) > 0 {
		turn, err := m.find(ctx, key{l.Tenant, l.ConversationID}, next.Pending[0])
		if waiting := findTurn(l.Elsewhere, next.Pending[0]); waiting != nil && errors.As(err, new(*NotFoundError)) {
			turn, err = waiting, nil
		}
		switch {
		case errors.As(err, new(*NotFoundError)): // It was removed from the queue, or is no longer kept.
		case err != nil:
			return nil, err
		case !isInState(turn, l.States):
		case !page.add(turn, l):
			return page.end(next), nil
		}
		next.Pending = next.Pending[1:]
	}
	if page.isFull(l) || next.Before == "" {
		return page.end(next), nil
	}
	stored, err := m.storedTurns(ctx, l, next.Before, l.Limit-len(page.turns))
	if err != nil {
		return nil, err
	}
	return page.addStored(stored, l, next), nil
}

// listTenant returns a page of the turns of a tenant, in the order of their ids.
func (m *Manager) listTenant(ctx context.Context, l *ListRequest) (*Page, error) {
	// Read the queues before the store, as listFirst does.
	turns := slices.DeleteFunc(m.queuedTurns(l), func(t *parleyv1.Turn) bool {
		return l.Position.Before != "" && t.GetId() >= l.Position.Before
	})
	stored, err := m.storedTurns(ctx, l, l.Position.Before, l.Limit)
	if err != nil {
		return nil, err
	}
	// Turns before stored.Next belong to later pages.
	turns = slices.DeleteFunc(turns, func(t *parleyv1.Turn) bool {
		return t.GetId() < stored.Next || findTurn(stored.Turns, t.GetId()) != nil
	})
	turns = append(turns, stored.Turns...)
	slices.SortFunc(turns, func(a, b *parleyv1.Turn) int { return cmp.Compare(b.GetId(), a.GetId()) })
	stored.Turns = turns
	return new(pageBuilder).addStored(stored, l, l.Position), nil
}

// storedTurns returns a page of turns of the store before the turn with an id.
func (m *Manager) storedTurns(ctx context.Context, l *ListRequest, before string, limit int) (*store.TurnPage, error) {
	// The store has no queued turns. It has an index of those that run, which it uses if the list selects no other state.
	states := slices.DeleteFunc(slices.Clone(l.States), func(s parleyv1.TurnState) bool {
		return s == parleyv1.TurnState_TURN_STATE_QUEUED
	})
	if len(states) == 0 && len(l.States) > 0 {
		return new(store.TurnPage), m.checkExists(ctx, l)
	}
	return m.o.Store.ListTurns(ctx, &store.ListTurns{
		Tenant: l.Tenant, ConversationID: l.ConversationID, States: states, Before: before, Limit: limit,
	})
}

// checkExists returns store.ErrNotFound if the list is that of a conversation that does not exist.
func (m *Manager) checkExists(ctx context.Context, l *ListRequest) error {
	if l.ConversationID == "" {
		return nil
	}
	_, err := m.o.Store.Read(ctx, &store.Read{Tenant: l.Tenant, ConversationID: l.ConversationID})
	return err
}

// queuedTurns returns the turns that have not started, if the list selects them: those of a conversation, the last in
// the queue first, or those of a tenant. Those of other servers come last.
func (m *Manager) queuedTurns(l *ListRequest) []*parleyv1.Turn {
	if !l.HasQueued() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	queues := m.runningQueues[l.Tenant]
	if l.ConversationID != "" {
		queues = map[*queue]bool{m.queues[key{l.Tenant, l.ConversationID}]: true}
	}
	var turns []*parleyv1.Turn
	for q := range queues {
		if q == nil || q.deleted {
			continue
		}
		for _, e := range q.turns() {
			if e.isQueued() {
				turns = append(turns, e.live.queuedTurn())
			}
		}
	}
	slices.Reverse(turns)
	return append(turns, l.Elsewhere...)
}

// isInState reports whether a turn is in one of these states. No states mean any.
func isInState(turn *parleyv1.Turn, states []parleyv1.TurnState) bool {
	return len(states) == 0 || slices.Contains(states, turn.GetState())
}

// pageBuilder collects the turns of a page.
type pageBuilder struct {
	turns []*parleyv1.Turn
	size  int // in a reply
}

// isFull reports whether the page has l.Limit turns.
func (b *pageBuilder) isFull(l *ListRequest) bool { return len(b.turns) >= l.Limit }

// add adds a turn, unless the page has reached its limit of turns or of bytes. It reports whether it added the turn.
func (b *pageBuilder) add(turn *parleyv1.Turn, l *ListRequest) bool {
	size := proto.Size(&parleyv1.ListTurnsResponse{Turns: []*parleyv1.Turn{turn}})
	if b.isFull(l) || len(b.turns) > 0 && b.size+size > store.MaxListBytes {
		return false
	}
	b.turns, b.size = append(b.turns, turn), b.size+size
	return true
}

// addStored adds turns that the store returned and returns the page. next is the position of the first of these turns.
func (b *pageBuilder) addStored(stored *store.TurnPage, l *ListRequest, next Position) *Page {
	for _, turn := range stored.Turns {
		if !b.add(turn, l) {
			return b.end(next)
		}
		next = Position{Before: turn.GetId()}
	}
	return b.end(Position{Before: stored.Next})
}

// end returns the page, which ends at a position.
func (b *pageBuilder) end(next Position) *Page {
	return &Page{Turns: b.turns, Next: next}
}
