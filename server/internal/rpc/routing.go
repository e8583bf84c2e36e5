package rpc

import (
	"context"
	"errors"
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
	summary, err := s.summarize(ctx, id, summaryOptions(r.MessageLimit, r.GetMaxBytes()), maxSummariesBytes)
	switch {
	case r.GetAllowMissing() && errors.Is(err, store.ErrNotFound):
		summary = &parleyv1.RoutingSummary{ConversationId: id}
	case err != nil:
		return nil, inConversation(id, err)
	}
	return &parleyv1.GetRoutingSummaryResponse{Summary: summary}, nil
}

// BatchGetRoutingSummaries returns the summaries of several conversations.
func (s *Server) BatchGetRoutingSummaries(ctx context.Context, r *parleyv1.BatchGetRoutingSummariesRequest) (*parleyv1.BatchGetRoutingSummariesResponse, error) {
	o := summaryOptions(r.MessageLimit, r.GetMaxBytes())
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultBatchBytes
	}
	reply, room := new(parleyv1.BatchGetRoutingSummariesResponse), maxSummariesBytes
	for i, id := range r.GetConversationIds() {
		// Each gets its share of what the ones before have left.
		share := room / (len(r.GetConversationIds()) - i)
		summary, err := s.summarize(ctx, id, o, share)
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
			room -= proto.Size(summary)
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

// summarize sums up a conversation in so many bytes.
func (s *Server) summarize(ctx context.Context, id string, o routing.Options, room int) (*parleyv1.RoutingSummary, error) {
	snapshot, err := s.store.Read(ctx, &store.Read{Tenant: tenant(ctx), ConversationID: id, Newest: -1})
	if err != nil {
		return nil, err
	}
	return fit(room, o, func(o routing.Options) (*parleyv1.RoutingSummary, error) {
		return routing.Summarize(snapshot.Conversation, snapshot.Messages, o)
	})
}

// fit sums up in so many bytes, where the bound in o is not enough for that.
func fit(room int, o routing.Options, summarize func(routing.Options) (*parleyv1.RoutingSummary, error)) (*parleyv1.RoutingSummary, error) {
	s, err := summarize(o)
	rest := proto.Size(s)
	if err != nil || rest <= room {
		return s, err
	}
	rest -= len(s.ProtoReflect().GetUnknown()) // recent messages
	rest -= proto.Size(&parleyv1.RoutingSummary{RecentMessages: s.GetRecentMessages(), ReferencedData: s.GetReferencedData()})
	crowded := rest > room/2 // Pending calls, types of data and agents have no bound of their own.
	if crowded {
		rest -= proto.Size(&parleyv1.RoutingSummary{
			PendingToolCalls: s.GetPendingToolCalls(), StructuredDataTypes: s.GetStructuredDataTypes(), RecentAgents: s.GetRecentAgents(),
		})
	}
	if left := max(1, room-rest); o.MaxBytes == 0 || left < o.MaxBytes {
		o.MaxBytes = left
	}
	s, err = summarize(o)
	if err == nil && crowded {
		s.PendingToolCalls, s.StructuredDataTypes, s.RecentAgents, s.Truncated = nil, nil, nil, true
	}
	return s, err
}

// awaitChange reports whether the conversation is at known_version, and waits for another
// one as long as it is and the request says.
func (s *Server) awaitChange(ctx context.Context, r *parleyv1.GetRoutingSummaryRequest) (unchanged bool, err error) {
	wait := r.GetWaitTimeout().AsDuration()
	var (
		changed <-chan struct{}
		timeout <-chan time.Time
	)
	if wait > 0 {
		// Ahead of the first read, so that no change falls between.
		var stop func()
		changed, stop, err = s.hub.Subscribe(tenant(ctx), r.GetConversationId())
		if err != nil {
			return false, err
		}
		defer stop()
		timeout = time.After(wait)
	}
	for {
		c, err := s.header(ctx, r.GetConversationId())
		if err != nil || c.GetVersion() != r.GetKnownVersion() {
			return false, err
		}
		if wait == 0 {
			return true, nil
		}
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
