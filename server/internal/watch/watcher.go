package watch

import (
	"context"
	"iter"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// heartbeatInterval is the maximum time without a response for a watcher.
const heartbeatInterval = 15 * time.Second

// yieldFunc receives responses for a stream. It returns false to stop.
type yieldFunc = func(*parleyv1.WatchConversationsResponse, error) bool

// Watch selects what a Watcher follows.
type Watch struct {
	// Tenant is the tenant whose conversations are watched.
	Tenant string
	// ConversationIDs are the watched conversations. If empty, all conversations of the tenant are
	// watched.
	ConversationIDs []string
	// Cursor is the position to resume from. If empty, the watch starts now.
	Cursor string
	// TurnEvents adds the events of turns, and Records the changes of records.
	TurnEvents, Records bool
}

// Watcher yields the responses for a Watch. It must be used by one goroutine at a time.
type Watcher struct {
	tenant  *tenant
	gaps    *atomic.Int64 // of the hub
	changes *reader
	records *reader // nil without records
	events  *reader // nil without turn events
	gap     bool    // changes after the requested cursor were dropped
	at      place   // of the newest cursor that was yielded
	stop    func()

	// changesIdle and recordsIdle are set if the reader has no more entries and will be woken.
	changesIdle, recordsIdle bool
}

// Watch starts a watcher. The watcher misses no change after o.Cursor, and none from now on.
// Errors: ErrCursor, ErrTooMany. The caller must call Stop.
func (h *Hub) Watch(o Watch) (*Watcher, error) {
	woken := make(chan struct{}, 1)
	w := &Watcher{changes: newReader(o.ConversationIDs, woken), gaps: &h.gaps}
	ids := len(w.changes.ids)
	t, err := h.register(o.Tenant, ids)
	if err != nil {
		return nil, err
	}
	w.tenant = t
	var from place
	known := false
	if o.Cursor != "" {
		if from, known, err = t.place(o.Cursor); err != nil {
			h.unregister(t, ids)
			return nil, err
		}
	}
	if o.TurnEvents {
		w.events = newReader(o.ConversationIDs, woken)
		h.eventReaders.Add(1)
		t.events.addReader(w.events)
	}
	w.at.shared = t.end().shared
	if w.at.record = t.records.end(); o.Records { // Before the changes: they must not refer to earlier records.
		w.records = newReader(o.ConversationIDs, woken)
		w.at.record = t.records.addReader(w.records)
	}
	w.at.change = t.changes.addReader(w.changes)
	if o.Cursor != "" {
		w.rewind(from, known)
	}
	w.stop = func() {
		t.changes.removeReader(w.changes)
		if w.records != nil {
			t.records.removeReader(w.records)
		}
		if w.events != nil {
			t.events.removeReader(w.events)
			h.eventReaders.Add(-1)
			h.events.refund(t.events)
		}
		h.unregister(t, ids)
	}
	return w, nil
}

// rewind moves a new watcher back to a place. If entries after it were dropped, or it is not known, the watcher has a
// gap.
func (w *Watcher) rewind(to place, known bool) {
	if known && to.shared != (store.Place{}) {
		w.rewindTo(to.shared)
		return
	}
	if w.gap = !known || !w.tenant.changes.rewind(w.changes, to.change); !w.gap {
		w.at.change = to.change
	}
	switch {
	case w.records == nil && !w.gap:
		w.at.record = to.record
	case w.records == nil:
	case known && w.tenant.records.rewind(w.records, to.record):
		w.at.record = to.record
	default:
		w.gap = true
	}
	if !w.gap {
		w.at.shared = store.Place{}
	}
}

// rewindTo moves a new watcher to a place in the store, as rewind does.
func (w *Watcher) rewindTo(at store.Place) {
	change, known := w.tenant.changes.rewindTo(w.changes, at)
	if known {
		w.at.change = change
	}
	if w.gap = !known; w.records != nil {
		record, known := w.tenant.records.rewindTo(w.records, at)
		if known {
			w.at.record = record
		}
		w.gap = w.gap || !known
	}
	if !w.gap {
		w.at.shared = at
	}
}

// Stop ends the watcher. It may be called more than once.
func (w *Watcher) Stop() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// All yields the responses for a stream: a GAP if the cursor is too old, a heartbeat, then changes
// and events. When there are none for heartbeatInterval, it yields a heartbeat. All ends with the
// cause of ctx, or without an error when stop is closed.
//
// Responses are shared between watchers and must not be changed. They contain the change in encoded
// form: they can be sent, but their fields cannot be read without encoding and decoding them.
func (w *Watcher) All(
	ctx context.Context, stop <-chan struct{},
) iter.Seq2[*parleyv1.WatchConversationsResponse, error] {
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
				case w.changes.wake <- struct{}{}: // There are more entries.
				default:
				}
			}
			select {
			case <-w.changes.wake:
			case <-heartbeat.C:
				due = true // Yield the heartbeat only if there are no new entries.
			case <-stop:
				return
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// yieldPending yields the pending entries in the order in which they happened. It reports whether
// it yielded any, whether the watcher will be woken for more, and whether to continue.
func (w *Watcher) yieldPending(yield yieldFunc) (sent, idle, ok bool) {
	// Entries after these are for the next call.
	changes, newest := w.tenant.changes.endPlace()
	records, events := w.tenant.records.end(), w.tenant.events.end()
	idle = true
	for more := w.events != nil; more; {
		b := w.tenant.events.next(w.events, events)
		if b.gap && !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
			return true, false, false
		}
		for _, e := range b.entries {
			if _, ok := w.yieldChanges(e.afterChange, yield); !ok || !w.yieldEntry(e, yield) {
				return true, false, false
			}
		}
		sent, idle, more = sent || b.gap || len(b.entries) > 0, b.idle, b.more
	}
	sentChanges, ok := w.yieldChanges(changes, yield)
	if !ok {
		return true, false, false
	}
	sentRecords, ok := w.yieldRecords(records, yield)
	if w.at.change == changes { // The records before the newest change were yielded, too.
		w.at.shared = later(w.at.shared, newest)
	}
	return sent || sentChanges || sentRecords, idle && w.changesIdle && (w.recordsIdle || w.records == nil), ok
}

// yieldChanges yields the changes up to a position, each after the records before it. It reports whether it yielded
// any, and whether to continue.
func (w *Watcher) yieldChanges(through uint64, yield yieldFunc) (sent, ok bool) {
	for {
		b := w.tenant.changes.next(w.changes, through)
		w.changesIdle = b.idle
		if b.gap {
			w.at.change, w.at.shared = b.position, later(w.at.shared, w.tenant.end().shared)
			if !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
				return true, false
			}
		}
		for _, e := range b.entries {
			if !w.yieldRecordsBefore(e, yield) {
				return true, false
			}
			if w.at = e.place(); !w.yieldEntry(e, yield) {
				return true, false
			}
		}
		w.at.change = max(w.at.change, min(b.position, through))
		sent = sent || b.gap || len(b.entries) > 0
		if !b.more {
			return sent, true
		}
	}
}

// yieldRecordsBefore yields the changes of records before a change. The changes before these were yielded already. It
// reports whether to continue.
func (w *Watcher) yieldRecordsBefore(e *entry, yield yieldFunc) bool {
	if w.records == nil || e.afterRecord <= w.at.record {
		return true
	}
	_, ok := w.yieldRecords(e.afterRecord, yield)
	return ok
}

// yieldRecords yields the changes of records up to a position, each after the changes before it. Its results are those
// of yieldChanges.
//
// It and yieldChanges call each other, but no deeper than that: what comes before the first entry of an inner call was
// yielded by the outer ones. An outer call may have taken entries from the feed that it has not yielded, so the reader
// of the feed may be after w.at.
func (w *Watcher) yieldRecords(through uint64, yield yieldFunc) (sent, ok bool) {
	for more := w.records != nil; more; {
		b := w.tenant.records.next(w.records, through)
		w.recordsIdle = b.idle
		if b.gap {
			w.at.record, w.at.shared = b.position, later(w.at.shared, w.tenant.end().shared)
			if !yield(w.newChange(parleyv1.ChangeKind_CHANGE_KIND_GAP), nil) {
				return true, false
			}
		}
		for _, e := range b.entries {
			if e.afterChange > w.at.change {
				if _, ok := w.yieldChanges(e.afterChange, yield); !ok {
					return true, false
				}
			}
			if w.at.record, w.at.shared = e.position, e.shared; !w.yieldEntry(e, yield) {
				return true, false
			}
		}
		w.at.record = max(w.at.record, min(b.position, through))
		sent, more = sent || b.gap || len(b.entries) > 0, b.more
	}
	return sent, true
}

// yieldEntry yields an entry. It reports whether to continue.
func (w *Watcher) yieldEntry(e *entry, yield yieldFunc) bool {
	if e.gap {
		w.gaps.Add(1)
	}
	response, err := e.encodeOnce(w.tenant, w.at)
	return yield(response, err) && err == nil
}

// newChange returns a response of this kind without a conversation.
func (w *Watcher) newChange(kind parleyv1.ChangeKind) *parleyv1.WatchConversationsResponse {
	if kind == parleyv1.ChangeKind_CHANGE_KIND_GAP {
		w.gaps.Add(1)
	}
	return &parleyv1.WatchConversationsResponse{Change: &parleyv1.ConversationChange{
		Cursor: w.tenant.cursor(w.at), Kind: kind, Time: timestamppb.Now(),
	}}
}
