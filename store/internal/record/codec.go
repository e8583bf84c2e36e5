package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// A record as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of format, lengths, header, requests and turns, big-endian
//	4 bytes CRC-32C of the prompt, big-endian
//	4 bytes CRC-32C of the messages, big-endian
//	uvarint length of the header
//	uvarint length of the requests
//	uvarint length of the turns
//	uvarint length of the prompt
//	        header   storev1.Header
//	        requests storev1.Requests
//	        turns    storev1.Turns
//	        prompt   system prompt
//	        messages frames, up to the end
//
// Several sums, so that lists and sweeps read a header without touching what can be large.
const (
	format   = 1
	sumsSize = 3 * 4
	headAt   = 1 + sumsSize
)

// Checksum is CRC-32C, the sum of every record.
func Checksum(parts ...[]byte) uint32 {
	table, sum := crc32.MakeTable(crc32.Castagnoli), uint32(0)
	for _, p := range parts {
		sum = crc32.Update(sum, table, p)
	}
	return sum
}

// Marshal encodes the record into new memory.
func (r *Record) Marshal() ([]byte, error) {
	headerSize := proto.Size(r.Header)
	lengths := []int{headerSize, len(r.Requests), len(r.Turns), len(r.Prompt)}
	size := headAt + len(lengths)*binary.MaxVarintLen32 + len(r.Messages) + len(r.appended)
	for _, n := range lengths {
		size += n
	}
	b := make([]byte, headAt, size)
	b[0] = format
	for _, n := range lengths {
		b = binary.AppendUvarint(b, uint64(n))
	}
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, r.Header)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	b = append(append(b, r.Requests...), r.Turns...)
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[headAt:]))
	binary.BigEndian.PutUint32(b[5:], Checksum(r.Prompt))
	binary.BigEndian.PutUint32(b[9:], Checksum(r.Messages, r.appended))
	return append(append(append(b, r.Prompt...), r.Messages...), r.appended...), nil
}

// Unmarshal decodes a value and checks all of it. Requests, turns, prompt and messages stay
// in the value's memory.
func Unmarshal(b []byte) (*Record, error) {
	r, err := unmarshal(b)
	if err != nil {
		return nil, err
	}
	if Checksum(r.Messages) != binary.BigEndian.Uint32(b[9:]) {
		return nil, fmt.Errorf("%w: messages of conversation %q", store.ErrCorrupt, r.Conversation().GetId())
	}
	return r.checkPrompt(b)
}

// UnmarshalHead decodes and checks all of a value but its messages, which it leaves out.
func UnmarshalHead(b []byte) (*Record, error) {
	r, err := unmarshal(b)
	if err != nil {
		return nil, err
	}
	r.Messages = nil
	return r.checkPrompt(b)
}

// unmarshalRow decodes and checks what a list needs of a value.
func unmarshalRow(b []byte) (*Record, error) {
	r, err := unmarshal(b)
	if err != nil {
		return nil, err
	}
	r.Prompt, r.Messages = nil, nil
	return r, nil
}

func (r *Record) checkPrompt(b []byte) (*Record, error) {
	if Checksum(r.Prompt) != binary.BigEndian.Uint32(b[5:]) {
		return nil, fmt.Errorf("%w: system prompt of conversation %q", store.ErrCorrupt, r.Conversation().GetId())
	}
	return r, nil
}

// unmarshal takes a value apart and checks its header, requests and turns.
func unmarshal(b []byte) (*Record, error) {
	if len(b) < headAt || b[0] != format {
		return nil, fmt.Errorf("%w: unknown format", store.ErrCorrupt)
	}
	var ends [4]int
	at := headAt
	for i := range ends {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return nil, fmt.Errorf("%w: bad length", store.ErrCorrupt)
		}
		at += n
		ends[i] = int(size)
	}
	end := at
	for i := range ends {
		end += ends[i]
		ends[i] = end
	}
	if end > len(b) || Checksum(b[:1], b[headAt:ends[2]]) != binary.BigEndian.Uint32(b[1:]) {
		return nil, fmt.Errorf("%w: header", store.ErrCorrupt)
	}
	r := &Record{
		Header:   new(storev1.Header),
		Requests: b[ends[0]:ends[1]:ends[1]],
		Turns:    b[ends[1]:ends[2]:ends[2]],
		Prompt:   b[ends[2]:ends[3]:ends[3]],
		Messages: store.Frames(b[ends[3]:len(b):len(b)]),
	}
	if err := proto.Unmarshal(b[at:ends[0]], r.Header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", store.ErrCorrupt, err)
	}
	if r.Conversation() == nil {
		return nil, fmt.Errorf("%w: no header", store.ErrCorrupt)
	}
	if ends[0]-at+len(r.Prompt) > store.MaxHeaderBytes { // Most headers are not even nearly as large.
		if err := r.shrinkHeader(); err != nil {
			return nil, fmt.Errorf("%w: header: %w", store.ErrCorrupt, err)
		}
	}
	return r, nil
}

// What is saved of a running turn, as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of all else, big-endian
//	uvarint length of the turn's id
//	        turn's id
//	        messages frames
//	        events   a field like the frames, storev1.TurnEvents; not in older values
//
// The events come last, where versions that do not know them do not look.
const (
	progressHeadAt                  = 1 + 4
	progressEvents protowire.Number = 3
)

// MarshalProgress encodes what Abandoned is to return.
func MarshalProgress(p *store.Progress) ([]byte, error) {
	drafts, err := NewDrafts(p.Messages)
	if err != nil {
		return nil, err
	}
	b := make([]byte, progressHeadAt, progressHeadAt+1+len(p.TurnID))
	b[0] = format
	b = append(binary.AppendUvarint(b, uint64(len(p.TurnID))), p.TurnID...)
	for _, d := range drafts {
		b = appendItem(b, store.FrameField, d.body)
	}
	if p.Events != nil {
		events, err := proto.Marshal(p.Events)
		if err != nil {
			return nil, fmt.Errorf("encode events: %w", err)
		}
		b = appendItem(b, progressEvents, events)
	}
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[progressHeadAt:]))
	return b, nil
}

// UnmarshalProgress decodes what MarshalProgress made, into new memory; tenant and
// conversation are the caller's to fill in.
func UnmarshalProgress(b []byte) (*store.Progress, error) {
	if len(b) < progressHeadAt || b[0] != format || Checksum(b[:1], b[progressHeadAt:]) != binary.BigEndian.Uint32(b[1:]) {
		return nil, fmt.Errorf("%w: progress of a turn", store.ErrCorrupt)
	}
	id, n := protowire.ConsumeBytes(b[progressHeadAt:])
	if n < 0 {
		return nil, fmt.Errorf("%w: progress of a turn", store.ErrCorrupt)
	}
	p, saved := &store.Progress{TurnID: string(id)}, b[progressHeadAt+n:]
	var err error
	if p.Messages, err = store.Frames(saved).Messages(); err != nil {
		return nil, err
	}
	for item := range items(saved, progressEvents) {
		p.Events = new(storev1.TurnEvents)
		if err := proto.Unmarshal(item, p.Events); err != nil {
			return nil, fmt.Errorf("%w: events of a turn: %w", store.ErrCorrupt, err)
		}
	}
	return p, nil
}
