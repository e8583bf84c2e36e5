package record

import (
	"encoding/binary"
	"fmt"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
)

// Chunk is some of the older messages of a conversation, in the order of their sequences. A store that divides
// conversations keeps each chunk as a value of its own, so that a write of the conversation need not write the messages
// in its chunks again. A chunk does not change when its oldest messages are dropped: Header.Chunks says from which
// sequence on the messages in chunks are retained. See [Record.Divide].
type Chunk struct {
	// Sizes describe the messages. There is at least one.
	Sizes []FrameSize
	// Data is the index of the structured data of the messages, see type Data.
	Data []byte
	// Messages are nil in the result of UnmarshalChunkHead.
	Messages store.Frames
}

// First returns the sequence of the first message.
func (c *Chunk) First() int32 { return c.Sizes[0].Sequence }

// Last returns the sequence of the last message.
func (c *Chunk) Last() int32 { return c.Sizes[len(c.Sizes)-1].Sequence }

// Retained returns the sizes of the messages from a sequence on, and the size of the messages before it in bytes.
func (c *Chunk) Retained(first int32) (sizes []FrameSize, dropped int) {
	for i, s := range c.Sizes {
		if s.Sequence >= first {
			return c.Sizes[i:], dropped
		}
		dropped += int(s.Bytes)
	}
	return nil, dropped
}

// Layout of a chunk as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of key, format, lengths, sizes and data, big-endian
//	4 bytes CRC-32C of the messages, big-endian
//	uvarint length of the sizes
//	uvarint length of the data
//	        sizes    see packSize
//	        data     storev1.Header with nothing but data
//	        messages frames, up to the end
//
// The key is included so that a chunk cannot pass for one of another conversation. Two checksums let an append read the
// sizes of the messages that it drops without reading the messages.
const (
	chunkFormat = 1
	chunkHeadAt = 1 + 4 + 4
)

// Marshal encodes the chunk for a key into a new slice.
func (c *Chunk) Marshal(key []byte) []byte {
	sizes := packSizes(c.Sizes)
	length := uvarintSize(len(sizes)) + len(sizes) + uvarintSize(len(c.Data)) + len(c.Data)
	b := make([]byte, chunkHeadAt, chunkHeadAt+length+len(c.Messages))
	b[0] = chunkFormat
	b = binary.AppendUvarint(b, uint64(len(sizes)))
	b = binary.AppendUvarint(b, uint64(len(c.Data)))
	b = append(append(b, sizes...), c.Data...)
	binary.BigEndian.PutUint32(b[1:], Checksum(key, b[:1], b[chunkHeadAt:]))
	binary.BigEndian.PutUint32(b[5:], Checksum(c.Messages))
	return append(b, c.Messages...)
}

// UnmarshalChunk decodes a chunk and checks all of it. Data and messages share the memory of the value. If the chunk is
// damaged or has another key, the error is store.ErrCorrupt.
func UnmarshalChunk(key, value []byte) (*Chunk, error) {
	c, messages, err := unmarshalChunk(key, value)
	if err != nil {
		return nil, err
	}
	if Checksum(messages) != binary.BigEndian.Uint32(value[5:]) {
		return nil, fmt.Errorf("%w: messages from %d on", store.ErrCorrupt, c.First())
	}
	c.Messages = messages
	return c, nil
}

// UnmarshalChunkHead decodes and checks a chunk without its messages.
func UnmarshalChunkHead(key, value []byte) (*Chunk, error) {
	c, _, err := unmarshalChunk(key, value)
	return c, err
}

// unmarshalChunk decodes and checks a chunk, except its messages.
func unmarshalChunk(key, value []byte) (c *Chunk, messages store.Frames, err error) {
	if len(value) < chunkHeadAt || value[0] != chunkFormat {
		return nil, nil, fmt.Errorf("%w: unknown format of a chunk", store.ErrCorrupt)
	}
	at := chunkHeadAt
	var lengths [2]int
	for i := range lengths {
		size, n := binary.Uvarint(value[at:])
		if n <= 0 || size > uint64(len(value)) {
			return nil, nil, fmt.Errorf("%w: bad length in a chunk", store.ErrCorrupt)
		}
		lengths[i], at = int(size), at+n
	}
	data := at + lengths[0]
	end := data + lengths[1]
	if end > len(value) || Checksum(key, value[:1], value[chunkHeadAt:end]) != binary.BigEndian.Uint32(value[1:]) {
		return nil, nil, fmt.Errorf("%w: head of a chunk", store.ErrCorrupt)
	}
	messages = value[end:len(value):len(value)]
	sizes, total, ok := readSizes(value[at:data])
	if !ok || total != len(messages) || len(sizes) == 0 {
		return nil, nil, fmt.Errorf("%w: sizes of a chunk", store.ErrCorrupt)
	}
	return &Chunk{Sizes: sizes, Data: value[data:end:end]}, messages, nil
}

// readSizes decodes the packed form of sizes from any bytes, and returns the size of all messages together. ok is false
// unless they are sizes of messages with rising sequences.
func readSizes(packed []byte) (sizes []FrameSize, total int, ok bool) {
	sizes = make([]FrameSize, 0, len(packed)/4)
	ok = true
	next := func() uint64 {
		v, n := binary.Uvarint(packed)
		ok = ok && n > 0 && v < 1<<31
		packed = packed[max(0, n):]
		return v
	}
	sequence := uint64(0)
	for ok && len(packed) > 0 {
		bytes, frame, step := next(), next(), next()
		sequence += step
		ok = ok && frame <= bytes && step > 0 && sequence < 1<<31
		sizes = append(sizes, FrameSize{Bytes: int32(bytes), Body: int32(bytes - frame), Sequence: int32(sequence)})
		total += int(bytes)
	}
	return sizes, total, ok
}

// Divided reports whether the record has chunks, also if join has added them all.
func (r *Record) Divided() bool { return r.Header.GetChunks() != nil }

// InChunks returns how many of the newest n messages are in chunks; of all messages if n is negative.
func (r *Record) InChunks(n int) int {
	inChunks := int(r.Header.GetChunks().GetMessages())
	if n < 0 || inChunks == 0 {
		return inChunks
	}
	return min(max(0, n-int(r.Conversation().GetMessageCount())+inChunks), inChunks)
}

// chunkBytes returns the size of the retained messages in chunks, in bytes.
func (r *Record) chunkBytes() int { return int(r.Header.GetChunks().GetBytes()) }

// Divide moves the oldest messages of the record into chunks, which have size to 2*size bytes, until at most 2*size
// bytes of messages remain. A message of at least size bytes is a chunk of its own. After a removal, the messages of a
// chunk that has lost none but dropped ones stay in that chunk. The store removes the chunks whose last sequences are
// in removed, and then puts the others. The messages of the record must not have Sizes in their place.
func (r *Record) Divide(size int) (put []*Chunk, removed []int32) {
	if c := r.Header.GetChunks(); c != nil && c.GetMessages() == 0 {
		r.Header.Chunks, r.Types = nil, nil // All were dropped or joined.
	}
	if r.joined == nil && len(r.Messages)+len(r.newMessages) <= 2*size {
		return nil, nil
	}
	r.settle()
	data := r.Data
	put, removed = r.separate()
	for len(r.Messages) > 2*size {
		n := 0
		for frame := range r.Messages.All() {
			if n > 0 && (n >= size || len(frame) >= size) {
				break
			}
			n += len(frame)
		}
		if n == 0 { // A damaged frame stays, so that a check finds it.
			break
		}
		put = append(put, r.cutChunk(n))
	}
	// Once for all chunks: each call decodes and encodes all types.
	r.Types = addTypes(r.Types, data[:len(data)-len(r.Data)], 1)
	return put, removed
}

// separate moves the messages that join has added back to their chunks. It returns the chunks that have changed.
func (r *Record) separate() (put []*Chunk, removed []int32) {
	oldest := r.oldestSequence()
	if c := r.Header.GetChunks(); c != nil { // Messages before the joined ones are retained.
		oldest = c.GetFirstSequence()
	}
	for _, c := range r.joined {
		count, n := 0, 0
		for frame := range r.Messages.All() {
			if frame.Sequence() > c.last {
				break
			}
			count, n = count+1, n+len(frame)
		}
		if n == 0 {
			removed = append(removed, c.last)
			continue
		}
		retained, _ := (&Chunk{Sizes: c.sizes}).Retained(oldest)
		if moved := r.cutChunk(n); count != len(retained) {
			put, removed = append(put, moved), append(removed, c.last)
		}
	}
	r.joined = nil
	return put, removed
}

// cutChunk moves the oldest messages, which have n bytes, into a chunk. The caller adds their types.
func (r *Record) cutChunk(n int) *Chunk {
	c := &Chunk{Sizes: Sizes(r.Messages[:n]), Messages: r.Messages[:n:n]}
	cut := dataBefore(r.Data, c.Last()+1)
	c.Data, r.Data, r.Messages = r.Data[:cut:cut], r.Data[cut:], r.Messages[n:]
	if r.Header.GetChunks() == nil {
		r.Header.Chunks = &storev1.Chunks{FirstSequence: c.First()}
	}
	r.Header.Chunks.Messages += int32(len(c.Sizes))
	r.Header.Chunks.Bytes += int64(n)
	for _, s := range c.Sizes {
		r.Header.Chunks.BodyBytes += int64(s.Body)
	}
	return c
}

// dropInChunks drops the oldest messages in chunks while exceeds reports that more must be dropped. It returns how many
// it dropped and their size in bytes. Errors: those of Chunks, store.ErrCorrupt.
func (r *Record) dropInChunks(exceeds func(dropped, bytes int) bool) (dropped, bytes int, err error) {
	chunks := r.Header.GetChunks()
	var data []byte // of the dropped messages
	for chunks.GetMessages() > 0 && exceeds(dropped, bytes) {
		first := chunks.GetFirstSequence()
		c, err := r.Chunks.Head(first)
		if err != nil {
			return 0, 0, err
		}
		sizes, _ := c.Retained(first)
		for _, s := range sizes {
			if chunks.GetMessages() == 0 || !exceeds(dropped, bytes) {
				break
			}
			if int64(s.Bytes) > chunks.GetBytes() {
				return 0, 0, fmt.Errorf("%w: the chunks of conversation %q are larger than its header says", store.ErrCorrupt,
					r.Conversation().GetId())
			}
			chunks.BodyBytes -= int64(s.Body)
			dropped, bytes, r.Header.DroppedBytes = dropped+1, bytes+int(s.Bytes), r.Header.GetDroppedBytes()+int64(s.Body)
			chunks.Messages, chunks.Bytes, chunks.FirstSequence = chunks.Messages-1, chunks.Bytes-int64(s.Bytes), s.Sequence+1
		}
		if chunks.GetFirstSequence() == first {
			return 0, 0, fmt.Errorf("%w: conversation %q has no message from %d on in chunks", store.ErrCorrupt,
				r.Conversation().GetId(), first)
		}
		data = append(data, c.Data[dataBefore(c.Data, first):dataBefore(c.Data, chunks.GetFirstSequence())]...)
	}
	r.Types = addTypes(r.Types, data, -1) // Once for all chunks, as in Divide.
	return dropped, bytes, nil
}
