package record

import (
	"fmt"
	"slices"
	"time"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Draft is a message as its writer sent it, encoded ahead of the commit that numbers it.
// The server's fields are added behind: in the wire form the last value of a field wins.
type Draft struct {
	message *parleyv1.Message
	body    []byte
}

// maxSuffix bounds what the server adds to a message: tag and length of the frame, and
// sequence, status, exchange and create_time.
const maxSuffix = 64

// NewDrafts encodes messages; it is the part of an append that needs no order.
func NewDrafts(messages []*parleyv1.Message) ([]Draft, error) {
	drafts := make([]Draft, len(messages))
	for i, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		drafts[i] = Draft{message: m, body: body}
	}
	return drafts, nil
}

// appendFrame adds the finished message to b.
func (d *Draft) appendFrame(b []byte, n *parleyv1.AppendedMessage) []byte {
	status := d.message.GetStatus()
	if status == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
	var buf [maxSuffix]byte
	suffix := appendVarint(buf[:0], 2, int64(n.GetSequence()))
	suffix = appendVarint(suffix, 10, int64(status))
	suffix = appendVarint(suffix, 12, int64(n.GetExchange()))
	// Both parts of the time, zero or not: messages inside a message are merged field by field.
	stamp := appendVarint(nil, 1, n.GetCreateTime().GetSeconds())
	stamp = appendVarint(stamp, 2, int64(n.GetCreateTime().GetNanos()))
	suffix = protowire.AppendTag(suffix, 15, protowire.BytesType)
	suffix = protowire.AppendBytes(suffix, stamp)

	b = protowire.AppendTag(b, store.FrameField, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(d.body)+len(suffix)))
	return append(append(b, d.body...), suffix...)
}

func appendVarint(b []byte, field protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(v))
}

// note keeps in the header what lists need to know of a message.
func (r *Record) note(m *parleyv1.Message, sequence int32) {
	r.Header.Preview = preview(m.GetContent())
	first := len(r.Header.GetData())
	for _, d := range m.GetStructuredData() {
		noted := slices.ContainsFunc(r.Header.GetData()[first:], func(u *storev1.DataUse) bool { return u.GetType() == d.GetType() })
		if !noted {
			r.Header.Data = append(r.Header.Data, &storev1.DataUse{Sequence: sequence, Type: d.GetType()})
		}
	}
}

// seen is what is remembered of a request beside its name.
type seen struct {
	firstSequence, exchange int32
	time                    time.Time
	created                 bool
	turnID                  string
}
