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

// TestRefusedInterruptCancelsNothing: a request that would be refused at its start does not
// interrupt the running turn.
func TestRefusedInterruptCancelsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		first := f.startChat(t, chatRequest("ahead", 0))
		p.lastRun().sendText("half")
		version := first.events[0].GetStarted().GetConversation().GetVersion()

		late := chatRequest("late", onBusyInterrupt)
		late.IfVersion = new(version + 7)
		wrong := &store.VersionError{}
		if r := f.startChat(t, late); !errors.As(r.err, &wrong) || wrong.Current != version || r.events != nil {
			t.Errorf("Chat at the wrong version = %q, %v, want VersionError", r.received(), r.err)
		}
		if _, err := f.store.Append(t.Context(), &store.Append{
			Tenant: tenant, ConversationID: "c",
			Messages: []*parleyv1.Message{
				{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "answered elsewhere"},
			},
		}); err != nil {
			t.Fatal(err)
		}
		if r := f.startChat(t, &parleyv1.ChatRequest{
			ConversationId: "c", AnswerPending: true,
			OnBusy: onBusyInterrupt,
		}); !errors.Is(r.err, ErrNothingToAnswer) {
			t.Errorf("Chat without a pending message = %q, %v, want ErrNothingToAnswer", r.received(), r.err)
		}
		if _, err := f.store.Update(t.Context(), &store.Update{
			Tenant: tenant, ConversationID: "c",
			Lease: &store.Lease{Agent: "elsewhere"},
		}); err != nil {
			t.Fatal(err)
		}
		if r := f.startChat(t, chatRequest("q", onBusyInterrupt)); !errors.As(r.err, new(*AgentNotConfiguredError)) {
			t.Errorf("Chat to a missing agent = %q, %v, want AgentNotConfiguredError", r.received(), r.err)
		}
		if first.ended {
			t.Fatalf("running turn ended: %q", first.received())
		}

		right := chatRequest("right", onBusyInterrupt)
		right.Agent, right.IfVersion = "main", new(version+2)
		if r := f.startChat(t, right); r.err != nil || r.ended || stateName(first.finished().GetState()) != "INTERRUPTED" {
			t.Errorf("Chat at the right version = %q, %v; first turn ended %v, want INTERRUPTED", r.received(), r.err,
				first.finished())
		}
	})
}

// TestTwoInterruptsAtOneVersion: of two interrupting requests with the same if_version, one
// succeeds.
func TestTwoInterruptsAtOneVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		slow := chatRequest("ahead", 0)
		slow.Metadata = ignoreCancel
		first := f.startChat(t, slow)
		version := first.events[0].GetStarted().GetConversation().GetVersion()
		var both []*reader
		for range 2 {
			request := chatRequest("instead", onBusyInterrupt)
			request.IfVersion = new(version)
			both = append(both, f.startChat(t, request))
		}
		p.lastRun().complete()
		synctest.Wait()
		wrong := new(store.VersionError)
		if both[0].err != nil || both[0].ended || !errors.As(both[1].err, &wrong) || wrong.Current <= version {
			t.Errorf("Chat = %q, %v and %q, %v, want one turn and one refusal", both[0].received(), both[0].err,
				both[1].received(), both[1].err)
		}
	})
}

// readHookStore calls afterRead once after a read.
type readHookStore struct {
	store.Store
	afterRead func()
}

func (h *readHookStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	found, err := h.Store.Read(ctx, r)
	if then := h.afterRead; then != nil {
		h.afterRead = nil
		then()
	}
	return found, err
}

// TestInterruptWithStaleVersion: if_version is not compared with a conversation that was read
// before the running turn started.
func TestInterruptWithStaleVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(readHookStore)
		f, p := newControlled(t, func(o *Options) {
			h.Store = o.Store
			o.Store = h
		})
		finishing := f.startChat(t, chatRequest("before", 0))
		p.lastRun().complete()
		synctest.Wait()
		version := finishing.events[len(finishing.events)-1].GetFinished().GetConversationVersion()
		request := chatRequest("instead", onBusyInterrupt)
		request.IfVersion = &version
		h.afterRead = func() {
			if _, err := f.tryChat(t, chatRequest("ahead", 0), nil); err != nil {
				t.Error(err)
			}
		}
		late := f.startChat(t, request)
		if !errors.As(late.err, new(*store.VersionError)) || f.Running() != 1 || len(f.stored(t)) != 2 {
			t.Errorf("Chat = %q, %v, want VersionError; %d turns run; stored %q", late.received(), late.err, f.Running(),
				f.stored(t))
		}
	})
}

// TestDeleteBetweenTurns: queued turns end with their conversation, even if it is deleted between
// two of them.
func TestDeleteBetweenTurns(t *testing.T) {
	for _, recreate := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var h *hookStore
			f, p := newControlled(t, func(o *Options) {
				h = &hookStore{Store: o.Store}
				o.Store = h
			})
			f.startChat(t, chatRequest("ahead", 0))
			queued := []*reader{f.startChat(t, chatRequest("w1", onBusyQueue)), f.startChat(t, chatRequest("w2", onBusyQueue))}
			once := sync.OnceFunc(func() {
				if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Error(err)
				}
				if recreate {
					if _, err := f.store.Create(t.Context(), &store.Create{
						Tenant:       tenant,
						Conversation: &parleyv1.Conversation{Id: "c"},
					}); err != nil {
						t.Error(err)
					}
				}
			})
			h.begin = func(*store.Append) { once() }
			p.lastRun().complete()
			synctest.Wait()
			for _, w := range queued {
				if !errors.Is(w.err, ErrConversationDeleted) {
					t.Errorf("after the delete, %q ended with %v, want ErrConversationDeleted", w.received(), w.err)
				}
			}
			if f.Running() != 0 || f.stored(t) != nil || p.runCount() != 1 {
				t.Errorf("%d turns run, %d agent calls, want 0 and 1; stored %q", f.Running(), p.runCount(), f.stored(t))
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
		h := new(hookStore)
		f, p := newControlled(t, func(o *Options) { o.Store = h })
		f.store = memstore.New(store.Options{TTL: ttl, Observe: func(c []store.Change) { f.Committed(c) }})
		h.Store = f.store
		first := f.startChat(t, chatRequest("first", 0))
		queued := []*reader{f.startChat(t, chatRequest("w1", onBusyQueue)), f.startChat(t, chatRequest("w2", onBusyQueue))}
		once := sync.OnceFunc(func() { <-time.After(ttl) })
		h.begin = func(*store.Append) { once() }
		p.lastRun().complete()
		<-time.After(2 * ttl)
		synctest.Wait()
		for _, w := range queued {
			if !errors.Is(w.err, ErrConversationDeleted) {
				t.Errorf("after the expiry, %q ended with %v, want ErrConversationDeleted", w.received(), w.err)
			}
		}
		if first.err != nil || f.Running() != 0 || p.runCount() != 1 {
			t.Errorf("first turn ended with %v; %d turns run, %d agent calls, want 0 and 1", first.err, f.Running(),
				p.runCount())
		}
		next := f.startChat(t, chatRequest("next", 0))
		p.lastRun().complete()
		if next.err != nil || !next.events[0].GetStarted().GetCreated() {
			t.Errorf("next turn = %q, %v, want one in a new conversation", next.received(), next.err)
		}
		if diff := cmp.Diff([]string{"user: next"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	})
}

// TestRequestIDsOfADeletedConversation: a new conversation with the id of an expired one does not
// share its turns, whether the store has reported the expiry or not.
func TestRequestIDsOfADeletedConversation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		gate, hold := make(chan struct{}), false
		f.store = memstore.New(store.Options{TTL: time.Minute, Observe: func(c []store.Change) {
			if hold {
				<-gate
			}
			f.Committed(c)
		}})
		f.o.Store = f.store
		request := chatRequest("q", 0)
		request.RequestId = "r"
		f.startChat(t, request)
		p.lastRun().sendText("old answer")
		p.lastRun().complete()
		<-time.After(time.Minute)

		other := chatRequest("other", 0)
		other.RequestId, other.MustExist = "r", true
		if r := f.startChat(t, other); !errors.Is(r.err, store.ErrNotFound) {
			t.Errorf("Chat with the request_id of an expired conversation = %q, %v, want ErrNotFound", r.received(), r.err)
		}
		hold = true
		var appended sync.WaitGroup
		appended.Go(func() {
			_, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: "c",
				Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "new"}},
			})
			if err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		entered, joined, err := f.admit(t.Context(), tenant, request, storeRequest(request))
		if err != nil || joined {
			t.Errorf("admit in the new conversation: attached to the old turn = %t, %v", joined, err)
		}
		hold = false
		close(gate)
		appended.Wait()
		r := startReading(t.Context(),
			func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
				return entered.live.events.Read(ctx, 0)
			})
		defer f.detachReader(entered)
		p.lastRun().complete()
		if r.err != nil || r.events[0].GetStarted().GetReplayed() {
			t.Errorf("Chat in the new conversation = %q, %v, want a new turn", r.received(), r.err)
		}
		if diff := cmp.Diff([]string{"user: new", "user: q"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	})
}

// TestCancelManyQueued: turns that are cancelled together while they wait can be found as long as
// they are retained.
func TestCancelManyQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newControlled(t, nil)
		slow := chatRequest("ahead", 0)
		slow.Metadata = ignoreCancel
		f.startChat(t, slow)
		var queued []string
		for range maxInterrupting {
			queued = append(queued, f.startChat(t, chatRequest("w", onBusyInterrupt)).turnID())
		}
		for _, id := range queued {
			f.cancelTurn(key{tenant, "c"}, id)
		}
		synctest.Wait()
		for i, id := range queued {
			turn, err := f.Cancel(t.Context(), tenant, "c", id)
			if retained := i >= len(queued)-maxRetainedTurns; retained != (err == nil) || retained &&
				stateName(turn.GetState()) != "CANCELLED" {
				t.Errorf("second Cancel of turn %d of %d = %v, %v", i+1, len(queued), turn, err)
			}
		}
	})
}
