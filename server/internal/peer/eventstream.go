package peer

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// A broken stream is opened again after minRetry. The time doubles with each failure, up to maxRetry.
const (
	minRetry = 100 * time.Millisecond
	maxRetry = 2 * time.Second
)

// streamState is the state of an eventStream.
type streamState int

const (
	connecting streamState = iota // the server has not answered yet
	open                          // the server sends the events
	broken                        // the stream could not be opened, or has ended without a reason
	ended                         // the server has stopped, after it had sent all events
)

// eventStream receives the events of the turns of one tenant at one other server. events.mu guards state and tried.
type eventStream struct {
	events *events
	tenant *tenantEvents
	server store.Server
	state  streamState
	// tried are the watchers whose credentials were used since the stream was last open.
	tried  map[*eventWatcher]struct{}
	cancel context.CancelFunc
}

// run receives events until ctx ends or the server stops.
func (s *eventStream) run(ctx context.Context) {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		opened, err := s.receive(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case opened.IsZero():
			s.set(ctx, broken)
			s.logFailure(ctx, err)
		case reasonOf(status.Convert(err)) == shuttingDown:
			s.set(ctx, ended)
			return
		default:
			s.set(ctx, broken)
			if time.Since(opened) > maxRetry {
				wait = minRetry
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// receive opens the stream and passes its events to the hub, until the stream ends. It returns the time at which the
// stream was first open, or the zero time if it was never open.
func (s *eventStream) receive(ctx context.Context) (opened time.Time, _ error) {
	ctx, cancel := context.WithCancel(ctx) // Ends the stream.
	defer cancel()
	client, release, err := s.events.turns.stream(ctx, s.server)
	if err != nil {
		return opened, err
	}
	defer release()
	ctx = metadata.NewOutgoingContext(ctx, s.credentials())
	stream, err := client.WatchConversations(ctx, &parleyv1.WatchConversationsRequest{IncludeTurnEvents: true})
	for err == nil {
		var response *parleyv1.WatchConversationsResponse
		if response, err = stream.Recv(); err != nil {
			break
		}
		if opened.IsZero() {
			opened = time.Now()
			s.set(ctx, open)
			s.logSuccess(ctx)
		}
		s.pass(ctx, response.GetChange())
	}
	return opened, err
}

// credentials returns the metadata of the stream. Each attempt uses the credentials of another watcher until all were
// used, because those of one may no longer be valid.
func (s *eventStream) credentials() metadata.MD {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	watchers := s.tenant.watchers
	maps.DeleteFunc(s.tried, func(w *eventWatcher, _ struct{}) bool { _, stays := watchers[w]; return !stays })
	if s.tried == nil || len(s.tried) == len(watchers) {
		s.tried = make(map[*eventWatcher]struct{})
	}
	sent := metadata.MD{}
	for w := range watchers {
		if _, wasTried := s.tried[w]; !wasTried {
			s.tried[w] = struct{}{}
			sent = w.sent.Copy()
			break
		}
	}
	sent.Set(keyOfServer, s.server.Key)
	// A server whose settings give the credentials another tenant must refuse them.
	sent.Set(auth.TenantKey, s.tenant.name)
	return sent
}

// pass passes a response of the server to the hub. It passes the last event of a turn only after the change that ended
// the turn, which this server receives from the store.
func (s *eventStream) pass(ctx context.Context, c *parleyv1.ConversationChange) {
	hub, tenant := s.events.hub, s.tenant.name
	switch c.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_GAP:
		hub.EventsMissed(tenant)
	case parleyv1.ChangeKind_CHANGE_KIND_TURN:
		if version := c.GetTurnEvent().GetFinished().GetConversationVersion(); version > 0 {
			hub.AwaitChange(ctx, tenant, c.GetConversationId(), version)
		}
		hub.EventElsewhere(tenant, c)
	default: // A heartbeat.
	}
}

// set sets the state, unless ctx has ended. If events may be lost, the watchers receive a GAP.
func (s *eventStream) set(ctx context.Context, state streamState) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if s.state == state || ctx.Err() != nil {
		return
	}
	if state == open {
		s.tried = nil
	}
	if s.state = state; s.tenant.started && state != ended {
		s.events.hub.EventsMissed(s.tenant.name)
	}
	s.tenant.wake()
}

// logFailure logs that the server does not send its events. It logs this once until the server sends them again.
func (s *eventStream) logFailure(ctx context.Context, err error) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if at := s.server.Address; !s.events.failing[at] && ctx.Err() == nil {
		s.events.failing[at] = true
		s.events.turns.log.WarnContext(ctx, "turn events of another server not received",
			"address", at, "tenant", s.tenant.name, "error", err)
	}
}

// logSuccess logs that the server sends its events, after a failure.
func (s *eventStream) logSuccess(ctx context.Context) {
	s.events.mu.Lock()
	defer s.events.mu.Unlock()
	if at := s.server.Address; s.events.failing[at] {
		delete(s.events.failing, at)
		s.events.turns.log.InfoContext(ctx, "turn events of another server received again", "address", at)
	}
}
