package main

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// goneClients closes the HTTP connections of clients that are gone. A client is gone when it has left
// goneAttempts attempts in a row unacknowledged for the time answer, and has sent no packet for the time
// silence. One lost packet is no sign: the next attempt may come a minute later.
type goneClients struct {
	silence, answer time.Duration
	every           time.Duration // time between two checks

	mu    sync.Mutex
	conns map[net.Conn]time.Time // Since when goneAttempts are not acknowledged; zero: fewer are not.
}

// goneAttempts is how many attempts in a row a client that is gone leaves unacknowledged.
const goneAttempts = 3

// newGoneClients returns one with the times that gRPC's keepalive has for its clients.
func newGoneClients(keepalive time.Duration) *goneClients {
	return &goneClients{
		silence: keepalive + keepalive/3, answer: keepalive / 3, every: keepalive / 9, conns: make(map[net.Conn]time.Time),
	}
}

// follow is the http.Server.ConnState hook of the server whose connections are checked.
func (g *goneClients) follow(conn net.Conn, state http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch state {
	case http.StateNew:
		g.conns[conn] = time.Time{}
	case http.StateClosed, http.StateHijacked:
		delete(g.conns, conn)
	}
}

// run checks all connections every g.every until stop is closed.
func (g *goneClients) run(stop <-chan struct{}) {
	ticker := time.NewTicker(g.every)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		g.check(time.Now(), readAckState)
	}
}

// ackState is the kernel's knowledge of the client of a connection.
type ackState struct {
	attempts int           // Repetitions of data, or probes, that are not acknowledged.
	silence  time.Duration // The time since something of the client came, an acknowledgement included.
}

// check closes the connections whose clients are gone.
func (g *goneClients) check(now time.Time, read func(net.Conn) ackState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for conn, since := range g.conns {
		switch state := read(conn); {
		case state.attempts < goneAttempts:
			g.conns[conn] = time.Time{}
		case since.IsZero(), state.silence < now.Sub(since):
			g.conns[conn] = now
		case now.Sub(since) >= g.answer && state.silence >= g.silence:
			if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
				_ = tcp.SetLinger(0) // No client is left to take the rest.
			}
			_ = conn.Close()
		}
	}
}
