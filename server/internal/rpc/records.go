package rpc

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/pages"
	"github.com/parleyhq/parley/server/internal/rpc/retries"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/store"
)

// WriteRecords writes and deletes records in one commit.
func (s *Server) WriteRecords(
	ctx context.Context, r *parleyv1.WriteRecordsRequest,
) (*parleyv1.WriteRecordsResponse, error) {
	q, err := retries.NewRequest(r.GetRequestId(), "WriteRecords", &parleyv1.WriteRecordsRequest{Writes: r.GetWrites()})
	if err != nil {
		return nil, err
	}
	written, err := s.store.WriteRecords(ctx, &store.WriteRecords{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(), Writes: r.GetWrites(), IfVersion: r.IfVersion,
		Request: q,
	})
	if err != nil {
		return nil, ofRecords(r.GetConversationId(), err)
	}
	return &parleyv1.WriteRecordsResponse{
		Conversation: written.Conversation, Revision: written.Revision, TenantRevision: written.TenantRevision,
		Replayed: written.Replayed,
	}, nil
}

// GetRecords returns records by their keys.
func (s messageReader) GetRecords(ctx context.Context, r *parleyv1.GetRecordsRequest) (*wirecodec.Reply, error) {
	records, omitted, err := s.store.GetRecords(ctx, &store.GetRecords{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(), Keys: r.GetKeys(), MaxBytes: pages.MaxBytes,
	})
	if err != nil {
		return nil, ofRecords(r.GetConversationId(), err)
	}
	return wirecodec.NewReply(&parleyv1.GetRecordsResponse{OmittedKeys: omitted}, store.Frames(records)), nil
}

// ListRecords returns a page of records in the order of their keys.
func (s *Server) ListRecords(
	ctx context.Context, r *parleyv1.ListRecordsRequest,
) (*parleyv1.ListRecordsResponse, error) {
	page, err := pages.OpenRecords(r, tenant(ctx))
	if err != nil {
		return nil, err
	}
	records, more, err := s.store.ListRecords(ctx, page.List)
	if err != nil {
		return nil, ofRecords(r.GetConversationId(), err)
	}
	return &parleyv1.ListRecordsResponse{Records: records, NextPageToken: page.Token(records, more)}, nil
}

// tenantRecordsError is an error of a call for the tenant's records.
type tenantRecordsError struct{ err error }

// Error returns the text of the cause.
func (e *tenantRecordsError) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *tenantRecordsError) Unwrap() error { return e.err }

// ofRecords adds to an error whose records the call is about: those of the conversation or, without an id, those of the
// tenant.
func ofRecords(conversationID string, err error) error {
	if conversationID == "" {
		return &tenantRecordsError{err}
	}
	return inConversation(conversationID, err)
}

// maxReadRecords limits the records in a reply that also has a header and messages, in bytes. With them, the reply
// stays below rules.MaxGRPCBytes. So, unlike in the result of the store, a single record that is larger is left out.
const maxReadRecords = store.MaxReadRecordBytes

// recordsOnPage returns the records of a snapshot that a reply with messages can contain, and whether there are more.
func recordsOnPage(snapshot *store.Snapshot) (records []*parleyv1.Record, more bool) {
	if len(snapshot.Records) == 1 && proto.Size(snapshot.Records[0]) > maxReadRecords {
		return nil, true
	}
	return snapshot.Records, snapshot.MoreRecords
}

// revisionMismatch is the refusal of a write of a record that has another revision than it must have.
func revisionMismatch(e *store.RevisionError, about subject) refusal {
	scope, owner := "conversation", about.name
	if e.TenantScope {
		scope, owner = "tenant", "the tenant"
	}
	r := refuse(codes.Aborted, "REVISION_MISMATCH", "record %.128q of %s %s; read it and decide again",
		e.Key, owner, e.Fault())
	r.metadata = map[string]string{
		"key": e.Key, "current_revision": strconv.FormatInt(e.Current, 10), "scope": scope,
	}
	return r
}

// recordsFull is the refusal of a write that would make the records of a conversation, or those of the tenant, too
// large.
func recordsFull(e *store.RecordsFullError, about subject) refusal {
	r := refuse(codes.ResourceExhausted, "RECORDS_FULL", "%s: %v; delete records", about.name, e)
	if e.TenantScope {
		r.text = fmt.Sprintf("%v; delete records of the tenant, or write them with a ttl", e)
	}
	r.metadata = map[string]string{
		"bytes": strconv.FormatInt(e.Bytes, 10), "limit": strconv.FormatInt(e.Limit, 10),
	}
	return r
}

// copyTooLarge is the refusal of a fork whose records are too many or too large to be copied in one commit.
func copyTooLarge(e *store.CopyTooLargeError, about subject) refusal {
	r := refuse(codes.FailedPrecondition, "COPY_TOO_LARGE", "include_records: %s: %v; fork without records, "+
		"or export the conversation with its records and import it under another id", about.name, e)
	r.metadata = map[string]string{
		"records": strconv.FormatInt(e.Records, 10), "bytes": strconv.FormatInt(e.Bytes, 10),
		"limit_records": strconv.Itoa(store.MaxCopiedRecords), "limit_bytes": strconv.Itoa(store.MaxCopiedRecordBytes),
	}
	return r
}
