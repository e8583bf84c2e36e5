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
	onBusyQueue     = parleyv1.OnBusy_ON_BUSY_QUEUE
	onBusyInterrupt = parleyv1.OnBusy_ON_BUSY_INTERRUPT
)

// chatRequest returns a request for conversation c.
func chatRequest(content string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
	return &parleyv1.ChatRequest{ConversationId: "c", Content: content, OnBusy: busy}
}

// TestAttachedRequestsNeedNoCapacity: many requests with one request_id are one turn, even if only
// one turn may run.
func TestAttachedRequestsNeedNoCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, func(o *Options) { o.MaxTurns = 1 })
		request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
		results := make(chan error)
		const callers = 64
		for range callers {
			go func() {
				events, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request)))
				if err == nil {
					err = checkAnswer(events, []*parleyv1.Message{{Content: "one answer"}})
				}
				results <- err
			}()
		}
		synctest.Wait()
		p.lastRun().sendText("one ", "answer")
		p.lastRun().complete()
		for range callers {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: one answer"}, f.stored(t)); diff != "" || p.runCount() != 1 {
			t.Errorf("%d agent calls; stored messages (-want +got):\n%s", p.runCount(), diff)
		}
	})
}

// TestQueuedTurnLivesUntilItsLastReaderLeaves: a queued turn is dropped when all readers have left:
// the first caller, a retry of the request and a reader that resumed.
func TestQueuedTurnLivesUntilItsLastReaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		f.startChat(t, chatRequest("ahead", 0))
		request := chatRequest("q", onBusyQueue)
		request.RequestId = "r"
		readers := []*reader{f.startChat(t, request)}
		readers = append(readers, f.startChat(t, request), f.startResume(t, readers[0].turnID(), 0))
		readers[0].disconnect()
		readers[1].disconnect()
		p.lastRun().complete()
		p.lastRun().sendText("yes")
		if diff := cmp.Diff([]string{"1 queued 1", `2 started "q" replayed`, `3 text "yes" at 0`},
			readers[2].received()); diff != "" {
			t.Errorf("events of the last reader (-want +got):\n%s", diff)
		}

		dropped := chatRequest("nobody waits", onBusyQueue)
		dropped.RequestId = "gone"
		readers = []*reader{f.startChat(t, dropped), f.startChat(t, dropped)}
		readers[0].disconnect()
		readers[1].disconnect()
		if got, err := f.Get(t.Context(), tenant, "c", readers[0].turnID()); !isMissingTurn(err) {
			t.Errorf("Get without readers = %v, %v, want none found", got, err)
		}
		// The next request is another turn, at the end of the queue.
		retry := f.startChat(t, dropped)
		if retry.turnID() == readers[0].turnID() || retry.events[0].GetQueued().GetPosition() != 1 {
			t.Errorf("retry = %q, want another turn at position 1", retry.received())
		}
	})
}

// TestMemoryOfQueues: the requests that wait in all queues of a tenant are limited together. Memory is free again when a turn starts
// or leaves its queue.
func TestMemoryOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		const size = 4 << 20
		large := func(n int) *parleyv1.ChatRequest {
			r := chatRequest("q", onBusyQueue)
			r.ConversationId = fmt.Sprint("c", n/maxQueued)
			r.Records = []*parleyv1.RecordWrite{{Key: "a", Value: make([]byte, size)}}
			return r
		}
		const most = maxTenantWaitingBytes/size - 1 // Requests are a little larger than their records.
		for n := range 2 {
			r := chatRequest("ahead", 0)
			r.ConversationId = fmt.Sprint("c", n)
			f.startChat(t, r)
		}
		var waiting []*reader
		for n := range most {
			waiting = append(waiting, f.startChat(t, large(n)))
		}
		wantFull := func(full bool) {
			t.Helper()
			for _, n := range []int{0, maxQueued} {
				r := f.startChat(t, large(n))
				if errors.Is(r.err, ErrQueueFull) != full || full == (len(r.events) > 0) {
					t.Errorf("Chat in c%d = %q, %v, want ErrQueueFull %t", n/maxQueued, r.received(), r.err, full)
				}
				r.disconnect()
			}
		}
		wantFull(true)
		if r := f.startChat(t, chatRequest("another conversation", onBusyQueue)); r.err != nil {
			t.Errorf("Chat that need not wait = %v", r.err)
		}
		waiting[3].disconnect()
		wantFull(false)
		again := f.startChat(t, large(maxQueued))
		wantFull(true)
		again.disconnect()
		wantFull(false)
		p.runs[0].complete() // The next turn of c0 starts.
		f.startChat(t, large(maxQueued))
		for _, r := range waiting {
			r.disconnect()
		}
		if f.waitingBytes > size+1000 {
			t.Errorf("%d bytes wait, want one request", f.waitingBytes)
		}
	})
}

// TestMemoryOfTenants: a tenant whose waiting requests take all that it may have leaves memory for another one. All
// tenants together are limited, too.
func TestMemoryOfTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		const size, each = 4 << 20, maxTenantWaitingBytes / (4 << 20)
		chat := func(tenant string, r *parleyv1.ChatRequest) *reader {
			return startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
				return f.Chat(ctx, tenant, r, storeRequest(r))
			})
		}
		wait := func(tenant string, size int) *reader {
			r := chatRequest("q", onBusyQueue)
			r.Records = []*parleyv1.RecordWrite{{Key: "a", Value: make([]byte, size)}}
			return chat(tenant, r)
		}
		for _, tenant := range []string{"a", "b", "c"} {
			chat(tenant, chatRequest("ahead", 0))
		}
		for _, tenant := range []string{"a", "b"} {
			for range each - 1 {
				if r := wait(tenant, size); r.err != nil {
					t.Errorf("Chat of tenant %s = %v", tenant, r.err)
				}
			}
			if r := wait(tenant, size); !errors.Is(r.err, ErrQueueFull) {
				t.Errorf("Chat of tenant %s above its limit = %v, want ErrQueueFull", tenant, r.err)
			}
			if r := wait(tenant, size/2); r.err != nil {
				t.Errorf("smaller Chat of tenant %s = %v", tenant, r.err)
			}
		}
		if r := wait("c", size); !errors.Is(r.err, ErrQueueFull) {
			t.Errorf("Chat above the limit of all tenants = %v, want ErrQueueFull", r.err)
		}
		if r := wait("c", size/2); r.err != nil {
			t.Errorf("Chat within the limit of all tenants = %v", r.err)
		}
		for _, run := range p.runs {
			run.complete()
		}
	})
}

func TestQueueLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		ahead := chatRequest("ahead", 0)
		ahead.Metadata = ignoreCancel
		f.startChat(t, ahead)
		var all []*reader
		fill := func(busy parleyv1.OnBusy, n int) {
			t.Helper()
			for i := range n {
				r := f.startChat(t, chatRequest(fmt.Sprint(busy, i), busy))
				if r.err != nil {
					t.Fatalf("Chat %d: %v", i+1, r.err)
				}
				all = append(all, r)
			}
			if r := f.startChat(t, chatRequest("one more", busy)); !errors.Is(r.err, ErrQueueFull) || len(r.events) != 0 {
				t.Errorf("Chat %d = %q, %v, want ErrQueueFull", n+1, r.received(), r.err)
			}
		}
		fill(onBusyQueue, maxQueued)
		fill(onBusyInterrupt, maxInterrupting)
		// All of them wait. All interrupting turns except the last one are cancelled at their
		// start.
		turns, err := f.newestTurns(t, "c")
		if err != nil || len(turns) != maxRetainedTurns || turns[0].GetId() != all[maxQueued-1].turnID() {
			t.Errorf("List = %d turns, first %v (%v)", len(turns), turns[0], err)
		}
		for _, r := range append(all, &reader{events: []*parleyv1.TurnEvent{{TurnId: p.lastRun().request.GetTurnId()}}}) {
			if _, err := f.Get(t.Context(), tenant, "c", r.turnID()); err != nil {
				t.Fatalf("Get while many turns wait: %v", err)
			}
		}
		for p.lastRun().complete() {
		}
		if n := p.runCount(); n != 1+1+maxQueued {
			t.Errorf("%d agent calls, want those of the first turn, of the last interrupting turn and of all queued turns", n)
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

// TestQueuedTurnReportsItsPosition: readers of a queued turn receive its position every 15 s. The
// time in the queue does not count toward the turn's limits.
func TestQueuedTurnReportsItsPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, func(o *Options) { o.TurnTimeout, o.IdleTimeout = time.Hour, 10*time.Minute })
		f.startChat(t, chatRequest("ahead", 0))
		r := f.startChat(t, chatRequest("q", onBusyQueue))
		accepted := time.Now()
		<-time.After(9*time.Minute + time.Second)
		synctest.Wait()
		if len(r.events) != 1+9*4 || r.events[36].GetQueued().GetPosition() != 1 {
			t.Errorf("%d queued events, last %v, want one every 15 s", len(r.events), r.events[len(r.events)-1])
		}
		f.o.TurnTimeout = time.Minute // This applies to turns that start from now on.
		p.lastRun().complete()
		<-time.After(59 * time.Second)
		p.lastRun().sendText("yes")
		p.lastRun().complete()
		if got := r.finished(); stateName(got.GetState()) != "COMPLETED" || !got.GetCreateTime().AsTime().Equal(accepted) {
			t.Errorf("turn ended %v, want COMPLETED with create_time %v", got, accepted)
		}
	})
}

// TestQueuedIfVersion: if_version of a queued turn is checked at its start. A turn that is refused
// lets the next one start.
func TestQueuedIfVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		f.startChat(t, chatRequest("ahead", 0))
		var readers []*reader
		for version := range int32(4) {
			request := chatRequest(fmt.Sprint("if ", version), onBusyQueue)
			request.IfVersion = &version
			readers = append(readers, f.startChat(t, request))
		}
		p.lastRun().complete()
		for version, r := range readers {
			if mismatch := new(store.VersionError); version == 2 && r.err != nil || version < 2 &&
				(!errors.As(r.err, &mismatch) || mismatch.Current != 2) {
				t.Errorf("Chat with if_version %d at version 2 = %q, %v", version, r.received(), r.err)
			}
		}
		p.lastRun().complete()
		if diff := cmp.Diff([]string{"user: ahead", "user: if 2"}, f.stored(t)); diff != "" ||
			!errors.As(readers[3].err, new(*store.VersionError)) {
			t.Errorf("last Chat: error = %v, want VersionError; stored messages (-want +got):\n%s", readers[3].err, diff)
		}
	})
}

// TestQueuedTurnChoosesItsAgentAtStart: the agent of a queued turn is chosen at its start, not when
// it is queued.
func TestQueuedTurnChoosesItsAgentAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &controlledAgent{testEnded: make(chan struct{})}
		close(p.testEnded)
		f := newFixture(t, map[string]agent.Agent{"main": p, "other": respondWith(text("other"))}, nil)
		f.startChat(t, chatRequest("ahead", 0))
		r := f.startChat(t, chatRequest("q", onBusyQueue))
		if _, err := f.store.Update(t.Context(), &store.Update{
			Tenant: tenant, ConversationID: "c",
			Lease: &store.Lease{Agent: "other"},
		}); err != nil {
			t.Fatal(err)
		}
		p.lastRun().complete()
		if got := r.finished().GetAgent(); got != "other" {
			t.Errorf("answer by agent %q, want other", got)
		}
	})
}

// TestCapacityIsFreedBeforeFinished: the capacity of a turn is free before readers receive its end.
func TestCapacityIsFreedBeforeFinished(t *testing.T) {
	var f *fixture
	stored := make(chan struct{})
	f = newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, func(o *Options) {
		o.Store = &hookStore{Store: o.Store, end: func(*store.Append) {
			f.mu.Lock() // Keep the turn from leaving its queue.
			close(stored)
		}}
	})
	next, leave := iter.Pull2(f.Chat(t.Context(), tenant, chatRequest("q", 0), nil))
	defer leave()
	started, _, _ := next()
	<-stored
	events := f.turns[started.GetTurnId()].live.events
	for range 10_000 {
		runtime.Gosched()
	}
	if n := events.LastIndex(); n != 2 {
		t.Errorf("newest event = %d before the capacity was free, want 2", n)
	}
	f.mu.Unlock()
	for event, err, ok := next(); ok; event, err, ok = next() {
		if n := f.Running(); err != nil || event.GetFinished() != nil && n != 0 {
			t.Errorf("Running() = %d at the finished event (%v), want 0", n, err)
		}
	}
}

// hookStore calls begin before an append that starts a turn, and end after one that ends a turn.
type hookStore struct {
	store.Store
	begin, end func(a *store.Append)
}

func (h *hookStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.Begin != nil && h.begin != nil {
		h.begin(a)
	}
	result, err := h.Store.Append(ctx, a)
	if a.End != nil && h.end != nil {
		h.end(a)
	}
	return result, err
}

// answerElsewhere answers a request in the store, as another server would.
func answerElsewhere(t *testing.T, s store.Store, request *parleyv1.ChatRequest) {
	t.Helper()
	begin := &store.Append{
		Begin:   &parleyv1.Turn{Id: "elsewhere", Agent: "main", InputSequence: 1},
		Request: storeRequest(request), Messages: Inputs(request),
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

// TestRequestAnsweredByAnotherServer: another server may answer a request while it waits in a queue
// here. All readers receive that answer.
func TestRequestAnsweredByAnotherServer(t *testing.T) {
	for name, test := range map[string]struct {
		pending bool
		input   string
		late    bool // between the turn's read and its write
	}{
		"before the retry reads":         {false, "q", false},
		"at the start":                   {false, "q", true},
		"pending, before the turn reads": {true, "ahead", false},
		"pending, at the start":          {true, "ahead", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h *hookStore
				f, p := newControlled(t, func(o *Options) {
					h = &hookStore{Store: o.Store}
					o.Store = h
				})
				request := chatRequest("q", onBusyQueue)
				if request.RequestId = "r"; test.pending {
					request.Content, request.AnswerPending = "", true
				}
				f.startChat(t, chatRequest("ahead", 0))
				first := f.startChat(t, request)
				readers := []*reader{first, f.startChat(t, request), f.startResume(t, first.turnID(), 0)}
				once := sync.OnceFunc(func() { answerElsewhere(t, f.store, request) })
				if h.end = func(*store.Append) { once() }; test.late {
					h.begin, h.end = func(*store.Append) { once() }, nil
				}
				p.lastRun().fail()
				want := []string{
					"1 queued 1", fmt.Sprintf("1 started %q replayed", test.input), `2 text "a" at 0`,
					"3 finished COMPLETED",
				}
				for _, r := range readers {
					if diff := cmp.Diff(want, r.received()); diff != "" || r.err != nil {
						t.Errorf("events (-want +got):\n%s%v", diff, r.err)
					}
				}
				if p.runCount() != 1 || f.Running() != 0 {
					t.Errorf("%d agent calls, %d turns run, want 1 and 0", p.runCount(), f.Running())
				}
			})
		})
	}
}

// TestRequestAnsweredLongAgo: a request is answered by another server after it was read here, and many turns follow
// before its append. The reader receives that answer as long as its turn is kept, and else EventsGoneError.
func TestRequestAnsweredLongAgo(t *testing.T) {
	for name, test := range map[string]struct {
		maxTurns int32
		turns    int // that follow
		gone     bool
	}{
		"newest turn":        {maxTurns: 100},
		"in a chunk":         {maxTurns: 100, turns: 60},
		"dropped":            {maxTurns: 100, turns: 160, gone: true},
		"dropped by default": {turns: 32, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			request := chatRequest("q", 0)
			request.RequestId = "r"
			var f *fixture
			elsewhere := sync.OnceFunc(func() {
				answerElsewhere(t, f.store, request)
				for i := range test.turns {
					begin := &store.Append{Begin: &parleyv1.Turn{Id: fmt.Sprint("later ", i)}, Messages: Inputs(chatRequest("later", 0))}
					end := &store.Append{End: &parleyv1.Turn{Id: fmt.Sprint("later ", i), State: parleyv1.TurnState_TURN_STATE_COMPLETED}}
					for _, a := range []*store.Append{begin, end} {
						a.Tenant, a.ConversationID = tenant, "c"
						if _, err := f.store.Append(t.Context(), a); err != nil {
							t.Error(err)
						}
					}
				}
			})
			f = newFixture(t, map[string]agent.Agent{"main": respondWith()}, func(o *Options) {
				o.Store = &hookStore{Store: o.Store, begin: func(*store.Append) { elsewhere() }}
			})
			if _, err := f.store.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: &parleyv1.Conversation{
				Id: "c", Retention: &parleyv1.Retention{MaxTurns: test.maxTurns},
			}}); err != nil {
				t.Fatal(err)
			}
			events, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request)))
			if test.gone {
				if !errors.As(err, new(*EventsGoneError)) {
					t.Errorf("Chat = %q, %v, want EventsGoneError", describeAll(events), err)
				}
				return
			}
			want := []string{`1 started "q" replayed`, `2 text "a" at 0`, "3 finished COMPLETED"}
			if diff := cmp.Diff(want, describeAll(events)); diff != "" || err != nil {
				t.Errorf("Chat: error %v, events (-want +got):\n%s", err, diff)
			}
		})
	}
}
