package faulttest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Whenever the server is killed, nothing that it has acknowledged is lost.
func TestKilled(t *testing.T) {
	const working, most = 8, 60
	clients, random, dataDir := newClients(working+1, 1), rand.New(rand.NewPCG(1, 1)), t.TempDir()
	talker := clients[working]
	agent := withStaller(t)
	s := start(t, dataDir, agent)
	for round := range rounds(20, 500) {
		work := begin(t, s, clients[:working])
		stalled := talker.stall(t, s)
		awaited := random.IntN(most)
		if err := work.await(awaited, time.Duration(random.IntN(int(5*time.Millisecond)))); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s.kill()
		beyond := work.end()
		<-stalled
		s = start(t, dataDir, agent)
		if err := recoverAll(t, s, clients); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		counts.add(t, "kills", 1)
		counts.add(t, "steps acknowledged", awaited+beyond)
	}
	s.stop(t)
}

// The control: a server that keeps nothing loses what it has acknowledged, and it shows.
func TestKilledWithoutStore(t *testing.T) {
	clients := newClients(8, 5)
	s := start(t, t.TempDir(), "--store=memory")
	work := begin(t, s, clients)
	if err := work.await(100, 0); err != nil {
		t.Fatal(err)
	}
	s.kill()
	work.end()
	if recoverAll(t, start(t, t.TempDir(), "--store=memory"), clients) == nil {
		t.Error("a server that keeps nothing loses nothing: the test of kills proves nothing")
	}
	counts.add(t, "control: kills that lost data", 1)
}

// stall begins a turn that does not end, and returns when its user's message was
// acknowledged. Ended is closed when the server has gone.
func (c *client) stall(t *testing.T, s *server) (ended <-chan struct{}) {
	t.Helper()
	started, gone := make(chan struct{}), make(chan struct{})
	var err error
	go func() {
		defer close(gone)
		c.noted = func(p progress) {
			if p.started {
				close(started)
			}
		}
		c.steps++
		err = c.do(t.Context(), s, &step{kind: stalls, request: fmt.Sprint(c.id, "-", c.steps), words: []string{c.words()}})
		c.noted = nil
	}()
	select {
	case <-started:
	case <-gone:
		t.Fatalf("the turn ends before the server does: %v", err)
	}
	return gone
}
