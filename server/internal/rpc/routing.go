package rpc

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/routing"
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
	// maxPooledBuffer is the maximum capacity of a buffer that the server reuses for the next summary.
	maxPooledBuffer = 64 << 10
)

// GetRoutingSummary returns the summary with which a coordinator routes the next message.
func (s *Server) GetRoutingSummary(
	ctx context.Context, r *parleyv1.GetRoutingSummaryRequest,
) (*parleyv1.GetRoutingSummaryResponse, error) {
	id := r.GetConversationId()
	if r.KnownVersion != nil {
		unchanged, err := s.awaitChange(ctx, r)
		if err != nil {
			return nil, inConversation(id, err)
		}
		if unchanged {
			return &parleyv1.GetRoutingSummaryResponse{NotModified: true}, nil
		}
	}
	summary, err := s.summarize(ctx, id, summaryOptions(r.MessageLimit, r.GetMaxBytes()), wholeReply)
	switch {
	case r.GetAllowMissing() && errors.Is(err, store.ErrNotFound):
		summary = &parleyv1.RoutingSummary{ConversationId: id}
	case err != nil:
		return nil, inConversation(id, err)
	}
	return &parleyv1.GetRoutingSummaryResponse{Summary: summary}, nil
}

// BatchGetRoutingSummaries returns the summaries of several conversations. If their total size exceeds
// the limit of a reply, it computes all summaries again, each within its share of the reply.
func (s *Server) BatchGetRoutingSummaries(
	ctx context.Context, r *parleyv1.BatchGetRoutingSummariesRequest,
) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	o := summaryOptions(r.MessageLimit, r.GetMaxBytes())
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBatchBytes
	}
	ids := r.GetConversationIds()
	sizes, total := make([]summarySize, len(ids)), 0 // The size of a missing conversation is 0.
	reply, err := s.summarizeAll(ctx, ids, o, func(i int, full *parleyv1.RoutingSummary) share {
		size := sizeOf(full)
		sizes[i] = size
		if total += size.all; total > maxSummariesBytes {
			return share{} // Only sizes matter now, and a hundred full summaries need much memory.
		}
		return share{bytes: size.all}
	})
	if err != nil || total <= maxSummariesBytes {
		return reply, err
	}
	divided := divide(sizes, maxSummariesBytes)
	return s.summarizeAll(ctx, ids, o, func(i int, _ *parleyv1.RoutingSummary) share { return divided[i] })
}

// summarizeAll returns the summaries of conversations. shareOf returns the share of the i-th summary.
func (s *Server) summarizeAll(
	ctx context.Context, ids []string, o routing.Options, shareOf func(i int, full *parleyv1.RoutingSummary) share,
) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	reply := new(parleyv1.BatchGetRoutingSummariesResponse)
	for i, id := range ids {
		summary, err := s.summarize(ctx, id, o, func(full *parleyv1.RoutingSummary) share { return shareOf(i, full) })
		switch {
		case errors.Is(err, store.ErrNotFound):
			reply.MissingIds = append(reply.MissingIds, id)
		case errors.Is(err, store.ErrCorrupt): // A damaged conversation must not fail the other summaries.
			s.log.ErrorContext(ctx, "summary omitted from batch", "conversation_id", id, "error", err)
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
// summary. If the full summary does not fit into its share, summarize truncates it.
func (s *Server) summarize(
	ctx context.Context, id string, o routing.Options, shareOf func(full *parleyv1.RoutingSummary) share,
) (*parleyv1.RoutingSummary, error) {
	buffer, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	snapshot, err := s.store.Read(ctx, &store.Read{
		Tenant: tenant(ctx), ConversationID: id, Newest: -1, Buffer: *buffer,
	})
	if err != nil {
		return nil, err
	}
	if cap(snapshot.Messages) <= maxPooledBuffer {
		*buffer = snapshot.Messages
		defer s.buffers.Put(buffer) // The summary does not reference the memory of the messages.
	}
	summary, err := routing.Summarize(snapshot.Conversation, snapshot.Messages, o)
	if err != nil {
		return nil, err
	}
	allowed := shareOf(summary)
	if proto.Size(summary) <= allowed.bytes {
		return summary, nil
	}
	size := sizeOf(summary)
	rest := size.all - size.messages
	dropLists := !allowed.lists || rest > allowed.bytes
	if dropLists {
		rest -= size.lists
	}
	if left := max(1, allowed.bytes-rest); o.MaxBytes == 0 || left < o.MaxBytes {
		o.MaxBytes = left
	}
	summary, err = routing.Summarize(snapshot.Conversation, snapshot.Messages, o)
	if err == nil && dropLists {
		summary.PendingToolCalls, summary.StructuredDataTypes, summary.RecentAgents = nil, nil, nil
		summary.Truncated = true
	}
	return summary, err
}

// summarySize is the encoded size of a summary in bytes.
type summarySize struct {
	all      int
	messages int // part of all: recent messages and referenced data, which Options.MaxBytes limits
	lists    int // part of all: pending calls, types of data and agents, which have no limit
}

func sizeOf(s *parleyv1.RoutingSummary) summarySize {
	return summarySize{
		all: proto.Size(s),
		messages: len(s.ProtoReflect().GetUnknown()) + // encoded recent messages
			proto.Size(&parleyv1.RoutingSummary{
				RecentMessages: s.GetRecentMessages(), ReferencedData: s.GetReferencedData(),
			}),
		lists: proto.Size(&parleyv1.RoutingSummary{
			PendingToolCalls: s.GetPendingToolCalls(), StructuredDataTypes: s.GetStructuredDataTypes(),
			RecentAgents: s.GetRecentAgents(),
		}),
	}
}

// share is the part of a reply that a summary may use.
type share struct {
	bytes int
	lists bool // The summary keeps its lists, even if messages must be removed for them.
}

// wholeReply returns the share of a summary that is the only one in its reply.
func wholeReply(full *parleyv1.RoutingSummary) share {
	if size := proto.Size(full); size <= maxSummariesBytes {
		return share{bytes: size}
	}
	return divide([]summarySize{sizeOf(full)}, maxSummariesBytes)[0]
}

// divide divides limit bytes of a reply among summaries. Lists have priority over messages, but they
// leave half of the bytes to messages that need them. If not all lists fit, the smallest ones do.
// Messages get equal parts. A summary that needs less than its part leaves the rest to the others.
func divide(sizes []summarySize, limit int) []share {
	divided, messages, left := make([]share, len(sizes)), 0, limit
	for i, size := range sizes {
		divided[i].bytes = size.all - size.messages - size.lists
		left -= divided[i].bytes
		messages += size.messages
	}
	reserved := min(messages, left/2)
	for _, i := range ascending(sizes, func(s summarySize) int { return s.lists }) {
		if lists := sizes[i].lists; lists <= left-reserved {
			divided[i].lists = true
			divided[i].bytes += lists
			left -= lists
		}
	}
	for n, i := range ascending(sizes, func(s summarySize) int { return s.messages }) {
		part := min(sizes[i].messages, left/(len(sizes)-n))
		divided[i].bytes += part
		left -= part
	}
	return divided
}

// ascending returns the indices of sizes, sorted by the result of key.
func ascending(sizes []summarySize, key func(summarySize) int) []int {
	order := make([]int, len(sizes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(key(sizes[a]), key(sizes[b])) })
	return order
}

// awaitChange waits until the conversation differs from the known one at known_version, at most for
// the wait_timeout of the request. It reports whether the conversation is still unchanged.
func (s *Server) awaitChange(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (unchanged bool, err error) {
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
		return time.After(time.Second) // The store's clock may be slightly behind.
	default:
		return nil // The conversation is ephemeral, and its deletion is a change.
	}
}
