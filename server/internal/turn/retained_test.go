package turn

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// retainsEvents reports whether a turn whose text came in two pieces can be resumed within its
// text. It fails the test if the turn cannot be replayed from the start.
func (f *fixture) retainsEvents(t *testing.T, id, turnID string) bool {
	t.Helper()
	if _, err := readAll(f.Resume(t.Context(), tenant, id, turnID, 0)); err != nil {
		t.Errorf("conversation %s: %v", id, err)
	}
	_, err := readAll(f.Resume(t.Context(), tenant, id, turnID, 2))
	if err != nil && !errors.As(err, new(*EventsGoneError)) {
		t.Errorf("conversation %s: %v", id, err)
	}
	return err == nil
}

func TestRetentionTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"), text("b"))}, nil)
		first := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetTurn().GetId()
		<-time.After(time.Second)
		second := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetTurn().GetId()
		<-time.After(10*time.Minute - time.Second - 1)
		synctest.Wait()
		if !f.retainsEvents(t, "c", first) || !f.retainsEvents(t, "c", second) {
			t.Error("a turn was released before retainFor")
		}
		<-time.After(1)
		synctest.Wait()
		if f.retainsEvents(t, "c", first) || !f.retainsEvents(t, "c", second) {
			t.Error("want only the first turn released")
		}
		<-time.After(time.Second)
		synctest.Wait()
		if f.retainsEvents(t, "c", second) {
			t.Error("the second turn is retained after retainFor")
		}
		if len(f.turns)+len(f.queues)+f.retained.Len()+f.retainedBytes != 0 {
			t.Errorf("turns %v, queues %v, %d retained bytes, want none", f.turns, f.queues, f.retainedBytes)
		}
	})
}

// TestReleaseDoesNotDisturbReaders: a reader continues when the turn is released.
func TestReleaseDoesNotDisturbReaders(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"), text("b"))}, nil)
	readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	read := 0
	for _, err := range f.Resume(t.Context(), tenant, "c", "", 0) {
		if err != nil {
			t.Error(err)
		}
		f.releaseAll()
		read++
	}
	if read != 3 {
		t.Errorf("read %d events, want 3: started, both texts merged, finished", read)
	}
}

// TestMaxRetainedBytes checks guarantee 12 for all turns together: the oldest turns are released
// when they use too much memory.
func TestMaxRetainedBytes(t *testing.T) {
	large := strings.Repeat("x", 1<<20-2)
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"), text("b"), text(large))}, nil)
	const turnBytes = 2 << 20 // The large text is in its own event and in the finished event.
	var ids []string
	for i := range maxRetainedBytes/turnBytes + 20 {
		ids = append(ids, fmt.Sprint("c", i))
		readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: ids[i], Content: "q"}))
		if f.retainedBytes > maxRetainedBytes {
			t.Fatalf("%d bytes retained in %d turns, want at most maxRetainedBytes", f.retainedBytes, f.retained.Len())
		}
	}
	retained := f.retained.Len()
	if retained < maxRetainedBytes/turnBytes*9/10 || retained > maxRetainedBytes/turnBytes {
		t.Errorf("%d turns of slightly more than %d bytes retained, want %d bytes", retained, turnBytes, maxRetainedBytes)
	}
	for i, id := range ids {
		if got, want := f.retainsEvents(t, id, ""), i >= len(ids)-retained; got != want {
			t.Errorf("turn %d of %d (%d retained): retained = %t", i+1, len(ids), retained, got)
		}
	}
	f.releaseAll()
	if f.retainedBytes != 0 {
		t.Errorf("%d bytes retained without turns", f.retainedBytes)
	}
}

// TestMaxRetainedTurnsOfAConversation: a conversation retains no more turns than the store, whether
// they started or not.
func TestMaxRetainedTurnsOfAConversation(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"), text("b"))}, nil)
	var ids []string
	for range maxRetainedTurns + 3 {
		ids = append(ids, readFinished(t, f.chat(t,
			&parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetTurn().GetId())
	}
	if len(f.turns) != maxRetainedTurns {
		t.Errorf("%d turns retained, want %d", len(f.turns), maxRetainedTurns)
	}
	for i, id := range ids {
		_, err := readAll(f.Resume(t.Context(), tenant, "c", id, 2))
		if i < 3 && !errors.As(err, new(*NotFoundError)) || i >= 3 && err != nil {
			t.Errorf("turn %d: %v", i+1, err)
		}
	}
}

// TestRequestIDOutlivesTurn: the store retains a request id longer than its turn if other requests
// have none.
func TestRequestIDOutlivesTurn(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, nil)
	request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
	if _, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request))); err != nil {
		t.Fatal(err)
	}
	for range maxRetainedTurns {
		readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "other"}))
	}
	written := len(f.stored(t))
	events, err := readAll(f.Chat(t.Context(), tenant, request, storeRequest(request)))
	if goneErr := new(EventsGoneError); !errors.As(err, &goneErr) || goneErr.Oldest != 0 || len(events) != 0 ||
		len(f.stored(t)) != written {
		t.Errorf("retry = %q, %v, want EventsGoneError; %d messages stored, want 0", describeAll(events), err,
			len(f.stored(t))-written)
	}
}

// TestReleaseWithConversation: the turns of a conversation are released when it ends, for any
// reason. A new conversation with the same id does not share turns or request ids.
func TestReleaseWithConversation(t *testing.T) {
	tests := []struct {
		name string
		ends func(t *testing.T, f *fixture)
	}{
		{"deleted", func(t *testing.T, f *fixture) {
			t.Helper()
			if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
				t.Fatal(err)
			}
		}},
		{"evicted", func(t *testing.T, f *fixture) {
			t.Helper()
			if _, err := f.store.Create(t.Context(), &store.Create{
				Tenant:       tenant,
				Conversation: &parleyv1.Conversation{Id: "other"},
			}); err != nil {
				t.Fatal(err)
			}
		}},
		{"expired and swept", func(t *testing.T, f *fixture) {
			t.Helper()
			<-time.After(time.Minute)
			if _, err := f.store.Sweep(t.Context(), 10); err != nil {
				t.Fatal(err)
			}
		}},
		{"expired", func(t *testing.T, _ *fixture) { t.Helper(); <-time.After(time.Minute) }},
		{"expired, and taken by an append", func(t *testing.T, f *fixture) {
			t.Helper()
			<-time.After(time.Minute)
			message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "new"}
			if _, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: "c",
				Messages: []*parleyv1.Message{message},
			}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newControlled(t, nil)
				f.store = memstore.New(store.Options{
					TTL: time.Minute, MaxConversations: 1, Observe: func(changes []store.Change) { f.Committed(changes) },
				})
				f.o.Store = f.store
				request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
				first := f.startChat(t, request)
				// A turn that never started is retained too.
				queued := f.startChat(t, &parleyv1.ChatRequest{
					ConversationId: "c", Content: "q", RequestId: "w",
					OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
				})
				f.mustCancel(t, queued.turnID())
				p.lastRun().complete()
				test.ends(t, f)
				for _, old := range []*reader{first, queued} {
					if r := f.startResume(t, old.turnID(), 0); !isMissingTurn(r.err) {
						t.Errorf("Resume = %q, %v, want none found", r.received(), r.err)
					}
					if got, err := f.Get(t.Context(), tenant, "c", old.turnID()); !isMissingTurn(err) {
						t.Errorf("Get = %v, %v, want none found", got, err)
					}
				}
				for i, id := range []string{"r", "w"} {
					retry := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: id})
					if retry.err != nil || retry.events[0].GetStarted().GetReplayed() || p.runCount() != i+2 {
						t.Errorf("Chat with request_id %s = %q, %v, want a new turn; %d agent calls", id, retry.received(), retry.err,
							p.runCount())
					}
					p.lastRun().complete()
				}
				if len(f.turns) != 2 {
					t.Errorf("%d turns retained, want the two new ones", len(f.turns))
				}
			})
		})
	}
}

// TestDeleteDuringEnd: a turn is not retained if its conversation is deleted when it has just
// ended.
func TestDeleteDuringEnd(t *testing.T) {
	var f *fixture
	f = newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, func(o *Options) {
		o.Store = &hookStore{Store: o.Store, end: func(*store.Append) {
			if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
				t.Error(err)
			}
		}}
	})
	readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	if len(f.turns)+len(f.queues)+f.retainedBytes != 0 {
		t.Errorf("turns %v, queues %v, %d retained bytes, want none", f.turns, f.queues, f.retainedBytes)
	}
}

// TestChangesOfOtherConversationsReleaseNothing: a late report about a deleted conversation does
// not affect a new one with the same id.
func TestChangesOfOtherConversationsReleaseNothing(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"), text("b"))}, nil)
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	f.Committed([]store.Change{
		{Tenant: tenant, ConversationID: "c", UID: "old", Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED},
		{Tenant: "other", ConversationID: "c", UID: "", Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED},
		{Tenant: tenant, ConversationID: "c", UID: "", Kind: parleyv1.ChangeKind_CHANGE_KIND_CLEARED},
	})
	if !f.retainsEvents(t, "c", end.GetTurn().GetId()) {
		t.Error("turn released by changes of other conversations")
	}
	f.Committed([]store.Change{{
		Tenant: tenant, ConversationID: "c", UID: "",
		Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED,
	}})
	if len(f.turns) != 0 {
		t.Error("turn of a damaged conversation retained after its delete")
	}
}
