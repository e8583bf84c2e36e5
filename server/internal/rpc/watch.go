package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// WatchConversations streams changes as they are committed.
func (s *Server) WatchConversations(r *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]) error {
	ctx := stream.Context()
	w, err := s.hub.Watch(watch.Watch{
		Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(), Cursor: r.GetCursor(), TurnEvents: r.GetIncludeTurnEvents(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	if r.GetDeleteAfterDisconnect() != nil { // Ahead of the first heartbeat, which says so.
		session := &store.Hold{
			Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(), DeleteAfter: r.GetDeleteAfterDisconnect().AsDuration(),
		}
		if err := s.store.Hold(ctx, session); err != nil {
			return err
		}
		defer s.release(context.WithoutCancel(ctx), session)
	}
	for response, err := range w.All(ctx, s.stopping) {
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	return turn.ErrShuttingDown
}

// release ends session memory when its stream has ended, unless the server has: what it
// holds at its end counts as released at the next start. A store that cannot take it now is
// asked again: else it would be held for ever.
func (s *Server) release(ctx context.Context, session *store.Hold) {
	for {
		select {
		case <-s.stopping:
			return
		default:
		}
		err := s.store.Release(ctx, session)
		if err == nil || errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			return
		}
		s.log.ErrorContext(ctx, "session memory is not released yet", "tenant", session.Tenant, "count", len(session.ConversationIDs), "error", err)
		select {
		case <-s.stopping:
		case <-time.After(retrySoon):
		}
	}
}
