// Package chunks reads and encodes the chunks of conversations in a store's file: the older messages of a conversation
// that is too large for one value. It changes no file. Start at [Of].
package chunks

import (
	"bytes"
	"fmt"
	"iter"

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

// Keys returns the keys of all chunks, oldest first.
func (s Set) Keys() [][]byte {
	var keys [][]byte
	for key := range s.from(0) {
		keys = append(keys, bytes.Clone(key))
	}
	return keys
}

// All returns all chunks, oldest first. They are valid until the transaction ends or writes. If one is damaged,
// the error is store.ErrCorrupt.
func (s Set) All() ([]*record.Chunk, error) {
	var all []*record.Chunk
	for key, value := range s.from(0) {
		c, err := record.UnmarshalChunk(key, value)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Head returns what record.Record.OldestChunk returns. If there is no such chunk, or it is damaged, the error is
// store.ErrCorrupt.
func (s Set) Head(sequence int32) (*record.Chunk, error) {
	for key, value := range s.from(sequence) {
		return record.UnmarshalChunkHead(key, value)
	}
	return nil, fmt.Errorf("%w: the chunk with message %d is missing", store.ErrCorrupt, sequence)
}

// Dropped returns the keys of the chunks of which a record retains no message. It stops at a damaged chunk, so that the
// conversation can be written.
func (s Set) Dropped(r *record.Record) [][]byte {
	var keys [][]byte
	header := r.Header.GetChunks()
	if header == nil {
		return nil
	}
	for key, value := range s.from(0) {
		if header.GetMessages() > 0 {
			c, err := record.UnmarshalChunkHead(key, value)
			if err != nil || c.Last() >= header.GetFirstSequence() {
				break
			}
		}
		keys = append(keys, bytes.Clone(key))
	}
	return keys
}

// Newest returns the newest n messages of a record of the conversation, and the others that are in the same chunk or
// in no chunk; all messages if n is negative. r.Messages must be those in no chunk. It reads only the chunks that it
// needs. The result is r.Messages or new memory. If a chunk is missing or damaged, the error is store.ErrCorrupt.
func (s Set) Newest(r *record.Record, n int) (store.Frames, error) {
	missing := r.InChunks(n)
	if missing == 0 {
		return r.Messages, nil
	}
	size := len(r.Messages)
	parts := []store.Frames{r.Messages} // newest first
	for key, value := range s.newest() {
		c, err := record.UnmarshalChunk(key, value)
		if err != nil {
			return nil, err
		}
		retained, skip := c.Retained(r.Header.GetChunks().GetFirstSequence())
		missing -= min(missing, len(retained))
		parts, size = append(parts, c.Messages[skip:]), size+len(c.Messages)-skip
		if missing == 0 {
			break
		}
	}
	if missing > 0 {
		return nil, fmt.Errorf("%w: %d messages of conversation %q are in no chunk", store.ErrCorrupt, missing,
			r.Conversation().GetId())
	}
	frames := make(store.Frames, 0, size)
	for i := range parts {
		frames = append(frames, parts[len(parts)-1-i]...)
	}
	return frames, nil
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

// newest yields the keys and values of the chunks, newest first, in a read-only transaction. It skips keys of other
// lengths.
func (s Set) newest() iter.Seq2[[]byte, []byte] {
	return func(yield func([]byte, []byte) bool) {
		if s.bucket == nil {
			return
		}
		c := s.bucket.Cursor()
		before := c.Prev
		if k, _ := c.Seek(append(bytes.Clone(s.conversation), bytes.Repeat([]byte{0xff}, layout.SequenceSize)...)); k == nil {
			before = c.Last
		}
		k, v := before()
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
	// Chunks are the chunks to put after that, oldest first.
	Chunks []Entry
	// Size is that of record.Record.Size, Written the size of all values, in bytes.
	Size, Written int
}

// Entry is a key and a value.
type Entry struct{ Key, Value []byte }

// Divides reports whether the chunks of the conversation change.
func (e *Encoded) Divides() bool { return len(e.Removed)+len(e.Chunks) > 0 }

// Encode divides a record of the conversation, see record.Record.Divide, and encodes it. dropped is the result of
// Dropped. The error is that of record.Record.Marshal.
func (s Set) Encode(r *record.Record, size int, dropped [][]byte) (e *Encoded, err error) {
	e = &Encoded{Key: s.conversation, Removed: dropped}
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
