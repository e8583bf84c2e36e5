package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	// maxRecordKeys is the maximum number of records in one call that writes records or gets them by their keys.
	maxRecordKeys = 100
	// jsonMediaType is the media type of JSON.
	jsonMediaType = "application/json"
)

// Records are the records of one conversation or of the tenant: values under keys, each with a revision. The server
// keeps the value as it is. A Records is safe for concurrent use, and needs no Close.
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
}

// Records returns the records of a conversation, which need not exist yet. If conversationID is empty, it returns those
// of the tenant. Records sends nothing.
func (c *Client) Records(conversationID string) Records {
	return Records{service: c.RecordServiceClient, conversation: conversationID}
}

// Put writes a record, and returns its revision. It replaces the value, media type and labels of a record that
// exists. The conversation must exist. Put passes opts to the call.
//
// If write.if_revision is set and the record has another revision, Put writes nothing; see [RevisionMismatch]. The
// value 0 means that the record must not exist. If write.delete is set, Put deletes the record instead and returns
// the revision of the deletion.
//
// Like all calls with a request_id, Put is executed once, although the client may send it several times. A program that
// repeats a Put itself, for example after its own restart, uses WriteRecords with a request_id or sets if_revision.
func (r Records) Put(
	ctx context.Context, write *parleyv1.RecordWrite, opts ...grpc.CallOption,
) (revision int64, err error) {
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
	reply, err := r.service.GetRecords(ctx, &parleyv1.GetRecordsRequest{
		ConversationId: r.conversation, Keys: []string{key},
	}, opts...)
	if err != nil || len(reply.GetRecords()) == 0 {
		return nil, err
	}
	return reply.GetRecords()[0], nil
}

// GetAll returns the records of any number of keys. Keys without a record are left out. A call returns up to 100
// records of at most 3 MiB together, all of one instant. GetAll makes as many calls as necessary, so that it may
// return records of different instants. The records are in the order of keys, except that those for which a reply had
// no space follow later.
//
// GetAll sends each call when the caller has ranged over the records before. An error is yielded once, at the end,
// with a nil record. GetAll passes opts to each call.
func (r Records) GetAll(
	ctx context.Context, keys []string, opts ...grpc.CallOption,
) iter.Seq2[*parleyv1.Record, error] {
	return func(yield func(*parleyv1.Record, error) bool) {
		var omitted []string
		for rest := keys; len(omitted)+len(rest) > 0; {
			n := min(len(rest), maxRecordKeys-len(omitted))
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

// Delete deletes the records of keys, which must be different. A key without a record is no error. Delete makes one
// commit for each 100 keys. If it fails, it may have deleted the records of some of these commits. Delete passes opts
// to each call.
func (r Records) Delete(ctx context.Context, keys []string, opts ...grpc.CallOption) error {
	for batch := range slices.Chunk(keys, maxRecordKeys) {
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
// RespondResponse.record, or an argument of [Records.Put]. The caller may set further fields. JSONWrite returns an
// error if [json.Marshal] does.
func JSONWrite(key string, value any) (*parleyv1.RecordWrite, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("record %q: %w", key, err)
	}
	return &parleyv1.RecordWrite{Key: key, Value: text, MediaType: jsonMediaType}, nil
}

// DecodeJSON returns the value of a record that contains JSON, whatever its media type. It returns the zero value of
// T if record is nil, and an error if [json.Unmarshal] does.
func DecodeJSON[T any](record *parleyv1.Record) (T, error) {
	var value T
	if record == nil {
		return value, nil
	}
	if err := json.Unmarshal(record.GetValue(), &value); err != nil {
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
