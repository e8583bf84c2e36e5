package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/checksum"
)

// Layout of a record as one value:
//
//	byte    format, 2, or 3 if the conversation has chunks
//	4 bytes CRC-32C of format, lengths, header, requests and turns, big-endian
//	4 bytes CRC-32C of the prompt, big-endian
//	4 bytes CRC-32C of the data, big-endian
//	4 bytes CRC-32C of the messages, big-endian
//	uvarint length of the header
//	uvarint length of the requests
//	uvarint length of the turns
//	uvarint length of the prompt
//	uvarint length of the data
//	        header   storev1.Header without data
//	        requests storev1.Requests
//	        turns    storev1.Turns
//	        prompt   system prompt
//	        data     storev1.Header with nothing but data: in format 3 first the types in chunks, see
//	                 Record.Types
//	        messages frames, up to the end; in format 3 without those in chunks
//
// Several checksums let lists and sweeps read a header without reading the parts that can be large.
//
// In format 1, the header contains the data, and the value has neither length nor checksum of the
// data. Values of format 1 can be read. They are written in format 2 when they change.
const (
	format         = 2
	oldFormat      = 1
	dividedFormat  = 3
	progressFormat = 1
)

// appliedField is the number of Header.applied.
const appliedField protowire.Number = 8

// layout has the numbers of checksums and of lengths in a value.
type layout struct{ sums, lengths int }

// headSize returns the offset of the lengths.
func (l layout) headSize() int { return 1 + 4*l.sums }

func layoutOf(b []byte) (l layout, ok bool) {
	if len(b) > 0 {
		switch b[0] {
		case format, dividedFormat:
			l = layout{sums: 4, lengths: 5}
		case oldFormat:
			l = layout{sums: 3, lengths: 4}
		}
	}
	return l, l.sums > 0 && len(b) >= l.headSize()
}

// Checksum returns checksum.Of the parts. All checksums of a record use it.
func Checksum(parts ...[]byte) uint32 { return checksum.Of(parts...) }

// Marshal encodes the record into a new slice. It returns an error if a header has invalid text, or if the
// record has Sizes.
func (r *Record) Marshal() ([]byte, error) {
	if r.Sizes != nil {
		return nil, errors.New("the record has the sizes of its messages in place of the messages")
	}
	return r.marshal(r.Messages, r.newMessages)
}

// marshal encodes the record with these messages.
func (r *Record) marshal(messages, newMessages store.Frames) ([]byte, error) {
	headAt, lengths := layout{sums: 4}.headSize(), r.lengths()
	size := headAt + len(messages) + len(newMessages)
	for _, n := range lengths {
		size += uvarintSize(n) + n
	}
	b := make([]byte, headAt, size)
	b[0] = format
	if r.Divided() {
		b[0] = dividedFormat
	}
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
	binary.BigEndian.PutUint32(b[9:], Checksum(r.Types, r.Data, r.newData))
	binary.BigEndian.PutUint32(b[13:], Checksum(messages, newMessages))
	for _, part := range [][]byte{r.Prompt, r.Types, r.Data, r.newData, messages, newMessages} {
		b = append(b, part...)
	}
	return b, nil
}

// uvarintSize returns the length of a number as a uvarint.
func uvarintSize(n int) int { return protowire.SizeVarint(uint64(n)) }

// Unmarshal decodes a value and checks all of it. Requests, turns, prompt, data and messages share
// the memory of the value. The record has no messages of chunks.
func Unmarshal(b []byte) (*Record, error) {
	v, err := unmarshal(b)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(v.checkPrompt(), v.checkData(), v.checkMessages()); err != nil {
		return nil, err
	}
	if v.Divided() {
		types := typesIn(v.Data)
		v.Types, v.Data = v.Data[:types:types], v.Data[types:]
	}
	return &v.Record, nil
}

// UnmarshalHead decodes a value without its data and messages and checks the decoded parts.
func UnmarshalHead(b []byte) (*Record, error) {
	v, err := unmarshal(b)
	if err != nil {
		return nil, err
	}
	if err := v.checkPrompt(); err != nil {
		return nil, err
	}
	v.Data, v.Messages = nil, nil
	return &v.Record, nil
}

// value is the parts of a value; its header, requests and turns were checked.
type value struct {
	Record

	headSize                       int // in bytes
	promptSum, dataSum, messageSum uint32
}

func (v *value) checkPrompt() error   { return v.check("system prompt", v.Prompt, v.promptSum) }
func (v *value) checkData() error     { return v.check("data", v.Data, v.dataSum) }
func (v *value) checkMessages() error { return v.check("messages", v.Messages, v.messageSum) }

func (v *value) check(name string, part []byte, sum uint32) error {
	if Checksum(part) != sum {
		return fmt.Errorf("%w: %s of conversation %q", store.ErrCorrupt, name, v.Conversation().GetId())
	}
	return nil
}

// MessagesIn returns the messages of a value, and Header.applied. It checks the messages and does not decode the
// header.
func MessagesIn(b []byte) (messages store.Frames, applied uint64, err error) {
	v, header, err := split(b)
	if err == nil {
		err = v.checkMessages()
	}
	if err != nil {
		return nil, 0, err
	}
	for len(header) > 0 {
		field, kind, n := protowire.ConsumeTag(header)
		if n < 0 {
			return nil, 0, fmt.Errorf("%w: header", store.ErrCorrupt)
		}
		header = header[n:]
		if field == appliedField && kind == protowire.VarintType {
			applied, n = protowire.ConsumeVarint(header)
		} else {
			n = protowire.ConsumeFieldValue(field, kind, header)
		}
		if n < 0 {
			return nil, 0, fmt.Errorf("%w: header", store.ErrCorrupt)
		}
		header = header[n:]
	}
	return v.Messages, applied, nil
}

// unmarshal splits a value into its parts and checks its header, requests and turns. Its time does
// not depend on data and messages.
func unmarshal(b []byte) (*value, error) {
	parts, header, err := split(b)
	if err != nil {
		return nil, err
	}
	v := &parts
	v.Header = new(storev1.Header)
	if err := proto.Unmarshal(header, v.Header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", store.ErrCorrupt, err)
	}
	if v.Conversation() == nil {
		return nil, fmt.Errorf("%w: no header", store.ErrCorrupt)
	}
	if len(header)+len(v.Prompt) > store.MaxHeaderBytes { // Only few headers exceed the limit.
		if err := v.shrinkHeader(); err != nil {
			return nil, fmt.Errorf("%w: header: %w", store.ErrCorrupt, err)
		}
	}
	return v, nil
}

// split splits a value into its parts, checks its header, requests and turns, and returns the encoded header without
// data.
func split(b []byte) (v value, header []byte, err error) {
	l, at, ends, err := endsIn(b)
	if err != nil {
		return value{}, nil, err
	}
	if Checksum(b[:1], b[l.headSize():ends[2]]) != binary.BigEndian.Uint32(b[1:]) {
		return value{}, nil, fmt.Errorf("%w: header", store.ErrCorrupt)
	}
	sum := func(i int) uint32 { return binary.BigEndian.Uint32(b[1+4*i:]) }
	v = value{
		Record: Record{
			Requests: b[ends[0]:ends[1]:ends[1]],
			Turns:    b[ends[1]:ends[2]:ends[2]],
			Prompt:   b[ends[2]:ends[3]:ends[3]],
			Data:     b[ends[3]:ends[4]:ends[4]],
			Messages: store.Frames(b[ends[4]:len(b):len(b)]),
		},
		headSize: ends[2], promptSum: sum(1), dataSum: sum(2), messageSum: sum(l.sums - 1),
	}
	header = b[at:ends[0]]
	if l.lengths < len(ends) {
		header, v.Data = cutData(header)
		v.dataSum = Checksum(v.Data)
	}
	return v, header, nil
}

// endsIn returns the layout of a value, and where its header begins and its header, requests, turns, prompt and data
// end.
func endsIn(b []byte) (l layout, at int, ends [5]int, err error) {
	l, ok := layoutOf(b)
	if !ok {
		return l, 0, ends, fmt.Errorf("%w: unknown format", store.ErrCorrupt)
	}
	at = l.headSize()
	for i := range l.lengths {
		size, n := binary.Uvarint(b[at:])
		if n <= 0 || size > uint64(len(b)) {
			return l, 0, ends, fmt.Errorf("%w: bad length", store.ErrCorrupt)
		}
		at += n
		ends[i] = int(size)
	}
	end := at
	for i := range ends {
		end += ends[i]
		ends[i] = end
	}
	if end > len(b) {
		return l, 0, ends, fmt.Errorf("%w: bad length", store.ErrCorrupt)
	}
	return l, at, ends, nil
}

// turnsIn returns the encoded header and the turns of a value, without a check of their checksum. ok is false if the
// lengths of its parts are damaged.
func turnsIn(b []byte) (header, turns []byte, ok bool) {
	_, at, ends, err := endsIn(b)
	if err != nil {
		return nil, nil, false
	}
	return b[at:ends[0]], b[ends[1]:ends[2]], true
}

// Layout of the stored progress of a running turn as one value:
//
//	byte    format, 1
//	4 bytes CRC-32C of all other bytes, big-endian
//	uvarint length of the turn's id
//	        turn's id
//	        messages frames
//	        events   a field like the frames, storev1.TurnEvents; older values have none
//
// The events come last, because versions without events do not read that part.
const (
	progressHeadAt                  = 1 + 4
	progressEvents protowire.Number = 3
)

// MarshalProgress encodes the progress of a turn, without its tenant and conversation.
func MarshalProgress(p *store.Progress) ([]byte, error) {
	drafts, err := NewDrafts(p.Messages)
	if err != nil {
		return nil, err
	}
	b := make([]byte, progressHeadAt, progressHeadAt+1+len(p.TurnID))
	b[0] = progressFormat
	b = append(binary.AppendUvarint(b, uint64(len(p.TurnID))), p.TurnID...)
	for _, d := range drafts {
		b = store.AppendFrame(b, d.body)
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

// ProgressTurn returns the id of the turn in a value of MarshalProgress. The result is zero if the value is damaged or
// stores do not index the id. ProgressTurn reads nothing else, since the value may have MiB of messages.
func ProgressTurn(b []byte) TurnID {
	if len(b) < progressHeadAt || b[0] != progressFormat {
		return TurnID{}
	}
	text, n := protowire.ConsumeBytes(b[progressHeadAt:])
	if n < 0 {
		return TurnID{}
	}
	id, _ := ParseTurnID(text)
	return id
}

// UnmarshalProgress decodes a value of MarshalProgress into new memory. The caller sets tenant and
// conversation.
func UnmarshalProgress(b []byte) (*store.Progress, error) {
	if len(b) < progressHeadAt || b[0] != progressFormat ||
		Checksum(b[:1], b[progressHeadAt:]) != binary.BigEndian.Uint32(b[1:]) {
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
	for item := range itemsOf(saved, progressEvents) {
		p.Events = new(storev1.TurnEvents)
		if err := proto.Unmarshal(item, p.Events); err != nil {
			return nil, fmt.Errorf("%w: events of a turn: %w", store.ErrCorrupt, err)
		}
	}
	return p, nil
}
