package turn

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

const tenant = "t"

// agentFunc is an agent in one function.
type agentFunc func(ctx context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool)

func (f agentFunc) Respond(ctx context.Context, r *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) { f(ctx, r, yield) }
}

func (agentFunc) Close() error { return nil }

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

// says answers with these pieces.
func says(pieces ...*parleyv1.RespondResponse) agentFunc {
	return func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
		for _, p := range pieces {
			if !yield(p, nil) {
				return
			}
		}
	}
}

// hangs says a word, tells that it did, and waits for its context.
func hangs(word string, said chan<- struct{}) agentFunc {
	return func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
		if word != "" && !yield(text(word), nil) {
			return
		}
		if said != nil {
			said <- struct{}{}
		}
		<-ctx.Done()
		yield(nil, context.Cause(ctx))
	}
}

// fixture is a manager on a store in memory.
type fixture struct {
	*Manager
	store  *memstore.Store
	logged *strings.Builder
}

func newFixture(t *testing.T, agents map[string]agent.Agent, change func(*Options)) *fixture {
	t.Helper()
	entries := make([]agent.Entry, 0, len(agents))
	for name, a := range agents {
		entries = append(entries, agent.Entry{Name: name, Kind: "test", SystemPrompt: "prompt of " + name, Agent: a})
	}
	set, err := agent.NewSet("main", entries)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{logged: new(strings.Builder)}
	f.store = memstore.New(store.Options{Observe: func(changes []store.Change) { f.Committed(changes) }})
	o := Options{
		Store: f.store, Agents: set, Log: slog.New(slog.NewTextHandler(f.logged, nil)),
		TurnTimeout: 5 * time.Minute, IdleTimeout: time.Minute, MaxAnswerBytes: 1 << 20, MaxTurns: 256,
	}
	if change != nil {
		change(&o)
	}
	f.Manager = New(t.Context(), o)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		f.Stop(ctx)
		if err := f.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) chat(t *testing.T, request *parleyv1.ChatRequest) iter.Seq2[*parleyv1.TurnEvent, error] {
	t.Helper()
	events, err := f.Chat(t.Context(), tenant, request, nil)
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// finished reads a turn to its end.
func finished(t *testing.T, events iter.Seq2[*parleyv1.TurnEvent, error]) *parleyv1.TurnFinished {
	t.Helper()
	all := collect(t, events)
	end := all[len(all)-1].GetFinished()
	if end == nil {
		t.Fatalf("the last event is %v, want finished", all[len(all)-1])
	}
	return end
}

func collect(t *testing.T, events iter.Seq2[*parleyv1.TurnEvent, error]) []*parleyv1.TurnEvent {
	t.Helper()
	var all []*parleyv1.TurnEvent
	for event, err := range events {
		if err != nil {
			t.Fatalf("after %d events: %v", len(all), err)
		}
		all = append(all, event)
		if int(event.GetIndex()) != len(all) {
			t.Fatalf("event %d has index %d", len(all), event.GetIndex())
		}
	}
	return all
}

// kept returns the conversation's messages as "role status content".
func (f *fixture) kept(t *testing.T, id string) []string {
	t.Helper()
	snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range messages {
		line := strings.ToLower(strings.TrimPrefix(m.GetRole().String(), "ROLE_")) + ": " + m.GetContent() + m.GetToolResult().GetContent()
		if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			line += " …"
		}
		lines = append(lines, line)
	}
	return lines
}

// Promise 5: the user's message is durable before the agent is called, and the answer
// before the final event is sent.
func TestUserFirst(t *testing.T) {
	var f *fixture
	seen := make(chan []string, 1)
	f = newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			seen <- f.kept(t, "c")
			yield(text("hi"), nil)
		})}, nil)
	for event, err := range f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "hello"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.GetStarted() != nil:
			if m := event.GetStarted().GetUserMessage(); m.GetSequence() != 1 || m.GetExchange() != 1 || m.GetCreateTime() == nil || m.GetId() == "" {
				t.Errorf("user_message lacks what the store gave it: %v", m)
			}
		case event.GetFinished() != nil:
			if diff := cmp.Diff([]string{"user: hello", "assistant: hi"}, f.kept(t, "c")); diff != "" {
				t.Errorf("kept when finished was sent (-want +got):\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff([]string{"user: hello"}, <-seen); diff != "" {
		t.Errorf("kept when the agent was called (-want +got):\n%s", diff)
	}
}

func TestHistoryIsGivenToTheAgent(t *testing.T) {
	var got []*parleyv1.RespondRequest
	f := newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(_ context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			got = append(got, r)
			yield(text("yes"), nil)
		})}, nil)
	none := ""
	for i, request := range []*parleyv1.ChatRequest{
		{Content: "one"},
		{Content: "two", SystemPrompt: &none},
		{Content: "three", Window: &parleyv1.ContextWindow{MaxExchanges: 1}},
	} {
		request.ConversationId = "c"
		started := collect(t, f.chat(t, request))[0].GetStarted()
		want := []int{0, 2, 2}[i]
		if int(started.GetHistoryCount()) != want || len(got[i].GetMessages()) != want+1 {
			t.Errorf("chat %d: history_count %d, %d messages, want %d", i, started.GetHistoryCount(), len(got[i].GetMessages()), want)
		}
		if last := got[i].GetMessages()[want]; last.GetContent() != request.GetContent() {
			t.Errorf("chat %d: the agent was asked to answer %q", i, last.GetContent())
		}
	}
	if p := got[0].GetSystemPrompt(); p != "prompt of main" {
		t.Errorf("system prompt %q, want the agent's", p)
	}
	if p := got[1].GetSystemPrompt(); p != "" {
		t.Errorf("system prompt %q, want the request's, which is none", p)
	}
	if n := strings.Count(f.logged.String(), "conversation history"); n != 3 {
		t.Errorf("%d log lines on the history, want 3", n)
	}
}

// Promise 6, as far as the turn has it: whatever cuts an answer off, what had arrived is
// kept as INCOMPLETE and the turn says why.
func TestPartialAnswersAreKept(t *testing.T) {
	failing := func(pieces ...*parleyv1.RespondResponse) agentFunc {
		return func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			says(pieces...)(nil, nil, yield) //nolint:staticcheck // no context is needed
			yield(nil, &agent.Error{Message: "exit code 3: no such key", Retryable: true})
		}
	}
	tests := []struct {
		name   string
		agent  agentFunc
		limit  int
		reason string
		state  parleyv1.TurnState
		want   []string
	}{
		{"whole", says(text("a"), text("b")), 0, "", parleyv1.TurnState_TURN_STATE_COMPLETED, []string{"user: q", "assistant: ab"}},
		{"nothing", says(), 0, "", parleyv1.TurnState_TURN_STATE_COMPLETED, []string{"user: q"}},
		{"fails", failing(text("a")), 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q", "assistant: a …"}},
		{"fails without a word", failing(), 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q"}},
		{"panics", func(context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse, error) bool) { panic("oh") }, 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q"}},
		{"too large", says(text("abc"), text("déf")), 5, "AGENT_OUTPUT_TOO_LARGE", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q", "assistant: abcd …"}},
		{"silent", hangs("a", nil), 0, "AGENT_TIMEOUT", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q", "assistant: a …"}},
		{"endless", func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			ticker := time.NewTicker(50 * time.Second)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
					yield(text("a"), nil)
				case <-ctx.Done():
					yield(nil, context.Cause(ctx))
					return
				}
			}
		}, 0, "AGENT_TIMEOUT", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q", "assistant: aaaaa …"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, map[string]agent.Agent{"main": test.agent}, func(o *Options) {
					if test.limit > 0 {
						o.MaxAnswerBytes = test.limit
					}
				})
				end := finished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
				if got := end.GetTurn(); got.GetState() != test.state || got.GetError().GetReason() != test.reason || got.GetFinishTime() == nil {
					t.Errorf("turn %v, want %v %q", got, test.state, test.reason)
				}
				if diff := cmp.Diff(test.want, f.kept(t, "c")); diff != "" {
					t.Errorf("kept (-want +got):\n%s", diff)
				}
				// The conversation is usable: the next turn begins.
				finished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "again"}))
			})
		})
	}
}

// Promise 7: a reader that leaves does not end the turn.
func TestLeavingIsNotCancelling(t *testing.T) {
	said, goOn := make(chan struct{}, 1), make(chan struct{})
	f := newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			yield(text("first "), nil)
			said <- struct{}{}
			select {
			case <-goOn:
				yield(text("second"), nil)
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
			}
		})}, nil)
	ctx, leave := context.WithCancel(t.Context())
	q := &store.Request{ID: "r", Method: "Chat"}
	request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
	events, err := f.Chat(ctx, tenant, request, q)
	if err != nil {
		t.Fatal(err)
	}
	<-said
	leave()
	var last error
	for _, err := range events {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("the reader that left got %v", last)
	}
	// Somebody with the same request id joins the running turn, from its first event on.
	joined, err := f.Chat(t.Context(), tenant, request, q)
	if err != nil {
		t.Fatal(err)
	}
	close(goOn)
	all := collect(t, joined)
	if !all[0].GetStarted().GetReplayed() {
		t.Error("the joiner's started event is not marked as replayed")
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: first second"}, f.kept(t, "c")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	// And after the end, the same is replayed from the store.
	again, err := f.Chat(t.Context(), tenant, request, q)
	if err != nil {
		t.Fatal(err)
	}
	replayed := collect(t, again)
	if len(replayed) != 3 || !replayed[0].GetStarted().GetReplayed() || replayed[0].GetStarted().GetUserMessage().GetContent() != "q" ||
		replayed[1].GetTextDelta().GetText() != "first second" || replayed[2].GetFinished().GetTurn().GetId() != all[0].GetTurnId() {
		t.Errorf("replayed from the store: %v", replayed)
	}
}

func TestWhoAnswers(t *testing.T) {
	names := func(name string) agentFunc { return says(text(name)) }
	f := newFixture(t, map[string]agent.Agent{"main": names("main"), "writer": names("writer"), "reviewer": names("reviewer")}, nil)
	chat := func(request *parleyv1.ChatRequest) (string, error) {
		request.ConversationId, request.Content = "c", "q"
		events, err := f.Chat(t.Context(), tenant, request, nil)
		if err != nil {
			return "", err
		}
		m := finished(t, events).GetMessages()[0]
		if m.GetAgent() != m.GetContent() {
			t.Errorf("message of %s says it is of %s", m.GetContent(), m.GetAgent())
		}
		return m.GetContent(), nil
	}
	expect := func(request *parleyv1.ChatRequest, want string) {
		t.Helper()
		if got, err := chat(request); err != nil || got != want {
			t.Errorf("answered by %q (%v), want %q", got, err, want)
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
	before := len(f.kept(t, "c"))
	var notConfigured *AgentNotConfiguredError
	if _, err := chat(&parleyv1.ChatRequest{}); !errors.As(err, &notConfigured) || notConfigured.Agent != "elsewhere" {
		t.Errorf("lease of an agent that is not here: %v", err)
	}
	var unknown *UnknownAgentError
	if _, err := chat(&parleyv1.ChatRequest{Agent: "nobody"}); !errors.As(err, &unknown) || len(unknown.Known) != 3 {
		t.Errorf("unknown agent in the request: %v", err)
	}
	if after := len(f.kept(t, "c")); after != before {
		t.Errorf("refused calls wrote %d messages", after-before)
	}
}

func TestBusyAndLimits(t *testing.T) {
	said := make(chan struct{}, 2)
	f := newFixture(t, map[string]agent.Agent{"main": hangs("a", said)}, func(o *Options) { o.MaxTurns = 2 })
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "a", Content: "q"})
	<-said
	var busy *store.BusyError
	if _, err := f.Chat(t.Context(), tenant, &parleyv1.ChatRequest{ConversationId: "a", Content: "q"}, nil); !errors.As(err, &busy) || busy.TurnID == "" {
		t.Errorf("second chat on a busy conversation: %v", err)
	}
	f.chat(t, &parleyv1.ChatRequest{ConversationId: "b", Content: "q"})
	<-said
	if _, err := f.Chat(t.Context(), tenant, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}, nil); !errors.Is(err, ErrTooManyTurns) {
		t.Errorf("third turn of two: %v", err)
	}
	if n := f.Running(); n != 2 {
		t.Errorf("%d turns run, want 2", n)
	}
	for _, request := range []*parleyv1.ChatRequest{
		{OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE}, {OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT},
		{OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL}, {AnswerPending: true},
		{ToolResults: []*parleyv1.ToolResult{{CallId: "x"}}},
	} {
		var unsupported *UnsupportedError
		if _, err := f.Chat(t.Context(), tenant, request, nil); !errors.As(err, &unsupported) {
			t.Errorf("%v: %v", request, err)
		}
	}
}

func TestDeleteEndsTheTurn(t *testing.T) {
	said := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangs("a", said)}, nil)
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-said
	if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
		t.Fatal(err)
	}
	// The id is taken again at once: the old turn must not end up in it.
	if _, err := f.store.Create(t.Context(), &store.Create{Tenant: tenant, Conversation: &parleyv1.Conversation{Id: "c"}}); err != nil {
		t.Fatal(err)
	}
	var last error
	for _, err := range events {
		last = err
	}
	if !errors.Is(last, ErrConversationGone) {
		t.Errorf("the stream ended with %v", last)
	}
	if kept := f.kept(t, "c"); len(kept) != 0 {
		t.Errorf("the new conversation has %q", kept)
	}
}

func TestStopKeepsWhatHadArrived(t *testing.T) {
	said := make(chan struct{}, 1)
	f := newFixture(t, map[string]agent.Agent{"main": hangs("half", said)}, nil)
	events := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
	<-said
	ctx, now := context.WithCancel(t.Context())
	now()
	f.Stop(ctx)
	if _, err := f.Chat(t.Context(), tenant, &parleyv1.ChatRequest{ConversationId: "d", Content: "q"}, nil); !errors.Is(err, ErrShuttingDown) {
		t.Errorf("chat after the stop: %v", err)
	}
	end := finished(t, events)
	if end.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED || !end.GetTurn().GetError().GetRetryable() {
		t.Errorf("turn %v, want INTERRUPTED", end.GetTurn())
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: half …"}, f.kept(t, "c")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestProgressIsSavedEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := make(chan struct{}, 1)
		f := newFixture(t, map[string]agent.Agent{"main": hangs("half", said)}, nil)
		f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		<-said
		timer := time.NewTimer(saveEvery + time.Millisecond) // of the test's own clock
		<-timer.C
		synctest.Wait()
		abandoned, err := f.store.Abandoned(t.Context())
		if err != nil || len(abandoned) != 1 || len(abandoned[0].Messages) != 1 || abandoned[0].Messages[0].GetContent() != "half" {
			t.Errorf("saved %v (%v)", abandoned, err)
		}
	})
}

func TestToolsAndHandoffMakeMessages(t *testing.T) {
	call := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: "1", Name: "find"}}}
	result := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "found"}}}
	next := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "second"}}
	f := newFixture(t, map[string]agent.Agent{
		"main": says(text("looking"), call, result, text("there"), next, text("more")),
		"asks": says(call),
	}, nil)
	events := collect(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	end := events[len(events)-1].GetFinished()
	if diff := cmp.Diff([]string{"user: q", "assistant: looking", "tool: found", "assistant: there", "assistant: more"}, f.kept(t, "c")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if got := end.GetTurn(); got.GetFirstAnswerSequence() != 2 || got.GetLastAnswerSequence() != 5 || end.GetMessages()[3].GetAgent() != "second" {
		t.Errorf("finished %v", end)
	}
	opened := 0
	for _, event := range events {
		if event.GetAnswerStarted() != nil {
			opened++
		}
	}
	if opened != 2 {
		t.Errorf("%d answer_started events, want 2", opened)
	}
	asks := finished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "d", Content: "q", Agent: "asks"}))
	if asks.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
		t.Errorf("turn with an unanswered call ended %v", asks.GetTurn().GetState())
	}
}
