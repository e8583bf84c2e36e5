package record

import (
	"encoding/binary"
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
	sizes := make([]FrameSize, 0, frames.Count())
	for frame := range frames.All() {
		sizes = append(sizes, sizeOf(frame))
	}
	return sizes
}

func sizeOf(frame store.Frame) FrameSize {
	return FrameSize{Bytes: int32(len(frame)), Body: int32(len(frame.Body())), Sequence: frame.Sequence()}
}

// packSize appends a size in the form that chunks and SizeList have: the size of the frame, that of what surrounds the
// message in it, and by how much the sequence is above that of the message before.
func packSize(b []byte, s FrameSize, before int32) []byte {
	b = binary.AppendUvarint(b, uint64(s.Bytes))
	b = binary.AppendUvarint(b, uint64(s.Bytes-s.Body))
	return binary.AppendUvarint(b, uint64(s.Sequence-before))
}

// packSizes returns the packed form of sizes.
func packSizes(sizes []FrameSize) []byte {
	b := make([]byte, 0, packedSize*len(sizes))
	before := int32(0)
	for _, s := range sizes {
		b, before = packSize(b, s, before), s.Sequence
	}
	return b
}

// packedSize is a little more than most packed sizes take, in bytes.
const packedSize = 5

// SizeList is the sizes of messages, oldest first, packed in a third of the memory of FrameSize. The zero value is that
// of no messages. A copy of a list does not change with the list: it shares memory with it, as a slice does.
type SizeList struct {
	packed       []byte
	before, last int32 // sequences: of the message before the first one, or 0; and of the last one
	bytes        int   // of all frames
	memory       int   // that the packed sizes take, with those that were dropped
}

// Bytes returns the size of the frames of all messages.
func (l SizeList) Bytes() int { return l.bytes }

// Memory returns how many bytes the list takes, with the space for more messages.
func (l SizeList) Memory() int { return l.memory }

// With returns the list followed by the sizes of frames. It takes time for these frames only. The result may use the
// spare memory of the list: of the results of calls with the same list, only the newest is valid.
func (l SizeList) With(frames store.Frames) SizeList {
	if l.packed == nil && len(frames) > 0 {
		l.packed = make([]byte, 0, packedSize*(frames.Count()+1))
		l.memory = cap(l.packed)
	}
	capacity := cap(l.packed)
	for frame := range frames.All() {
		s := sizeOf(frame)
		l.packed, l.last, l.bytes = packSize(l.packed, s, l.last), s.Sequence, l.bytes+int(s.Bytes)
	}
	if cap(l.packed) != capacity {
		l.memory = cap(l.packed)
	}
	return l
}

// All yields the sizes.
func (l SizeList) All() iter.Seq[FrameSize] {
	return func(yield func(FrameSize) bool) {
		for len(l.packed) > 0 {
			if !yield(cutFirst(&l)) {
				return
			}
		}
	}
}

// cutFirst removes the size of the oldest message from a list, which must not be empty, and returns it.
func cutFirst(l *SizeList) (s FrameSize) {
	next := func() int32 {
		v, n := binary.Uvarint(l.packed)
		l.packed = l.packed[n:]
		return int32(v)
	}
	s.Bytes = next()
	s.Body = s.Bytes - next()
	s.Sequence = l.before + next()
	l.before, l.bytes = s.Sequence, l.bytes-int(s.Bytes)
	return s
}

// MessageBytes returns the size of the retained messages in bytes.
func (r *Record) MessageBytes() int { return r.chunkBytes() + r.TailBytes() }

// TailBytes returns the size of the retained messages that are not in chunks, in bytes.
func (r *Record) TailBytes() int {
	n := len(r.Messages) + len(r.newMessages)
	if r.Sizes != nil {
		n += r.Sizes.Bytes()
	}
	return n
}

// TailFrames returns the retained messages that are not in chunks: those with which the record was decoded, and the
// appended ones. kept shares the memory of r.Messages, unless messages were removed. r must have no Sizes.
func (r *Record) TailFrames() (kept, added store.Frames) { return r.Messages, r.newMessages }

// frameSizes yields the sizes of the frames and bodies of the retained messages that are not in chunks, oldest first.
func (r *Record) frameSizes() iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		if r.Sizes != nil {
			for s := range r.Sizes.All() {
				if !yield(int(s.Bytes), int(s.Body)) {
					return
				}
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
	for ; n > 0 && r.Sizes != nil && r.Sizes.Bytes() > 0; n-- {
		bytes -= int(cutFirst(r.Sizes).Bytes)
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
	if r.Sizes != nil {
		for s := range r.Sizes.All() {
			return s.Sequence
		}
	}
	for _, frames := range []store.Frames{r.Messages, r.newMessages} {
		for frame := range frames.All() {
			return frame.Sequence()
		}
	}
	return 0
}
