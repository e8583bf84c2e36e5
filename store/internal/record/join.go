package record

import (
	"fmt"
	"iter"
	"math"

	"github.com/parleyhq/parley/store"
)

// ChunkReader reads the chunks of one conversation. If a chunk is damaged, the error is store.ErrCorrupt.
type ChunkReader interface {
	// Head returns the chunk that has the first message with that sequence or a later one, without its messages. If there
	// is none, the error is store.ErrCorrupt.
	Head(sequence int32) (*Chunk, error)
	// From returns the chunks that end with that sequence or a later one, oldest first.
	From(sequence int32) ([]*Chunk, error)
	// Before yields the chunks that end before that sequence, newest first. It ends after an error.
	Before(sequence int32) iter.Seq2[*Chunk, error]
}

// joinedChunk is a chunk that join has added.
type joinedChunk struct {
	last  int32
	sizes []FrameSize
}

// joinAfter adds the messages of the chunks with messages after a sequence to the other messages of the record, so that
// any message after it can be removed. It does not read older chunks. If the chunks are not those that the header
// describes, the error is store.ErrCorrupt. The record then shares no memory with them.
func (r *Record) joinAfter(sequence int32) error {
	if !r.Divided() {
		return nil
	}
	first := r.Header.GetChunks().GetFirstSequence()
	r.joinedFrom = max(first, min(sequence, math.MaxInt32-1)+1)
	chunks, err := r.Chunks.From(r.joinedFrom)
	if err != nil {
		return err
	}
	return r.join(chunks, r.joinedFrom == first || len(chunks) > 0 && chunks[0].First() <= first)
}

// join adds the messages of the newest chunks to the other messages. all says that there are no others.
func (r *Record) join(chunks []*Chunk, all bool) error {
	header, size := r.Header.GetChunks(), 0
	for _, c := range chunks {
		size += len(c.Messages)
	}
	messages, data := make(store.Frames, 0, size+len(r.Messages)), []byte{}
	count := 0
	r.joined = make([]joinedChunk, 0, len(chunks))
	for _, c := range chunks {
		sizes, dropped := c.Retained(header.GetFirstSequence())
		if len(sizes) == 0 {
			continue // The store has not removed it yet.
		}
		count, messages = count+len(sizes), append(messages, c.Messages[dropped:]...)
		data = append(data, c.Data[dataBefore(c.Data, header.GetFirstSequence()):]...)
		r.joined = append(r.joined, joinedChunk{last: c.Last(), sizes: c.Sizes})
		header.BodyBytes -= bodyBytes(c.Messages[dropped:])
	}
	left, leftBytes := int(header.GetMessages())-count, header.GetBytes()-int64(len(messages))
	if left < 0 || leftBytes < 0 || (left == 0) != (leftBytes == 0) || all && left > 0 {
		return fmt.Errorf("%w: conversation %q has %d messages of %d bytes in chunks, its header says %d of %d",
			store.ErrCorrupt, r.Conversation().GetId(), count, len(messages), header.GetMessages(), header.GetBytes())
	}
	header.Messages, header.Bytes, r.Types = int32(left), leftBytes, addTypes(r.Types, data, -1)
	r.Messages, r.Data = append(messages, r.Messages...), append(data, r.Data...)
	return nil
}

// older yields the retained messages of the chunks that joinAfter has not added, in batches, the newest batch first.
func (r *Record) older() iter.Seq2[store.Frames, error] {
	return func(yield func(store.Frames, error) bool) {
		header := r.Header.GetChunks()
		if header.GetMessages() == 0 {
			return
		}
		for c, err := range r.Chunks.Before(r.joinedFrom) {
			if err != nil {
				yield(nil, err)
				return
			}
			sizes, dropped := c.Retained(header.GetFirstSequence())
			if len(sizes) == 0 || !yield(c.Messages[dropped:], nil) {
				return
			}
		}
	}
}

// newestOlder returns the newest message that older yields, or nil if there is none.
func (r *Record) newestOlder() (newest store.Frame, err error) {
	for frames, err := range r.older() {
		if err != nil {
			return nil, err
		}
		for frame := range frames.All() {
			newest = frame
		}
		break
	}
	return newest, nil
}

// olderCalls returns the calls that results with these ids answer after all messages that older yields. It reads these
// only until it has found a message with calls for each id.
func (r *Record) olderCalls(ids map[string]bool) (openCalls, error) {
	found, answered := openCalls{}, map[string]int{} // by id: results after the messages that were read
	for frames, err := range r.older() {
		if err != nil {
			return nil, err
		}
		calls := openCalls{}
		_, unknown, err := calls.read(frames)
		if err != nil {
			return nil, err
		}
		for id := range ids {
			if c, ok := calls[id]; ok {
				c.count = max(0, c.count-answered[id])
				found[id] = c
				delete(ids, id)
			}
		}
		for _, p := range unknown {
			answered[p.id]++
		}
		if len(ids) == 0 {
			break
		}
	}
	return found, nil
}
