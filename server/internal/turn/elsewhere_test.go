package turn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// Ways in which a manager learns of the changes of another server.
const (
	reported = "reported"
	missed   = "missed"
	gap      = "gap"
)

// sharedStore is a store in memory that another server uses too: the test, inside of elsewhere.
type sharedStore struct {
	store.Store

	mu          sync.Mutex
	change      string                      // how changes are reported, empty for those of this server
	beforeBegin func()                      // called once, before the next turn begins
	afterAppend func(a *store.Append) error // replaces the result
	searchErr   error                       // of Abandoned
}

func (s *sharedStore) Abandoned(ctx context.Context, after string) ([]store.Progress, string, error) {
	s.mu.Lock()
	err := s.searchErr
	s.mu.Unlock()
	if err != nil {
		return nil, "", err
	}
	return s.Store.Abandoned(ctx, after)
}

func (s *sharedStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	s.mu.Lock()
	before, after := s.beforeBegin, s.afterAppend
	if a.Begin != nil {
		s.beforeBegin = nil
	}
	s.mu.Unlock()
	if a.Begin != nil && before != nil {
		before()
	}
	result, err := s.Store.Append(ctx, a)
	if after != nil && err == nil {
		if err := after(a); err != nil {
			return nil, err
		}
	}
	return result, err
}

// elsewhere makes writes of another server, whose changes are reported in this way.
func (s *sharedStore) elsewhere(change string, write func(other store.Store) error) {
	s.set(func() { s.change = change })
	defer s.set(func() { s.change = "" })
	if err := write(s.Store); err != nil {
		panic(err)
	}
}

func (s *sharedStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// begin begins a turn of another server in conversation c.
func (s *sharedStore) begin(turnID string) {
	s.elsewhere(reported, func(other store.Store) error {
		_, err := other.Append(context.Background(), &store.Append{
			Tenant: tenant, ConversationID: "c", Begin: &parleyv1.Turn{Id: turnID},
			Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "elsewhere"}},
			Request:  &store.Request{ID: turnID, Method: "Chat"},
		})
		return err
	})
}

// end ends the turn "there" as another server.
func (s *sharedStore) end(change string) {
	s.elsewhere(change, func(other store.Store) error {
		_, err := other.Append(context.Background(), &store.Append{
			Tenant: tenant, ConversationID: "c",
			End: &parleyv1.Turn{Id: "there", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
		})
		return err
	})
	synctest.Wait()
}

// deleteConversation deletes conversation c as another server.
func (s *sharedStore) deleteConversation(change string) {
	s.elsewhere(change, func(other store.Store) error {
		return other.Delete(context.Background(), &store.Delete{Tenant: tenant, ConversationID: "c"})
	})
	synctest.Wait()
}

// newShared returns a manager on a sharedStore, with a controlled agent.
func newShared(t *testing.T) (*fixture, *controlledAgent, *sharedStore) {
	t.Helper()
	s := new(sharedStore)
	var f *fixture
	s.Store = memstore.New(store.Options{MaxMessages: 1000, Observe: func(changes []store.Change) {
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		switch change {
		case reported:
			changes = slices.Clone(changes)
			for i := range changes {
				changes[i].Elsewhere = true
			}
		case missed:
			return
		case gap:
			changes = []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, Elsewhere: true}}
		}
		f.Committed(changes)
	}})
	f, p := newControlled(t, func(o *Options) { o.Store = s })
	f.store = s
	return f, p, s
}

// wantElsewhere fails the test unless err is an ElsewhereError about this turn, and a BusyError.
func wantElsewhere(t *testing.T, call string, err error, turnID string) {
	t.Helper()
	elsewhere, busy := new(ElsewhereError), new(store.BusyError)
	if !errors.As(err, &elsewhere) || elsewhere.TurnID != turnID || !errors.As(err, &busy) || busy.TurnID != turnID {
		t.Errorf("%s: error = %v, want ElsewhereError and BusyError about %s", call, err, turnID)
	}
}

// TestElsewhereError: calls about a turn that another server runs end with ElsewhereError before the first event.
// A Chat that does not wait is refused with BusyError alone. After the end of that turn all calls succeed.
func TestElsewhereError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, s := newShared(t)
		s.begin("there")
		repeated := chatRequest("repeated", onBusyQueue)
		repeated.RequestId = "there"
		for call, r := range map[string]*reader{
			"Chat with QUEUE":       f.startChat(t, chatRequest("q", onBusyQueue)),
			"Chat with INTERRUPT":   f.startChat(t, chatRequest("q", onBusyInterrupt)),
			"Resume of the turn":    f.startResume(t, "there", 0),
			"Resume of the newest":  f.startResume(t, "", 0),
			"Resume after an index": f.startResume(t, "there", 7),
			"Chat with answers":     f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, OnBusy: onBusyQueue}),
			"Chat, repeated request": startReading(t.Context(), func(ctx context.Context) eventSeq {
				return f.Chat(ctx, tenant, repeated, &store.Request{ID: "there", Method: "Chat"})
			}),
		} {
			wantElsewhere(t, call, r.err, "there")
			if len(r.events) != 0 {
				t.Errorf("%s yielded %q, want nothing", call, r.received())
			}
		}
		_, err := f.Cancel(t.Context(), tenant, "c", "there")
		wantElsewhere(t, "Cancel", err, "there")
		r := f.startChat(t, chatRequest("q", 0))
		if busy := new(store.BusyError); !errors.As(r.err, &busy) || errors.As(r.err, new(*ElsewhereError)) {
			t.Errorf("Chat with REJECT: error = %v, want BusyError alone", r.err)
		}
		s.end(reported)
		if r := f.startChat(t, chatRequest("q", onBusyQueue)); r.err != nil || len(r.events) != 1 || p.runCount() != 1 {
			t.Errorf("Chat after the end = %q, %v, want a started turn", r.received(), r.err)
		}
		if r := f.startResume(t, "there", 0); r.err != nil || stateName(r.finished().GetState()) != "COMPLETED" {
			t.Errorf("Resume after the end = %q, %v, want the stored turn", r.received(), r.err)
		}
	})
}

// newWaitingHead returns a manager with a turn at the head of a queue that waits for the turn "there" of another
// server, and one after it.
func newWaitingHead(t *testing.T) (f *fixture, p *controlledAgent, s *sharedStore, head, next *reader) {
	t.Helper()
	f, p, s = newShared(t)
	f.startChat(t, chatRequest("first", 0))
	waiting := chatRequest("head", onBusyQueue)
	waiting.RequestId = "head"
	head = f.startChat(t, waiting)
	next = f.startChat(t, chatRequest("next", onBusyQueue))
	s.set(func() { s.beforeBegin = func() { s.begin("there") } })
	p.lastRun().complete()
	if diff := cmp.Diff([]string{"1 queued 1"}, head.received()); diff != "" || head.ended {
		t.Fatalf("events of the head (-want +got):\n%s\nerror: %v", diff, head.err)
	}
	return f, p, s, head, next
}

// TestHeadWaitsForOther: the head of a queue waits for the end of a turn of another server and then starts: at once if
// the change is reported or a gap is, after 2 s if it is missed. Until then it is a queued turn with keep-alives, and
// requests that do not wait are refused.
func TestHeadWaitsForOther(t *testing.T) {
	for change, wait := range map[string]time.Duration{reported: 0, gap: 0, missed: recoverInterval} {
		synctest.Test(t, func(t *testing.T) {
			f, p, s, head, next := newWaitingHead(t)
			if r := f.startChat(t, chatRequest("q", 0)); !errors.As(r.err, new(*store.BusyError)) {
				t.Errorf("Chat with REJECT: error = %v, want BusyError", r.err)
			}
			wantElsewhere(t, "Chat with INTERRUPT", f.startChat(t, chatRequest("q", onBusyInterrupt)).err, "there")
			turn, err := f.Get(t.Context(), tenant, "c", head.turnID())
			if err != nil || stateName(turn.GetState()) != "QUEUED" {
				t.Errorf("Get of the head = %v, %v, want QUEUED", turn, err)
			}
			<-time.After(keepAliveInterval + time.Second)
			synctest.Wait()
			if diff := cmp.Diff([]string{"1 queued 1", "2 queued 1"}, head.received()); diff != "" {
				t.Errorf("events of the head after 16 s (-want +got):\n%s", diff)
			}
			if got := next.received(); got[len(got)-1] != fmt.Sprintf("%d queued 2", len(got)) {
				t.Errorf("events of the next turn = %q, want position 2", got)
			}
			before := time.Now()
			s.end(change)
			<-time.After(wait)
			synctest.Wait()
			if got := head.received(); len(got) != 3 || got[2] != `3 started "head"` || p.runCount() != 2 {
				t.Errorf("%s: events of the head %v after the end = %q, want started", change, time.Since(before), got)
			}
			if got := next.received(); got[len(got)-1] != fmt.Sprintf("%d queued 1", len(got)) {
				t.Errorf("events of the next turn = %q, want position 1", got)
			}
			p.lastRun().complete()
			if stateName(head.finished().GetState()) != "COMPLETED" || p.runCount() != 3 {
				t.Errorf("events of the head = %q, want COMPLETED, and the next turn started", head.received())
			}
		})
	}
}

// TestHeadStopsWaiting: a turn that waits for one of another server ends as a waiting turn does, without a message in
// the history, and the next turn takes its place.
func TestHeadStopsWaiting(t *testing.T) {
	tests := map[string]struct {
		stop func(t *testing.T, f *fixture, s *sharedStore, head *reader)
		want error // nil: the turn ends CANCELLED
		all  bool  // the next turn ends too
	}{
		"cancel": {stop: func(t *testing.T, f *fixture, _ *sharedStore, head *reader) {
			t.Helper()
			if turn := f.mustCancel(t, head.turnID()); stateName(turn.GetState()) != "CANCELLED" {
				t.Errorf("Cancel = %v, want CANCELLED", turn)
			}
		}},
		"last reader leaves": {stop: func(_ *testing.T, _ *fixture, _ *sharedStore, head *reader) {
			head.disconnect()
		}, want: context.Canceled},
		"shutdown": {stop: func(t *testing.T, f *fixture, _ *sharedStore, _ *reader) {
			t.Helper()
			f.Stop(t.Context())
			synctest.Wait()
		}, want: ErrShuttingDown, all: true},
		"deletion": {stop: func(t *testing.T, f *fixture, _ *sharedStore, _ *reader) {
			t.Helper()
			if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}, want: ErrConversationDeleted, all: true},
		"deletion elsewhere": {stop: func(_ *testing.T, _ *fixture, s *sharedStore, _ *reader) {
			s.deleteConversation(reported)
		}, want: ErrConversationDeleted, all: true},
		"deletion in a gap": {stop: func(_ *testing.T, _ *fixture, s *sharedStore, _ *reader) {
			s.deleteConversation(gap)
		}, want: ErrConversationDeleted, all: true},
	}
	for name, test := range tests {
		synctest.Test(t, func(t *testing.T) {
			f, p, s, head, next := newWaitingHead(t)
			before := time.Now()
			test.stop(t, f, s, head)
			if waited := time.Since(before); waited != 0 {
				t.Errorf("%s: the head waited %v longer, want none", name, waited)
			}
			if !head.ended || !errors.Is(head.err, test.want) || test.want == nil && head.finished() == nil {
				t.Errorf("%s: events of the head = %q, %v, want %v", name, head.received(), head.err, test.want)
			}
			if next.ended != test.all || test.all && !errors.Is(next.err, test.want) {
				t.Errorf("%s: events of the next = %q, %v, ended: %t", name, next.received(), next.err, next.ended)
			}
			if test.all {
				return
			}
			s.end(reported)
			want := []string{"user: first", "user: elsewhere", "user: next"}
			if diff := cmp.Diff(want, f.stored(t)); diff != "" || p.runCount() != 2 {
				t.Errorf("%s: %d agent calls, want 2; messages (-want +got):\n%s", name, p.runCount(), diff)
			}
		})
	}
}

// TestHeadAfterForwarded: a turn that waits although no turn of its queue has started waits for a turn in the
// conversation that it then finds. If that is deleted, the turn ends and does not create another one.
func TestHeadAfterForwarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, s := newShared(t)
		var headErr error
		s.beforeBegin = func() {
			s.begin("there")
			queued := make(chan struct{})
			go func() {
				for event, err := range f.Chat(t.Context(), tenant, chatRequest("head", onBusyQueue), nil) {
					if headErr = err; event.GetIndex() == 1 {
						close(queued)
					}
				}
			}()
			<-queued
		}
		wantElsewhere(t, "first Chat", f.startChat(t, chatRequest("first", onBusyQueue)).err, "there")
		if headErr != nil {
			t.Errorf("head: error = %v before the deletion, want nil", headErr)
		}
		s.deleteConversation(reported)
		if got := f.stored(t); !errors.Is(headErr, ErrConversationDeleted) || got != nil || p.runCount() != 0 {
			t.Errorf("head: error = %v, want ErrConversationDeleted; messages %q, %d agent calls, want none", headErr, got,
				p.runCount())
		}
	})
}

// TestHeadInterruptsElsewhere: a request that interrupts does not wait for a turn of another server, which alone can
// interrupt it, also if the request has waited in the queue.
func TestHeadInterruptsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, s := newShared(t)
		f.startChat(t, chatRequest("first", 0))
		s.set(func() { s.beforeBegin = func() { s.begin("there") } })
		r := startReading(t.Context(), func(ctx context.Context) eventSeq {
			return f.Chat(ctx, tenant, chatRequest("q", onBusyInterrupt), nil)
		})
		synctest.Wait()
		wantElsewhere(t, "Chat", r.err, "there")
	})
}

// TestOwnerKnown: if another server with a lease runs a turn, no abandoned turns are searched, which would need all
// parts of the store.
func TestOwnerKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, s := newShared(t)
		s.begin("there")
		f.o.Owner = func(context.Context, string, string) (store.Owner, error) {
			return store.Owner{TurnID: "there", Server: store.Server{Address: "b:1", Key: "k"}}, nil
		}
		s.set(func() { s.searchErr = store.ErrUnavailable })
		wantElsewhere(t, "Chat", f.startChat(t, chatRequest("q", onBusyQueue)).err, "there")
	})
}

// TestHeadRunsElsewhere: a request that waits and that another server has carried out in the meantime is not carried
// out again.
func TestHeadRunsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, s := newShared(t)
		f.startChat(t, chatRequest("first", 0))
		r := startReading(t.Context(), func(ctx context.Context) eventSeq {
			q := &store.Request{ID: "there", Method: "Chat"} // that of sharedStore.begin
			return f.Chat(ctx, tenant, chatRequest("q", onBusyQueue), q)
		})
		s.set(func() { s.beforeBegin = func() { s.begin("there") } })
		p.lastRun().complete()
		wantElsewhere(t, "Chat", r.err, "there")
		if p.runCount() != 1 {
			t.Errorf("%d agent calls, want 1", p.runCount())
		}
	})
}

// TestUncertainStart: if the store does not answer at the start of a turn, the turn may have begun. It is ended before a
// repeated request is answered, and at the latest after 2 s, and it keeps no other turn from starting.
func TestUncertainStart(t *testing.T) {
	for _, end := range []string{"repeat", "recover", "next"} {
		synctest.Test(t, func(t *testing.T) {
			f, p, s := newShared(t)
			s.set(func() { s.afterAppend = func(*store.Append) error { return store.ErrUnavailable } })
			request := chatRequest("q", onBusyQueue)
			request.RequestId = "r"
			if r := f.startChat(t, request); !errors.Is(r.err, store.ErrUnavailable) {
				t.Fatalf("Chat: error = %v, want ErrUnavailable", r.err)
			}
			s.set(func() { s.afterAppend = nil })
			page, err := f.newestTurns(t, "c")
			if err != nil || len(page) != 1 || stateName(page[0].GetState()) != "RUNNING" {
				t.Fatalf("turns = %v, %v, want one that runs", page, err)
			}
			switch end {
			case "repeat":
				r := f.startChat(t, request)
				if stateName(r.finished().GetState()) != "INTERRUPTED" {
					t.Errorf("repeated Chat = %q, %v, want the turn, INTERRUPTED", r.received(), r.err)
				}
			case "recover":
				ctx, stop := context.WithTimeout(t.Context(), recoverInterval+time.Second)
				defer stop()
				f.KeepRecovering(ctx)
			case "next":
				if r := f.startChat(t, chatRequest("next", 0)); r.err != nil {
					t.Errorf("next Chat: error = %v, want nil", r.err)
				}
			}
			turn, err := f.Get(t.Context(), tenant, "c", page[0].GetId())
			if stateName(turn.GetState()) != "INTERRUPTED" || len(f.left) != 0 {
				t.Errorf("%s: Get = %v, %v, want INTERRUPTED", end, turn, err)
			}
			if want := map[string]int{"next": 1}[end]; p.runCount() != want {
				t.Errorf("%s: %d agent calls, want %d", end, p.runCount(), want)
			}
		})
	}
}

type eventSeq = iter.Seq2[*parleyv1.TurnEvent, error]
