package turn

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// A request that would be refused when its turn comes does not cut another off.
func TestHopelessInterruptsCutNothingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		first := f.begin(t, asks("ahead", 0))
		p.last().say("half")
		version := first.events[0].GetStarted().GetConversation().GetVersion()

		late := asks("late", interrupt)
		late.IfVersion = new(version + 7)
		wrong := &store.VersionError{}
		if r := f.begin(t, late); !errors.As(r.err, &wrong) || wrong.Current != version || r.events != nil {
			t.Errorf("the wrong version: %q, %v", r.seen(), r.err)
		}
		if _, err := f.store.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: "c", Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "answered elsewhere"},
		}}); err != nil {
			t.Fatal(err)
		}
		if r := f.begin(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true, OnBusy: interrupt}); !errors.Is(r.err, ErrNothingToAnswer) {
			t.Errorf("nothing to answer: %q, %v", r.seen(), r.err)
		}
		if _, err := f.store.Update(t.Context(), &store.Update{Tenant: tenant, ConversationID: "c", Lease: &store.Lease{Agent: "elsewhere"}}); err != nil {
			t.Fatal(err)
		}
		if r := f.begin(t, asks("q", interrupt)); !errors.As(r.err, new(*AgentNotConfiguredError)) {
			t.Errorf("an agent that is not here: %q, %v", r.seen(), r.err)
		}
		if first.over {
			t.Fatalf("the running turn was cut off: %q", first.seen())
		}

		right := asks("right", interrupt)
		right.Agent, right.IfVersion = "main", new(version+2)
		if r := f.begin(t, right); r.err != nil || r.over || stateName(first.finished().GetState()) != "INTERRUPTED" {
			t.Errorf("the right version: %q, %v; the first ended %v", r.seen(), r.err, first.finished())
		}
	})
}

// Of two that interrupt what they saw at the same version, one does.
func TestInterruptsOfOneVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		slow := asks("ahead", 0)
		slow.Metadata = stubborn
		first := f.begin(t, slow)
		version := first.events[0].GetStarted().GetConversation().GetVersion()
		var both []*reader
		for range 2 {
			request := asks("instead", interrupt)
			request.IfVersion = new(version)
			both = append(both, f.begin(t, request))
		}
		p.last().end()
		synctest.Wait()
		wrong := new(store.VersionError)
		if both[0].err != nil || both[0].over || !errors.As(both[1].err, &wrong) || wrong.Current <= version {
			t.Errorf("the one got %q, %v; the other %q, %v", both[0].seen(), both[0].err, both[1].seen(), both[1].err)
		}
	})
}

// hesitant does something between a read and what comes of it.
type hesitant struct {
	store.Store
	then func()
}

func (h *hesitant) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	found, err := h.Store.Read(ctx, r)
	if then := h.then; then != nil {
		h.then = nil
		then()
	}
	return found, err
}

// A version that was read before the running turn began is held against nothing.
func TestInterruptOfWhatItDidNotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hesitant)
		f, p := newPuppet(t, func(o *Options) {
			h.Store = o.Store
			o.Store = h
		})
		finishing := f.begin(t, asks("before", 0))
		p.last().end()
		synctest.Wait()
		version := finishing.events[len(finishing.events)-1].GetFinished().GetConversationVersion()
		request := asks("instead", interrupt)
		request.IfVersion = &version
		h.then = func() {
			if _, err := f.ask(t, asks("ahead", 0), nil); err != nil {
				t.Error(err)
			}
		}
		late := f.begin(t, request)
		if !errors.As(late.err, new(*store.VersionError)) || f.Running() != 1 || len(f.kept(t)) != 2 {
			t.Errorf("it got %q, %v; %d turns run; kept %q", late.seen(), late.err, f.Running(), f.kept(t))
		}
	})
}

// Turns that wait go along with their conversation also when it is deleted between two of
// them.
func TestDeleteBetweenTurns(t *testing.T) {
	for _, anew := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var h *hooked
			f, p := newPuppet(t, func(o *Options) {
				h = &hooked{Store: o.Store}
				o.Store = h
			})
			f.begin(t, asks("ahead", 0))
			waits := []*reader{f.begin(t, asks("w1", queue)), f.begin(t, asks("w2", queue))}
			once := sync.OnceFunc(func() {
				if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Error(err)
				}
				if anew {
					if _, err := f.store.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: &parleyv1.Conversation{Id: "c"}}); err != nil {
						t.Error(err)
					}
				}
			})
			h.begin = func(*store.Append) { once() }
			p.last().end()
			synctest.Wait()
			for _, w := range waits {
				if !errors.Is(w.err, ErrConversationGone) {
					t.Errorf("the conversation was deleted, and %q ended with %v", w.seen(), w.err)
				}
			}
			if f.Running() != 0 || f.kept(t) != nil || p.count() != 1 {
				t.Errorf("%d turns run, %d agents were asked; kept %q", f.Running(), p.count(), f.kept(t))
			}
		})
	}
}

// TestExpiryBetweenTurns: queued turns end with their conversation, even if it expires between two
// of them, before the store reports it. The id is free: the next request creates another
// conversation.
func TestExpiryBetweenTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		h := new(hooked)
		f, p := newPuppet(t, func(o *Options) { o.Store = h })
		f.store = memstore.New(store.Options{TTL: ttl, Observe: func(c []store.Change) { f.Committed(c) }})
		h.Store = f.store
		first := f.begin(t, asks("first", 0))
		waits := []*reader{f.begin(t, asks("w1", queue)), f.begin(t, asks("w2", queue))}
		once := sync.OnceFunc(func() { <-time.After(ttl) })
		h.begin = func(*store.Append) { once() }
		p.last().end()
		<-time.After(2 * ttl)
		synctest.Wait()
		for _, w := range waits {
			if !errors.Is(w.err, ErrConversationGone) {
				t.Errorf("after the conversation expired, %q ended with %v", w.seen(), w.err)
			}
		}
		if first.err != nil || f.Running() != 0 || p.count() != 1 {
			t.Errorf("first turn ended with %v; %d turns run, %d agents were called", first.err, f.Running(), p.count())
		}
		next := f.begin(t, asks("next", 0))
		p.last().end()
		if next.err != nil || !next.events[0].GetStarted().GetCreated() {
			t.Errorf("next turn = %q, %v, want one in a new conversation", next.seen(), next.err)
		}
		if diff := cmp.Diff([]string{"user: next"}, f.kept(t)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}

// An id that is taken again, after the conversation has expired, has no part in the turns of
// the one before, whether its end has been told yet or not.
func TestRequestsOfAConversationThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		gate, hold := make(chan struct{}), false
		f.store = memstore.New(store.Options{TTL: time.Minute, Observe: func(c []store.Change) {
			if hold {
				<-gate
			}
			f.Committed(c)
		}})
		f.o.Store = f.store
		request := asks("q", 0)
		request.RequestId = "r"
		f.begin(t, request)
		p.last().say("old answer")
		p.last().end()
		<-time.After(time.Minute)

		other := asks("other", 0)
		other.RequestId, other.MustExist = "r", true
		if r := f.begin(t, other); !errors.Is(r.err, store.ErrNotFound) {
			t.Errorf("other words under the request of a conversation that has expired: %q, %v", r.seen(), r.err)
		}
		hold = true
		var appended sync.WaitGroup
		appended.Go(func() {
			_, err := f.store.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: "c", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "new"}}})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		entered, joined, err := f.enter(t.Context(), tenant, request, requestOf(request))
		if err != nil || joined {
			t.Errorf("the request in the new conversation joins the turn of the old one: %t, %v", joined, err)
		}
		hold = false
		close(gate)
		appended.Wait()
		r := read(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] { return entered.events.read(ctx, 0) })
		defer f.detach(entered)
		p.last().end()
		if r.err != nil || r.events[0].GetStarted().GetReplayed() {
			t.Errorf("the request in the new conversation: %q, %v", r.seen(), r.err)
		}
		if diff := cmp.Diff([]string{"user: new", "user: q"}, f.kept(t)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	})
}

// What readers do not hear of breaks no silence.
func TestSilenceIsWhatReadersHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newPuppet(t, nil)
		r := f.begin(t, asks("q", 0))
		for range 9 {
			<-time.After(6 * time.Second)
			p.last().say("")
		}
		if notes := len(r.events) - 1; notes != 3 {
			t.Errorf("%d notes in 54 s, want 3: %q", notes, r.seen())
		}
	})
}

// Turns that are cancelled all at once while they wait can be found as long as they are kept.
func TestCancelledAllAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newPuppet(t, nil)
		slow := asks("ahead", 0)
		slow.Metadata = stubborn
		f.begin(t, slow)
		var waits []string
		for range maxInterrupting {
			waits = append(waits, f.begin(t, asks("w", interrupt)).turnID())
		}
		for _, id := range waits {
			f.cancel(key{tenant, "c"}, id)
		}
		synctest.Wait()
		for i, id := range waits {
			turn, err := f.Cancel(t.Context(), tenant, "c", id)
			if kept := i >= len(waits)-maxTurns; kept != (err == nil) || kept && stateName(turn.GetState()) != "CANCELLED" {
				t.Errorf("cancelled again, number %d of %d: %v, %v", i+1, len(waits), turn, err)
			}
		}
	})
}
