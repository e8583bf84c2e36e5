package transport

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// deadClients closes the HTTP connections of dead clients. A client is dead if both are true:
//   - For ackTimeout or longer, at least deadClientAttempts attempts in a row are unacknowledged.
//   - For maxSilence or longer, no packet of the client has arrived.
//
// One lost packet does not show that a client is dead: the next attempt may come a minute later.
type deadClients struct {
	maxSilence, ackTimeout time.Duration
	checkInterval          time.Duration

	mu sync.Mutex
	// conns has the time since which deadClientAttempts attempts are unacknowledged. The zero
	// time means that fewer are.
	conns map[net.Conn]time.Time
}

// deadClientAttempts is how many attempts in a row a dead client leaves unacknowledged.
const deadClientAttempts = 3

// newDeadClients returns a deadClients with the limits of gRPC's keepalive.
func newDeadClients(keepalive time.Duration) *deadClients {
	return &deadClients{
		maxSilence: keepalive + keepalive/3, ackTimeout: keepalive / 3, checkInterval: keepalive / 9,
		conns: make(map[net.Conn]time.Time),
	}
}

// trackConn is the [http.Server.ConnState] hook of the server whose connections are checked.
func (d *deadClients) trackConn(conn net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		d.conns[conn] = time.Time{}
	case http.StateClosed, http.StateHijacked:
		delete(d.conns, conn)
	}
}

// run checks all connections every checkInterval until stop is closed.
func (d *deadClients) run(stop <-chan struct{}) {
	ticker := time.NewTicker(d.checkInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		d.check(time.Now(), readAckState)
	}
}

// ackState is what the kernel reports about the client of a connection.
type ackState struct {
	attempts int           // retransmissions or probes in a row without an acknowledgement
	silence  time.Duration // since the last packet from the client, an acknowledgement included
}

// check closes the connections of dead clients.
func (d *deadClients) check(now time.Time, read func(net.Conn) ackState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for conn, since := range d.conns {
		switch state := read(conn); {
		case state.attempts < deadClientAttempts:
			d.conns[conn] = time.Time{}
		case since.IsZero(), state.silence < now.Sub(since):
			d.conns[conn] = now
		case now.Sub(since) >= d.ackTimeout && state.silence >= d.maxSilence:
			if tcp, ok := conn.(interface{ SetLinger(seconds int) error }); ok {
				_ = tcp.SetLinger(0) // Discard unsent data: the client cannot receive it.
			}
			_ = conn.Close()
		}
	}
}
