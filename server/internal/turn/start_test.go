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

// TestRequestsWhileATurnStarts: while the store commits the start of a turn, other requests wait
// for the outcome.
func TestRequestsWhileATurnStarts(t *testing.T) {
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprint("refused=", refused), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				f, p := newControlled(t, func(o *Options) { o.Store = gatedStore{o.Store, gate} })
				first := chatRequest("first", 0)
				first.MustExist = refused
				firstReader := f.startChat(t, first)
				second, queued, left := f.startChat(t, chatRequest("second", 0)),
					f.startChat(t, chatRequest("waits", onBusyQueue)), f.startChat(t, chatRequest("left", 0))
				left.disconnect()
				if len(firstReader.events)+len(second.events)+len(left.events) != 0 || second.ended ||
					!errors.Is(left.err, context.Canceled) {
					t.Errorf("events before the start: %q, %q, %q, want none", firstReader.received(), second.received(),
						left.received())
				}
				close(gate)
				synctest.Wait()
				if refused {
					// The queued turn is next. The second request could start only if that were
					// refused too.
					if !errors.Is(firstReader.err, store.ErrNotFound) || queued.events[1].GetStarted() == nil {
						t.Errorf("first Chat: error = %v, want ErrNotFound; queued turn: %q, want started", firstReader.err,
							queued.received())
					}
				}
				if busy := new(store.BusyError); !errors.As(second.err, &busy) || busy.TurnID != p.lastRun().request.GetTurnId() {
					t.Errorf("second Chat: error = %v, want BusyError of turn %s", second.err, p.lastRun().request.GetTurnId())
				}
			})
		})
	}
}

// gatedStore starts no turn before the gate is closed.
type gatedStore struct {
	store.Store
	gate <-chan struct{}
}

func (g gatedStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Begin != nil {
		<-g.gate
	}
	return g.Store.Append(ctx, a)
}

// TestEventsDuringStart: an event during the commit of a start takes effect right after the commit.
func TestEventsDuringStart(t *testing.T) {
	tests := []struct {
		name    string
		happens func(t *testing.T, f *fixture, r *reader)
		state   string
	}{
		{"its reader leaves", func(t *testing.T, _ *fixture, r *reader) { t.Helper(); r.disconnect() }, "CANCELLED"},
		{"its reader leaves and another attaches", func(t *testing.T, f *fixture, r *reader) {
			t.Helper()
			r.disconnect()
			request := chatRequest("q", 0)
			request.RequestId = "r"
			f.startChat(t, request)
		}, "RUNNING"},
		{"an INTERRUPT", func(t *testing.T, f *fixture, _ *reader) {
			t.Helper()
			f.startChat(t, chatRequest("other", onBusyInterrupt))
		}, "INTERRUPTED"},
		{"an INTERRUPT that leaves", func(t *testing.T, f *fixture, _ *reader) {
			t.Helper()
			f.startChat(t, chatRequest("other", onBusyInterrupt)).disconnect()
		}, "RUNNING"},
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
				f, p := newControlled(t, func(o *Options) { o.Store = gatedStore{o.Store, gate} })
				request := chatRequest("q", 0)
				request.RequestId, request.OnDisconnect = "r", parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
				r := f.startChat(t, request)
				test.happens(t, f, r)
				synctest.Wait()
				close(gate)
				synctest.Wait()
				// The messages of a turn that has started are stored in any case.
				if stored := f.stored(t); stored[0] != "user: q" {
					t.Errorf("stored messages = %q", stored)
				}
				turns, err := f.newestTurns(t, "c")
				if got := stateName(turns[len(turns)-1].GetState()); err != nil || got != test.state {
					t.Errorf("List: state = %s (%v), want %s", got, err, test.state)
				}
				if called := p.runCount() > 0 && p.runs[0].request.GetMessages()[0].GetContent() == "q" &&
					len(p.runs[0].request.GetMessages()) == 1; called != (test.state == "RUNNING") {
					t.Errorf("agent called = %t", called)
				}
			})
		})
	}
}

// TestDeleteDuringStartEndsQueuedTurns: if a conversation is deleted and its id used again during
// the commit of a start, the queued turns end too.
func TestDeleteDuringStartEndsQueuedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		var f *fixture
		f, p := newControlled(t, func(o *Options) {
			o.Store = commitHookStore{gatedStore{o.Store, gate}, sync.OnceFunc(func() {
				if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Error(err)
				}
				f.append(t, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "new"})
			})}
		})
		readers := []*reader{f.startChat(t, chatRequest("q", 0)), f.startChat(t, chatRequest("waits", onBusyQueue))}
		close(gate)
		synctest.Wait()
		for i, r := range readers {
			if !errors.Is(r.err, ErrConversationDeleted) {
				t.Errorf("reader %d: %q, %v, want ErrConversationDeleted", i, r.received(), r.err)
			}
		}
		if diff := cmp.Diff([]string{"user: new"}, f.stored(t)); diff != "" || p.runCount() != 0 {
			t.Errorf("%d agent calls; stored messages (-want +got):\n%s", p.runCount(), diff)
		}
	})
}

// TestTurnWithoutReadersDoesNotStart: a turn whose last reader left just before its start does not
// start.
func TestTurnWithoutReadersDoesNotStart(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, nil)
	request := chatRequest("q", 0)
	request.RequestId = "r"
	conversation := key{tenant, "c"}
	e := &queueEntry{
		live: newLiveTurn(t.Context(), f.Manager, conversation, request), queue: &queue{key: conversation},
		requestKey: storeRequest(request),
	}
	x := newExecution(f.Manager, e, request, &store.Snapshot{}, false)
	defer e.live.cancel(nil)
	if err := x.start(); !errors.Is(err, errDroppedFromQueue) || e.requestKey != nil {
		t.Errorf("start() = %v, want errDroppedFromQueue; requestKey = %v, want nil", err, e.requestKey)
	}
	if stored := f.stored(t); stored != nil {
		t.Errorf("stored messages = %q", stored)
	}
}
