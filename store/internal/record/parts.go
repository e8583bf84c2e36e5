package record

import (
	"fmt"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
)

// Head returns a copy of the record with the header and the index of data alone, for stores that keep requests, turns,
// prompt and messages as values of their own. MarshalHead encodes it, and Unmarshal decodes it.
func (r *Record) Head() *Record {
	return &Record{Header: r.Header, Data: joined(r.Data, r.newData), Types: r.Types}
}

// Added returns those messages that an append has added and not dropped at once.
func (r *Record) Added() store.Frames { return r.newMessages }

// CountAside counts the oldest messages as messages in chunks, for stores that keep all messages in one list and only
// need not know the size of each: if there are more than limit other messages, half of the limit remains. It returns
// the sizes of the others. It moves no message: a ChunkReader of the store reads them from its list, see ChunkOf.
func (r *Record) CountAside(limit int) []FrameSize {
	if c := r.Header.GetChunks(); c != nil && c.GetMessages() == 0 {
		r.Header.Chunks, r.Types = nil, nil // All were dropped or joined.
	}
	var sizes []FrameSize
	for s := range r.AllSizes().All() {
		sizes = append(sizes, s)
	}
	if len(sizes) <= limit {
		return sizes
	}
	aside := sizes[:len(sizes)-limit/2]
	if r.Header.GetChunks() == nil {
		r.Header.Chunks = &storev1.Chunks{FirstSequence: aside[0].Sequence}
	}
	c := r.Header.GetChunks()
	for _, s := range aside {
		c.Messages, c.Bytes, c.BodyBytes = c.Messages+1, c.Bytes+int64(s.Bytes), c.BodyBytes+int64(s.Body)
	}
	r.Data, r.newData = joined(r.Data, r.newData), nil
	cut := dataBefore(r.Data, aside[len(aside)-1].Sequence+1)
	r.Types, r.Data = addTypes(r.Types, r.Data[:cut], 1), r.Data[cut:]
	return sizes[len(aside):]
}

// MarshalSizes encodes sizes, about 5 bytes each.
func MarshalSizes(sizes []FrameSize) []byte { return packSizes(sizes) }

// UnmarshalSizes decodes the result of MarshalSizes. The error is store.ErrCorrupt.
func UnmarshalSizes(b []byte) ([]FrameSize, error) {
	sizes, _, ok := readSizes(b)
	if !ok {
		return nil, fmt.Errorf("%w: sizes of messages", store.ErrCorrupt)
	}
	return sizes, nil
}

// ListSizes returns a list of sizes.
func ListSizes(sizes []FrameSize) *SizeList {
	l := &SizeList{packed: packSizes(sizes)}
	l.memory = cap(l.packed)
	for _, s := range sizes {
		l.last, l.bytes = s.Sequence, l.bytes+int(s.Bytes)
	}
	return l
}

// ChunkOf returns a chunk of messages, which must not be empty. It decodes all of them. The chunk shares their memory.
// If one is damaged, the error is store.ErrCorrupt.
func ChunkOf(frames store.Frames) (*Chunk, error) {
	h, err := NewHistory(frames)
	if err != nil {
		return nil, err
	}
	if h.count == 0 {
		return nil, fmt.Errorf("%w: a chunk without messages", store.ErrCorrupt)
	}
	return &Chunk{Sizes: Sizes(frames), Data: h.data, Messages: frames}, nil
}
