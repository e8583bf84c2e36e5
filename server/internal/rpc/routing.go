package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/routing"
	"github.com/parleyhq/parley/server/internal/rpc/summaries"
	"github.com/parleyhq/parley/server/internal/rpc/wirecodec"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

const (
	// defaultSummaryMessages is the number of recent messages if the request has no message_limit.
	defaultSummaryMessages = 3
	// defaultBatchBytes is the max_bytes of each summary of a batch if the request has none.
	defaultBatchBytes = 32 << 10
	// maxSummariesBytes limits the total size of the summaries of a reply. With tags and missing ids,
	// the reply stays below 3.5 MiB.
	maxSummariesBytes = 3<<20 + 448<<10
)

// GetRoutingSummary returns the summary with which a coordinator routes the next message.
func (s messageReader) GetRoutingSummary(
	ctx context.Context, r *parleyv1.GetRoutingSummaryRequest,
) (*wirecodec.Reply, error) {
	id := r.GetConversationId()
	if unchanged, err := s.awaitChange(ctx, r); err != nil {
		return nil, inConversation(id, err)
	} else if unchanged {
		return wirecodec.NewReply(&parleyv1.GetRoutingSummaryResponse{NotModified: true}), nil
	}
	reply, err := s.summaryReply(ctx, id, summaryOptions(r.MessageLimit, r.GetMaxBytes()))
	if r.GetAllowMissing() && errors.Is(err, store.ErrNotFound) {
		missing := &parleyv1.RoutingSummary{ConversationId: id}
		return wirecodec.NewReply(&parleyv1.GetRoutingSummaryResponse{Summary: missing}), nil
	}
	if err != nil {
		return nil, inConversation(id, err)
	}
	return wirecodec.NewReply(new(parleyv1.GetRoutingSummaryResponse), reply), nil
}

// summaryReply returns the encoded reply with the summary of a conversation. If the conversation has not changed since
// the last summary in the cache, it returns that one.
func (s *Server) summaryReply(ctx context.Context, id string, o routing.Options) ([]byte, error) {
	q := &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1, MaxBytes: maxPageBytes}
	last := s.summaries.Get(q.Tenant, id, o, s.now())
	if last != nil {
		q.Known = last.Of
	}
	snapshot, err := s.read(ctx, q)
	if err != nil {
		return nil, err
	}
	if snapshot.Unchanged {
		return last.Reply, nil
	}
	c := snapshot.Conversation
	summary, err := routing.SummarizeShare(c, snapshot.Messages, o, routing.WholeReply(maxSummariesBytes))
	if err != nil {
		return nil, err
	}
	reply, err := proto.Marshal(&parleyv1.GetRoutingSummaryResponse{Summary: summary})
	if err != nil {
		return nil, err
	}
	computed := &summaries.Summary{
		Of: store.Known{Version: c.GetVersion(), UID: c.GetUid()}, Options: o, Reply: reply,
	}
	if end := c.GetActiveAgent().GetLeaseExpireTime(); end != nil {
		computed.Until = end.AsTime()
	}
	s.summaries.Put(q.Tenant, id, computed)
	return reply, nil
}

// BatchGetRoutingSummaries returns the summaries of several conversations. If their total size exceeds
// the limit of a reply, it computes all summaries again, each within its share of the reply.
func (s *Server) BatchGetRoutingSummaries(
	ctx context.Context, r *parleyv1.BatchGetRoutingSummariesRequest,
) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	o, ids := summaryOptions(r.MessageLimit, r.GetMaxBytes()), r.GetConversationIds()
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBatchBytes
	}
	batch := routing.NewBatch(len(ids), maxSummariesBytes)
	reply, err := s.summarizeAll(ctx, ids, o, batch)
	if err != nil || !batch.Divide() {
		return reply, err
	}
	return s.summarizeAll(ctx, ids, o, batch)
}

// summarizeAll returns the summaries of conversations, each within its share of the batch.
func (s *Server) summarizeAll(
	ctx context.Context, ids []string, o routing.Options, batch *routing.Batch,
) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	reply := new(parleyv1.BatchGetRoutingSummariesResponse)
	for i, id := range ids {
		summary, err := s.summarize(ctx, id, o, func(full *parleyv1.RoutingSummary) routing.Share {
			return batch.Share(i, full)
		})
		switch {
		case errors.Is(err, store.ErrNotFound):
			reply.MissingIds = append(reply.MissingIds, id)
		case errors.Is(err, store.ErrCorrupt): // A damaged conversation must not fail the other summaries.
			s.log.ErrorContext(ctx, "summary omitted from batch", "tenant", tenant(ctx), "conversation_id", id, "error", err)
			reply.MissingIds = append(reply.MissingIds, id)
		case err != nil:
			return nil, inConversation(id, err)
		default:
			reply.Summaries = append(reply.Summaries, summary)
		}
	}
	return reply, nil
}

func summaryOptions(limit *int32, maxBytes int32) routing.Options {
	o := routing.Options{MessageLimit: defaultSummaryMessages, MaxBytes: int(maxBytes)}
	if limit != nil {
		o.MessageLimit = int(*limit)
	}
	return o
}

// summarize returns the summary of a conversation. shareOf returns the share of the reply for the full
// summary.
func (s *Server) summarize(
	ctx context.Context, id string, o routing.Options, shareOf func(full *parleyv1.RoutingSummary) routing.Share,
) (*parleyv1.RoutingSummary, error) {
	snapshot, err := s.read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1, MaxBytes: maxPageBytes})
	if err != nil {
		return nil, err
	}
	return routing.SummarizeShare(snapshot.Conversation, snapshot.Messages, o, shareOf)
}

// awaitChange waits until the conversation differs from the known one at known_version, at most for
// the wait_timeout of the request. It reports whether the conversation is still unchanged. Without a
// known_version it returns false immediately.
func (s *Server) awaitChange(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (unchanged bool, err error) {
	if r.KnownVersion == nil {
		return false, nil
	}
	wait := r.GetWaitTimeout().AsDuration()
	if wait == 0 {
		return s.unchanged(ctx, r)
	}
	// Subscribe before the first read, so that no change between the two is missed.
	changed, stop, err := s.hub.Subscribe(tenant(ctx), r.GetConversationId())
	if err != nil {
		return false, err
	}
	defer stop()
	timeout := time.After(wait)
	for uid := r.GetKnownUid(); ; {
		c, err := s.header(ctx, r.GetConversationId())
		if err != nil || c.GetVersion() != r.GetKnownVersion() || uid != "" && c.GetUid() != uid {
			return false, err
		}
		uid = c.GetUid() // From now on, a new conversation with the same id is a change.
		select {
		case <-changed:
		case <-s.expiry(c):
		case <-timeout:
			return true, nil
		case <-s.stopping:
			return false, turn.ErrShuttingDown
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// unchanged reports whether the conversation is now the known one at known_version. A conversation
// that does not exist has version 0.
func (s *Server) unchanged(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (bool, error) {
	snapshot, err := s.store.Read(ctx, &store.Read{
		Tenant: tenant(ctx), ConversationID: r.GetConversationId(),
		Known: store.Known{Version: r.GetKnownVersion(), UID: r.GetKnownUid()},
	})
	if errors.Is(err, store.ErrNotFound) {
		return r.GetKnownVersion() == 0 && r.GetKnownUid() == "", nil
	}
	if err != nil {
		return false, err
	}
	return snapshot.Unchanged, nil
}

// header reads the header of a conversation. It returns nil if there is no such conversation.
func (s *Server) header(ctx context.Context, id string) (*parleyv1.Conversation, error) {
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil // The version of a nil header is 0.
	}
	if err != nil {
		return nil, err
	}
	return snapshot.Conversation, nil
}

// expiry returns a channel that receives when a conversation expires. There may be no change for the
// expiry until the store is swept. The channel is nil if there is no conversation, and while a turn is
// running: it cannot expire then.
func (s *Server) expiry(c *parleyv1.Conversation) <-chan time.Time {
	if c == nil || c.GetActiveTurnId() != "" {
		return nil
	}
	left := c.GetExpireTime().AsTime().Sub(s.now())
	switch {
	case left > 0:
		return time.After(left)
	case left > -time.Second:
		return time.After(time.Second) // The store's clock may be slightly slow.
	default:
		return nil // The conversation is ephemeral, and its deletion is a change.
	}
}
