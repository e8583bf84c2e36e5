package turn

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/store"
)

// TestUserMessageIsStoredBeforeTheAgentRuns checks guarantee 5: the user's message is durable
// before the agent is called, and the answer before the finished event is sent.
func TestUserMessageIsStoredBeforeTheAgentRuns(t *testing.T) {
	var f *fixture
	atCall := make(chan []string, 1)
	f = newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			atCall <- f.stored(t)
			yield(text("hi"), nil)
		})}, nil)
	for event, err := range f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "hello"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case event.GetStarted() != nil:
			if m := event.GetStarted().GetUserMessage(); m.GetSequence() != 1 || m.GetExchange() != 1 ||
				m.GetCreateTime() == nil || m.GetId() == "" {
				t.Errorf("user_message = %v, want the fields set by the store", m)
			}
		case event.GetFinished() != nil:
			if diff := cmp.Diff([]string{"user: hello", "assistant: hi"}, f.stored(t)); diff != "" {
				t.Errorf("stored messages at the finished event (-want +got):\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff([]string{"user: hello"}, <-atCall); diff != "" {
		t.Errorf("stored messages at the agent's call (-want +got):\n%s", diff)
	}
}

func TestAgentReceivesHistory(t *testing.T) {
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
			t.Errorf("chat %d: history_count = %d, agent received %d messages, want %d before the input", i,
				started.GetHistoryCount(), len(got[i].GetMessages()), want)
		}
		if last := got[i].GetMessages()[want]; last.GetContent() != request.GetContent() {
			t.Errorf("chat %d: input of the agent = %q, want the content of the request", i, last.GetContent())
		}
	}
	if p := got[0].GetSystemPrompt(); p != "prompt of main" {
		t.Errorf("system prompt = %q, want the agent's", p)
	}
	if p := got[1].GetSystemPrompt(); p != "" {
		t.Errorf("system prompt = %q, want the empty one of the request", p)
	}
	if n := strings.Count(f.logged.String(), "conversation history"); n != 3 {
		t.Errorf("%d log entries on the history, want 3", n)
	}
}

// TestPartialAnswersAreStored checks guarantee 6 for the turn: whatever ends an answer, the part
// that has arrived is stored as INCOMPLETE and the turn has the reason.
func TestPartialAnswersAreStored(t *testing.T) {
	note := note("thinking")
	failing := func(pieces ...*parleyv1.RespondResponse) agentFunc {
		return func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			respondWith(pieces...)(nil, nil, yield)
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
		{
			"complete", respondWith(text("a"), text("b")), 0, "", parleyv1.TurnState_TURN_STATE_COMPLETED,
			[]string{"user: q", "assistant: ab"},
		},
		{"nothing", respondWith(), 0, "", parleyv1.TurnState_TURN_STATE_COMPLETED, []string{"user: q"}},
		{
			"fails", failing(text("a")), 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED,
			[]string{"user: q", "assistant: a …"},
		},
		{"fails without text", failing(), 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q"}},
		{"panics", func(context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse, error) bool) {
			panic("oh")
		}, 0, "AGENT_FAILED", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q"}},
		{
			"cannot be stored", respondWith(text("a"),
				&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: "\xff"}}), 0, "INTERNAL",
			parleyv1.TurnState_TURN_STATE_FAILED,
			[]string{"user: q", "assistant: a …"},
		},
		{
			"too large", respondWith(text("abc"), text("déf")), 5, "AGENT_OUTPUT_TOO_LARGE",
			parleyv1.TurnState_TURN_STATE_FAILED,
			[]string{"user: q", "assistant: abcd …"},
		},
		{
			"fails after a handoff", failing(text("a"),
				&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "b"}}), 0, "AGENT_FAILED",
			parleyv1.TurnState_TURN_STATE_FAILED,
			[]string{"user: q", "assistant: a …"},
		},
		{
			"progress is not stored", respondWith(note, note, note, text("ab")), 5, "",
			parleyv1.TurnState_TURN_STATE_COMPLETED,
			[]string{"user: q", "assistant: ab"},
		},
		{
			"silent", hangAfter("a", nil), 0, "AGENT_TIMEOUT", parleyv1.TurnState_TURN_STATE_FAILED,
			[]string{"user: q", "assistant: a …"},
		},
		{"endless", func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			ticker := time.NewTicker(40 * time.Second)
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
		}, 0, "AGENT_TIMEOUT", parleyv1.TurnState_TURN_STATE_FAILED, []string{"user: q", "assistant: aaaaaaa …"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, map[string]agent.Agent{"main": test.agent}, func(o *Options) {
					if test.limit > 0 {
						o.MaxAnswerBytes = test.limit
					}
				})
				end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
				if got := end.GetTurn(); got.GetState() != test.state || got.GetError().GetReason() != test.reason ||
					got.GetFinishTime() == nil {
					t.Errorf("turn ended %v, want %v %q", got, test.state, test.reason)
				}
				if diff := cmp.Diff(test.want, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
				// The conversation is usable: the next turn starts.
				readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "again"}))
			})
		})
	}
}

// TestDisconnectDoesNotCancel checks guarantee 7: a reader that leaves does not end the turn.
func TestDisconnectDoesNotCancel(t *testing.T) {
	sent, proceed := make(chan struct{}, 1), make(chan struct{})
	f := newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(ctx context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			yield(text("first "), nil)
			sent <- struct{}{}
			select {
			case <-proceed:
				yield(text("second"), nil)
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
			}
		})}, nil)
	ctx, leave := context.WithCancel(t.Context())
	q := &store.Request{ID: "r", Method: "Chat"}
	request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
	events, err := awaitFirst(t, f.Chat(ctx, tenant, request, q))
	if err != nil {
		t.Fatal(err)
	}
	<-sent
	leave()
	var last error
	for _, err := range events {
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("reader that left: error = %v, want context.Canceled", last)
	}
	// A retry of the request attaches to the running turn and receives its first event too.
	joined, err := f.tryChat(t, request, q)
	if err != nil {
		t.Fatal(err)
	}
	close(proceed)
	all := collect(t, joined)
	if !all[0].GetStarted().GetReplayed() {
		t.Error("replayed = false in the started event of a retry, want true")
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: first second"}, f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
	// After the end, a retry receives the events with merged texts, and later a replay from the store.
	retry, err := f.tryChat(t, request, q)
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffEvents(mergeAdjacent(all), collect(t, retry)); diff != "" {
		t.Errorf("events of a retry after the end (-want +got):\n%s", diff)
	}
	f.releaseAll()
	retry, err = f.tryChat(t, request, q)
	if err != nil {
		t.Fatal(err)
	}
	replayed := collect(t, retry)
	if len(replayed) != 3 || replayed[1].GetIndex() != 3 || replayed[2].GetIndex() != 4 || !replayed[0].GetStarted().GetReplayed() ||
		replayed[0].GetStarted().GetUserMessage().GetContent() != "q" ||
		replayed[1].GetTextDelta().GetText() != "first second" ||
		replayed[2].GetFinished().GetTurn().GetId() != all[0].GetTurnId() {
		t.Errorf("retry after release = %v, want the merged events", replayed)
	}
}

// savingStore sends each saved partial answer to a channel.
type savingStore struct {
	store.Store
	saved chan *store.Progress
}

func (s savingStore) SaveProgress(ctx context.Context, p *store.Progress) error {
	err := s.Store.SaveProgress(ctx, p)
	s.saved <- p
	return err
}

func TestProgressIsSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saved := make(chan *store.Progress, 10)
		f := newFixture(t, map[string]agent.Agent{"main": hangAfter("half", nil)}, func(o *Options) {
			o.Store = savingStore{o.Store, saved}
		})
		startTime := time.Now() // the fake clock of synctest
		f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
		p := <-saved
		if got := p.Messages[0]; got.GetContent() != "half" ||
			got.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
			t.Errorf("saved %v, want INCOMPLETE \"half\"", p)
		}
		if took := time.Since(startTime); took != saveInterval {
			t.Errorf("saved after %v, want %v", took, saveInterval)
		}
		<-time.After(10 * saveInterval)
		synctest.Wait()
		if len(saved) != 0 {
			t.Error("saved again without a change")
		}
	})
}

func TestToolsAndHandoffCreateMessages(t *testing.T) {
	call := call("1")
	result := result("1", "found")
	next := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "second"}}
	f := newFixture(t, map[string]agent.Agent{
		"main": respondWith(text("looking"), call, result, text("there"), next, text("more")),
		"asks": respondWith(call),
	}, nil)
	events := collect(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	end := events[len(events)-1].GetFinished()
	if diff := cmp.Diff([]string{"user: q", "assistant: looking", "tool: found", "assistant: there", "assistant: more"},
		f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
	if got := end.GetTurn(); got.GetFirstAnswerSequence() != 2 || got.GetLastAnswerSequence() != 5 ||
		end.GetMessages()[3].GetAgent() != "second" {
		t.Errorf("finished event = %v, want answer 2 to 5 with agent second", end)
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
	withCall := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "d", Content: "q", Agent: "asks"}))
	if withCall.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
		t.Errorf("turn with an open call ended %v, want INPUT_REQUIRED", withCall.GetTurn().GetState())
	}
}

func TestMaxAnswerMessages(t *testing.T) {
	var pieces []*parleyv1.RespondResponse
	for range 2 * answer.MaxMessages {
		pieces = append(pieces, text("x"),
			&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "b"}})
	}
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(pieces...)}, nil)
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	const want = "the answer of agent main has more than 100 messages; the part within the limit is stored"
	failure := end.GetTurn().GetError()
	if n := len(end.GetMessages()); n != answer.MaxMessages ||
		failure.GetReason() != "AGENT_OUTPUT_TOO_LARGE" || failure.GetMessage() != want {
		t.Errorf("%d messages, error %v, want %d messages and %q", n, failure, answer.MaxMessages, want)
	}
}

// TestHandoffWithoutTextCreatesNoMessage: usage and a handoff after the last text create no
// message.
func TestHandoffWithoutTextCreatesNoMessage(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"),
		&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "b"}},
		&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{Model: "m"}}},
	)}, nil)
	for _, event := range collect(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})) {
		if event.GetAnswerStarted() != nil {
			t.Errorf("answer_started event %v without a second message", event)
		}
	}
}
