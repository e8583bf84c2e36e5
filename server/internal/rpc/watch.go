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
	// maxReleaseWait is the maximum time between two attempts to release ephemeral conversations. The
	// first wait is retryDelay, and each wait is twice as long as the one before.
	maxReleaseWait = 10 * time.Second
	// releaseLogInterval is the number of failed attempts for each log message: the first attempt, and
	// then about one every five minutes.
	releaseLogInterval = 30
)

// WatchConversations streams changes as they are committed. If delete_after_disconnect is set, it
// holds the conversations as ephemeral conversations until the stream ends.
func (s *Server) WatchConversations(
	r *parleyv1.WatchConversationsRequest, stream grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse],
) error {
	ctx := stream.Context()
	w, err := s.hub.Watch(watch.Watch{
		Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(),
		Cursor: r.GetCursor(), TurnEvents: r.GetIncludeTurnEvents(),
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	if r.GetDeleteAfterDisconnect() != nil { // The first heartbeat tells the client that the hold is in effect.
		hold := &store.Hold{
			Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(),
			DeleteAfter: r.GetDeleteAfterDisconnect().AsDuration(),
		}
		if err := s.store.Hold(ctx, hold); err != nil {
			return err
		}
		defer func() {
			w.Stop() // Another watcher can start before the release ends.
			s.release(context.WithoutCancel(ctx), hold)
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

// release releases the ephemeral conversations of a stream that has ended. It retries until the store
// accepts the release, because the conversations would otherwise never be deleted. An overloaded store
// is normal when many streams end at once, so it is only a warning. release gives up when the server
// stops: the store releases all holds of a process at its next start.
func (s *Server) release(ctx context.Context, hold *store.Hold) {
	wait := retryDelay
	for attempt := 0; ; attempt++ {
		select {
		case <-s.stopping:
			return
		default:
		}
		err := s.store.Release(ctx, hold)
		if err == nil || errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrFailed) {
			return
		}
		if attempt%releaseLogInterval == 0 {
			level := slog.LevelError
			if errors.Is(err, store.ErrOverloaded) {
				level = slog.LevelWarn
			}
			s.log.Log(ctx, level, "ephemeral conversations not released yet",
				"tenant", hold.Tenant, "count", len(hold.ConversationIDs), "error", err)
		}
		select {
		case <-s.stopping:
		case <-time.After(wait):
		}
		wait = min(2*wait, maxReleaseWait)
	}
}
