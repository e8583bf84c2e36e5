package watch

import (
	"context"
	"iter"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// maxOrderWait is how long AwaitChange waits for a change.
const maxOrderWait = time.Second

// Events reads the events of the turns that this server runs, for another server. It must be used by one goroutine at a
// time.
type Events struct {
	hub    *Hub
	tenant *tenant
	reader *reader
}

// Events starts to read the events of the turns of a tenant that this server runs, from now on. It does not count as a
// watcher. The caller must call Stop.
func (h *Hub) Events(tenant string) *Events {
	e := &Events{hub: h, tenant: h.acquire(tenant), reader: newReader(nil, make(chan struct{}, 1))}
	h.eventReaders.Add(1)
	e.tenant.events.addReader(e.reader)
	return e
}

// Stop ends the reading. It must be called once.
func (e *Events) Stop() {
	e.tenant.events.removeReader(e.reader)
	e.hub.eventReaders.Add(-1)
	e.hub.events.refund(e.tenant.events)
	e.hub.release(e.tenant)
}

// All yields a heartbeat, then the events. If the reader is too slow, it yields a GAP in place of the dropped events.
// All ends with the cause of ctx, or without an error when stop is closed, after the events that came before. Responses
// are like those of [Watcher.All]. Their cursors have no meaning.
func (e *Events) All(
	ctx context.Context, stop <-chan struct{},
) iter.Seq2[*parleyv1.WatchConversationsResponse, error] {
	return func(yield yieldFunc) {
		if !yield(withoutCursor(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT), nil) {
			return
		}
		for stopped := false; e.yieldPending(yield) && !stopped; {
			select {
			case <-e.reader.wake:
			case <-stop:
				stopped = true // The last events may have come just before.
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// yieldPending yields the pending events. It reports whether to continue.
func (e *Events) yieldPending(yield yieldFunc) bool {
	for {
		b := e.tenant.events.next(e.reader, math.MaxUint64)
		if b.gap && !yield(withoutCursor(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return false
		}
		for _, event := range b.entries {
			if event.elsewhere {
				continue // The other server receives it from the server of the turn.
			}
			if response, err := event.encodeOnce(e.tenant, place{}); !yield(response, err) || err != nil {
				return false
			}
		}
		if b.idle {
			return true
		}
	}
}

func withoutCursor(kind parleyv1.ChangeKind) *parleyv1.WatchConversationsResponse {
	return &parleyv1.WatchConversationsResponse{
		Change: &parleyv1.ConversationChange{Kind: kind, Time: timestamppb.Now()},
	}
}

// EventElsewhere receives the next event of a turn that another server runs, as a change of kind TURN. Otherwise it
// behaves like TurnEvent.
func (h *Hub) EventElsewhere(tenant string, c *parleyv1.ConversationChange) {
	h.addElsewhere(tenant, eventEntry(c.GetConversationId(), c.GetTurnEvent(), 0, c.GetTime().AsTime()))
}

// EventsMissed sends a GAP to the watchers of a tenant that want turn events, because events of turns of other servers
// may be lost.
func (h *Hub) EventsMissed(tenant string) {
	h.addElsewhere(tenant, &entry{
		event: true, gap: true, kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, time: time.Now(), size: entryOverheadBytes,
	})
}

func (h *Hub) addElsewhere(name string, e *entry) {
	t := h.acquire(name)
	defer h.release(t)
	if !t.events.hasReaders() {
		return
	}
	e.elsewhere, e.afterChange = true, t.changes.end()
	h.removeEmptied(t.events.add(e))
	h.events.refund(t.events) // The last reader may have ended in the meantime.
}

// Missed makes All begin with a GAP. It must be called before All.
func (w *Watcher) Missed() { w.gap = true }

// AwaitChange waits until the hub has received a change of a conversation with this version or a later one, or has
// missed changes. All watchers receive a later event after that change. AwaitChange waits for at most 1 s, or until ctx
// ends.
func (h *Hub) AwaitChange(ctx context.Context, name, conversationID string, version int32) {
	t := h.acquire(name)
	defer h.release(t)
	gapSince := time.Now().Add(-maxOrderWait) // The change may have been missed by then.
	if t.changes.hasReached(conversationID, version, gapSince) {
		return
	}
	changed := newReader([]string{conversationID}, make(chan struct{}, 1))
	changed.wakeOnly = true
	t.changes.addReader(changed)
	defer t.changes.removeReader(changed)
	late := time.NewTimer(maxOrderWait)
	defer late.Stop()
	for !t.changes.hasReached(conversationID, version, gapSince) {
		select {
		case <-changed.wake:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// hasReached reports whether a retained entry is a change of a conversation with this version or a later one, or a GAP
// at this time or later.
func (f *feed) hasReached(conversationID string, version int32, gapSince time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range slices.Backward(f.retained) {
		if e.gap && !e.time.Before(gapSince) || e.conversationID == conversationID && e.version >= version {
			return true
		}
	}
	return false
}
