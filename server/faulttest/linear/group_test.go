package linear

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// groupSize is the number of servers of a group.
const groupSize = 3

// group is servers with one store, and clients that call another server each time.
type group struct {
	*recorder

	t       *testing.T
	program string
	urls    [groupSize]string // of the engine, as each server reaches it
	prefix  string            // of the keys

	permits chan struct{} // one for each call that the clients may make
	ended   chan error    // one for each call that has ended, with an error that no fault explains

	mu      sync.Mutex
	servers [groupSize]*server
	used    [groupSize]bool // by clients; a load balancer calls no server that it knows to be unavailable
}

// startGroup starts the servers.
func startGroup(t *testing.T, h threeServers, prefix string) *group {
	t.Helper()
	g := &group{
		recorder: &recorder{began: time.Now(), answered: callsPerLife}, t: t, program: h.program, urls: h.urls, prefix: prefix,
		permits: make(chan struct{}, maxCalls), ended: make(chan error, maxCalls),
	}
	for i := range groupSize {
		g.start(i)
	}
	return g
}

// start starts a server at a free address. After a kill its last one is refused until its lease has ended.
func (g *group) start(i int) {
	g.t.Helper()
	l, err := new(net.ListenConfig).Listen(g.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		g.t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		g.t.Fatal(err)
	}
	s := start(g.t, g.program, g.t.TempDir(), "--store=redis", "--redis-url="+g.urls[i], "--redis-prefix="+g.prefix,
		"--grpc-address="+address, "--advertise-address="+address)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.servers[i], g.used[i] = s, true
}

// use changes whether clients call a server.
func (g *group) use(i int, used bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used[i] = used
}

// pick returns a server that is used, and not the last one of the client.
func (g *group) pick(random *rand.Rand, last int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		if i := random.IntN(groupSize); i != last && g.used[i] {
			return i
		}
	}
}

// server returns the newest server with a number.
func (g *group) server(i int) *server {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.servers[i]
}

// run makes calls as long as there are permits. A client reads what it has written at another server in a tenth of its
// calls, and does not list: servers list what exists at different instants.
func (g *group) run(ctx context.Context, c *client) {
	written, at := "c0", -1
	for range g.permits {
		chosen := c.next()
		if chosen.kind == "list" {
			chosen = call{kind: "read", id: written, ifVersion: anyVersion}
		}
		at = g.pick(c.random, at)
		o := operation{client: c.number, call: chosen, began: g.now()}
		var err error
		o.got, err = do(ctx, g.server(at), chosen)
		o.ended = g.now()
		if err == nil || chosen.kind == "append" && isLost(err) {
			g.add(o) // A lost read has no effect.
		}
		switch {
		case err == nil:
			c.versions[chosen.id] = o.got.version
			if chosen.kind == "append" {
				written = chosen.id
			}
		case isLost(err):
			err = nil
		}
		g.ended <- err
	}
}

// isLost reports whether a call failed because a server was killed or did not reach the engine.
func isLost(err error) bool {
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.Canceled
}

// allow lets the clients make n calls.
func (g *group) allow(n int) {
	for range n {
		g.permits <- struct{}{}
	}
}

// await waits until n calls have ended.
func (g *group) await(ctx context.Context, n int) error {
	for range n {
		select {
		case err := <-g.ended:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("a call has not ended: %w", ctx.Err())
		}
	}
	return nil
}

// list records what each server lists while no call is running.
func (g *group) list(ctx context.Context) error {
	for i := range groupSize {
		o := operation{client: clients, call: call{kind: "list", ifVersion: anyVersion}, began: g.now()}
		var err error
		if o.got, err = do(ctx, g.server(i), o.call); err != nil {
			return err
		}
		o.ended = g.now()
		g.add(o)
	}
	return nil
}

// proxy passes on the connections of one server to the engine, and can cut them.
type proxy struct {
	listener net.Listener
	engine   string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

// startProxy starts a proxy of an engine, which ends with the test.
func startProxy(t *testing.T, engine string) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, engine: engine, conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.engine)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(in, out) })
		p.wg.Go(func() { p.copy(out, in) })
	}
}

// copy copies data between two connections until one of them ends, and closes both.
func (p *proxy) copy(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	to.Close()
	from.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, to)
	delete(p.conns, from)
}

// cut closes all connections and returns their number. New ones are passed on.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	return len(p.conns) / 2
}
