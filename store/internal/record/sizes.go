package record

import (
	"iter"

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

// MessageBytes returns the size of the retained messages in bytes.
func (r *Record) MessageBytes() int {
	n := len(r.Messages) + len(r.newMessages)
	for _, s := range r.Sizes {
		n += int(s.Bytes)
	}
	return n
}

// frameSizes yields the sizes of the frames and bodies of the retained messages, oldest first.
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

// drop removes the oldest n messages, whose frames have that many bytes.
func (r *Record) drop(n, bytes int) {
	for ; n > 0 && len(r.Sizes) > 0; n-- {
		bytes -= int(r.Sizes[0].Bytes)
		r.Sizes = r.Sizes[1:]
	}
	old := min(bytes, len(r.Messages))
	r.Messages, r.newMessages = r.Messages[old:], r.newMessages[bytes-old:]
}

// oldestSequence returns the sequence of the oldest retained message, or 0 if there is none.
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
