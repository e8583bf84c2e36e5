package transport

import (
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/nettest"
)

// TestLostProbe checks that a client keeps its connection if it does not read, and the network drops
// every other probe.
func TestLostProbe(t *testing.T) {
	t.Parallel()
	const keepalive = 6 * time.Second
	listener, err := listenHTTP(t.Context(), "localhost:0", keepalive, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := nettest.DialSmallBuffer(t, listener.Addr().String())
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	d, stop, ended := newDeadClients(keepalive), make(chan struct{}), make(chan struct{})
	d.trackConn(server, http.StateNew)
	var running sync.WaitGroup
	running.Go(func() { d.run(stop) })
	running.Go(func() {
		defer close(ended)
		for text := make([]byte, 1<<20); err == nil; {
			_, err = server.Write(text)
		}
	})
	defer running.Wait()
	defer server.Close()
	defer close(stop)
	await := func(what string, reached func(attempts int) bool) {
		t.Helper()
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for late := time.After(testTimeout); !reached(readAckState(server).attempts); {
			select {
			case <-ended:
				t.Fatalf("connection ended before %s: %v", what, err)
			case <-late:
				t.Fatalf("no %s within %v", what, testTimeout)
			case <-ticker.C:
			}
		}
	}
	rounds := 4 // Until the interval of probes has its maximum.
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		nettest.DropPackets(t, client)
		await("lost probe", func(attempts int) bool { return attempts > 0 })
		nettest.AcceptPackets(t, client)
		await("acknowledgement", func(attempts int) bool { return attempts == 0 })
	}
}
