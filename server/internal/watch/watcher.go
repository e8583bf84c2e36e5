package watch

import (
	"context"
	"iter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// heartbeatEvery is how long a watcher may hear nothing.
const heartbeatEvery = 15 * time.Second

// yielder takes what a stream is to send; false: no more.
type yielder = func(*parleyv1.WatchConversationsResponse, error) bool

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
	hub     *Hub
	changes *reader
	events  *reader // nil: not wanted
	lost    bool    // the cursor is from before the server's start
	at      uint64  // position of the last cursor that was given
	stop    func()
}

// Watch begins to watch: what happens from now on is not missed, nor what has happened
// since o.Cursor. Errors: ErrCursor, ErrTooMany. Stop must be called.
func (h *Hub) Watch(o Watch) (*Watcher, error) {
	position, known := uint64(0), true
	if o.Cursor != "" {
		var err error
		if position, known, err = h.position(o.Cursor); err != nil {
			return nil, err
		}
	}
	if err := h.enter(len(o.ConversationIDs)); err != nil {
		return nil, err
	}
	woken := make(chan struct{}, 1)
	w := &Watcher{hub: h, changes: newReader(o.Tenant, o.ConversationIDs, woken), lost: !known}
	if o.TurnEvents {
		w.events = newReader(o.Tenant, o.ConversationIDs, woken)
		h.events.join(w.events)
	}
	h.changes.join(w.changes)
	if o.Cursor != "" && known {
		h.changes.rewind(w.changes, position)
		w.at = position
	} else {
		w.at = w.changes.position
	}
	w.stop = func() {
		h.changes.part(w.changes)
		if w.events != nil {
			h.events.part(w.events)
		}
		h.leave(len(o.ConversationIDs))
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
// ctx's end, or without an error when stop is closed. What is yielded is shared, is not to be changed, and holds its change in wire
// form: it can be sent, but its fields cannot be read before it has been.
func (w *Watcher) All(ctx context.Context, stop <-chan struct{}) iter.Seq2[*parleyv1.WatchConversationsResponse, error] {
	return func(yield yielder) {
		first := w.mark(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT)
		if w.lost && !yield(w.mark(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) || !yield(first, nil) {
			return
		}
		silence := time.NewTimer(heartbeatEvery)
		defer silence.Stop()
		for beat := false; ; {
			sent, idle, ok := w.drain(yield)
			if beat && ok && !sent {
				ok, sent = yield(w.mark(parleyv1.ChangeKind_CHANGE_KIND_HEARTBEAT), nil), true
			}
			if !ok {
				return
			}
			if sent {
				silence.Reset(heartbeatEvery)
			}
			if beat = false; !idle {
				select {
				case w.changes.woken <- struct{}{}: // There is more at once.
				default:
				}
			}
			select {
			case <-w.changes.woken:
			case <-silence.C:
				beat = true // Once it is sure that nothing came just now.
			case <-stop:
				return
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// drain yields what there is, and reports whether that was anything, whether the watcher
// will be woken when there is more, and whether to go on. A turn's events come after the
// changes that were committed ahead of them: its last one after its answer.
func (w *Watcher) drain(yield yielder) (sent, idle, ok bool) {
	events := w.hub.events.end() // Ahead of the changes' end.
	sent, idle, ok = w.drainFeed(w.hub.changes, w.changes, w.hub.changes.end(), yield)
	if !ok || w.events == nil {
		return sent, idle, ok
	}
	sentToo, idleToo, ok := w.drainFeed(w.hub.events, w.events, events, yield)
	return sent || sentToo, idle && idleToo, ok
}

func (w *Watcher) drainFeed(f *feed, r *reader, through uint64, yield yielder) (sent, idle, ok bool) {
	for {
		b := f.next(r, through)
		if f == w.hub.changes {
			w.at = b.position
		}
		if b.lost && !yield(w.mark(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return true, false, false
		}
		for _, e := range b.entries {
			response, err := e.response(w.hub, w.at)
			if !yield(response, err) || err != nil {
				return true, false, false
			}
		}
		sent = sent || b.lost || len(b.entries) > 0
		if !b.more {
			return sent, b.idle, true
		}
	}
}

// mark is a response without a change of a conversation.
func (w *Watcher) mark(kind parleyv1.ChangeKind) *parleyv1.WatchConversationsResponse {
	return &parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{
		Cursor: w.hub.cursor(w.at), Kind: kind, Time: timestamppb.Now(),
	}}
}
