package agent_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// slow returns an agent whose answer takes a minute.
func slow() agentFunc {
	return func(ctx context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
		if !yield(textPiece("started"), nil) {
			return
		}
		select {
		case <-time.After(time.Minute):
			yield(textPiece("done"), nil)
		case <-ctx.Done():
			yield(nil, context.Cause(ctx))
		}
	}
}

const waiting = "progress Waiting: the agent has reached its limit of concurrent answers (1)."

// timed returns what the agent yields within two hours, each piece with its time.
func timed(ctx context.Context, a agent.Agent) []string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
	defer cancel()
	start := time.Now()
	var all []string
	for piece, err := range a.Respond(ctx, nil) {
		all = append(all, fmt.Sprint(time.Since(start), " ", pieceLine(piece, err)))
	}
	return all
}

func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agent.Limit(slow(), 1)
		got := make([][]string, 3)
		var answers sync.WaitGroup
		for i := range got {
			answers.Go(func() { got[i] = timed(t.Context(), a) })
			synctest.Wait() // The requests arrive one after another.
		}
		answers.Wait()
		// Ignore a Progress piece at the very time at which the slot is released.
		for i := range got {
			got[i] = slices.DeleteFunc(got[i], func(s string) bool { return s == "1m0s "+waiting || s == "2m0s "+waiting })
		}
		note := func(seconds ...int) (notes []string) {
			for _, s := range seconds {
				notes = append(notes, fmt.Sprint(time.Duration(s)*time.Second, " ", waiting))
			}
			return notes
		}
		want := [][]string{
			{"0s started", "1m0s done"},
			append(note(0, 10, 20, 30, 40, 50), "1m0s started", "2m0s done"),
			append(note(0, 10, 20, 30, 40, 50, 70, 80, 90, 100, 110), "2m0s started", "3m0s done"),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestLimitWaitsNoLongerThanItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := agent.Limit(slow(), 1)
		go timed(t.Context(), a)
		synctest.Wait()
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, enough)
		defer cancel()
		if diff := cmp.Diff([]string{"0s " + waiting, "5s error enough"}, timed(ctx, a)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		<-time.After(time.Hour)
		if got := timed(t.Context(), a); got[0] != "0s started" {
			t.Errorf("Respond after all answers have ended = %q, want it to start at once", got)
		}
	})
}

// TestLimitReleasesSlots: the slot is released however an answer ends, also while it waits.
func TestLimitReleasesSlots(t *testing.T) {
	stopAfter := func(ctx context.Context, a agent.Agent, n int) {
		got := 0
		for _, err := range a.Respond(ctx, nil) {
			got++
			if err != nil || got == n {
				break
			}
		}
	}
	panics := func(respond func()) {
		defer func() {
			if r := recover(); r != "stop <nil>" {
				t.Errorf("recover() = %v, want the panic", r)
			}
		}()
		respond()
	}
	tests := []struct {
		name string
		end  func(ctx context.Context, a agent.Agent)
	}{
		{"complete", func(ctx context.Context, a agent.Agent) { timed(ctx, a) }},
		{"the consumer stops", func(ctx context.Context, a agent.Agent) { stopAfter(ctx, a, 1) }},
		{"the consumer panics", func(ctx context.Context, a agent.Agent) {
			panics(func() {
				for _, err := range a.Respond(ctx, nil) {
					panic(fmt.Sprint("stop ", err))
				}
			})
		}},
		{"the consumer stops while it waits", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			stopAfter(ctx, a, 1)
		}},
		{"the consumer stops after a longer wait", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			stopAfter(ctx, a, 3)
		}},
		{"the consumer panics while it waits", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			panics(func() {
				for _, err := range a.Respond(ctx, nil) {
					panic(fmt.Sprint("stop ", err))
				}
			})
		}},
		{"the slot is granted while the consumer stops", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			for _, err := range a.Respond(ctx, nil) {
				<-time.After(time.Hour)
				if err == nil {
					break
				}
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := agent.Limit(slow(), 1)
				test.end(t.Context(), a)
				<-time.After(time.Hour)
				if diff := cmp.Diff([]string{"0s started", "1m0s done"}, timed(t.Context(), a)); diff != "" {
					t.Errorf("next answer (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestLimitWhenTheAgentPanics(t *testing.T) {
	a := agent.Limit(agentFunc(func(context.Context, func(*parleyv1.RespondResponse, error) bool) { panic("stop") }), 1)
	for range 2 {
		func() {
			defer func() {
				if r := recover(); r != "stop" {
					t.Errorf("recover() = %v, want the panic", r)
				}
			}()
			pieces(t.Context(), a)
		}()
	}
}

func TestNoLimit(t *testing.T) {
	a := &closer{}
	for _, n := range []int{0, -1} {
		if agent.Limit(a, n) != agent.Agent(a) {
			t.Errorf("Limit(a, %d) != a", n)
		}
	}
}

func TestLimitClosesItsAgent(t *testing.T) {
	if err := agent.Limit(newAgent(), 1).Close(); err == nil || err.Error() != "closed" {
		t.Errorf("Close() = %v, want the agent's error", err)
	}
}

// visit is a request: when it arrives, how long it waits and how long its answer takes.
type visit struct{ arrival, maxWait, work time.Duration }

// visitedAgent is an agent whose answer takes as long as the visit with the index of the request's
// turn id.
type visitedAgent struct {
	agentFunc
	visits  []visit
	started func(i int)
}

func (v *visitedAgent) Respond(
	_ context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(func(*parleyv1.RespondResponse, error) bool) {
		i := slices.Index(visitors(), request.GetTurnId())
		v.started(i)
		<-time.After(v.visits[i].work)
	}
}

func visitors() []string { return strings.Split("abcdefghijkl", "") }

// TestLimitIsAQueue: requests are answered in the order of their arrival, n at the same time, and
// no slot is free while a request waits. The start times must equal those of a simulated queue.
func TestLimitIsAQueue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		visits := make([]visit, rapid.IntRange(1, len(visitors())).Draw(rt, "visits"))
		for i := range visits {
			seconds := func(what string) time.Duration {
				return time.Duration(rapid.IntRange(0, 40).Draw(rt, what)) * time.Second
			}
			// No two events may happen at the same time, because their order would be random.
			offset := time.Duration(i+1) * time.Microsecond
			visits[i] = visit{seconds("arrival") + offset, seconds("maxWait") + 100*offset, seconds("work") + 10_000*offset}
		}
		slices.SortFunc(visits, func(a, b visit) int { return int(a.arrival - b.arrival) })

		want := make(map[int]time.Duration)
		free := make([]time.Duration, n) // The time at which each slot is free.
		for i, v := range visits {
			slot := slices.Index(free, slices.Min(free))
			if start := max(v.arrival, free[slot]); start < v.arrival+v.maxWait {
				want[i], free[slot] = start, start+v.work
			}
		}
		got := make(map[int]time.Duration)
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var mu sync.Mutex
			a := agent.Limit(&visitedAgent{visits: visits, started: func(i int) {
				mu.Lock()
				defer mu.Unlock()
				got[i] = time.Since(start)
			}}, n)
			var all sync.WaitGroup
			for i, v := range visits {
				all.Go(func() {
					<-time.After(v.arrival)
					ctx, cancel := context.WithTimeout(t.Context(), v.maxWait)
					defer cancel()
					for _, err := range a.Respond(ctx, &parleyv1.RespondRequest{TurnId: visitors()[i]}) {
						if err != nil && !errors.Is(err, context.DeadlineExceeded) {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
		})
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("start times of %v with limit %d (-want +got):\n%s", visits, n, diff)
		}
	})
}
