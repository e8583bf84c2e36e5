package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// MaxRecordKeys is the server's limit of records in one call that writes records or gets them by their keys.
const MaxRecordKeys = 100

// jsonMediaType is the media type of JSON.
const jsonMediaType = "application/json"

var errNoConversation = status.Error(codes.InvalidArgument,
	"the conversation id of Records is empty: name a conversation, or use TenantRecords for the records of the tenant")

// Records are the records of one conversation or of the tenant: values under keys, each with a revision. The server
// keeps the value as it is. [Client.Records] and [Client.TenantRecords] return it. A Records is safe for concurrent
// use, and needs no Close. The calls of the zero value fail with INVALID_ARGUMENT.
//
// There are these calls besides the methods of Records:
//
//   - WriteRecords of the embedded stub writes and deletes up to 100 records in one commit, also of a conversation
//     and of the tenant together.
//   - The fields records of AppendMessagesRequest and ChatRequest write records in the same commit as the messages.
//     [JSONWrite] makes their elements.
//   - The fields record_prefixes of LoadConversationRequest and GetContextRequest read records together with the
//     messages, of the same instant.
type Records struct {
	service      parleyv1.RecordServiceClient
	conversation string // Empty for the records of the tenant.
	tenant       bool
}

// Records returns the records of a conversation, which need not exist yet. Records sends nothing. If conversationID is
// empty, each call of the result fails with INVALID_ARGUMENT and sends nothing: [Client.TenantRecords] returns the
// records of the tenant.
func (c *Client) Records(conversationID string) Records {
	return Records{service: c.RecordServiceClient, conversation: conversationID}
}

// TenantRecords returns the records of the tenant, which belong to no conversation. TenantRecords sends nothing.
func (c *Client) TenantRecords() Records {
	return Records{service: c.RecordServiceClient, tenant: true}
}

// check returns an error if the records have no owner.
func (r Records) check() error {
	if r.conversation == "" && !r.tenant {
		return errNoConversation
	}
	return nil
}

// Put writes a record, and returns its revision. It replaces the value, media type and labels of a record that
// exists. The conversation must exist. Put passes opts to the call.
//
// If write.if_revision is set and the record has another revision, Put writes nothing; see [RevisionMismatch]. The
// value 0 means that the record must not exist. If write.delete is set, Put deletes the record instead. It then returns
// the revision of the deletion, or 0 if there was no record; the version of the conversation rises in both cases.
//
// Like all calls with a request_id, Put is executed once, although the client may send it several times. A program that
// repeats a Put itself, for example after its own restart, uses WriteRecords with a request_id or sets if_revision.
func (r Records) Put(
	ctx context.Context, write *parleyv1.RecordWrite, opts ...grpc.CallOption,
) (revision int64, err error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	reply, err := r.service.WriteRecords(ctx, &parleyv1.WriteRecordsRequest{
		ConversationId: r.conversation, Writes: []*parleyv1.RecordWrite{write},
	}, opts...)
	if err != nil {
		return 0, err
	}
	return cmp.Or(reply.GetRevision(), reply.GetTenantRevision()), nil
}

// Get returns the record of key. It returns nil if there is no such record: the getters of a nil record return zero
// values, and its revision 0 as if_revision means that the record must not exist. If the conversation does not exist,
// the error is NOT_FOUND. Get passes opts to the call.
func (r Records) Get(ctx context.Context, key string, opts ...grpc.CallOption) (*parleyv1.Record, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	reply, err := r.service.GetRecords(ctx, &parleyv1.GetRecordsRequest{
		ConversationId: r.conversation, Keys: []string{key},
	}, opts...)
	if err != nil || len(reply.GetRecords()) == 0 {
		return nil, err
	}
	return reply.GetRecords()[0], nil
}

// GetAll returns the records of any number of keys. Keys without a record are left out, and a key that occurs several
// times counts once. A call returns up to 100 records of at most 3 MiB together, all of one instant. GetAll makes as
// many calls as necessary, so that it may return records of different instants. The records are in the order of keys,
// except that those for which a reply had no space follow later.
//
// GetAll sends each call when the caller has ranged over the records before. The caller must not change keys before
// the loop has ended. An error is yielded once, at the end, with a nil record. GetAll passes opts to each call.
func (r Records) GetAll(
	ctx context.Context, keys []string, opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.Record, error] {
	return func(yield func(*parleyv1.Record, error) bool) {
		if err := r.check(); err != nil {
			yield(nil, err)
			return
		}
		var omitted []string
		for rest := distinct(keys); len(omitted)+len(rest) > 0; {
			n := min(len(rest), MaxRecordKeys-len(omitted))
			next := slices.Concat(omitted, rest[:n])
			rest = rest[n:]
			reply, err := r.service.GetRecords(ctx, &parleyv1.GetRecordsRequest{
				ConversationId: r.conversation, Keys: next,
			}, opts...)
			omitted = reply.GetOmittedKeys()
			if err == nil && len(omitted) >= len(next) {
				err = status.Error(codes.Internal, "the server returned none of the records")
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, record := range reply.GetRecords() {
				if !yield(record, nil) {
					return
				}
			}
		}
	}
}

// List returns the records that request selects, in the order of their keys, over all pages. If request is nil, it
// returns all records. List sets conversation_id on a copy of request. A page_size limits a page, not the list; if it
// is 0, a page has up to 100 records. A record that exists during the whole list is returned once. Others may be
// missing.
//
// List requests each page when the caller has ranged over the page before. An error is yielded once, at the end, with a
// nil record. List passes opts to each call. The caller must not change request before the loop has ended.
func (r Records) List(
	ctx context.Context, request *parleyv1.ListRecordsRequest, opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.Record, error] {
	return func(yield func(*parleyv1.Record, error) bool) {
		if err := r.check(); err != nil {
			yield(nil, err)
			return
		}
		next := &parleyv1.ListRecordsRequest{}
		proto.Merge(next, request)
		next.ConversationId = r.conversation
		for {
			page, err := r.service.ListRecords(ctx, next, opts...)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, record := range page.GetRecords() {
				if !yield(record, nil) {
					return
				}
			}
			if next.PageToken = page.GetNextPageToken(); next.GetPageToken() == "" {
				return
			}
		}
	}
}

// Delete deletes the records of keys. A key that occurs several times counts once, and a key without a record is no
// error. Delete makes one commit for each 100 keys. Each commit raises the version of the conversation, even if it
// deletes nothing. If Delete fails, it may have deleted the records of some of these commits. Delete passes opts to
// each call.
func (r Records) Delete(ctx context.Context, keys []string, opts ...grpc.CallOption) error {
	if err := r.check(); err != nil {
		return err
	}
	for batch := range slices.Chunk(distinct(keys), MaxRecordKeys) {
		request := &parleyv1.WriteRecordsRequest{ConversationId: r.conversation}
		for _, key := range batch {
			request.Writes = append(request.Writes, &parleyv1.RecordWrite{Key: key, Delete: true})
		}
		if _, err := r.service.WriteRecords(ctx, request, opts...); err != nil {
			return err
		}
	}
	return nil
}

// distinct returns keys without those that occur before, in the same order.
func distinct(keys []string) []string {
	seen := make(map[string]bool, len(keys))
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool {
		repeated := seen[key]
		seen[key] = true
		return repeated
	})
}

// PutJSON writes value as JSON under key, whatever is there before, and returns the revision of the record. To write
// only if the record has not changed, set if_revision in the result of [JSONWrite] and pass it to Put.
func (r Records) PutJSON(
	ctx context.Context, key string, value any, opts ...grpc.CallOption,
) (revision int64, err error) {
	write, err := JSONWrite(key, value)
	if err != nil {
		return 0, err
	}
	return r.Put(ctx, write, opts...)
}

// JSONWrite returns the write of a record whose value is value as JSON, with the media type application/json. It is
// an element of WriteRecordsRequest.writes, AppendMessagesRequest.records and ChatRequest.records, a
// RespondResponse.record, or an argument of [Records.Put]. The caller may set further fields. The JSON is that of
// [json.Marshal], but contains the characters <, > and & as they are, and no line feed at its end.
//
// JSONWrite returns an error if [json.Encoder.Encode] does, or if a [json.RawMessage] or [json.Marshaler] in value
// returns invalid UTF-8. In a string, package json replaces invalid UTF-8 with U+FFFD without an error: keep bytes in a
// []byte, which becomes base64.
func JSONWrite(key string, value any) (*parleyv1.RecordWrite, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	if err == nil && !utf8.Valid(text.Bytes()) {
		err = errInvalidUTF8
	}
	if err != nil {
		return nil, fmt.Errorf("record %q: %w", key, err)
	}
	return &parleyv1.RecordWrite{
		Key: key, Value: bytes.TrimSuffix(text.Bytes(), []byte("\n")), MediaType: jsonMediaType,
	}, nil
}

// errInvalidUTF8 is the error of JSON that package json would accept, and change.
var errInvalidUTF8 = errors.New("the JSON has invalid UTF-8: write bytes as base64, or as a record that is not JSON")

// DecodeJSON returns the value of a record that contains JSON, whatever its media type. It returns the zero value of
// T if record is nil, and an error if [json.Unmarshal] does or the JSON has invalid UTF-8. A number in an any becomes a
// float64, which is exact only up to 2^53: use an integer type, [json.Number] or [json.RawMessage] for larger ones.
func DecodeJSON[T any](record *parleyv1.Record) (T, error) {
	var value T
	if record == nil {
		return value, nil
	}
	err := errInvalidUTF8
	if utf8.Valid(record.GetValue()) {
		err = json.Unmarshal(record.GetValue(), &value)
	}
	if err != nil {
		return *new(T), fmt.Errorf("record %q: %w", record.GetKey(), err)
	}
	return value, nil
}

// GetJSON returns the value and the revision of a record that contains JSON. It returns the zero value of T and
// revision 0 if there is no such record. The errors are those of [Records.Get] and [DecodeJSON].
func GetJSON[T any](
	ctx context.Context, r Records, key string, opts ...grpc.CallOption,
) (value T, revision int64, err error) {
	record, err := r.Get(ctx, key, opts...)
	if err == nil {
		value, err = DecodeJSON[T](record)
	}
	return value, record.GetRevision(), err
}
