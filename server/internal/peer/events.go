package peer

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

const (
	// firstTime is how long a new watcher waits until all other servers send their events.
	firstTime = time.Second
	// listTime is the time between two reads of the list of servers.
	listTime = 2 * time.Second
)

// events receives the events of turns of other servers, for the watchers of this server that want them. For each tenant
// with such watchers it opens one stream to each other server, with the credentials of one of these watchers. Without
// watchers it has no streams and no goroutines.
//
// If events may be lost, the watchers of the tenant receive a GAP: when a stream breaks, when it opens after a watcher
// has started, and when a server disappears whose stream is broken.
type events struct {
	turns *Turns
	hub   *watch.Hub
	// list wakes the goroutine that reads the list of servers.
	list    chan struct{}
	running sync.WaitGroup // that goroutine and the goroutines of the streams

	mu       sync.Mutex // guards the following fields, the tenants and their streams; lock it before those of the hub
	tenants  map[string]*tenantEvents
	stopList context.CancelFunc
	failing  map[string]bool // addresses of the servers whose failure was logged
	closed   bool
}

// tenantEvents are the watchers of one tenant and the streams for them.
type tenantEvents struct {
	name     string
	watchers map[*eventWatcher]struct{}
	streams  map[store.Server]*eventStream
	// listed is set when there is a stream for each other server.
	listed bool
	// started is set when a watcher has received its first heartbeat. From then on, watchers must receive a GAP for lost
	// events.
	started bool
	// changed is closed when listed or the state of a stream changes.
	changed chan struct{}
}

// eventWatcher is a watcher with the metadata of its credentials.
type eventWatcher struct{ sent metadata.MD }

// FollowEvents passes the events of turns of other servers to the hub, for a watcher of the hub that the caller has
// started with the credentials in ctx. It returns when all other servers send their events, at most after 1 s. If some
// servers do not send them, or the list of servers is unknown, complete is false: the watcher must begin with a GAP.
// When these servers send their events later, and whenever events may be lost, the hub sends a GAP. FollowEvents also
// returns when ctx ends or stop is closed. The caller must call leave.
func (t *Turns) FollowEvents(
	ctx context.Context, tenant string, stop <-chan struct{},
) (complete bool, leave func()) {
	e, w := t.events, &eventWatcher{sent: auth.PassedOn(ctx)}
	g := e.join(tenant, w)
	if g == nil {
		return false, func() {}
	}
	leave = func() { e.leave(g, w) }
	late := time.NewTimer(firstTime)
	defer late.Stop()
	for isLate := false; ; {
		known, complete, changed := e.check(g, isLate)
		if known {
			return complete, leave
		}
		select {
		case <-changed:
		case <-late.C:
			isLate = true
		case <-stop:
			return false, leave
		case <-ctx.Done():
			return false, leave
		}
	}
}

// join adds a watcher. It returns nil after close.
func (e *events) join(tenant string, w *eventWatcher) *tenantEvents {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	g := e.tenants[tenant]
	if g == nil {
		g = &tenantEvents{
			name: tenant, watchers: make(map[*eventWatcher]struct{}), streams: make(map[store.Server]*eventStream),
			changed: make(chan struct{}),
		}
		e.tenants[tenant] = g
		select {
		case e.list <- struct{}{}:
		default:
		}
	}
	if g.watchers[w] = struct{}{}; e.stopList == nil {
		var ctx context.Context
		ctx, e.stopList = context.WithCancel(e.turns.running)
		e.running.Go(func() { e.keepListing(ctx) })
	}
	return g
}

// leave removes a watcher. Removing the last watcher of a tenant ends its streams. Removing the last watcher of all
// tenants ends the goroutine that reads the list of servers.
func (e *events) leave(g *tenantEvents, w *eventWatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(g.watchers, w)
	if len(g.watchers) > 0 {
		return
	}
	for _, s := range g.streams {
		s.cancel()
	}
	delete(e.tenants, g.name)
	if len(e.tenants) == 0 {
		e.stopList()
		e.stopList = nil
		clear(e.failing)
	}
}

// check reports whether the state of the streams to all other servers is known, and whether all these servers send
// their events. If the state is not known, changed is closed when that may have changed, unless this is the last check
// of a watcher.
func (e *events) check(g *tenantEvents, isLast bool) (known, complete bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	known, complete = g.listed, g.listed
	for _, s := range g.streams {
		known = known && s.state != connecting
		complete = complete && (s.state == open || s.state == ended)
	}
	if known || isLast {
		g.started = true
		return true, complete, nil
	}
	return false, false, g.changed
}

// wake wakes the watchers that wait in FollowEvents. The caller holds events.mu.
func (g *tenantEvents) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// keepListing opens streams to new servers, and ends the streams to servers that no longer exist, until ctx ends. If
// the store does not answer, the streams stay as they are.
func (e *events) keepListing(ctx context.Context) {
	ticker := time.NewTicker(listTime)
	defer ticker.Stop()
	for {
		if servers, err := e.turns.shared.Peers(ctx); err == nil {
			e.setServers(ctx, servers)
		}
		select {
		case <-ticker.C:
		case <-e.list:
		case <-ctx.Done():
			return
		}
	}
}

// setServers sets the list of other servers, unless ctx has ended.
func (e *events) setServers(ctx context.Context, servers []store.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for _, g := range e.tenants {
		for server, s := range g.streams {
			// A server without a lease may still send events of the turns that it runs.
			if slices.Contains(servers, server) || s.state == open {
				continue
			}
			s.cancel()
			delete(g.streams, server)
			delete(e.failing, server.Address)
			if s.state != ended && g.started {
				e.hub.EventsMissed(g.name)
			}
		}
		for _, server := range servers {
			if g.streams[server] != nil {
				continue
			}
			s := &eventStream{events: e, tenant: g, server: server}
			var ctx context.Context
			ctx, s.cancel = context.WithCancel(e.turns.running)
			g.streams[server] = s
			e.running.Go(func() { s.run(ctx) })
		}
		g.listed = true
		g.wake()
	}
}

// close ends all streams. Later watchers receive a GAP and no events.
func (e *events) close() {
	e.mu.Lock()
	e.closed = true // The context of all goroutines has ended.
	e.mu.Unlock()
	e.running.Wait()
}
