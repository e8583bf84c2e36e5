package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// A record as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of format, lengths, header, requests and turns, big-endian
//	4 bytes CRC-32C of the messages, big-endian
//	uvarint length of the header
//	uvarint length of the requests
//	uvarint length of the turns
//	        header   storev1.Header
//	        requests storev1.Requests
//	        turns    storev1.Turns
//	        messages frames, up to the end
//
// Two sums, so that lists and sweeps read a header without touching the messages.
const (
	format   = 1
	sumsSize = 8
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
	b := make([]byte, headAt, headAt+3*binary.MaxVarintLen32+headerSize+len(r.Requests)+len(r.Turns)+len(r.Messages))
	b[0] = format
	b = binary.AppendUvarint(b, uint64(headerSize))
	b = binary.AppendUvarint(b, uint64(len(r.Requests)))
	b = binary.AppendUvarint(b, uint64(len(r.Turns)))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, r.Header)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	b = append(append(b, r.Requests...), r.Turns...)
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[headAt:]))
	binary.BigEndian.PutUint32(b[5:], Checksum(r.Messages))
	return append(b, r.Messages...), nil
}

// Unmarshal decodes a value and checks all of it. Requests, turns and messages stay in
// the value's memory.
func Unmarshal(b []byte) (*Record, error) {
	r, sum, err := unmarshalHead(b)
	if err != nil {
		return nil, err
	}
	if Checksum(r.Messages) != sum {
		return nil, fmt.Errorf("%w: messages of conversation %q", store.ErrCorrupt, r.Conversation().GetId())
	}
	return r, nil
}

// UnmarshalHead decodes a value's header, requests and turns, checks those, and leaves the
// messages out.
func UnmarshalHead(b []byte) (*Record, error) {
	r, _, err := unmarshalHead(b)
	if err != nil {
		return nil, err
	}
	r.Messages = nil
	return r, nil
}

func unmarshalHead(b []byte) (*Record, uint32, error) {
	if len(b) < headAt || b[0] != format {
		return nil, 0, fmt.Errorf("%w: unknown format", store.ErrCorrupt)
	}
	var ends [3]int
	at := headAt
	for i := range ends {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return nil, 0, fmt.Errorf("%w: bad length", store.ErrCorrupt)
		}
		at += n
		ends[i] = int(size)
	}
	end := at
	for i := range ends {
		end += ends[i]
		ends[i] = end
	}
	if end > len(b) || Checksum(b[:1], b[headAt:end]) != binary.BigEndian.Uint32(b[1:]) {
		return nil, 0, fmt.Errorf("%w: header", store.ErrCorrupt)
	}
	r := &Record{
		Header:   new(storev1.Header),
		Requests: b[ends[0]:ends[1]:ends[1]],
		Turns:    b[ends[1]:ends[2]:ends[2]],
		Messages: store.Frames(b[ends[2]:len(b):len(b)]),
	}
	if err := proto.Unmarshal(b[at:ends[0]], r.Header); err != nil {
		return nil, 0, fmt.Errorf("%w: header: %w", store.ErrCorrupt, err)
	}
	if r.Conversation() == nil {
		return nil, 0, fmt.Errorf("%w: no header", store.ErrCorrupt)
	}
	return r, binary.BigEndian.Uint32(b[5:]), nil
}

// MarshalProgress encodes what Abandoned is to return, summed like a record.
func MarshalProgress(p *store.Progress) ([]byte, error) {
	drafts, err := NewDrafts(p.Messages)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 1+4, 1+4+1+len(p.TurnID))
	b[0] = format
	b = append(binary.AppendUvarint(b, uint64(len(p.TurnID))), p.TurnID...)
	for _, d := range drafts {
		b = append(binary.AppendUvarint(append(b, 0x12), uint64(len(d.body))), d.body...)
	}
	binary.BigEndian.PutUint32(b[1:], Checksum(b[:1], b[5:]))
	return b, nil
}

// UnmarshalProgress decodes what MarshalProgress made; tenant and conversation are the
// caller's to fill in.
func UnmarshalProgress(b []byte) (*store.Progress, error) {
	if len(b) < 5 || b[0] != format || Checksum(b[:1], b[5:]) != binary.BigEndian.Uint32(b[1:]) {
		return nil, fmt.Errorf("%w: progress of a turn", store.ErrCorrupt)
	}
	size, n := binary.Uvarint(b[5:])
	if n <= 0 || size > uint64(len(b)-5-n) {
		return nil, fmt.Errorf("%w: progress of a turn", store.ErrCorrupt)
	}
	at := 5 + n
	messages, err := store.Frames(b[at+int(size):]).Messages()
	if err != nil {
		return nil, err
	}
	return &store.Progress{TurnID: string(b[at : at+int(size)]), Messages: messages}, nil
}
