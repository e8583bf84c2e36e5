// Package chunks reads and encodes the chunks of conversations in a store's file: the older messages of a conversation
// that is too large for one value. It changes no file. Start at [Of].
package chunks

import (
	"bytes"
	"fmt"
	"iter"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// Set is the chunks of one conversation in a transaction.
type Set struct {
	bucket       *bolt.Bucket // nil if the file has no chunks of any conversation
	conversation []byte
}

// Of returns the chunks of the conversation with that key in the bucket conversations.
func Of(tx *bolt.Tx, conversation []byte) Set {
	return Set{bucket: tx.Bucket([]byte(layout.ChunksBucket)), conversation: conversation}
}

var _ record.ChunkReader = Set{}

// From implements record.ChunkReader. The chunks are valid until the transaction ends or writes.
func (s Set) From(sequence int32) ([]*record.Chunk, error) {
	var all []*record.Chunk
	for key, value := range s.from(sequence) {
		c, err := record.UnmarshalChunk(key, value)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Before implements record.ChunkReader. The chunks are valid until the transaction ends or writes. It looks for keys in
// ranges that double, since a cursor must not move backwards, see from.
func (s Set) Before(sequence int32) iter.Seq2[*record.Chunk, error] {
	return func(yield func(*record.Chunk, error) bool) {
		for span := int32(64); sequence > 0; span = min(span, 1<<29) * 2 {
			end := layout.ChunkKey(s.conversation, sequence)
			sequence = max(0, sequence-span)
			var found []Entry
			for key, value := range s.from(sequence) {
				if bytes.Compare(key, end) >= 0 {
					break
				}
				found = append(found, Entry{key, value})
			}
			for _, e := range slices.Backward(found) {
				c, err := record.UnmarshalChunk(e.Key, e.Value)
				if !yield(c, err) || err != nil {
					return
				}
			}
		}
	}
}

// Head implements record.ChunkReader.
func (s Set) Head(sequence int32) (*record.Chunk, error) {
	for key, value := range s.from(sequence) {
		return record.UnmarshalChunkHead(key, value)
	}
	return nil, fmt.Errorf("%w: the chunk with message %d is missing", store.ErrCorrupt, sequence)
}

// MaxDropped is the maximum number of dropped chunks that a write of a conversation removes.
const MaxDropped = 256

// Dropped is the chunks of which a record retains no message. The zero value is none.
type Dropped struct {
	// Keys of the oldest of them, MaxDropped at most.
	Keys [][]byte
	// Before is 0 if there are no others. Otherwise all chunks that end before this sequence are dropped.
	Before int32
}

// Dropped returns the chunks of which a record retains no message. Their keys suffice, so it reads no chunk.
func (s Set) Dropped(r *record.Record) (d Dropped) {
	first := r.Header.GetChunks().GetFirstSequence()
	end := layout.ChunkKey(s.conversation, first)
	for key := range s.from(0) {
		if bytes.Compare(key, end) >= 0 {
			break
		}
		if len(d.Keys) == MaxDropped {
			d.Before = first
			break
		}
		d.Keys = append(d.Keys, bytes.Clone(key))
	}
	return d
}

// Part returns the messages of a record of the conversation that a read needs, see record.Record.NeedsChunks, and
// others in the same chunks or in no chunk. r.Messages must be those in no chunk. It reads only the chunks that it
// needs. The messages are new memory. If a chunk is missing or damaged, the error is store.ErrCorrupt.
func (s Set) Part(r *record.Record, q *store.Read) (p record.Part, err error) {
	header := r.Header.GetChunks()
	if q.WithOldestSequence && header.GetMessages() > 0 {
		oldest, err := s.Head(header.GetFirstSequence())
		if err != nil {
			return p, err
		}
		sizes, _ := oldest.Retained(header.GetFirstSequence())
		if len(sizes) == 0 {
			return p, fmt.Errorf("%w: message %d is in no chunk", store.ErrCorrupt, header.GetFirstSequence())
		}
		p.OldestSequence = sizes[0].Sequence
	}
	w := partWalk{read: q, record: r}
	switch {
	case q.Newest == 0:
		return p, nil
	case q.Oldest:
		err = w.walkOldest(s)
	default:
		err = w.walkNewest(s)
	}
	p.Older, p.Newer, p.Messages = w.older, w.newer, w.join()
	p.OmittedBytes = header.GetBodyBytes() - w.bodies
	return p, err
}

// partWalk collects the messages of a read.
type partWalk struct {
	read   *store.Read
	record *record.Record

	parts        []store.Frames // newest first, unless read.Oldest is set
	loaded       int            // retained messages in the chunks that were read
	bodies       int64          // their size without frames
	count, size  int            // number and size of the messages in parts that the read asks for
	older, newer bool           // see record.Part
}

// enough reports whether the collected messages reach the limits of the read.
func (w *partWalk) enough() bool {
	q := w.read
	return w.count > 0 && (q.Newest > 0 && w.count >= q.Newest || q.MaxBytes > 0 && w.size >= q.MaxBytes)
}

// isWanted reports whether the read asks for a message with this sequence, apart from its limits.
func (w *partWalk) isWanted(sequence int32) bool {
	return sequence > w.read.After && (w.read.Before == 0 || sequence < w.read.Before)
}

// add adds messages with these sizes.
func (w *partWalk) add(messages store.Frames, sizes []record.FrameSize) {
	w.parts = append(w.parts, messages)
	for _, s := range sizes {
		if w.isWanted(s.Sequence) {
			w.count, w.size = w.count+1, w.size+int(s.Bytes)
		}
	}
}

// addChunk adds the retained messages of a chunk.
func (w *partWalk) addChunk(c *record.Chunk) {
	sizes, skip := c.Retained(w.record.Header.GetChunks().GetFirstSequence())
	w.add(c.Messages[skip:], sizes)
	w.loaded += len(sizes)
	for _, s := range sizes {
		w.bodies += int64(s.Body)
	}
}

// walkOldest collects messages from the oldest on.
func (w *partWalk) walkOldest(s Set) error {
	header, q := w.record.Header.GetChunks(), w.read
	if header.GetMessages() > 0 {
		for key, value := range s.from(max(q.After+1, header.GetFirstSequence())) {
			c, err := record.UnmarshalChunk(key, value)
			if err != nil {
				return err
			}
			if q.Before > 0 && c.First() >= q.Before {
				return nil
			}
			if w.enough() {
				w.newer = true
				return nil
			}
			w.addChunk(c)
		}
	}
	if q.After == 0 && w.loaded != int(header.GetMessages()) {
		return w.lacks()
	}
	tail := record.Sizes(w.record.Messages)
	if w.enough() {
		w.newer = len(tail) > 0 && w.isWanted(tail[0].Sequence)
		return nil
	}
	w.add(w.record.Messages, tail)
	return nil
}

// walkNewest collects messages from the newest on.
func (w *partWalk) walkNewest(s Set) error {
	header, q := w.record.Header.GetChunks(), w.read
	w.add(w.record.Messages, record.Sizes(w.record.Messages))
	for key, value := range s.newest(q.Before) {
		last := layout.SequenceOf(key)
		if last <= q.After || last < header.GetFirstSequence() {
			break
		}
		if w.enough() {
			w.older = true
			return nil
		}
		c, err := record.UnmarshalChunk(key, value)
		if err != nil {
			return err
		}
		w.addChunk(c)
	}
	if q.After == 0 && q.Before == 0 && w.loaded != int(header.GetMessages()) {
		return w.lacks()
	}
	return nil
}

func (w *partWalk) lacks() error {
	return fmt.Errorf("%w: the chunks of conversation %q have %d messages, its header says %d", store.ErrCorrupt,
		w.record.Conversation().GetId(), w.loaded, w.record.Header.GetChunks().GetMessages())
}

// join returns the collected messages, oldest first.
func (w *partWalk) join() store.Frames {
	if !w.read.Oldest {
		slices.Reverse(w.parts)
	}
	return slices.Concat(w.parts...)
}

// from yields the keys and values of the chunks, oldest first, from the one that may have the message with that
// sequence on. It skips keys of other lengths. It only moves forward: in a transaction that has deleted entries,
// bolt.Cursor.Prev may stop at an empty page, which Seek and Next skip.
func (s Set) from(sequence int32) iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		if s.bucket == nil {
			return
		}
		c := s.bucket.Cursor()
		k, v := c.Seek(layout.ChunkKey(s.conversation, sequence))
		for ; bytes.HasPrefix(k, s.conversation); k, v = c.Next() {
			if len(k) == len(s.conversation)+layout.SequenceSize && !yield(k, v) {
				return
			}
		}
	}
}

// newest yields the keys and values of the chunks, newest first, in a read-only transaction: from the one that may have
// the message before a sequence on, or all if the sequence is 0. It skips keys of other lengths.
func (s Set) newest(sequence int32) iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		if s.bucket == nil {
			return
		}
		c := s.bucket.Cursor()
		above := append(bytes.Clone(s.conversation), bytes.Repeat([]byte{0xff}, layout.SequenceSize)...)
		var k, v []byte
		if sequence > 0 {
			k, v = c.Seek(layout.ChunkKey(s.conversation, sequence-1))
		}
		if !bytes.HasPrefix(k, s.conversation) { // No chunk ends there or later.
			before := c.Prev
			if next, _ := c.Seek(above); next == nil {
				before = c.Last
			}
			k, v = before()
		}
		for ; bytes.HasPrefix(k, s.conversation); k, v = c.Prev() {
			if len(k) == len(s.conversation)+layout.SequenceSize && !yield(k, v) {
				return
			}
		}
	}
}

// Encoded is a conversation in the form in which the file has it.
type Encoded struct {
	// Key and Value are those in conversations.
	Key, Value []byte
	// Removed are the keys of chunks to remove.
	Removed [][]byte
	// Before is that of Dropped.
	Before int32
	// Chunks are the chunks to put after that, oldest first.
	Chunks []Entry
	// Size is that of record.Record.Size, Written the size of all values, in bytes.
	Size, Written int
}

// Entry is a key and a value.
type Entry struct{ Key, Value []byte }

// Divides reports whether the chunks of the conversation change.
func (e *Encoded) Divides() bool { return len(e.Removed)+len(e.Chunks) > 0 }

// Encode divides a record of the conversation, see record.Record.Divide, and encodes it. d is the result of Dropped.
// The error is that of record.Record.Marshal.
func (s Set) Encode(r *record.Record, size int, d Dropped) (e *Encoded, err error) {
	e = &Encoded{Key: s.conversation, Removed: d.Keys, Before: d.Before}
	put, removed := r.Divide(size)
	for _, last := range removed {
		e.Removed = append(e.Removed, layout.ChunkKey(e.Key, last))
	}
	for _, c := range put {
		key := layout.ChunkKey(e.Key, c.Last())
		entry := Entry{Key: key, Value: c.Marshal(key)}
		e.Chunks, e.Written = append(e.Chunks, entry), e.Written+len(entry.Value)
	}
	if e.Value, err = r.Marshal(); err != nil {
		return nil, err
	}
	e.Size, e.Written = r.Size(), e.Written+len(e.Value)
	return e, nil
}
