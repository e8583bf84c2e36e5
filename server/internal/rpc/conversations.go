package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/retries"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/store"
)

// Defaults of request fields that are not set.
const (
	defaultLoadMessages = 20 // LoadConversationRequest.message_limit
	defaultListPage     = 50 // ListConversationsRequest.page_size
)

// CreateConversation creates an empty conversation.
func (s *Server) CreateConversation(
	ctx context.Context, r *parleyv1.CreateConversationRequest,
) (*parleyv1.CreateConversationResponse, error) {
	const method = "CreateConversation"
	c, err := s.settable(r.GetConversation())
	if err != nil {
		return nil, err
	}
	q, err := retries.NewRequest(r.GetRequestId(), method, c)
	if err != nil {
		return nil, err
	}
	c.Id = retries.IDOr(c.GetId(), r.GetRequestId(), tenant(ctx), method)
	result, err := s.store.Create(ctx, &store.Create{Tenant: tenant(ctx), Conversation: c, Request: q})
	if err != nil {
		return nil, inConversation(c.GetId(), err)
	}
	return &parleyv1.CreateConversationResponse{Conversation: result.Conversation, Replayed: result.Replayed}, nil
}

// settable returns a header with the fields of c that clients can set. It returns a [rules.RetentionError] if this
// server forbids the retention.
func (s *Server) settable(c *parleyv1.Conversation) (*parleyv1.Conversation, error) {
	return &parleyv1.Conversation{
		Id: c.GetId(), Title: c.GetTitle(), Labels: c.GetLabels(), Agent: c.GetAgent(),
		SystemPrompt: c.GetSystemPrompt(), Retention: c.GetRetention(),
	}, s.retentions.Check(c.GetRetention())
}

// settableWith returns what settable returns for the field create_with of a request, without the id, and nil if the
// field is unset. So requests without the field have the digests that earlier versions stored.
func (s *Server) settableWith(c *parleyv1.Conversation) (*parleyv1.Conversation, error) {
	if c == nil {
		return nil, nil
	}
	c, err := s.settable(c)
	c.Id = ""
	return c, err
}

// LoadConversation returns a conversation with its newest messages. It creates the conversation if it
// does not exist.
func (s messageReader) LoadConversation(
	ctx context.Context, r *parleyv1.LoadConversationRequest,
) (*wirecodec.Reply, error) {
	with, err := s.settableWith(r.GetCreateWith())
	if err != nil {
		return nil, err
	}
	read, err := readToLoad(tenant(ctx), r, with)
	if err != nil {
		return nil, err
	}
	snapshot, err := s.load(ctx, read, with)
	if err != nil {
		return nil, inConversation(read.ConversationID, err)
	}
	return loadReply(snapshot), nil
}

// readToLoad returns the read of a LoadConversation. with is what settableWith returns for its create_with.
func readToLoad(
	tenant string, r *parleyv1.LoadConversationRequest, with *parleyv1.Conversation,
) (*store.Read, error) {
	const method = "LoadConversation"
	id := r.GetConversationId()
	q, err := retries.NewRequest(r.GetRequestId(), method, &parleyv1.LoadConversationRequest{
		ConversationId: id, CreateWith: with,
	})
	if err != nil {
		return nil, err
	}
	read := &store.Read{
		Tenant: tenant, Newest: defaultLoadMessages, MaxBytes: maxPageBytes, RecordPrefixes: r.GetRecordPrefixes(),
		Request: q,
	}
	read.ConversationID = retries.IDOr(id, r.GetRequestId(), tenant, method)
	if r.MessageLimit != nil {
		read.Newest = int(r.GetMessageLimit())
	}
	return read, nil
}

func loadReply(snapshot *store.Snapshot) *wirecodec.Reply {
	records, more := recordsOnPage(snapshot)
	return wirecodec.NewReply(&parleyv1.LoadConversationResponse{
		Conversation: snapshot.Conversation, Created: snapshot.Seen != nil && snapshot.Seen.Created,
		Records: records, MoreRecords: more,
	}, snapshot.Messages)
}

// load reads a conversation, see [Server.read]. It creates the conversation if it does not exist, with the fields of
// with, which may be nil.
func (s *Server) load(ctx context.Context, read *store.Read, with *parleyv1.Conversation) (*store.Snapshot, error) {
	c := proto.CloneOf(with)
	if c == nil {
		c = new(parleyv1.Conversation)
	}
	c.Id = read.ConversationID
	// The loop repeats only if another caller creates the conversation between the two calls.
	for {
		snapshot, err := s.read(ctx, read)
		if !errors.Is(err, store.ErrNotFound) {
			return snapshot, err
		}
		result, err := s.store.Create(ctx, &store.Create{
			Tenant: read.Tenant, Conversation: c, Request: read.Request, OrGet: true,
		})
		if err != nil {
			return nil, err
		}
		if result.Created && !result.Replayed {
			return &store.Snapshot{Conversation: result.Conversation, Seen: &store.Seen{Created: true}}, nil
		}
	}
}

// GetConversation returns the header of a conversation.
func (s *Server) GetConversation(
	ctx context.Context, r *parleyv1.GetConversationRequest,
) (*parleyv1.GetConversationResponse, error) {
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: r.GetConversationId()})
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	return &parleyv1.GetConversationResponse{Conversation: snapshot.Conversation}, nil
}

// UpdateConversation changes the fields that the update mask names.
func (s *Server) UpdateConversation(
	ctx context.Context, r *parleyv1.UpdateConversationRequest,
) (*parleyv1.UpdateConversationResponse, error) {
	fields := updateFields(r)
	if err := s.retentions.Check(retentionIn(fields, r.GetConversation())); err != nil {
		return nil, err
	}
	result, err := s.update(ctx, &store.Update{
		ConversationID: r.GetConversation().GetId(), IfVersion: r.IfVersion,
		Values: r.GetConversation(), Fields: fields,
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.UpdateConversationResponse{Conversation: result.Conversation}, nil
}

// ClearConversation removes the messages after a sequence, or single ones. The conversation stays.
func (s *Server) ClearConversation(
	ctx context.Context, r *parleyv1.ClearConversationRequest,
) (*parleyv1.ClearConversationResponse, error) {
	q, err := clearRequest(r)
	if err != nil {
		return nil, err
	}
	result, err := s.update(ctx, &store.Update{
		ConversationID: r.GetConversationId(), IfVersion: r.IfVersion, KeepThrough: &r.AfterSequence,
		Sequences: r.GetSequences(), Request: q,
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.ClearConversationResponse{Conversation: result.Conversation, Replayed: result.Replayed}, nil
}

// clearRequest returns the request by which a retry of a removal is recognized. With sequences, after_sequence has no
// effect.
func clearRequest(r *parleyv1.ClearConversationRequest) (*store.Request, error) {
	content := &parleyv1.ClearConversationRequest{AfterSequence: r.GetAfterSequence(), Sequences: r.GetSequences()}
	if len(content.GetSequences()) > 0 {
		content.AfterSequence = 0
	}
	return retries.NewRequest(r.GetRequestId(), "ClearConversation", content)
}

// callSeparated is the refusal of a removal that would separate a tool call from its result.
func callSeparated(e *store.SeparatedError, about subject) refusal {
	field := "sequences"
	if e.Replacing {
		field = "replace_after_sequence"
	}
	r := refuse(codes.InvalidArgument, "CALL_SEPARATED", "%s: %s: %v", field, about.name, e).badField(field, e.Error())
	r.metadata = map[string]string{
		"call_sequence": strconv.Itoa(int(e.Call)), "result_sequence": strconv.Itoa(int(e.Result)),
	}
	return r
}

// SetActiveAgent grants an agent the routing lease of a conversation, or ends the lease.
func (s *Server) SetActiveAgent(
	ctx context.Context, r *parleyv1.SetActiveAgentRequest,
) (*parleyv1.SetActiveAgentResponse, error) {
	result, err := s.update(ctx, &store.Update{
		ConversationID: r.GetConversationId(), IfVersion: r.IfVersion,
		Lease: &store.Lease{Agent: r.GetAgent(), Reason: r.GetReason(), Duration: r.GetLeaseDuration().AsDuration()},
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.SetActiveAgentResponse{Conversation: result.Conversation}, nil
}

// update changes a conversation of the caller's tenant. The header in the result is for the reply, and
// has no system prompt.
func (s *Server) update(ctx context.Context, u *store.Update) (*store.Result, error) {
	u.Tenant = tenant(ctx)
	result, err := s.store.Update(ctx, u)
	if err != nil {
		return nil, inConversation(u.ConversationID, err)
	}
	withoutPrompt(result.Conversation)
	return result, nil
}

// withoutPrompt removes the system prompt from a header. Replies that only report a change have none.
func withoutPrompt(c *parleyv1.Conversation) *parleyv1.Conversation {
	c.SystemPrompt = ""
	return c
}

// ListConversations returns a page of the tenant's live conversations.
func (s *Server) ListConversations(
	ctx context.Context, r *parleyv1.ListConversationsRequest,
) (*parleyv1.ListConversationsResponse, error) {
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultListPage
	}
	// The cursor is read before the list. So a change between the two is reported twice, not lost.
	cursor := s.hub.Cursor(tenant(ctx))
	page, err := s.store.List(ctx, &store.List{
		Tenant: tenant(ctx), Labels: r.GetLabels(), Text: r.GetText(), StructuredDataType: r.GetStructuredDataType(),
		Order: r.GetOrder(), PageSize: size, PageToken: r.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	return &parleyv1.ListConversationsResponse{
		Conversations: page.Entries, NextPageToken: page.NextPageToken, TotalSize: page.Total, WatchCursor: cursor,
	}, nil
}

// DeleteConversation deletes a conversation with its messages.
func (s *Server) DeleteConversation(
	ctx context.Context, r *parleyv1.DeleteConversationRequest,
) (*parleyv1.DeleteConversationResponse, error) {
	err := s.store.Delete(ctx, &store.Delete{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(), IfVersion: r.IfVersion,
	})
	missing := errors.Is(err, store.ErrNotFound)
	if err != nil && (!missing || !r.GetAllowMissing()) {
		return nil, inConversation(r.GetConversationId(), err)
	}
	return &parleyv1.DeleteConversationResponse{}, nil
}

// PurgeConversations deletes conversations that have been inactive for a given time.
func (s *Server) PurgeConversations(
	ctx context.Context, r *parleyv1.PurgeConversationsRequest,
) (*parleyv1.PurgeConversationsResponse, error) {
	purged, err := s.store.Purge(ctx, &store.Purge{
		Tenant: tenant(ctx), InactiveFor: r.GetInactiveFor().AsDuration(), DryRun: r.GetDryRun(),
	})
	if purged.Count > 0 && !r.GetDryRun() { // A purge that fails may have deleted some conversations before.
		s.monitor.Purged(purged.Count)
		s.log.InfoContext(ctx, "purged", "tenant", tenant(ctx), "count", purged.Count,
			"inactive_for", r.GetInactiveFor().AsDuration().String())
	}
	if err != nil {
		return nil, err
	}
	return &parleyv1.PurgeConversationsResponse{PurgedCount: purged.Count, SampleIds: purged.SampleIDs}, nil
}

// ForkConversation copies a conversation up to a message into a new conversation.
func (s *Server) ForkConversation(
	ctx context.Context, r *parleyv1.ForkConversationRequest,
) (*parleyv1.ForkConversationResponse, error) {
	const method = "ForkConversation"
	q, err := retries.NewRequest(r.GetRequestId(), method, &parleyv1.ForkConversationRequest{
		ConversationId: r.GetConversationId(), AtSequence: r.GetAtSequence(),
		NewConversationId: r.GetNewConversationId(), IncludeRecords: r.GetIncludeRecords(),
	})
	if err != nil {
		return nil, err
	}
	id := retries.IDOr(r.GetNewConversationId(), r.GetRequestId(), tenant(ctx), method)
	if first, err := s.firstFork(ctx, id, q); err != nil || first != nil {
		return first, err
	}
	return s.fork(ctx, r, id, q)
}

// firstFork returns the reply of an earlier call with the same request, or nil if there is none. So a
// retry succeeds even if the source was deleted in the meantime.
func (s *Server) firstFork(
	ctx context.Context, id string, q *store.Request,
) (*parleyv1.ForkConversationResponse, error) {
	if q == nil {
		return nil, nil
	}
	fork, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Request: q})
	switch {
	case err == nil && fork.Seen != nil:
		return &parleyv1.ForkConversationResponse{Conversation: fork.Conversation, Replayed: true}, nil
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, inConversation(id, err)
	}
	return nil, nil
}

// fork creates a fork with an id. q is the request that the store compares retries with.
func (s *Server) fork(
	ctx context.Context, r *parleyv1.ForkConversationRequest, id string, q *store.Request,
) (*parleyv1.ForkConversationResponse, error) {
	source, done, err := s.largeForks.Read(ctx, s.store, &store.Read{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(),
	})
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	defer done()
	create, size, err := s.copyOf(tenant(ctx), source, r, id)
	if err != nil {
		return nil, inConversation(r.GetConversationId(), err)
	}
	// The request is small, so the interceptors do not count it.
	if err := s.limits.Append(tenant(ctx), size); err != nil {
		return nil, err
	}
	create.Request = q
	result, err := s.store.Create(ctx, create)
	if err != nil {
		return nil, inConversation(id, err)
	}
	return &parleyv1.ForkConversationResponse{Conversation: result.Conversation, Replayed: result.Replayed}, nil
}

// copyOf returns the store operation that creates a fork of source with an id, and the size of the copy in bytes. A
// fork copies everything except the lease, turns and request ids, and records only if the request says so.
func (s *Server) copyOf(
	tenant string, source *store.Snapshot, r *parleyv1.ForkConversationRequest, id string,
) (create *store.Create, copied int, err error) {
	frames, last := source.Messages, int32(0)
	size := 0
	for frame := range frames.All() {
		if last == r.GetAtSequence() && last != 0 {
			break
		}
		last, size = frame.Sequence(), size+len(frame)
	}
	if r.GetAtSequence() != 0 && last != r.GetAtSequence() {
		return nil, 0, &sequenceGoneError{sequence: r.GetAtSequence()}
	}
	c, err := s.settable(source.Conversation)
	if err != nil {
		return nil, 0, err
	}
	c.Id, c.ForkedFrom = id, &parleyv1.ForkOrigin{ConversationId: source.Conversation.GetId(), Sequence: last}
	create = &store.Create{Tenant: tenant, Messages: frames[:size], Conversation: c}
	copied = size + proto.Size(c)
	if r.GetIncludeRecords() {
		create.RecordsOf, create.RecordsOfUID = r.GetConversationId(), source.Conversation.GetUid()
		copied += int(source.Conversation.GetRecordBytes())
	}
	return create, copied, nil
}

// sequenceGoneError means that the message at which a fork ends is not stored.
type sequenceGoneError struct{ sequence int32 }

// Error returns a text with the sequence of the message.
func (e *sequenceGoneError) Error() string {
	return fmt.Sprintf("message %d is not stored", e.sequence)
}
