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
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

func TestAgentChoice(t *testing.T) {
	names := func(name string) agentFunc { return respondWith(text(name)) }
	f := newFixture(t, map[string]agent.Agent{
		"main": names("main"), "writer": names("writer"),
		"reviewer": names("reviewer"),
	}, nil)
	chat := func(request *parleyv1.ChatRequest) (string, error) {
		request.ConversationId, request.Content = "c", "q"
		events, err := f.tryChat(t, request, nil)
		if err != nil {
			return "", err
		}
		m := readFinished(t, events).GetMessages()[0]
		if m.GetAgent() != m.GetContent() {
			t.Errorf("message of agent %s has agent %s", m.GetContent(), m.GetAgent())
		}
		return m.GetContent(), nil
	}
	expect := func(request *parleyv1.ChatRequest, want string) {
		t.Helper()
		if got, err := chat(request); err != nil || got != want {
			t.Errorf("answer by agent %q (%v), want %q", got, err, want)
		}
	}
	expect(&parleyv1.ChatRequest{}, "main")
	update := func(u store.Update) {
		u.Tenant, u.ConversationID = tenant, "c"
		if _, err := f.store.Update(t.Context(), &u); err != nil {
			t.Fatal(err)
		}
	}
	update(store.Update{Values: &parleyv1.Conversation{Agent: "writer"}, Fields: []string{"agent"}})
	expect(&parleyv1.ChatRequest{}, "writer")
	update(store.Update{Lease: &store.Lease{Agent: "reviewer"}})
	expect(&parleyv1.ChatRequest{}, "reviewer")
	expect(&parleyv1.ChatRequest{Agent: "main"}, "main")
	update(store.Update{Lease: &store.Lease{Agent: "elsewhere"}})
	before := len(f.stored(t))
	var notConfigured *AgentNotConfiguredError
	if _, err := chat(&parleyv1.ChatRequest{}); !errors.As(err, &notConfigured) || notConfigured.Agent != "elsewhere" {
		t.Errorf("Chat with a lease of a missing agent: error = %v, want AgentNotConfiguredError", err)
	}
	var unknown *UnknownAgentError
	if _, err := chat(&parleyv1.ChatRequest{Agent: "nobody"}); !errors.As(err, &unknown) || len(unknown.Known) != 3 {
		t.Errorf("Chat to an unknown agent: error = %v, want UnknownAgentError", err)
	}
	if after := len(f.stored(t)); after != before {
		t.Errorf("refused calls stored %d messages, want 0", after-before)
	}
}

// TestRetryAfterTheAgentWasRemoved: a retry receives the first result, even if its agent is no
// longer configured.
func TestRetryAfterTheAgentWasRemoved(t *testing.T) {
	before := newFixture(t, map[string]agent.Agent{"main": respondWith(text("x")), "writer": respondWith(text("a"))}, nil)
	request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Agent: "writer", RequestId: "r"}
	q := &store.Request{ID: "r", Method: "Chat"}
	events, err := before.tryChat(t, request, q)
	if err != nil {
		t.Fatal(err)
	}
	readFinished(t, events)
	after := newFixture(t, map[string]agent.Agent{"main": respondWith(text("x"))},
		func(o *Options) { o.Store = before.store })
	events, err = after.tryChat(t, request, q)
	if err != nil {
		t.Fatalf("retry: %v", err)
	}
	if m := readFinished(t, events).GetMessages(); len(m) != 1 || m[0].GetAgent() != "writer" {
		t.Errorf("retry returned %v, want the answer of writer", m)
	}
}

func TestBusyAndLimits(t *testing.T) {
	sent := make(chan struct{}, 2)
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("a", sent)}, func(o *Options) { o.MaxTurns = 2 })
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "a", Content: "q"})
	<-sent
	var busy *store.BusyError
	if _, err := f.tryChat(t, &parleyv1.ChatRequest{ConversationId: "a", Content: "q"}, nil); !errors.As(err, &busy) ||
		busy.TurnID == "" {
		t.Errorf("second Chat in a busy conversation: error = %v, want BusyError", err)
	}
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "b", Content: "q"})
	<-sent
	if _, err := f.tryChat(t, &parleyv1.ChatRequest{ConversationId: "b", Content: "q"}, nil); !errors.As(err, &busy) {
		t.Errorf("second Chat in a busy conversation at the limit: error = %v, want BusyError", err)
	}
	if _, err := f.tryChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}, nil); !errors.Is(err,
		ErrTooManyTurns) {
		t.Errorf("third Chat, limit 2: error = %v, want ErrTooManyTurns", err)
	}
	if n := f.Running(); n != 2 {
		t.Errorf("Running() = %d, want 2", n)
	}
}

// TestMaxTurnsOf changes the limit of one tenant while its turns run.
func TestMaxTurnsOf(t *testing.T) {
	sent := make(chan struct{}, 3)
	limit := 1
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("a", sent)}, func(o *Options) {
		o.MaxTurns = 9
		o.MaxTurnsOf = func(name string) int {
			if name != tenant {
				return 9
			}
			return limit
		}
	})
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "a", Content: "q"})
	<-sent
	if _, err := f.tryChat(t, &parleyv1.ChatRequest{ConversationId: "b", Content: "q"}, nil); !errors.Is(err,
		ErrTooManyTurns) {
		t.Errorf("second Chat, limit 1: error = %v, want ErrTooManyTurns", err)
	}
	limit = 2
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "b", Content: "q"})
	<-sent
}

func TestDeleteEndsTurn(t *testing.T) {
	sent := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("a", sent)}, nil)
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-sent
	if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
		t.Fatal(err)
	}
	// The id is used again at once; the old turn must not be stored in the new conversation.
	if _, err := f.store.Create(t.Context(), &store.Create{
		Tenant:       tenant,
		Conversation: &parleyv1.Conversation{Id: "c"},
	}); err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range events {
		last = err
	}
	if !errors.Is(last, ErrConversationDeleted) {
		t.Errorf("stream ended with %v, want the reason", last)
	}
	if stored := f.stored(t); len(stored) != 0 {
		t.Errorf("messages of the new conversation = %q, want none", stored)
	}
}

// commitHookStore calls afterCommit when an append that starts a turn has committed, before it
// returns.
type commitHookStore struct {
	store.Store
	afterCommit func()
}

func (r commitHookStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	result, err := r.Store.Append(ctx, a)
	if a.Begin != nil && err == nil {
		r.afterCommit()
	}
	return result, err
}

// TestDeleteDuringStart: a conversation may be deleted, and its id used again, between the commit
// that starts a turn and the return of that commit.
func TestDeleteDuringStart(t *testing.T) {
	var f *fixture
	f = newFixture(t, map[string]agent.Agent{"main": hangAfter("a", nil)}, func(o *Options) {
		o.Store = commitHookStore{o.Store, func() {
			if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
				t.Error(err)
			}
			if _, err := f.store.Create(t.Context(), &store.Create{
				Tenant:       tenant,
				Conversation: &parleyv1.Conversation{Id: "c"},
			}); err != nil {
				t.Error(err)
			}
		}}
	})
	var last error
	for _, err := range f.Chat(t.Context(), tenant, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}, nil) {
		last = err
	}
	if !errors.Is(last, ErrConversationDeleted) || f.Running() != 0 {
		t.Errorf("stream ended with %v, want ErrConversationDeleted; %d turns run", last, f.Running())
	}
}

// TestCapacityIsFreeAfterFinished: a client that has read the last event can start the next turn.
func TestCapacityIsFreeAfterFinished(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, func(o *Options) { o.MaxTurns = 1 })
	for range 200 {
		readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	}
}

// refusingStore refuses the end of a turn with these errors, one for each attempt.
type refusingStore struct {
	store.Store
	refusals []error
}

func (r *refusingStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.End != nil && len(r.refusals) > 0 {
		err := r.refusals[0]
		r.refusals = r.refusals[1:]
		return nil, err
	}
	return r.Store.Append(ctx, a)
}

// TestStopRetriesAnOverloadedStore: a store that is overloaded during a stop loses no answer.
func TestStopRetriesAnOverloadedStore(t *testing.T) {
	sent := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, func(o *Options) {
		o.Store = &refusingStore{o.Store, []error{store.ErrOverloaded, store.ErrOverloaded}}
	})
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-sent
	ctx, now := context.WithCancel(t.Context())
	now()
	f.Stop(ctx)
	readFinished(t, events)
	if diff := cmp.Diff([]string{"user: q", "assistant: half …"}, f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
}

// TestAnswerWaitsForTheStore: an answer that finds the store unavailable is stored completely when it is available.
func TestAnswerWaitsForTheStore(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))}, func(o *Options) {
		o.Store = &refusingStore{o.Store, []error{store.ErrUnavailable, store.ErrUnavailable}}
	})
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	if state := end.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("turn ended %v, want COMPLETED", state)
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: a"}, f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
}

// TestStopWithoutStoreLeavesTurnRunning: if the disk is full or the store is unavailable, a stop leaves the turn to the
// next start, with the saved part of its answer.
func TestStopWithoutStoreLeavesTurnRunning(t *testing.T) {
	for _, cause := range []error{store.ErrNoSpace, store.ErrUnavailable} {
		t.Run(cause.Error(), func(t *testing.T) { stopWithoutStore(t, cause) })
	}
}

func stopWithoutStore(t *testing.T, cause error) {
	t.Helper()
	sent := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, func(o *Options) {
		o.Store = &refusingStore{o.Store, []error{cause, cause}}
	})
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-sent
	ctx, now := context.WithCancel(t.Context())
	now()
	f.Stop(ctx)
	var last error
	for _, err := range events {
		last = err
	}
	if !errors.Is(last, cause) {
		t.Errorf("stream ended with %v, want the reason", last)
	}
	found, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c"})
	if err != nil || found.Conversation.GetActiveTurnId() == "" {
		t.Errorf("active_turn_id is empty (%v), want the running turn", err)
	}
}

func TestStopStoresPartialAnswer(t *testing.T) {
	sent := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, nil)
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-sent
	ctx, now := context.WithCancel(t.Context())
	now()
	f.Stop(ctx)
	if _, err := f.tryChat(t, &parleyv1.ChatRequest{ConversationId: "d", Content: "q"}, nil); !errors.Is(err,
		ErrShuttingDown) {
		t.Errorf("Chat after Stop: error = %v, want ErrShuttingDown", err)
	}
	end := readFinished(t, events)
	if end.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED || !end.GetTurn().GetError().GetRetryable() {
		t.Errorf("turn ended %v, want INTERRUPTED", end.GetTurn())
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: half …"}, f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
}

// slowSink is a sink that needs a second for a finished event.
type slowSink struct{ finished atomic.Bool }

func (*slowSink) HasSubscribers() bool { return true }

func (s *slowSink) TurnEvent(_, _ string, e *parleyv1.TurnEvent) {
	if e.GetFinished() != nil {
		<-time.After(time.Second) // of the fake clock
		s.finished.Store(true)
	}
}

// TestStopSendsLastEvents: Stop returns after the last event of each turn is sent, since what follows ends the streams
// to other servers.
func TestStopSendsLastEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent, sink := make(chan struct{}, 1), new(slowSink)
		f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", sent)}, func(o *Options) { o.EventSink = sink })
		f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		<-sent
		ctx, now := context.WithCancel(t.Context())
		now()
		f.Stop(ctx)
		if !sink.finished.Load() {
			t.Error("Stop returned before the finished event was sent")
		}
	})
}
