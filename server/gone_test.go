package main

import (
	"net"
	"net/http"
	"testing"
	"time"
)

// closeNoter is a connection that records whether it was closed.
type closeNoter struct {
	net.Conn
	closed bool
}

func (c *closeNoter) Close() error {
	c.closed = true
	return nil
}

// TestGoneClients: a client is gone only if it answers nothing, and only after the time silence.
func TestGoneClients(t *testing.T) {
	t.Parallel()
	const keepalive = 90 * time.Second // checks every 10 s, answer 30 s, silence 120 s
	for _, test := range []struct {
		name  string
		state func(at time.Duration) ackState
		want  time.Duration // when the connection is closed; 0: never
	}{
		{name: "idle", state: func(at time.Duration) ackState { return ackState{silence: at} }},
		{name: "answers probes, ever more rarely", state: func(at time.Duration) ackState {
			const every = 115 * time.Second
			return ackState{attempts: int(min(at/every, 1)), silence: at % every}
		}},
		{name: "loses each second probe of a kernel that sends few", state: func(at time.Duration) ackState {
			const every = 240 * time.Second
			return ackState{attempts: int(at % every / (120 * time.Second)), silence: at % every}
		}},
		{name: "answers each piece late", state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: at % (110 * time.Second)}
		}},
		{name: "leaves data unacknowledged", want: 120 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: at}
		}},
		{name: "leaves late probes unanswered", want: 380 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: int(at / (115 * time.Second)), silence: at}
		}},
		{name: "acknowledges a while, then goes", want: 320 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: max(at-200*time.Second, 0)}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g, conn, start := newGoneClients(keepalive), new(closeNoter), time.Now()
			g.follow(conn, http.StateNew)
			var got time.Duration
			for at := time.Duration(0); at < time.Hour && got == 0; at += g.every {
				g.check(start.Add(at), func(net.Conn) ackState { return test.state(at) })
				if conn.closed {
					got = at
				}
			}
			if got != test.want {
				t.Errorf("closed after %v, want %v", got, test.want)
			}
			g.follow(conn, http.StateClosed)
			if len(g.conns) != 0 {
				t.Errorf("%d connections followed after the only one was closed", len(g.conns))
			}
		})
	}
}
