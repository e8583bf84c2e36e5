package turn

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// maxReads limits the reads of the store in one Chat: it must wait and not poll.
const maxReads = 8

var errPolled = errors.New("the store is read in a loop")

// countingStore fails when it is read in a loop.
type countingStore struct {
	store.Store
	reads atomic.Int32
}

func (c *countingStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if c.reads.Add(1) > maxReads {
		return nil, errPolled
	}
	return c.Store.Read(ctx, r)
}

// ephemeralFixture returns a manager on a store that reports the end of an ephemeral conversation
// only at the sweep.
func ephemeralFixture(t *testing.T) (*fixture, *controlledAgent, *countingStore) {
	t.Helper()
	f, p := newControlled(t, nil)
	f.store = memstore.New(store.Options{Observe: func(c []store.Change) { f.Committed(c) }})
	c := &countingStore{Store: f.store}
	f.o.Store = c
	return f, p, c
}

// holdEphemeral makes conversation c ephemeral.
func (f *fixture) holdEphemeral(t *testing.T) {
	t.Helper()
	if err := f.store.Hold(t.Context(), &store.Hold{Tenant: tenant, ConversationIDs: []string{"c"}}); err != nil {
		t.Fatal(err)
	}
}

// expireEphemeral advances the clock to the end of the ephemeral conversation c. It does not sweep.
func (f *fixture) expireEphemeral(t *testing.T) {
	t.Helper()
	const after = time.Second
	if err := f.store.Release(t.Context(), &store.Hold{
		Tenant: tenant, ConversationIDs: []string{"c"},
		DeleteAfter: after,
	}); err != nil {
		t.Fatal(err)
	}
	<-time.After(after)
	synctest.Wait()
}

// TestChatAfterEphemeralExpiry: the id of an ephemeral conversation is free from its expiry. Chat
// answers at once as for any id without a conversation, before the sweep and while the old turn
// still runs.
func TestChatAfterEphemeralExpiry(t *testing.T) {
	for busy, name := range parleyv1.OnBusy_name {
		onBusy := parleyv1.OnBusy(busy)
		for _, test := range []struct {
			name    string
			request *parleyv1.ChatRequest
			want    func(error) bool // nil: a new conversation
		}{
			{"plain", chatRequest("new", onBusy), nil},
			{
				"if_version 0", &parleyv1.ChatRequest{ConversationId: "c", Content: "new", OnBusy: onBusy, IfVersion: new(int32)},
				nil,
			},
			{
				"if_version 1", &parleyv1.ChatRequest{
					ConversationId: "c", Content: "new", OnBusy: onBusy,
					IfVersion: new(int32(1)),
				},
				func(err error) bool { v := new(store.VersionError); return errors.As(err, &v) && v.Current == 0 },
			},
			{
				"must_exist", &parleyv1.ChatRequest{ConversationId: "c", Content: "new", OnBusy: onBusy, MustExist: true},
				isNotFound,
			},
			{"answer_pending", &parleyv1.ChatRequest{ConversationId: "c", OnBusy: onBusy, AnswerPending: true}, isNotFound},
			{"tool_results", &parleyv1.ChatRequest{
				ConversationId: "c", OnBusy: onBusy,
				ToolResults: []*parleyv1.ToolResult{{CallId: "1"}},
			}, isNotFound},
			{"the request_id of the old turn", &parleyv1.ChatRequest{
				ConversationId: "c", Content: "old", OnBusy: onBusy,
				RequestId: "r",
			}, nil},
		} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f, p, reads := ephemeralFixture(t)
					f.holdEphemeral(t)
					first := &parleyv1.ChatRequest{ConversationId: "c", Content: "old", RequestId: "r", Metadata: ignoreCancel}
					old := f.startChat(t, first)
					queued := f.startChat(t, chatRequest("waits", onBusyQueue))
					agent := p.lastRun()
					agent.do(step{pieces: []*parleyv1.RespondResponse{text("half"), call("1")}})
					f.expireEphemeral(t)

					reads.reads.Store(0)
					r := f.startChat(t, test.request)
					switch {
					case test.want != nil:
						if !r.ended || !test.want(r.err) || r.events != nil {
							t.Errorf("Chat = %q, %v; want the error of an id without a conversation", r.received(), r.err)
						}
					case r.err != nil || len(r.events) == 0 || !r.events[0].GetStarted().GetCreated() ||
						r.events[0].GetStarted().GetReplayed():
						t.Errorf("Chat = %q, %v; want a new conversation", r.received(), r.err)
					}
					// Readers of the old turns receive the error of a deleted conversation.
					if !errors.Is(queued.err, ErrConversationDeleted) || old.ended {
						t.Errorf("queued turn ended with %v; stream of the old turn ended: %t", queued.err, old.ended)
					}
					agent.complete()
					if !errors.Is(old.err, ErrConversationDeleted) {
						t.Errorf("old turn ended with %v, want %v", old.err, ErrConversationDeleted)
					}
					if test.want != nil {
						r = f.startChat(t, chatRequest("new", 0))
					}
					p.lastRun().sendText("answer")
					p.lastRun().complete()
					want := []string{"user: " + p.lastRun().request.GetMessages()[0].GetContent(), "assistant: answer"}
					if diff := cmp.Diff(want, f.stored(t)); diff != "" || stateName(r.finished().GetState()) != "COMPLETED" ||
						f.Running() != 0 {
						t.Errorf("new turn = %q, %v; %d turns run; stored (-want +got):\n%s", r.received(), r.err, f.Running(), diff)
					}
				})
			})
		}
	}
}

func isNotFound(err error) bool { return errors.Is(err, store.ErrNotFound) }

// TestOldTurnEndsWhenIDIsReused: the server stops the agent of the old turn as soon as the id is
// used again.
func TestOldTurnEndsWhenIDIsReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, _ := ephemeralFixture(t)
		f.holdEphemeral(t)
		old := f.startChat(t, chatRequest("old", 0))
		p.lastRun().sendText("half")
		f.expireEphemeral(t)
		r := f.startChat(t, chatRequest("new", 0))
		if !errors.Is(old.err, ErrConversationDeleted) || f.Running() != 1 {
			t.Errorf("old turn = %q, %v; %d turns run, want only the new one", old.received(), old.err, f.Running())
		}
		p.lastRun().complete()
		if stateName(r.finished().GetState()) != "COMPLETED" {
			t.Errorf("new turn = %q, %v", r.received(), r.err)
		}
	})
}

// TestChatBetweenTurnsAfterEphemeralExpiry: a request that comes between two turns of an expired
// ephemeral conversation does not queue with the turns of that conversation.
func TestChatBetweenTurnsAfterEphemeralExpiry(t *testing.T) {
	for _, busy := range []parleyv1.OnBusy{0, onBusyQueue, onBusyInterrupt} {
		synctest.Test(t, func(t *testing.T) {
			f, p, c := ephemeralFixture(t)
			second := make(chan struct{})
			f.o.Store = &hookStore{Store: c, begin: func(a *store.Append) {
				if a.UID != "" {
					<-second
				}
			}}
			f.holdEphemeral(t)
			f.startChat(t, chatRequest("old", 0))
			queued := f.startChat(t, chatRequest("waits", onBusyQueue))
			p.lastRun().complete()
			f.expireEphemeral(t)
			r := f.startChat(t, chatRequest("new", busy))
			if r.err != nil || len(r.events) == 0 || !r.events[0].GetStarted().GetCreated() {
				t.Errorf("%v: Chat = %q, %v; want a new conversation", busy, r.received(), r.err)
			}
			close(second)
			synctest.Wait()
			if !errors.Is(queued.err, ErrConversationDeleted) {
				t.Errorf("%v: queued turn ended with %v, want %v", busy, queued.err, ErrConversationDeleted)
			}
			p.lastRun().complete()
		})
	}
}
