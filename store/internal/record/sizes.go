package record

import (
	"encoding/binary"
	"iter"
	"slices"

	"github.com/parleyhq/parley/store"
)

// FrameSize is what [Append] needs to know of a retained message.
type FrameSize struct {
	// Bytes is the size of the frame, Body the size of the message in it.
	Bytes, Body int32
	// Sequence is the sequence of the message.
	Sequence int32
}

// Sizes returns the sizes of frames, oldest first.
func Sizes(frames store.Frames) []FrameSize {
	return appendSizes(make([]FrameSize, 0, frames.Count()), frames)
}

func appendSizes(sizes []FrameSize, frames store.Frames) []FrameSize {
	for frame := range frames.All() {
		sizes = append(sizes, FrameSize{Bytes: int32(len(frame)), Body: int32(len(frame.Body())), Sequence: frame.Sequence()})
	}
	return sizes
}

// PackSizes returns sizes in a form that takes a third of their memory; see UnpackSizes.
func PackSizes(sizes []FrameSize) []byte {
	b := make([]byte, 0, 5*len(sizes))
	before := int32(0)
	for _, s := range sizes {
		b = binary.AppendUvarint(b, uint64(s.Bytes))
		b = binary.AppendUvarint(b, uint64(s.Bytes-s.Body))
		b = binary.AppendUvarint(b, uint64(s.Sequence-before))
		before = s.Sequence
	}
	return slices.Clip(b)
}

// UnpackSizes returns the sizes from the result of PackSizes. It must not be called with other bytes.
func UnpackSizes(packed []byte) []FrameSize {
	sizes := make([]FrameSize, 0, len(packed)/3)
	var s FrameSize
	next := func() int32 {
		v, n := binary.Uvarint(packed)
		packed = packed[n:]
		return int32(v)
	}
	for len(packed) > 0 {
		s.Bytes = next()
		s.Body = s.Bytes - next()
		s.Sequence += next()
		sizes = append(sizes, s)
	}
	return sizes
}

// MessageBytes returns the size of the retained messages in bytes.
func (r *Record) MessageBytes() int { return r.chunkBytes() + r.TailBytes() }

// TailBytes returns the size of the retained messages that are not in chunks, in bytes.
func (r *Record) TailBytes() int {
	n := len(r.Messages) + len(r.newMessages)
	for _, s := range r.Sizes {
		n += int(s.Bytes)
	}
	return n
}

// TailFrames returns the retained messages that are not in chunks: those with which the record was decoded, and the
// appended ones. kept shares the memory of r.Messages, unless messages were removed. r must have no Sizes.
func (r *Record) TailFrames() (kept, added store.Frames) { return r.Messages, r.newMessages }

// frameSizes yields the sizes of the frames and bodies of the retained messages that are not in chunks, oldest first.
func (r *Record) frameSizes() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		for _, s := range r.Sizes {
			if !yield(int(s.Bytes), int(s.Body)) {
				return
			}
		}
		for _, frames := range []store.Frames{r.Messages, r.newMessages} {
			for frame := range frames.All() {
				if !yield(len(frame), len(frame.Body())) {
					return
				}
			}
		}
	}
}

// drop removes the oldest n messages that are not in chunks, whose frames have that many bytes.
func (r *Record) drop(n, bytes int) {
	for ; n > 0 && len(r.Sizes) > 0; n-- {
		bytes -= int(r.Sizes[0].Bytes)
		r.Sizes = r.Sizes[1:]
	}
	old := min(bytes, len(r.Messages))
	r.Messages, r.newMessages = r.Messages[old:], r.newMessages[bytes-old:]
}

// firstSequence returns the sequence of a message before which the record retains none.
func (r *Record) firstSequence() int32 {
	if c := r.Header.GetChunks(); c.GetMessages() > 0 {
		return c.GetFirstSequence()
	}
	return r.oldestSequence()
}

// oldestSequence returns the sequence of the oldest retained message that is not in a chunk, or 0 if there is none.
func (r *Record) oldestSequence() int32 {
	if len(r.Sizes) > 0 {
		return r.Sizes[0].Sequence
	}
	for _, frames := range []store.Frames{r.Messages, r.newMessages} {
		for frame := range frames.All() {
			return frame.Sequence()
		}
	}
	return 0
}
