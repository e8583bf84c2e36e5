package redisstore

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// revision is the id of a commit. A conversation has that of its newest one.
const revisionSize = 8

// maxCommits is the number of commits whose ids a conversation remembers, so that a commit whose reply was lost is not
// made twice.
const maxCommits = 16

// maxSizes is the number of messages above which the oldest are counted aside, see record.CountAside. Each append
// writes the sizes of the others, 4 or 5 bytes a message. With 80 of them, it would send more than 2 KB besides its
// messages, title and labels.
const maxSizes = 56

// part is a part of a conversation that is a field of its own.
type part int

const (
	requestsPart part = iota
	turnsPart
	promptPart
	parts
)

// field returns the name of the field.
func (p part) field() string { return [parts]string{"q", "t", "p"}[p] }

func (p part) String() string { return [parts]string{"requests", "turns", "system prompt"}[p] }

// extra is what a conversation has beside its head: which values its parts must have, and the sizes of its messages.
//
// Layout: CRC-32C of the rest, big-endian; for each part CRC-32C, big-endian, and length, uvarint; the number of ids of
// commits, one byte, and the ids; the sizes of the newest messages in the form of record.MarshalSizes.
type extra struct {
	sums    [parts]uint32
	lengths [parts]int
	commits string // newest last
	sizes   []record.FrameSize
}

func (e *extra) marshal() []byte {
	b := make([]byte, 4, 4+int(parts)*8+1+len(e.commits)+5*len(e.sizes))
	for i := range parts {
		b = binary.BigEndian.AppendUint32(b, e.sums[i])
		b = binary.AppendUvarint(b, uint64(e.lengths[i]))
	}
	b = append(b, byte(len(e.commits)/revisionSize))
	b = append(append(b, e.commits...), record.MarshalSizes(e.sizes)...)
	binary.BigEndian.PutUint32(b, record.Checksum(b[4:]))
	return b
}

// errExtra is the error of an extra that is damaged.
var errExtra = fmt.Errorf("%w: sizes of a conversation", store.ErrCorrupt)

func unmarshalExtra(text string) (*extra, error) {
	b := []byte(text)
	if len(b) < 4 || record.Checksum(b[4:]) != binary.BigEndian.Uint32(b) {
		return nil, errExtra
	}
	b = b[4:]
	e := new(extra)
	for i := range parts {
		if len(b) < 4 {
			return nil, errExtra
		}
		e.sums[i] = binary.BigEndian.Uint32(b)
		length, n := binary.Uvarint(b[4:])
		if n <= 0 || length > 1<<40 {
			return nil, errExtra
		}
		e.lengths[i], b = int(length), b[4+n:]
	}
	if len(b) == 0 || len(b) < 1+int(b[0])*revisionSize {
		return nil, errExtra
	}
	end := 1 + int(b[0])*revisionSize
	e.commits = string(b[1:end])
	var err error
	e.sizes, err = record.UnmarshalSizes(b[end:])
	return e, err
}

// check checks a part.
func (e *extra) check(i part, value []byte) error {
	if record.Checksum(value) != e.sums[i] {
		return fmt.Errorf("%w: %s of a conversation", store.ErrCorrupt, i)
	}
	return nil
}

// setPart sets the checksum and the length of a part.
func (e *extra) setPart(i part, value []byte) {
	e.sums[i], e.lengths[i] = record.Checksum(value), len(value)
}

// hasCommit reports whether the ids of commits include one.
func hasCommit(commits, id string) bool {
	for at := 0; at+revisionSize <= len(commits); at += revisionSize {
		if commits[at:at+revisionSize] == id {
			return true
		}
	}
	return false
}

// withCommit returns the ids of the newest commits with that of another one.
func withCommit(commits, id string) string {
	commits += id
	return commits[max(0, len(commits)-maxCommits*revisionSize):]
}

// summaryOf returns what the scripts know of a conversation with that size in bytes. See summary in lib.lua.
func summaryOf(r *record.Record, bytes int64) string {
	c := r.Conversation()
	flag := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	return strings.Join([]string{
		c.GetUid(), strconv.Itoa(int(c.GetVersion())), strconv.Itoa(int(c.GetMessageCount())), strconv.FormatInt(bytes, 10),
		stamp(r.ExpireTime()), flag(r.Running()), flag(r.Evictable()), strconv.Itoa(int(c.GetRecordCount())),
		strconv.FormatInt(c.GetRecordBytes(), 10),
	}, " ")
}

// summary is what the scripts know of a conversation.
type summary struct {
	uid     string
	version int32
	// messages is their number.
	messages int
	ends     time.Time
	running  bool
}

// readSummary decodes a summary. ok is false if it is damaged.
func readSummary(text string) (s summary, ok bool) {
	var f [9]string // strings.Split would allocate it for every read of a known version.
	for i := range f {
		var more bool
		if f[i], text, more = strings.Cut(text, " "); more != (i < len(f)-1) {
			return s, false
		}
	}
	version, err := strconv.ParseInt(f[1], 10, 32)
	messages, err2 := strconv.ParseInt(f[2], 10, 32)
	return summary{
		uid: f[0], version: int32(version), messages: int(messages), ends: unstamp(f[4]), running: f[5] == "1",
	}, err == nil && err2 == nil
}

// sealed is a frame with its CRC-32C, as the list of messages has it.
func sealed(frame store.Frame) string {
	return string(binary.BigEndian.AppendUint32(append(make([]byte, 0, len(frame)+4), frame...), record.Checksum(frame)))
}

// unsealed appends the frames of elements of the list of messages.
func unsealed(frames store.Frames, elements []string) (store.Frames, error) {
	size := 0
	for _, element := range elements {
		size += len(element)
	}
	frames = slices.Grow(frames, size)
	for _, element := range elements {
		n := len(element) - 4
		if n < 0 {
			return nil, fmt.Errorf("%w: message", store.ErrCorrupt)
		}
		frames = append(frames, element[:n]...)
		if record.Checksum(frames[len(frames)-n:]) != binary.BigEndian.Uint32([]byte(element[n:])) {
			return nil, fmt.Errorf("%w: message", store.ErrCorrupt)
		}
	}
	return frames, nil
}
