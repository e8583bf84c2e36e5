package record

import (
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
)

// Read builds the result of a store.Read. r is the conversation, or nil if there is none or it has
// expired. Its messages are needed only if q asks for some. The snapshot shares the header with r, and the
// messages if q.Shared is set. Errors: store.ErrNotFound, store.ErrRequestReused, store.ErrCorrupt.
func Read(r *Record, q *store.Read, now time.Time) (*store.Snapshot, error) {
	if r == nil {
		return nil, store.ErrNotFound
	}
	if c := r.Conversation(); q.Known.Is(store.Known{Version: c.GetVersion(), UID: c.GetUid()}) {
		return &store.Snapshot{Unchanged: true}, nil
	}
	seen, err := r.Seen(q.Request)
	if err != nil {
		return nil, err
	}
	r.removeExpiredLease(now)
	messages := r.Messages.Newest(q.Newest)
	if !q.Shared {
		messages = slices.Clone(messages)
	}
	snapshot := &store.Snapshot{
		Conversation: r.withPrompt(),
		Messages:     messages,
		DroppedBytes: r.Header.GetDroppedBytes(),
		Seen:         seen,
	}
	if q.Turns {
		turns, err := r.AllTurns()
		if err != nil {
			return nil, err
		}
		snapshot.Turns, snapshot.Events = turns.GetTurns(), turns.GetEvents()
	}
	return snapshot, nil
}
