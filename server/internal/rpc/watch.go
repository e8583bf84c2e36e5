package rpc

import (
	"context"
	"errors"
	"iter"
	"log/slog"

	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// releaseLogInterval is the number of failed releases for each log message: the first, and then about
// one every five minutes.
const releaseLogInterval = 30

// changeStream is the server's end of a WatchConversations call.
type changeStream = grpc.ServerStreamingServer[parleyv1.WatchConversationsResponse]

// WatchConversations streams changes as they are committed. If delete_after_disconnect is set, it
// holds the conversations as ephemeral conversations until the stream ends.
func (s *Server) WatchConversations(r *parleyv1.WatchConversationsRequest, stream changeStream) error {
	ctx := stream.Context()
	if peer.IsForServer(ctx) {
		return s.sendEvents(stream)
	}
	w, err := s.hub.Watch(watchOf(ctx, r))
	if err != nil {
		return err
	}
	defer w.Stop()
	// The first heartbeat notifies the client that the hold is in effect.
	release, err := s.hold(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	defer w.Stop() // Before the release, which may take long, so that another watcher can start.
	return s.sendWatched(r, w, stream)
}

// watchOf returns the watch that a request describes.
func watchOf(ctx context.Context, r *parleyv1.WatchConversationsRequest) watch.Watch {
	return watch.Watch{
		Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(),
		Cursor: r.GetCursor(), TurnEvents: r.GetIncludeTurnEvents(), Records: r.GetIncludeRecords(),
	}
}

// sendWatched sends the responses of a watcher. If the request is for turn events, it also sends those of other
// servers. If their events are not complete, the stream begins with a GAP.
func (s *Server) sendWatched(r *parleyv1.WatchConversationsRequest, w *watch.Watcher, stream changeStream) error {
	ctx := stream.Context()
	if r.GetIncludeTurnEvents() && s.peers != nil {
		complete, leave := s.peers.FollowEvents(ctx, tenant(ctx), s.stopping)
		defer leave()
		if !complete {
			w.Missed()
		}
	}
	return s.sendChanges(w.All(ctx, s.stopping), stream)
}

// sendEvents sends the events of the turns of this server to another server, for the watchers of the caller's tenant
// there. It does not count as a watcher. When the server stops, sendEvents ends after all turns have ended.
func (s *Server) sendEvents(stream changeStream) error {
	ctx := stream.Context()
	if s.peers == nil || !s.isPassedOn(ctx) {
		return peer.ErrUnreachable // Another server had this address before.
	}
	events := s.hub.Events(tenant(ctx))
	defer events.Stop()
	return s.sendChanges(events.All(ctx, s.peers.Stopping()), stream)
}

// sendChanges sends changes until the server stops or there is an error.
func (s *Server) sendChanges(
	changes iter.Seq2[*parleyv1.WatchConversationsResponse, error], stream changeStream,
) error {
	for response, err := range changes {
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
	return turn.ErrShuttingDown
}

// hold holds the conversations of a watch with delete_after_disconnect. It returns the function that
// releases them.
func (s *Server) hold(ctx context.Context, r *parleyv1.WatchConversationsRequest) (release func(), err error) {
	if r.GetDeleteAfterDisconnect() == nil {
		return func() {}, nil
	}
	if principal(ctx).Role < auth.Writer {
		return nil, &auth.RoleError{
			Method: parleyv1.ConversationService_WatchConversations_FullMethodName + " with delete_after_disconnect",
			Need:   auth.Access{Role: auth.Writer},
		}
	}
	hold := &store.Hold{
		Tenant: tenant(ctx), ConversationIDs: r.GetConversationIds(),
		DeleteAfter: r.GetDeleteAfterDisconnect().AsDuration(),
	}
	if err := s.store.Hold(ctx, hold); err != nil {
		return nil, err
	}
	return func() { s.release(context.WithoutCancel(ctx), hold) }, nil
}

// release releases the ephemeral conversations of a stream that has ended. When the server stops, it
// leaves the release to the next start of the store.
func (s *Server) release(ctx context.Context, hold *store.Hold) {
	err := store.RetryRelease(ctx, s.store, hold, s.stopping, func(attempt int, err error) {
		if attempt%releaseLogInterval != 0 {
			return
		}
		level := slog.LevelError
		if errors.Is(err, store.ErrOverloaded) { // Normal when many streams end at once.
			level = slog.LevelWarn
		}
		s.log.Log(ctx, level, "ephemeral conversations not released yet",
			"tenant", hold.Tenant, "count", len(hold.ConversationIDs), "error", err)
	})
	if err != nil {
		s.log.DebugContext(ctx, "release left to the next start",
			"tenant", hold.Tenant, "count", len(hold.ConversationIDs), "error", err)
	}
}
