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
	defaultSummaryMessages = 3
	defaultBatchBytes      = 32 << 10
	// maxSummariesBytes bounds what the summaries of a reply take together, so that the reply
	// with its tags and missing ids stays under 3.5 MiB.
	maxSummariesBytes = 3<<20 + 448<<10
	// maxKeptBuffer bounds the memory that is kept for the messages of the next summary.
	maxKeptBuffer = 64 << 10
)

// GetRoutingSummary returns what a coordinator needs to route the next message.
func (s *Server) GetRoutingSummary(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (*parleyv1.GetRoutingSummaryResponse, error) {
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
	summary, err := s.summarize(ctx, id, summaryOptions(r.MessageLimit, r.GetMaxBytes()), alone)
	switch {
	case r.GetAllowMissing() && errors.Is(err, store.ErrNotFound):
		summary = &parleyv1.RoutingSummary{ConversationId: id}
	case err != nil:
		return nil, inConversation(id, err)
	}
	return &parleyv1.GetRoutingSummaryResponse{Summary: summary}, nil
}

// BatchGetRoutingSummaries returns the summaries of several conversations. If they are too
// large together, all are summed up once more, each within its share of the reply.
func (s *Server) BatchGetRoutingSummaries(ctx context.Context, r *parleyv1.BatchGetRoutingSummariesRequest) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	o := summaryOptions(r.MessageLimit, r.GetMaxBytes())
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBatchBytes
	}
	ids := r.GetConversationIds()
	extents, total := make([]extent, len(ids)), 0 // No extent where there is no conversation.
	reply, err := s.summarizeAll(ctx, ids, o, func(i int, whole *parleyv1.RoutingSummary) share {
		e := extentOf(whole)
		extents[i] = e
		if total += e.all; total > maxSummariesBytes {
			return share{} // Only the extents matter by now, and a hundred whole ones take much memory.
		}
		return share{bytes: e.all}
	})
	if err != nil || total <= maxSummariesBytes {
		return reply, err
	}
	given := shares(extents, maxSummariesBytes)
	return s.summarizeAll(ctx, ids, o, func(i int, _ *parleyv1.RoutingSummary) share { return given[i] })
}

// summarizeAll sums up conversations, each in the share that is given to the i-th.
func (s *Server) summarizeAll(ctx context.Context, ids []string, o routing.Options, give func(i int, whole *parleyv1.RoutingSummary) share) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	reply := new(parleyv1.BatchGetRoutingSummariesResponse)
	for i, id := range ids {
		summary, err := s.summarize(ctx, id, o, func(whole *parleyv1.RoutingSummary) share { return give(i, whole) })
		switch {
		case errors.Is(err, store.ErrNotFound):
			reply.MissingIds = append(reply.MissingIds, id)
		case errors.Is(err, store.ErrCorrupt): // One damaged record does not hide the others.
			s.log.ErrorContext(ctx, "summary left out of a batch", "conversation_id", id, "error", err)
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

// summarize sums up a conversation in the share that is given to the whole summary.
func (s *Server) summarize(ctx context.Context, id string, o routing.Options, give func(whole *parleyv1.RoutingSummary) share) (*parleyv1.RoutingSummary, error) {
	buffer, ok := s.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1, Buffer: *buffer})
	if err != nil {
		return nil, err
	}
	if cap(snapshot.Messages) <= maxKeptBuffer {
		*buffer = snapshot.Messages
		defer s.buffers.Put(buffer) // A summary keeps nothing of the messages' memory.
	}
	summary, err := routing.Summarize(snapshot.Conversation, snapshot.Messages, o)
	if err != nil {
		return nil, err
	}
	given := give(summary)
	if proto.Size(summary) <= given.bytes {
		return summary, nil
	}
	e := extentOf(summary)
	rest := e.all - e.messages
	crowded := !given.lists || rest > given.bytes
	if crowded {
		rest -= e.lists
	}
	if left := max(1, given.bytes-rest); o.MaxBytes == 0 || left < o.MaxBytes {
		o.MaxBytes = left
	}
	summary, err = routing.Summarize(snapshot.Conversation, snapshot.Messages, o)
	if err == nil && crowded {
		summary.PendingToolCalls, summary.StructuredDataTypes, summary.RecentAgents, summary.Truncated = nil, nil, nil, true
	}
	return summary, err
}

// extent is how many bytes a summary takes.
type extent struct {
	all      int
	messages int // Of all: recent messages and referenced data, which Options.MaxBytes bounds.
	lists    int // Of all: pending calls, types of data and agents, which have no bound.
}

func extentOf(s *parleyv1.RoutingSummary) extent {
	return extent{
		all: proto.Size(s),
		messages: len(s.ProtoReflect().GetUnknown()) + // recent messages
			proto.Size(&parleyv1.RoutingSummary{RecentMessages: s.GetRecentMessages(), ReferencedData: s.GetReferencedData()}),
		lists: proto.Size(&parleyv1.RoutingSummary{
			PendingToolCalls: s.GetPendingToolCalls(), StructuredDataTypes: s.GetStructuredDataTypes(), RecentAgents: s.GetRecentAgents(),
		}),
	}
}

// share is what a summary may take of a reply.
type share struct {
	bytes int
	lists bool // The lists stay, and messages go where both do not fit.
}

// alone is the share of a summary that has a reply for itself.
func alone(whole *parleyv1.RoutingSummary) share {
	if size := proto.Size(whole); size <= maxSummariesBytes {
		return share{bytes: size}
	}
	return shares([]extent{extentOf(whole)}, maxSummariesBytes)[0]
}

// shares divides so many bytes of a reply. Lists go before messages, but leave half of it to
// those that need it: as many stay as fit, the smallest first. Messages get equal parts, and
// those that need less than theirs leave the rest to the others.
func shares(of []extent, room int) []share {
	given, messages := make([]share, len(of)), 0
	for i, e := range of {
		given[i].bytes = e.all - e.messages - e.lists
		room -= given[i].bytes
		messages += e.messages
	}
	reserved := min(messages, room/2)
	for _, i := range ascending(of, func(e extent) int { return e.lists }) {
		if lists := of[i].lists; lists <= room-reserved {
			given[i].lists = true
			given[i].bytes += lists
			room -= lists
		}
	}
	for n, i := range ascending(of, func(e extent) int { return e.messages }) {
		part := min(of[i].messages, room/(len(of)-n))
		given[i].bytes += part
		room -= part
	}
	return given
}

// ascending returns the indices of extents, those of the smaller sizes first.
func ascending(of []extent, size func(extent) int) []int {
	order := make([]int, len(of))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(of[a]), size(of[b])) })
	return order
}

// awaitChange reports whether the conversation is the known one at known_version, and waits
// for a change as long as it is and the request says.
func (s *Server) awaitChange(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (unchanged bool, err error) {
	wait := r.GetWaitTimeout().AsDuration()
	if wait == 0 {
		return s.unchanged(ctx, r)
	}
	// Ahead of the first read, so that no change falls between.
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
		uid = c.GetUid() // From now on another one of the id is a change.
		select {
		case <-changed:
		case <-s.expired(c):
		case <-timeout:
			return true, nil
		case <-s.stopping:
			return false, turn.ErrShuttingDown
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// unchanged reports whether the conversation is the known one at known_version now; one that
// does not exist is at version 0.
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

// header reads the header of a conversation; nil when there is none.
func (s *Server) header(ctx context.Context, id string) (*parleyv1.Conversation, error) {
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil // Its version is 0.
	}
	if err != nil {
		return nil, err
	}
	return snapshot.Conversation, nil
}

// expired fires when a conversation has come to its end, which no change may tell of
// until it is swept; never while a turn runs.
func (s *Server) expired(c *parleyv1.Conversation) <-chan time.Time {
	if c == nil || c.GetActiveTurnId() != "" {
		return nil
	}
	left := c.GetExpireTime().AsTime().Sub(s.now())
	switch {
	case left > 0:
		return time.After(left)
	case left > -time.Second:
		return time.After(time.Second) // The store's clock may be a little behind.
	default:
		return nil // Session memory, whose end is a change.
	}
}
