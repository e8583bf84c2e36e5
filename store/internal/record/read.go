package record

import (
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
)

// Part is a part of the messages of a conversation that is contiguous and includes all that a read needs.
type Part struct {
	// Messages, oldest first.
	Messages store.Frames
	// OmittedBytes is the size of the retained messages before Messages, without their frames. It is needed for a read
	// with MaxBytes of the newest messages.
	OmittedBytes int64
	// Older and Newer report that the conversation has messages that the read asks for before and after Messages.
	Older, Newer bool
	// OldestSequence is the sequence of the oldest retained message; 0 if it is the first of Messages.
	OldestSequence int32
}

// Read builds the result of a store.Read. r is the conversation, or nil if there is none or it has
// expired. part is needed only if q asks for messages. The snapshot shares the header with r, and the
// messages with part if q.Shared is set. Errors: store.ErrNotFound, store.ErrRequestReused, store.ErrCorrupt.
func Read(r *Record, part Part, q *store.Read, now time.Time) (*store.Snapshot, error) {
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
	snapshot := &store.Snapshot{
		Conversation: r.withPrompt(),
		DroppedBytes: r.Header.GetDroppedBytes(),
		Seen:         seen,
	}
	part.selectFor(q, snapshot)
	if !q.Shared {
		snapshot.Messages = slices.Clone(snapshot.Messages)
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

// selectFor sets the fields of a snapshot that describe the messages of a read.
func (p Part) selectFor(q *store.Read, s *store.Snapshot) {
	if q.WithOldestSequence {
		s.OldestSequence = p.OldestSequence
		for frame := range p.Messages.All() {
			if s.OldestSequence == 0 {
				s.OldestSequence = frame.Sequence()
			}
			break
		}
	}
	within, before := p.Messages, 0
	if q.After > 0 || q.Before > 0 { // The common case reads no sequence.
		within, before = p.within(q)
	}
	s.MoreMessages = p.Older && !q.Oldest || p.Newer && q.Oldest
	var left store.Frames
	if s.Messages, left = limited(within, q); len(left) > 0 {
		s.MoreMessages = true
	}
	if q.MaxBytes > 0 && q.Before == 0 && !q.Oldest {
		s.DroppedBytes += p.OmittedBytes + bodyBytes(p.Messages[:before]) + bodyBytes(left)
	}
}

// within returns the messages between After and Before, and how many bytes of the part are before them.
func (p Part) within(q *store.Read) (messages store.Frames, before int) {
	end := 0
	for frame := range p.Messages.All() {
		sequence := frame.Sequence()
		if q.Before > 0 && sequence >= q.Before {
			break
		}
		end += len(frame)
		if sequence <= q.After {
			before = end
		}
	}
	return p.Messages[before:end], before
}

// limited returns the messages that Newest and MaxBytes select, and the others.
func limited(messages store.Frames, q *store.Read) (selected, left store.Frames) {
	switch {
	case q.Newest == 0:
		return nil, messages
	case q.Newest < 0 && (q.MaxBytes == 0 || len(messages) <= q.MaxBytes):
		return messages, nil
	}
	fits := func(count, size int) bool {
		return count <= 1 || (q.Newest < 0 || count <= q.Newest) && (q.MaxBytes == 0 || size <= q.MaxBytes)
	}
	if q.Oldest {
		count, size := 0, 0
		for frame := range messages.All() {
			if !fits(count+1, size+len(frame)) {
				break
			}
			count, size = count+1, size+len(frame)
		}
		return messages[:size], messages[size:]
	}
	count, size, skip := messages.Count(), len(messages), 0
	for frame := range messages.All() {
		if fits(count, size) {
			break
		}
		count, size, skip = count-1, size-len(frame), skip+len(frame)
	}
	return messages[skip:], messages[:skip]
}

// bodyBytes returns the size of messages without their frames.
func bodyBytes(frames store.Frames) (n int64) {
	for frame := range frames.All() {
		n += int64(len(frame.Body()))
	}
	return n
}

// NeedsChunks reports whether a read needs messages in the chunks of the record. It may report true for a read that
// does not. The record must have its messages that are in no chunk, or their sizes.
func (r *Record) NeedsChunks(q *store.Read) bool {
	switch {
	case !r.Divided() || q.Newest == 0 && !q.WithOldestSequence:
		return false
	case q.WithOldestSequence:
		return true
	case q.After > 0 || q.Before > 0 || q.Oldest:
		first := r.oldestSequence()
		return first == 0 || q.After < first
	case r.InChunks(q.Newest) == 0:
		return false
	default:
		return q.MaxBytes == 0 || r.TailBytes() < q.MaxBytes
	}
}

// Tail returns the part of the messages that are in no chunk, for a read that needs no others.
func (r *Record) Tail(q *store.Read) Part {
	chunks := r.Header.GetChunks()
	return Part{
		Messages: r.Messages, OmittedBytes: chunks.GetBodyBytes(),
		Older: chunks.GetMessages() > 0 && (q.After == 0 || q.After < r.oldestSequence()-1),
	}
}
