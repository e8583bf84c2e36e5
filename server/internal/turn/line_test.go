package turn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

const (
	queue     = parleyv1.OnBusy_ON_BUSY_QUEUE
	interrupt = parleyv1.OnBusy_ON_BUSY_INTERRUPT
)

// asks is a request on conversation c.
func asks(content string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
	return &parleyv1.ChatRequest{ConversationId: "c", Content: content, OnBusy: busy}
}

// Many callers with one request_id are one turn, also where no more than one may run.
func TestJoinersNeedNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, func(o *Options) { o.MaxTurns = 1 })
		request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
		results := make(chan error)
		const callers = 64
		for range callers {
			go func() {
				events, err := drained(f.Chat(t.Context(), tenant, request, requestOf(request)))
				if err == nil {
					err = wholeAnswer(events, []*parleyv1.Message{{Content: "one answer"}})
				}
				results <- err
			}()
		}
		synctest.Wait()
		p.last().say("one ", "answer")
		p.last().end()
		for range callers {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: one answer"}, f.kept(t)); diff != "" || p.count() != 1 {
			t.Errorf("the agent was asked %d times; kept (-want +got):\n%s", p.count(), diff)
		}
	})
}

// A turn that waits lives as long as anybody waits for it: the first caller, one that sent
// the same request, one that resumed it.
func TestWaitingForTheLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		f.begin(t, asks("ahead", 0))
		request := asks("q", queue)
		request.RequestId = "r"
		readers := []*reader{f.begin(t, request)}
		readers = append(readers, f.begin(t, request), f.resume(t, readers[0].turnID(), 0))
		readers[0].leave()
		readers[1].leave()
		p.last().end()
		p.last().say("yes")
		if diff := cmp.Diff([]string{"1 queued 1", `2 started "q" replayed`, `3 text "yes" at 0`}, readers[2].seen()); diff != "" {
			t.Errorf("who came last read (-want +got):\n%s", diff)
		}

		gone := asks("nobody waits", queue)
		gone.RequestId = "gone"
		readers = []*reader{f.begin(t, gone), f.begin(t, gone)}
		readers[0].leave()
		readers[1].leave()
		if got, err := f.Get(t.Context(), tenant, "c", readers[0].turnID()); !lost(err) {
			t.Errorf("there is %v (%v) although everybody has left", got, err)
		}
		// Asked again it is another turn, at the end of the line.
		again := f.begin(t, gone)
		if again.turnID() == readers[0].turnID() || again.events[0].GetQueued().GetPosition() != 1 {
			t.Errorf("asked again: %q", again.seen())
		}
	})
}

func TestLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		ahead := asks("ahead", 0)
		ahead.Metadata = stubborn
		f.begin(t, ahead)
		var all []*reader
		fill := func(busy parleyv1.OnBusy, n int) {
			t.Helper()
			for i := range n {
				r := f.begin(t, asks(fmt.Sprint(busy, i), busy))
				if r.err != nil {
					t.Fatalf("number %d: %v", i+1, r.err)
				}
				all = append(all, r)
			}
			if r := f.begin(t, asks("one more", busy)); !errors.Is(r.err, ErrQueueFull) || len(r.events) != 0 {
				t.Errorf("number %d: %q, %v", n+1, r.seen(), r.err)
			}
		}
		fill(queue, maxQueued)
		fill(interrupt, maxInterrupting)
		// All of them wait, and all but the last of those that interrupt are cut off at once.
		turns, err := f.List(t.Context(), tenant, "c")
		if err != nil || len(turns) != maxTurns || turns[0].GetId() != all[maxQueued-1].turnID() {
			t.Errorf("%d turns are listed, the first is %v (%v)", len(turns), turns[0], err)
		}
		for _, r := range append(all, &reader{events: []*parleyv1.TurnEvent{{TurnId: p.last().request.GetTurnId()}}}) {
			if _, err := f.Get(t.Context(), tenant, "c", r.turnID()); err != nil {
				t.Fatalf("a turn cannot be asked for while many wait: %v", err)
			}
		}
		for p.last().end() {
		}
		if n := p.count(); n != 1+1+maxQueued {
			t.Errorf("%d agents were asked, want those of the first, of the last that interrupts, and of all that queue", n)
		}
		for i, r := range all {
			want := "COMPLETED"
			if i >= maxQueued && i < len(all)-1 {
				want = "INTERRUPTED"
			}
			if got := r.finished(); stateName(got.GetState()) != want {
				t.Errorf("turn %d ended %v, want %s", i, got, want)
			}
		}
	})
}

// Those who wait are told so every 15 s, outside the turn's own time.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, func(o *Options) { o.TurnTimeout, o.IdleTimeout = time.Hour, 10*time.Minute })
		f.begin(t, asks("ahead", 0))
		r := f.begin(t, asks("q", queue))
		accepted := time.Now()
		<-time.After(9*time.Minute + time.Second)
		synctest.Wait()
		if len(r.events) != 1+9*4 || r.events[36].GetQueued().GetPosition() != 1 {
			t.Errorf("told %d times, the last time %v", len(r.events), r.events[len(r.events)-1])
		}
		f.o.TurnTimeout = time.Minute // Of what begins from now on.
		p.last().end()
		<-time.After(59 * time.Second)
		p.last().say("yes")
		p.last().end()
		if got := r.finished(); stateName(got.GetState()) != "COMPLETED" || !got.GetCreateTime().AsTime().Equal(accepted) {
			t.Errorf("ended %v, want it accepted at %v", got, accepted)
		}
	})
}

// QUEUE: if_version is that of the conversation when the turn begins, and a turn that is
// refused lets the next one begin.
func TestQueuedIfVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		f.begin(t, asks("ahead", 0))
		var readers []*reader
		for version := range int32(4) {
			request := asks(fmt.Sprint("if ", version), queue)
			request.IfVersion = &version
			readers = append(readers, f.begin(t, request))
		}
		p.last().end()
		for version, r := range readers {
			if mismatch := new(store.VersionError); version == 2 && r.err != nil || version < 2 && (!errors.As(r.err, &mismatch) || mismatch.Current != 2) {
				t.Errorf("if_version %d at version 2: %q, %v", version, r.seen(), r.err)
			}
		}
		p.last().end()
		if diff := cmp.Diff([]string{"user: ahead", "user: if 2"}, f.kept(t)); diff != "" || !errors.As(readers[3].err, new(*store.VersionError)) {
			t.Errorf("the last one got %v; kept (-want +got):\n%s", readers[3].err, diff)
		}
	})
}

// QUEUE: who answers is decided when the turn begins, not when it comes.
func TestQueuedIsAnsweredByWhoIsInChargeThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &puppet{released: make(chan struct{})}
		close(p.released)
		f := newFixture(t, map[string]agent.Agent{"main": p, "other": says(text("other"))}, nil)
		f.begin(t, asks("ahead", 0))
		r := f.begin(t, asks("q", queue))
		if _, err := f.store.Update(t.Context(), &store.Update{Tenant: tenant, ConversationID: "c", Lease: &store.Lease{Agent: "other"}}); err != nil {
			t.Fatal(err)
		}
		p.last().end()
		if got := r.finished().GetAgent(); got != "other" {
			t.Errorf("answered by %q", got)
		}
	})
}

// The place of a turn is free before anybody is told that it has ended.
func TestThePlaceIsFreeFirst(t *testing.T) {
	var f *fixture
	stored := make(chan struct{})
	f = newFixture(t, map[string]agent.Agent{"main": says(text("a"))}, func(o *Options) {
		o.Store = &hooked{Store: o.Store, end: func(*store.Append) {
			f.mu.Lock() // So that the turn cannot leave its line yet.
			close(stored)
		}}
	})
	next, leave := iter.Pull2(f.Chat(t.Context(), tenant, asks("q", 0), nil))
	defer leave()
	started, _, _ := next()
	<-stored
	events := f.turns[started.GetTurnId()].events
	for range 10_000 {
		runtime.Gosched()
	}
	if n := events.last(); n != 2 {
		t.Errorf("event %d was told too early", n)
	}
	f.mu.Unlock()
	for event, err, ok := next(); ok; event, err, ok = next() {
		if n := f.Running(); err != nil || event.GetFinished() != nil && n != 0 {
			t.Errorf("%d turns run after the end (%v)", n, err)
		}
	}
}

// hooked does something ahead of an append that begins a turn, or behind one that ends it.
type hooked struct {
	store.Store
	begin, end func(a *store.Append)
}

func (h *hooked) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Begin != nil && h.begin != nil {
		h.begin(a)
	}
	result, err := h.Store.Append(ctx, a)
	if a.End != nil && h.end != nil {
		h.end(a)
	}
	return result, err
}

// answered answers a request in the store, as another server would.
func answered(t *testing.T, s store.Store, request *parleyv1.ChatRequest) {
	t.Helper()
	begin := &store.Append{
		Begin:   &parleyv1.Turn{Id: "elsewhere", Agent: "main", InputSequence: 1},
		Request: requestOf(request), Messages: Inputs(request),
	}
	end := &store.Append{
		End:      &parleyv1.Turn{Id: "elsewhere", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
		Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "a"}},
	}
	for _, a := range []*store.Append{begin, end} {
		a.Tenant, a.ConversationID = tenant, "c"
		if _, err := s.Append(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
}

// A request may have been answered, say by another server, while it waited here: all who
// wait are told that answer.
func TestAnsweredElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		pending bool
		asked   string
		late    bool // between what the turn reads and what it writes
	}{
		"before it is asked for":          {false, "q", false},
		"when it is to begin":             {false, "q", true},
		"pending, before it is read":      {true, "ahead", false},
		"pending, when it is to be asked": {true, "ahead", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h *hooked
				f, p := newPuppet(t, func(o *Options) {
					h = &hooked{Store: o.Store}
					o.Store = h
				})
				request := asks("q", queue)
				if request.RequestId = "r"; test.pending {
					request.Content, request.AnswerPending = "", true
				}
				f.begin(t, asks("ahead", 0))
				first := f.begin(t, request)
				readers := []*reader{first, f.begin(t, request), f.resume(t, first.turnID(), 0)}
				once := sync.OnceFunc(func() { answered(t, f.store, request) })
				if h.end = func(*store.Append) { once() }; test.late {
					h.begin, h.end = func(*store.Append) { once() }, nil
				}
				p.last().fail()
				want := []string{"1 queued 1", fmt.Sprintf("1 started %q replayed", test.asked), `2 text "a" at 0`, "3 finished COMPLETED"}
				for _, r := range readers {
					if diff := cmp.Diff(want, r.seen()); diff != "" || r.err != nil {
						t.Errorf("read (-want +got):\n%s%v", diff, r.err)
					}
				}
				if p.count() != 1 || f.Running() != 0 {
					t.Errorf("%d agents were asked, %d turns run", p.count(), f.Running())
				}
			})
		})
	}
}
