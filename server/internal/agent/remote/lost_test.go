package remote

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestKilled kills the agent before and in the middle of its answer: it is asked once only,
// and the next turn finds the one that has taken its place.
func TestKilled(t *testing.T) {
	tests := []struct {
		name, want string
		first      []string
	}{
		{"before the first piece", "the connection to the agent was lost before its answer", nil},
		{"in the middle", "the connection to the agent was lost during its answer", []string{"one ", "two "}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var asked atomic.Int32
			reached := make(chan struct{}, 1)
			s := start(t, "127.0.0.1:0", health.NewServer(), func(request *parleyv1.RespondRequest, stream pieces) error {
				asked.Add(1)
				if err := says(test.first...)(request, stream); err != nil {
					return err
				}
				reached <- struct{}{}
				<-stream.Context().Done()
				return nil
			})
			a := open(t, Config{Address: s.address})
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				<-reached
				if len(test.first) == 0 {
					s.stop()
				}
			}()
			var got []string
			var last error
			for piece, err := range a.Respond(t.Context(), nil) {
				if last = err; err == nil {
					got = append(got, piece.GetText())
				}
				if len(got) == len(test.first) {
					s.stop()
				}
			}
			wait(t, "the agent's end", killed)
			if failure := mustFail(t, last); failure.Message != test.want || !strings.HasPrefix(failure.Detail, s.address+": ") || !failure.Retryable {
				t.Errorf("%+v, want %q", failure, test.want)
			}
			if strings.Join(got, "") != strings.Join(test.first, "") {
				t.Errorf("got %q before it died, want %q", got, test.first)
			}
			if n := asked.Load(); n != 1 {
				t.Errorf("the agent was asked %d times", n)
			}
			start(t, s.address, health.NewServer(), says("back"))
			if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
				t.Errorf("after a restart: %v, %v", answer, err)
			}
		})
	}
}

// TestRestartBetweenTurns restarts an agent, killed or drained, while nobody asks it.
func TestRestartBetweenTurns(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, says("first"))
	a := open(t, Config{Address: s.address})
	for range 5 {
		if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
			t.Fatalf("%v, %v", answer, err)
		}
		s.stop()
		until(t, a, connectivity.TransientFailure)
		s = start(t, s.address, nil, says("next"))
	}
}

// TestNotThereYet asks an agent that begins to serve a little later.
func TestNotThereYet(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, says("never"))
	s.stop()
	a := open(t, Config{Address: s.address})
	a.readyTimeout = untilFailed
	until(t, a, connectivity.TransientFailure)
	answered := make(chan error, 1)
	go func() {
		_, err := collect(t.Context(), a, nil)
		answered <- err
	}()
	start(t, s.address, nil, says("here"))
	if err := wait(t, "the answer", answered); err != nil {
		t.Error(err)
	}
}

// TestNotThere asks an agent that nobody serves.
func TestNotThere(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, says("never"))
	s.stop()
	a := open(t, Config{Address: s.address})
	until(t, a, connectivity.TransientFailure)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	if got := mustFail(t, err); got.Message != "the agent is not available" ||
		!strings.HasPrefix(got.Detail, s.address+": ") || !strings.Contains(got.Detail, "connection refused") || !got.Retryable {
		t.Errorf("%+v", got)
	}
}

// TestPatienceIsEnough holds the times against one another: a turn that waits sees at least
// one whole try to connect after the longest wait between two, when it fails at once, or a
// try that takes its full time.
func TestPatienceIsEnough(t *testing.T) {
	const jitter = maxBackoff / 5
	if maxBackoff+jitter >= readyTimeout || connectTimeout >= readyTimeout {
		t.Errorf("readyTimeout %v, backoff up to %v, connecting up to %v", readyTimeout, maxBackoff, connectTimeout)
	}
	if pingAfter < 5*time.Minute {
		t.Errorf("pings after %v: servers allow one in 5 minutes", pingAfter)
	}
}

// TestDrained has an agent stop gracefully: it finishes the answer that is under way, the
// health check does not hold it up, and what it refuses meanwhile goes to the next.
func TestDrained(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	s := &service{respond: func(_ *parleyv1.RespondRequest, stream pieces) error {
		close(begun)
		<-goOn
		return stream.Send(text("whole"))
	}}
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	registerHealth(server, health.NewServer())
	s.serve(t, "127.0.0.1:0", server)
	stopped := make(chan struct{})

	a := open(t, Config{Address: s.address})
	a.readyTimeout = untilFailed
	answered := make(chan error, 1)
	go func() {
		answer, err := collect(t.Context(), a, nil)
		if err == nil && len(answer) != 1 {
			err = errors.New("the answer is not whole")
		}
		answered <- err
	}()
	wait(t, "the request", begun)
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	until(t, a, connectivity.TransientFailure, connectivity.Connecting, connectivity.Idle)
	start(t, s.address, health.NewServer(), says("next"))
	if answer, err := collect(t.Context(), a, nil); err != nil || answer[0].GetText() != "next" {
		t.Errorf("%v, %v", answer, err)
	}
	close(goOn)
	if err := wait(t, "the answer", answered); err != nil {
		t.Error(err)
	}
	wait(t, "the agent to stop", stopped)
}

// TestClosed uses an agent after its end, which nobody should.
func TestClosed(t *testing.T) {
	a, err := New(Config{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), a, nil); err == nil {
		t.Error("no error")
	}
}
