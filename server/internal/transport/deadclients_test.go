package transport

import (
	"net"
	"net/http"
	"testing"
	"time"
)

// closeRecorder is a connection that records whether it was closed.
type closeRecorder struct {
	net.Conn
	closed bool
}

func (c *closeRecorder) Close() error {
	c.closed = true
	return nil
}

// TestDeadClients checks that only connections of silent clients are closed, after maxSilence.
func TestDeadClients(t *testing.T) {
	t.Parallel()
	const keepalive = 90 * time.Second // checkInterval 10 s, ackTimeout 30 s, maxSilence 120 s
	for _, test := range []struct {
		name  string
		state func(at time.Duration) ackState
		want  time.Duration // when the connection is closed; 0: never
	}{
		{name: "idle", state: func(at time.Duration) ackState { return ackState{silence: at} }},
		{name: "answers probes at growing intervals", state: func(at time.Duration) ackState {
			const every = 115 * time.Second
			return ackState{attempts: int(min(at/every, 1)), silence: at % every}
		}},
		{name: "loses every second probe of a kernel with long intervals", state: func(at time.Duration) ackState {
			const every = 240 * time.Second
			return ackState{attempts: int(at % every / (120 * time.Second)), silence: at % every}
		}},
		{name: "acknowledges each segment late", state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: at % (110 * time.Second)}
		}},
		{name: "leaves data unacknowledged", want: 120 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: at}
		}},
		{name: "leaves late probes unanswered", want: 380 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: int(at / (115 * time.Second)), silence: at}
		}},
		{name: "acknowledges at first, then dies", want: 320 * time.Second, state: func(at time.Duration) ackState {
			return ackState{attempts: 5, silence: max(at-200*time.Second, 0)}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d, conn, start := newDeadClients(keepalive), new(closeRecorder), time.Now()
			d.trackConn(conn, http.StateNew)
			var got time.Duration
			for at := time.Duration(0); at < time.Hour && got == 0; at += d.checkInterval {
				d.check(start.Add(at), func(net.Conn) ackState { return test.state(at) })
				if conn.closed {
					got = at
				}
			}
			if got != test.want {
				t.Errorf("connection closed after %v, want %v", got, test.want)
			}
			d.trackConn(conn, http.StateClosed)
			if len(d.conns) != 0 {
				t.Errorf("tracked connections after the only one was closed = %d, want 0", len(d.conns))
			}
		})
	}
}
