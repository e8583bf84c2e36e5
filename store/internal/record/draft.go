package record

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/records"
)

// Draft is a message as the caller sent it, encoded before the commit that numbers it. The server's
// fields are appended to the encoded message: in the wire form, the last value of a field wins.
type Draft struct {
	message *parleyv1.Message
	body    []byte
	types   []string    // of structured data, each once
	frame   store.Frame // the numbered message; nil unless it is replayed, see Replay
}

// maxSuffix is the maximum number of bytes that store.AppendNumbered adds to a message: tag and length
// of the frame, sequence, status, exchange and create_time.
const maxSuffix = 64

// NewDrafts encodes messages. This part of an append does not need the order of commits.
func NewDrafts(messages []*parleyv1.Message) ([]Draft, error) {
	drafts := make([]Draft, len(messages))
	for i, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		drafts[i] = Draft{message: m, body: body, types: dataTypes(m)}
	}
	return drafts, nil
}

// dataTypes returns the types of a message's structured data, each once.
func dataTypes(m *parleyv1.Message) []string {
	if len(m.GetStructuredData()) == 0 {
		return nil
	}
	types, known := make([]string, 0, len(m.GetStructuredData())), make(map[string]bool)
	for _, d := range m.GetStructuredData() {
		if !known[d.GetType()] {
			known[d.GetType()] = true
			types = append(types, d.GetType())
		}
	}
	return types
}

// History is the decoded form of the messages with which a conversation begins.
type History struct {
	frames             store.Frames
	count              int
	sequence, exchange int32
	preview            string
	data               []byte
}

// NewHistory decodes the messages of a fork or an import. This part of a create does not need the
// order of commits.
func NewHistory(frames store.Frames) (*History, error) {
	h, r, size := &History{frames: slices.Clone(frames)}, &Record{Header: new(storev1.Header)}, 0
	for frame := range frames.All() {
		m, err := frame.Message()
		if err != nil {
			return nil, err
		}
		r.indexMessage(m, dataTypes(m), m.GetSequence())
		h.sequence, h.exchange = m.GetSequence(), max(h.exchange, m.GetExchange())
		h.count, size = h.count+1, size+len(frame)
	}
	if size != len(frames) {
		return nil, fmt.Errorf("%w: frame after message %d", store.ErrCorrupt, h.count)
	}
	h.preview, h.data = r.Header.GetPreview(), r.newData
	return h, nil
}

// setHistory sets the messages of a new record, with their sequences and exchanges.
func (r *Record) setHistory(h *History) {
	if h == nil || h.count == 0 {
		return
	}
	r.Header.Preview, r.Data, r.Header.Exchange = h.preview, h.data, h.exchange
	r.Conversation().LastSequence, r.Messages = h.sequence, h.frames
	r.setMessageCount(h.count)
}

// requestEffect is what a conversation stores about a request in addition to its key.
type requestEffect struct {
	firstSequence, exchange int32
	time                    time.Time
	created                 bool
	turnID                  string
	records                 *records.Edits
}
