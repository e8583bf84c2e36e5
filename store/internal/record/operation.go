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
	"github.com/parleyhq/parley/store/internal/records"
)

// NewOperation returns the form in which a journal contains an append to an existing conversation, with its edits of
// records. out is the outcome of [Append], now the time with which it was decided, and size the size of the record
// before, in bytes. The operation shares memory with a and out.
func NewOperation(a *store.Append, out *Outcome, size int, now time.Time, o *store.Options) *storev1.Operation {
	r, key := out.Record, out.Record.Key()
	op := &storev1.Operation{
		Tenant: a.Tenant, Key: key, Uid: r.Conversation().GetUid(), AcceptTime: timestamppb.New(now),
		Messages: out.Appended, Begin: a.Begin, End: a.End, Events: a.Events,
		MaxConversationBytes: int64(o.MaxConversationBytes), Version: r.Conversation().GetVersion(),
		MessagesAdded: r.Conversation().GetMessageCount() - out.countBefore, BytesAdded: int64(r.Size() - size),
	}
	setEdits(op, out.Records)
	if q := a.Request; q != nil {
		op.Request = &storev1.Request{Id: q.ID, Method: q.Method, Digest: q.Digest[:]}
	}
	return op
}

// NewTenantOperation returns the form in which a journal contains edits of a tenant's records. The operation shares
// memory with the edits.
func NewTenantOperation(tenant string, edits *records.Edits, now time.Time) *storev1.Operation {
	op := &storev1.Operation{Tenant: tenant, AcceptTime: timestamppb.New(now)}
	setEdits(op, edits)
	return op
}

// setEdits adds edits to an operation.
func setEdits(op *storev1.Operation, edits *records.Edits) {
	if edits == nil {
		return
	}
	op.Revision, op.TenantRevision = edits.Revision, edits.TenantRevision
	op.ConversationRecords, op.TenantRecords = storedCounts(edits.Conversation), storedCounts(edits.Tenant)
	for _, e := range edits.All {
		op.Records = append(op.Records, &storev1.RecordEdit{TenantScope: e.TenantScope, Key: e.Key, Value: e.Value})
	}
}

// storedCounts returns the stored form of counts, nil for zeros.
func storedCounts(c records.Counts) *storev1.RecordCounts {
	if c == (records.Counts{}) {
		return nil
	}
	return &storev1.RecordCounts{Records: c.Records, RecordBytes: c.RecordBytes, Bytes: c.Bytes}
}

// countsOf returns counts from their stored form.
func countsOf(c *storev1.RecordCounts) records.Counts {
	return records.Counts{Records: c.GetRecords(), RecordBytes: c.GetRecordBytes(), Bytes: c.GetBytes()}
}

// OperationInfo is what a store needs to know of each operation when it opens its journal. The slices are those of the
// encoded operation.
type OperationInfo struct {
	Tenant, UID []byte
	// Key of the conversation; nil if the operation edits only records of the tenant.
	Key []byte
	// Messages are the appended messages.
	Messages store.Frames
	// Turn is true if a turn begins or ends. Begun is the id of the turn that begins, and Ended that of the turn that
	// ends. They are zero if there is none, or if stores do not index its id.
	Turn         bool
	Begun, Ended TurnID
	// MessagesAdded and BytesAdded are by how much the operation changed the counts of the tenant.
	MessagesAdded, BytesAdded int64
	// Edits of records.
	Edits []OperationEdit
	// TenantRevision is the revision of the edited records of the tenant; 0 if there are none.
	TenantRevision int64
	// ConversationRecords and TenantRecords are by how much the operation changed the counts of records.
	ConversationRecords, TenantRecords records.Counts
}

// OperationEdit is what an operation does to one record.
type OperationEdit struct {
	// TenantScope is true for a record of the tenant.
	TenantScope bool
	// Key of the record.
	Key []byte
	// Value is the encoded record; empty if it is deleted.
	Value []byte
}

// These are the fields of storev1.Operation and storev1.RecordEdit that ReadOperationInfo reads.
var (
	operationTenant         = store.FieldNumber(new(storev1.Operation), "tenant")
	operationKey            = store.FieldNumber(new(storev1.Operation), "key")
	operationUID            = store.FieldNumber(new(storev1.Operation), "uid")
	operationMessages       = store.FieldNumber(new(storev1.Operation), "messages")
	operationBegin          = store.FieldNumber(new(storev1.Operation), "begin")
	operationEnd            = store.FieldNumber(new(storev1.Operation), "end")
	operationMessagesAdded  = store.FieldNumber(new(storev1.Operation), "messages_added")
	operationBytesAdded     = store.FieldNumber(new(storev1.Operation), "bytes_added")
	operationRecords        = store.FieldNumber(new(storev1.Operation), "records")
	operationTenantRevision = store.FieldNumber(new(storev1.Operation), "tenant_revision")
	operationOwnCounts      = store.FieldNumber(new(storev1.Operation), "conversation_records")
	operationTenantCounts   = store.FieldNumber(new(storev1.Operation), "tenant_records")
	editTenantScope         = store.FieldNumber(new(storev1.RecordEdit), "tenant_scope")
	editKey                 = store.FieldNumber(new(storev1.RecordEdit), "key")
	editValue               = store.FieldNumber(new(storev1.RecordEdit), "value")
)

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
		if err := i.set(field, bytes, number); err != nil {
			return i, err
		}
	}
	if len(i.Key) != KeySize && (len(i.Key) > 0 || len(i.Edits) == 0) {
		return i, errOperation
	}
	return i, nil
}

// set sets a field, by its number in storev1.Operation.
func (i *OperationInfo) set(field protowire.Number, bytes []byte, number uint64) (err error) {
	switch field {
	case operationTenant:
		i.Tenant = bytes
	case operationKey:
		i.Key = bytes
	case operationUID:
		i.UID = bytes
	case operationMessages:
		i.Messages = bytes
	case operationBegin:
		i.Turn = true
		i.Begun, _ = ParseTurnID(itemID(bytes))
	case operationEnd:
		i.Turn = true
		i.Ended, _ = ParseTurnID(itemID(bytes))
	case operationMessagesAdded:
		i.MessagesAdded = int64(number)
	case operationBytesAdded:
		i.BytesAdded = int64(number)
	case operationRecords:
		var edit OperationEdit
		edit, err = readEdit(bytes)
		i.Edits = append(i.Edits, edit)
	case operationTenantRevision:
		i.TenantRevision = int64(number)
	case operationOwnCounts:
		i.ConversationRecords, err = readCounts(bytes)
	case operationTenantCounts:
		i.TenantRecords, err = readCounts(bytes)
	}
	return err
}

// readEdit reads an encoded storev1.RecordEdit.
func readEdit(encoded []byte) (e OperationEdit, err error) {
	for len(encoded) > 0 {
		field, kind, n := protowire.ConsumeTag(encoded)
		if n < 0 {
			return e, errOperation
		}
		encoded = encoded[n:]
		var scope uint64
		switch {
		case field == editTenantScope && kind == protowire.VarintType:
			scope, n = protowire.ConsumeVarint(encoded)
			e.TenantScope = scope != 0
		case field == editKey && kind == protowire.BytesType:
			e.Key, n = protowire.ConsumeBytes(encoded)
		case field == editValue && kind == protowire.BytesType:
			e.Value, n = protowire.ConsumeBytes(encoded)
		default:
			n = protowire.ConsumeFieldValue(field, kind, encoded)
		}
		if n < 0 {
			return e, errOperation
		}
		encoded = encoded[n:]
	}
	return e, nil
}

// readCounts reads an encoded storev1.RecordCounts.
func readCounts(encoded []byte) (records.Counts, error) {
	c := new(storev1.RecordCounts)
	if err := proto.Unmarshal(encoded, c); err != nil {
		return records.Counts{}, errOperation
	}
	return countsOf(c), nil
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
	var in *records.Input
	if len(op.GetRecords()) > 0 {
		in = &records.Input{Decided: &records.Edits{
			Revision: op.GetRevision(), TenantRevision: op.GetTenantRevision(),
			Conversation: countsOf(op.GetConversationRecords()), Tenant: countsOf(op.GetTenantRecords()),
		}}
	}
	out, err := Append(r, a, drafts, in, "", op.GetAcceptTime().AsTime(), &store.Options{
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
		r.Sizes = new(r.AllSizes())
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

// AllSizes returns the sizes of the retained messages that are not in chunks, also for a record that has Sizes. Then it
// takes time for the appended messages only, see SizeList.With.
func (r *Record) AllSizes() SizeList {
	var sizes SizeList
	if r.Sizes != nil {
		sizes = *r.Sizes
	}
	return sizes.With(r.Messages).With(r.newMessages)
}

// MarshalHead encodes the record without its messages into a new slice, also a record with Sizes.
// UnmarshalHead and Unmarshal decode it.
func (r *Record) MarshalHead() ([]byte, error) { return r.marshal(nil, nil) }

// Size returns the size of the conversation in bytes: ValueSize plus InChunkBytes.
func (r *Record) Size() int { return r.ValueSize() + r.InChunkBytes() }

// InChunkBytes returns the size of the retained messages in chunks and of the chunks of turns, in bytes.
func (r *Record) InChunkBytes() int { return r.chunkBytes() + int(r.Header.GetTurnChunks().GetBytes()) }

// ValueSize returns the length in bytes of the value that Marshal returns. For a record with Sizes, it is the
// length with the messages of these sizes.
func (r *Record) ValueSize() int {
	size := layout{sums: 4}.headSize() + r.TailBytes()
	for _, n := range r.lengths() {
		size += uvarintSize(n) + n
	}
	return size
}

// lengths returns the lengths of the parts of a value, except the messages.
func (r *Record) lengths() [5]int {
	data := len(r.Types) + len(r.Data) + len(r.newData)
	return [5]int{proto.Size(r.Header), len(r.Requests), len(r.Turns), len(r.Prompt), data}
}
