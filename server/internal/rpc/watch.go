package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

const (
	// The end of a session that the store cannot take is tried again, at first after
	// retrySoon, each time after twice as long, up to lastReleaseWait.
	lastReleaseWait = 10 * time.Second
	// releasesALine is how many tries in vain make a line in the log: the first, and then one
	// about every five minutes.
	releasesALine = 30
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
		defer func() {
			w.Stop() // Its place is for others, however long the store takes.
			s.release(context.WithoutCancel(ctx), session)
		}()
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
// asked again: else it would be held for ever. That it has no room for so many streams that
// end at once is to be expected.
func (s *Server) release(ctx context.Context, session *store.Hold) {
	wait := retrySoon
	for tries := 0; ; tries++ {
		select {
		case <-s.stopping:
			return
		default:
		}
		err := s.store.Release(ctx, session)
		if err == nil || errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			return
		}
		if tries%releasesALine == 0 {
			level := slog.LevelError
			if errors.Is(err, store.ErrOverloaded) {
				level = slog.LevelWarn
			}
			s.log.Log(ctx, level, "session memory is not released yet", "tenant", session.Tenant, "count", len(session.ConversationIDs), "error", err)
		}
		select {
		case <-s.stopping:
		case <-time.After(wait):
		}
		wait = min(2*wait, lastReleaseWait)
	}
}
