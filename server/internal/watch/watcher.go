package watch

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// heartbeatEvery is how long a watcher may hear nothing.
const heartbeatInterval = 15 * time.Second

// yielder takes what a stream is to send; false: no more.
type yieldFunc = func(*parleyv1.WatchConversationsResponse, error) bool

// Watch says what to watch.
type Watch struct {
	// Tenant whose conversations are watched.
	Tenant string
	// ConversationIDs to watch; empty: all of the tenant's.
	ConversationIDs []string
	// Cursor to go on from; empty: from now on.
	Cursor string
	// TurnEvents: those of turns as well.
	TurnEvents bool
}

// Watcher follows what a Watch asks for. It is for one goroutine.
type Watcher struct {
	hub      *Hub
	changes  *reader
	events   *reader // nil: not wanted
	gap      bool    // what came after the cursor is kept no more
	position uint64  // position of the last cursor that was given
	stop     func()
}

// Watch begins to watch: what happens from now on is not missed, nor what has happened
// since o.Cursor. Errors: ErrCursor, ErrTooMany. Stop must be called.
func (h *Hub) Watch(o Watch) (*Watcher, error) {
	position, known := uint64(0), false
	if o.Cursor != "" {
		var err error
		if position, known, err = h.position(o.Cursor); err != nil {
			return nil, err
		}
	}
	woken := make(chan struct{}, 1)
	w := &Watcher{hub: h, changes: newReader(o.Tenant, o.ConversationIDs, woken)}
	ids := len(w.changes.ids)
	if err := h.register(ids); err != nil {
		return nil, err
	}
	if o.TurnEvents {
		w.events = newReader(o.Tenant, o.ConversationIDs, woken)
		h.events.addReader(w.events)
	}
	w.position = h.changes.addReader(w.changes)
	if o.Cursor != "" {
		if w.gap = !known || !h.changes.rewind(w.changes, position); !w.gap {
			w.position = position
		}
	}
	w.stop = func() {
		h.changes.removeReader(w.changes)
		if w.events != nil {
			h.events.removeReader(w.events)
		}
		h.unregister(ids)
	}
	return w, nil
}

// Stop ends the watcher. It may be called more than once.
func (w *Watcher) Stop() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// All yields what a stream is to send: a GAP if the cursor is too old, a heartbeat, then what
// happens, and a heartbeat whenever nothing has for a while. It ends with the cause of
// ctx's end, or without an error when stop is closed.
//
// What is yielded is shared, is not to be changed, and holds its change in wire form: it can
// be sent, but its fields cannot be read before it has been.
func (w *Watcher) All(ctx context.Context, stop <-chan struct{}) iter.Seq2[*parleyv1.WatchConversationsResponse, error] {
	return func(yield yieldFunc) {
		if w.gap && !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return
		}
		if !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT), nil) {
			return
		}
		heartbeat := time.NewTimer(heartbeatInterval)
		defer heartbeat.Stop()
		for due := false; ; {
			sent, idle, ok := w.yieldPending(yield)
			if due && ok && !sent {
				ok, sent = yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT), nil), true
			}
			if !ok {
				return
			}
			if sent {
				heartbeat.Reset(heartbeatInterval)
			}
			if due = false; !idle {
				select {
				case w.changes.wake <- struct{}{}: // There is more at once.
				default:
				}
			}
			select {
			case <-w.changes.wake:
			case <-heartbeat.C:
				due = true // Once it is sure that nothing came just now.
			case <-stop:
				return
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// drain yields what there is, in the order in which it happened, and reports whether that was
// anything, whether the watcher will be woken when there is more, and whether to go on.
func (w *Watcher) yieldPending(yield yieldFunc) (sent, idle, ok bool) {
	changes, events := w.hub.changes.end(), w.hub.events.end() // What is behind these is for the next time.
	idle = true
	for more := w.events != nil; more; {
		b := w.hub.events.next(w.events, events)
		if b.gap && !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return true, false, false
		}
		for _, e := range b.entries {
			if _, _, ok := w.yieldChanges(e.afterChange, yield); !ok || !w.yieldEntry(e, yield) {
				return true, false, false
			}
		}
		sent, idle, more = sent || b.gap || len(b.entries) > 0, b.idle, b.more
	}
	sentToo, idleToo, ok := w.yieldChanges(changes, yield)
	return sent || sentToo, idle && idleToo, ok
}

// drainChanges yields the changes up to a position.
func (w *Watcher) yieldChanges(through uint64, yield yieldFunc) (sent, idle, ok bool) {
	for {
		b := w.hub.changes.next(w.changes, through)
		w.position = b.position
		if b.gap && !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return true, false, false
		}
		for _, e := range b.entries {
			if !w.yieldEntry(e, yield) {
				return true, false, false
			}
		}
		sent = sent || b.gap || len(b.entries) > 0
		if !b.more {
			return sent, b.idle, true
		}
	}
}

// yield yields an entry.
func (w *Watcher) yieldEntry(e *entry, yield yieldFunc) bool {
	response, err := e.encodeOnce(w.hub, w.position)
	return yield(response, err) && err == nil
}

// mark is a response without a change of a conversation.
func (w *Watcher) newChange(kind parleyv1.ChangeKind) *parleyv1.WatchConversationsResponse {
	return &parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{
		Cursor: w.hub.cursor(w.position), Kind: kind, Time: timestamppb.Now(),
	}}
}
