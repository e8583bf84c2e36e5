package turn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// While the store is still asked to begin a turn, nobody knows whether there will be one.
func TestUndecided(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint("refused=", refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				f, p := newPuppet(t, func(o *Options) { o.Store = gated{o.Store, gate} })
				first := asks("first", 0)
				first.MustExist = refused
				one := f.begin(t, first)
				second, waits, left := f.begin(t, asks("second", 0)), f.begin(t, asks("waits", queue)), f.begin(t, asks("left", 0))
				left.leave()
				if len(one.events)+len(second.events)+len(left.events) != 0 || second.over || !errors.Is(left.err, context.Canceled) {
					t.Errorf("read %q, %q, %q before anything was decided", one.seen(), second.seen(), left.seen())
				}
				close(gate)
				synctest.Wait()
				if refused {
					// The one that waits comes next; only if it were refused, too, the second could begin.
					if !errors.Is(one.err, store.ErrNotFound) || waits.events[1].GetStarted() == nil {
						t.Errorf("the first got %v, the one that waits %q", one.err, waits.seen())
					}
				}
				if busy := new(store.BusyError); !errors.As(second.err, &busy) || busy.TurnID != p.last().request.GetTurnId() {
					t.Errorf("the second got %v, want that the conversation is busy with turn %s", second.err, p.last().request.GetTurnId())
				}
			})
		})
	}
}

// gated lets no turn begin before the gate is closed.
type gated struct {
	store.Store
	gate <-chan struct{}
}

func (g gated) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Begin != nil {
		<-g.gate
	}
	return g.Store.Append(ctx, a)
}

// What happens to a turn while the store is asked to begin it happens as soon as it has.
func TestWhileItBegins(t *testing.T) {
	tests := []struct {
		name    string
		happens func(t *testing.T, f *fixture, r *reader)
		state   string
	}{
		{"its reader leaves", func(t *testing.T, _ *fixture, r *reader) { t.Helper(); r.leave() }, "CANCELLED"},
		{"its reader leaves, and another comes", func(t *testing.T, f *fixture, r *reader) {
			t.Helper()
			r.leave()
			request := asks("q", 0)
			request.RequestId = "r"
			f.begin(t, request)
		}, "RUNNING"},
		{"an INTERRUPT", func(t *testing.T, f *fixture, _ *reader) { t.Helper(); f.begin(t, asks("other", interrupt)) }, "INTERRUPTED"},
		{"an INTERRUPT that leaves", func(t *testing.T, f *fixture, _ *reader) { t.Helper(); f.begin(t, asks("other", interrupt)).leave() }, "RUNNING"},
		{"CancelTurn", func(t *testing.T, f *fixture, _ *reader) {
			t.Helper()
			for id := range f.turns {
				go f.Cancel(t.Context(), tenant, "c", id) //nolint:errcheck // the turn says it
			}
		}, "CANCELLED"},
		{"a stop", func(t *testing.T, f *fixture, _ *reader) {
			t.Helper()
			ctx, now := context.WithCancel(t.Context())
			now()
			go f.Stop(ctx)
		}, "INTERRUPTED"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				f, p := newPuppet(t, func(o *Options) { o.Store = gated{o.Store, gate} })
				request := asks("q", 0)
				request.RequestId, request.OnDisconnect = "r", parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
				r := f.begin(t, request)
				test.happens(t, f, r)
				synctest.Wait()
				close(gate)
				synctest.Wait()
				// The words of a turn that has begun are stored, whatever happens to it.
				if kept := f.kept(t); kept[0] != "user: q" {
					t.Errorf("kept %q", kept)
				}
				turns, err := f.List(t.Context(), tenant, "c")
				if got := stateName(turns[len(turns)-1].GetState()); err != nil || got != test.state {
					t.Errorf("the turn is %s (%v), want %s", got, err, test.state)
				}
				if asked := p.count() > 0 && p.runs[0].request.GetMessages()[0].GetContent() == "q" && len(p.runs[0].request.GetMessages()) == 1; asked != (test.state == "RUNNING") {
					t.Errorf("its agent was asked: %t", asked)
				}
			})
		})
	}
}

// A conversation that goes, and whose id is taken again, between the commit that begins its
// turn and the moment in which the turn learns of it takes those that wait along.
func TestDeleteWhileTheTurnBeginsAndOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var f *fixture
		f, p := newPuppet(t, func(o *Options) {
			o.Store = raced{gated{o.Store, gate}, sync.OnceFunc(func() {
				if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Error(err)
				}
				f.append(t, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "new"})
			})}
		})
		readers := []*reader{f.begin(t, asks("q", 0)), f.begin(t, asks("waits", queue))}
		close(gate)
		synctest.Wait()
		for i, r := range readers {
			if !errors.Is(r.err, ErrConversationGone) {
				t.Errorf("reader %d: %q, %v", i, r.seen(), r.err)
			}
		}
		if diff := cmp.Diff([]string{"user: new"}, f.kept(t)); diff != "" || p.count() != 0 {
			t.Errorf("%d agents were asked; kept (-want +got):\n%s", p.count(), diff)
		}
	})
}

// A turn whose turn it is when everybody has just left does not begin.
func TestNobodyIsLeft(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": says(text("a"))}, nil)
	request := asks("q", 0)
	request.RequestId = "r"
	one := newLive(f.Manager, &line{key: key{tenant, "c"}}, request, requestOf(request), &store.Snapshot{})
	defer one.cancel(nil)
	one.readers = 0
	if err := one.begin(); !errors.Is(err, errDropped) || one.q != nil {
		t.Errorf("began: %v, and may be joined as %v", err, one.q)
	}
	if kept := f.kept(t); kept != nil {
		t.Errorf("kept %q", kept)
	}
}

// reading does something ahead of a read of turns.
type reading struct {
	store.Store
	first func()
}

func (r *reading) Read(ctx context.Context, read *store.Read) (*store.Snapshot, error) {
	if read.Turns {
		r.first()
	}
	return r.Store.Read(ctx, read)
}

// A turn that begins while turns are listed is listed once.
func TestListedWhileItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		open := sync.OnceFunc(func() {
			close(gate)
			synctest.Wait()
		})
		f, _ := newPuppet(t, func(o *Options) { o.Store = &reading{gated{o.Store, gate}, open} })
		r := f.begin(t, asks("q", 0))
		turns, err := f.List(t.Context(), tenant, "c")
		if err != nil || len(turns) != 1 || turns[0].GetId() != r.turnID() || stateName(turns[0].GetState()) != "RUNNING" {
			t.Errorf("listed %v, %v", turns, err)
		}
	})
}
