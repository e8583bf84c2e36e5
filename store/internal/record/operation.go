package record

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	"github.com/parleyhq/parley/store"
)

// NewOperation returns the form in which a journal contains an append to an existing conversation. out is
// the outcome of [Append], now the time with which it was decided, and size the size of the record before, in
// bytes. The operation shares memory with a and out.
func NewOperation(a *store.Append, out *Outcome, size int, now time.Time, o *store.Options) *storev1.Operation {
	r, key := out.Record, out.Record.Key()
	op := &storev1.Operation{
		Tenant: a.Tenant, Key: key, Uid: r.Conversation().GetUid(), AcceptTime: timestamppb.New(now),
		Messages: out.Appended, Begin: a.Begin, End: a.End, Events: a.Events,
		MaxConversationBytes: int64(o.MaxConversationBytes), Version: r.Conversation().GetVersion(),
		MessagesAdded: r.Conversation().GetMessageCount() - out.countBefore, BytesAdded: int64(r.Size() - size),
	}
	if q := a.Request; q != nil {
		op.Request = &storev1.Request{Id: q.ID, Method: q.Method, Digest: q.Digest[:]}
	}
	return op
}

// OperationInfo is what a store needs to know of each operation when it opens its journal. The slices are those of the
// encoded operation.
type OperationInfo struct {
	Tenant, Key, UID []byte
	// Messages are the appended messages.
	Messages store.Frames
	// Turn is true if a turn begins or ends.
	Turn bool
	// MessagesAdded and BytesAdded are by how much the operation changed the counts of the tenant.
	MessagesAdded, BytesAdded int64
}

var errOperation = errors.New("the operation cannot be decoded")

// ReadOperationInfo reads an encoded operation. It does not copy the messages: with hundreds of MiB of them, a start
// would take twice as long.
func ReadOperationInfo(encoded []byte) (OperationInfo, error) {
	var i OperationInfo
	for len(encoded) > 0 {
		field, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			return i, errOperation
		}
		encoded = encoded[n:]
		var bytes []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(encoded)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(encoded)
		default:
			n = protowire.ConsumeFieldValue(field, kind, encoded)
		}
		if n < 0 {
			return i, errOperation
		}
		encoded = encoded[n:]
		i.set(field, bytes, number)
	}
	if len(i.Key) != KeySize {
		return i, errOperation
	}
	return i, nil
}

// set sets a field, by its number in storev1.Operation.
func (i *OperationInfo) set(field protowire.Number, bytes []byte, number uint64) {
	switch field {
	case 1:
		i.Tenant = bytes
	case 2:
		i.Key = bytes
	case 3:
		i.UID = bytes
	case 5:
		i.Messages = bytes
	case 7, 8:
		i.Turn = true
	case 12:
		i.MessagesAdded = int64(number)
	case 13:
		i.BytesAdded = int64(number)
	}
}

var errReplay = errors.New("the operation does not match the conversation")

// Replay applies an operation of a journal to a record that has applied all earlier operations of its
// conversation, and sets Header.Applied to index. If the record has applied the operation already, Replay
// changes nothing. If the result differs from the first one, the error is store.ErrCorrupt. After Replay
// the record may share memory with op.
func Replay(r *Record, index uint64, op *storev1.Operation) error {
	if index <= r.Header.GetApplied() {
		return nil
	}
	id := r.Conversation().GetId()
	a := &store.Append{
		Tenant: op.GetTenant(), ConversationID: id, UID: op.GetUid(), MustExist: true,
		Begin: op.GetBegin(), End: op.GetEnd(), Events: op.GetEvents(),
	}
	if q := op.GetRequest(); q != nil {
		a.Request = &store.Request{ID: q.GetId(), Method: q.GetMethod()}
		copy(a.Request.Digest[:], q.GetDigest())
	}
	drafts, err := replayedDrafts(op.GetMessages())
	if err != nil {
		return err
	}
	out, err := Append(r, a, drafts, "", op.GetAcceptTime().AsTime(), &store.Options{
		MaxConversationBytes: int(op.GetMaxConversationBytes()),
	})
	if err == nil && (out.Record == nil || r.Conversation().GetVersion() != op.GetVersion()) {
		err = errReplay
	}
	if err != nil {
		return fmt.Errorf("%w: operation %d of conversation %q: %w", store.ErrCorrupt, index, id, err)
	}
	r.settle()
	r.Header.Applied = index
	return nil
}

// replayedDrafts returns drafts of messages that were numbered when they were appended first.
func replayedDrafts(frames store.Frames) ([]Draft, error) {
	drafts, size := make([]Draft, 0, frames.Count()), 0
	for frame := range frames.All() {
		m, err := frame.Message()
		if err != nil {
			return nil, err
		}
		drafts, size = append(drafts, Draft{message: m, frame: frame, types: dataTypes(m)}), size+len(frame)
	}
	if size != len(frames) {
		return nil, fmt.Errorf("%w: frame after message %d", store.ErrCorrupt, len(drafts))
	}
	return drafts, nil
}

// settle joins the appended messages and data with the others, so that more can be appended.
func (r *Record) settle() {
	if r.Sizes != nil {
		r.Sizes = r.AllSizes()
	} else {
		r.Messages = joined(r.Messages, r.newMessages)
	}
	r.Data = joined(r.Data, r.newData)
	r.newMessages, r.newData = nil, nil
}

// joined returns a followed by b, without changing the memory of a.
func joined(a, b []byte) []byte {
	if len(b) == 0 {
		return a
	}
	return append(append(make([]byte, 0, len(a)+len(b)), a...), b...)
}

// AllSizes returns the sizes of the retained messages, oldest first, also for a record that has Sizes.
func (r *Record) AllSizes() []FrameSize {
	sizes := append(make([]FrameSize, 0, len(r.Sizes)+1), r.Sizes...)
	for _, frames := range []store.Frames{r.Messages, r.newMessages} {
		sizes = appendSizes(sizes, frames)
	}
	return sizes
}

// MarshalHead encodes the record without its messages into a new slice, also a record with Sizes.
// UnmarshalHead and Unmarshal decode it.
func (r *Record) MarshalHead() ([]byte, error) { return r.marshal(nil, nil) }

// Size returns the length in bytes of the value that Marshal returns. For a record with Sizes, it is the
// length with the messages of these sizes.
func (r *Record) Size() int {
	size := layout{sums: 4}.headSize() + r.MessageBytes()
	for _, n := range r.lengths() {
		size += uvarintSize(n) + n
	}
	return size
}

// lengths returns the lengths of the parts of a value, except the messages.
func (r *Record) lengths() [5]int {
	return [5]int{proto.Size(r.Header), len(r.Requests), len(r.Turns), len(r.Prompt), len(r.Data) + len(r.newData)}
}
