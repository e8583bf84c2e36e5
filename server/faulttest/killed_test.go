package faulttest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestKilled checks that kill -9 of the server loses no acknowledged write.
func TestKilled(t *testing.T) {
	for name, journal := range map[string]string{"without a journal": noJournal, "with a journal": smallJournal} {
		t.Run(name, func(t *testing.T) { killOften(t, journal) })
	}
}

func killOften(t *testing.T, journal string) {
	t.Helper()
	const working, most = 64, 200
	clients, random, dataDir := newClients(working+1, 1), rand.New(rand.NewPCG(1, 1)), t.TempDir()
	stalling := clients[working]
	flags := []string{withStaller(t), journal, "--journal-age=1s"}
	s := start(t, dataDir, flags...)
	for round := range rounds(20, 500) {
		work := startLoad(t, s, clients[:working])
		stalled := stalling.stall(t, s)
		awaited := random.IntN(most)
		if err := work.await(awaited, time.Duration(random.IntN(int(5*time.Millisecond)))); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		s.kill()
		unawaited := work.end()
		<-stalled
		if round%2 == 1 {
			killWhileStarting(t, dataDir, time.Duration(random.IntN(int(startTime))), flags)
		}
		s = start(t, dataDir, flags...)
		if err := verifyAll(t, s, clients); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		counts.add(t, "kills", 1)
		counts.add(t, "steps acknowledged", awaited+unawaited)
	}
	s.stop(t)
}

// startTime is about how long a server takes to serve.
const startTime = 60 * time.Millisecond

// killWhileStarting kills a server that has not yet started, so that its recovery is cut off.
func killWhileStarting(t *testing.T, dataDir string, moment time.Duration, flags []string) {
	t.Helper()
	s := launch(t, dataDir, nil, flags...)
	select {
	case <-time.After(moment):
	case <-s.process.Ended():
		t.Fatalf("server ended before it was killed:\n%s", quote(s.output()))
	}
	s.kill()
	counts.add(t, "kills of a starting server", 1)
}

// TestKilledWithoutStore is the control: a server with a store in memory loses acknowledged writes,
// and the check detects it.
func TestKilledWithoutStore(t *testing.T) {
	clients := newClients(8, 5)
	s := start(t, t.TempDir(), "--store=memory")
	work := startLoad(t, s, clients)
	if err := work.await(100, 0); err != nil {
		t.Fatal(err)
	}
	s.kill()
	work.end()
	if verifyAll(t, start(t, t.TempDir(), "--store=memory"), clients) == nil {
		t.Error("no loss was detected with a store in memory; the test of kills proves nothing")
	}
	counts.add(t, "control: kills that lost data", 1)
}

// stall starts a turn that does not end. It returns when the user's message is acknowledged. ended is
// closed when the call has failed because the server was killed.
func (c *client) stall(t *testing.T, s *server) (ended <-chan struct{}) {
	t.Helper()
	started, done := make(chan struct{}), make(chan struct{})
	var err error
	go func() {
		defer close(done)
		c.onProgress = func(p progress) {
			if p.started {
				close(started)
			}
		}
		c.steps++
		err = c.do(t.Context(), s, &step{
			kind: stalledChatStep, request: fmt.Sprint(c.id, "-", c.steps), contents: []string{c.newContent()},
		})
		c.onProgress = nil
	}()
	select {
	case <-started:
	case <-done:
		t.Fatalf("stalled turn ended before the server was killed: %v", err)
	}
	return done
}
