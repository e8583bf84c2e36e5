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

// slow is an agent whose answer takes a minute.
func slow() agentFunc {
	return func(ctx context.Context, yield func(*parleyv1.RespondResponse, error) bool) {
		if !yield(textPiece("on it"), nil) {
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

const waiting = "progress Waiting: the agent is busy with as many answers as it may give at once (1)."

// timed is what the agent yields within two hours, each piece with the time that it
// comes at.
func timed(ctx context.Context, a agent.Agent) []string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
	defer cancel()
	began := time.Now()
	var all []string
	for piece, err := range a.Respond(ctx, nil) {
		all = append(all, fmt.Sprint(time.Since(began), " ", pieceLine(piece, err)))
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
			synctest.Wait() // the next one comes later
		}
		answers.Wait()
		// A note may come at the very instant of the slot: leave those out.
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
			{"0s on it", "1m0s done"},
			append(note(0, 10, 20, 30, 40, 50), "1m0s on it", "2m0s done"),
			append(note(0, 10, 20, 30, 40, 50, 70, 80, 90, 100, 110), "2m0s on it", "3m0s done"),
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
		if got := timed(t.Context(), a); got[0] != "0s on it" {
			t.Errorf("when all have ended: %q", got)
		}
	})
}

// However an answer ends, while it waits too, its slot is there for the next one.
func TestLimitGivesSlotsBack(t *testing.T) {
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
			if r := recover(); r != "oh <nil>" {
				t.Errorf("recovered %v", r)
			}
		}()
		respond()
	}
	tests := []struct {
		name string
		end  func(ctx context.Context, a agent.Agent)
	}{
		{"whole", func(ctx context.Context, a agent.Agent) { timed(ctx, a) }},
		{"the consumer stops", func(ctx context.Context, a agent.Agent) { stopAfter(ctx, a, 1) }},
		{"the consumer panics", func(ctx context.Context, a agent.Agent) {
			panics(func() {
				for _, err := range a.Respond(ctx, nil) {
					panic(fmt.Sprint("oh ", err))
				}
			})
		}},
		{"the consumer stops when it waits", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			stopAfter(ctx, a, 1)
		}},
		{"the consumer stops when it waits still", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			stopAfter(ctx, a, 3)
		}},
		{"the consumer panics when it waits", func(ctx context.Context, a agent.Agent) {
			go timed(ctx, a)
			synctest.Wait()
			panics(func() {
				for _, err := range a.Respond(ctx, nil) {
					panic(fmt.Sprint("oh ", err))
				}
			})
		}},
		{"the slot comes while the consumer stops", func(ctx context.Context, a agent.Agent) {
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
				if diff := cmp.Diff([]string{"0s on it", "1m0s done"}, timed(t.Context(), a)); diff != "" {
					t.Errorf("the next answer (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestLimitWhenTheAgentPanics(t *testing.T) {
	a := agent.Limit(agentFunc(func(context.Context, func(*parleyv1.RespondResponse, error) bool) { panic("oh") }), 1)
	for range 2 {
		func() {
			defer func() {
				if r := recover(); r != "oh" {
					t.Errorf("recovered %v", r)
				}
			}()
			pieces(t.Context(), a)
		}()
	}
}

func TestNoLimit(t *testing.T) {
	a := &closing{}
	for _, n := range []int{0, -1} {
		if agent.Limit(a, n) != agent.Agent(a) {
			t.Errorf("%d: the agent is another", n)
		}
	}
}

func TestLimitClosesItsAgent(t *testing.T) {
	if err := agent.Limit(saying(), 1).Close(); err == nil || err.Error() != "closed" {
		t.Errorf("Close: %v", err)
	}
}

// visit is a request: when it comes, how long it waits and how long its answer takes.
type visit struct{ arrival, patience, work time.Duration }

// visited is an agent whose answers take as long as the visit of the request's turn id.
type visited struct {
	agentFunc
	visits []visit
	began  func(i int)
}

func (v *visited) Respond(_ context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(func(*parleyv1.RespondResponse, error) bool) {
		i := slices.Index(visitors(), request.GetTurnId())
		v.began(i)
		<-time.After(v.visits[i].work)
	}
}

func visitors() []string { return strings.Split("abcdefghijkl", "") }

// First come, first served, n at once, and no slot is idle while somebody waits: answers
// begin when a queue on paper says so, however others take their time or go.
func TestLimitIsAQueue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 3).Draw(rt, "n")
		visits := make([]visit, rapid.IntRange(1, len(visitors())).Draw(rt, "visits"))
		for i := range visits {
			seconds := func(what string) time.Duration {
				return time.Duration(rapid.IntRange(0, 40).Draw(rt, what)) * time.Second
			}
			// No two of them at the same instant: which came first would be chance.
			unlike := time.Duration(i+1) * time.Microsecond
			visits[i] = visit{seconds("arrival") + unlike, seconds("patience") + 100*unlike, seconds("work") + 10_000*unlike}
		}
		slices.SortFunc(visits, func(a, b visit) int { return int(a.arrival - b.arrival) })

		want := make(map[int]time.Duration)
		free := make([]time.Duration, n) // when each slot is
		for i, v := range visits {
			slot := slices.Index(free, slices.Min(free))
			if start := max(v.arrival, free[slot]); start < v.arrival+v.patience {
				want[i], free[slot] = start, start+v.work
			}
		}
		got := make(map[int]time.Duration)
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			var mu sync.Mutex
			a := agent.Limit(&visited{visits: visits, began: func(i int) {
				mu.Lock()
				defer mu.Unlock()
				got[i] = time.Since(start)
			}}, n)
			var all sync.WaitGroup
			for i, v := range visits {
				all.Go(func() {
					<-time.After(v.arrival)
					ctx, cancel := context.WithTimeout(t.Context(), v.patience)
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
			rt.Fatalf("answers of %v, %d at once, begin (-want +got):\n%s", visits, n, diff)
		}
	})
}
