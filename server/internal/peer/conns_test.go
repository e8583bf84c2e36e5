package peer

import (
	"errors"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestStreamOfRemovedServer: if the connections to a server are closed between two steps of a call, the call makes no
// new connection, which would never be closed.
func TestStreamOfRemovedServer(t *testing.T) {
	const address = "127.0.0.1:1"
	for name, end := range map[string]func(c *conns){
		"the server has ended": func(c *conns) { c.keep([]store.Server{{Address: "127.0.0.1:2"}}) },
		"this server stops":    func(c *conns) { _ = c.close() },
	} {
		c := new(conns)
		l, isNew, err := c.get(address)
		if err != nil || !isNew {
			t.Fatalf("get(%q) = %t, %v, want new connections", address, isNew, err)
		}
		end(c)
		if conn, _, err := c.stream(address, l); !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: stream = %v, %v, want ErrUnreachable", name, conn, err)
			_ = conn.Close()
		}
	}
}
