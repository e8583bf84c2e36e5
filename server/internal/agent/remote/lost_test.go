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

// TestKilled: an agent that is killed before or during its answer is called only once, and the next
// turn reaches the agent that replaces it.
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
			var calls atomic.Int32
			reached := make(chan struct{}, 1)
			s := start(t, "127.0.0.1:0", health.NewServer(), func(request *parleyv1.RespondRequest, stream pieces) error {
				calls.Add(1)
				if err := answerTexts(test.first...)(request, stream); err != nil {
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
			if failure := mustFail(t, last); failure.Message != test.want ||
				!strings.HasPrefix(failure.Detail, s.address+": ") || !failure.Retryable {
				t.Errorf("error = %+v, want %q", failure, test.want)
			}
			if strings.Join(got, "") != strings.Join(test.first, "") {
				t.Errorf("pieces before the agent was killed = %q, want %q", got, test.first)
			}
			if n := calls.Load(); n != 1 {
				t.Errorf("agent was called %d times, want once", n)
			}
			start(t, s.address, health.NewServer(), answerTexts("back"))
			if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
				t.Errorf("Respond after a restart = %v, %v, want one piece", answer, err)
			}
		})
	}
}

// TestRestartBetweenTurns: an agent that restarts between turns is reached by the next turn.
func TestRestartBetweenTurns(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, answerTexts("first"))
	a := open(t, Config{Address: s.address})
	for range 5 {
		if answer, err := collect(t.Context(), a, nil); len(answer) != 1 || err != nil {
			t.Fatalf("Respond = %v, %v, want one piece", answer, err)
		}
		s.stop()
		until(t, a, connectivity.TransientFailure)
		s = start(t, s.address, nil, answerTexts("next"))
	}
}

// TestLateAgent: a turn waits for an agent that starts later.
func TestLateAgent(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, answerTexts("never"))
	s.stop()
	a := open(t, Config{Address: s.address})
	a.readyTimeout = testTimeout
	until(t, a, connectivity.TransientFailure)
	answered := make(chan error, 1)
	go func() {
		_, err := collect(t.Context(), a, nil)
		answered <- err
	}()
	start(t, s.address, nil, answerTexts("here"))
	if err := wait(t, "the answer", answered); err != nil {
		t.Error(err)
	}
}

// TestMissingAgent: a turn fails if no agent is started.
func TestMissingAgent(t *testing.T) {
	s := start(t, "127.0.0.1:0", nil, answerTexts("never"))
	s.stop()
	a := open(t, Config{Address: s.address})
	until(t, a, connectivity.TransientFailure)
	a.readyTimeout = 50 * time.Millisecond
	_, err := collect(t.Context(), a, nil)
	if got := mustFail(t, err); got.Message != "the agent is not available" ||
		!strings.HasPrefix(got.Detail, s.address+": ") || !strings.Contains(got.Detail, "connection refused") ||
		!got.Retryable {
		t.Errorf("error = %+v, want a refused connection", got)
	}
}

// TestReadyTimeout: a waiting turn sees at least one complete attempt to connect after the longest
// backoff if the attempt fails at once, or one attempt that takes the full time.
func TestReadyTimeout(t *testing.T) {
	const jitter = maxBackoff / 5
	if maxBackoff+jitter >= readyTimeout || connectTimeout >= readyTimeout {
		t.Errorf("readyTimeout = %v, want more than maxBackoff %v and connectTimeout %v", readyTimeout, maxBackoff,
			connectTimeout)
	}
	if pingAfter < 5*time.Minute {
		t.Errorf("pingAfter = %v, want at least 5 minutes, as servers require", pingAfter)
	}
}

// TestDrained: an agent that stops gracefully finishes its answer. Health checks do not delay that,
// and refused calls go to the next agent.
func TestDrained(t *testing.T) {
	started, resume := make(chan struct{}), make(chan struct{})
	s := &service{respond: func(_ *parleyv1.RespondRequest, stream pieces) error {
		close(started)
		<-resume
		return stream.Send(text("complete"))
	}}
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	registerHealth(server, health.NewServer())
	s.serve(t, "127.0.0.1:0", server)
	stopped := make(chan struct{})

	a := open(t, Config{Address: s.address})
	a.readyTimeout = testTimeout
	answered := make(chan error, 1)
	go func() {
		answer, err := collect(t.Context(), a, nil)
		if err == nil && len(answer) != 1 {
			err = errors.New("the answer is incomplete")
		}
		answered <- err
	}()
	wait(t, "the request", started)
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	until(t, a, connectivity.TransientFailure, connectivity.Connecting, connectivity.Idle)
	start(t, s.address, health.NewServer(), answerTexts("next"))
	if answer, err := collect(t.Context(), a, nil); err != nil || answer[0].GetText() != "next" {
		t.Errorf("Respond = %v, %v, want next", answer, err)
	}
	close(resume)
	if err := wait(t, "the answer", answered); err != nil {
		t.Error(err)
	}
	wait(t, "the agent to stop", stopped)
}

// TestClosed: Respond fails after Close.
func TestClosed(t *testing.T) {
	a, err := New(Config{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := collect(t.Context(), a, nil); err == nil {
		t.Error("Respond after Close succeeded, want an error")
	}
}
