package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestConversationThroughACommandAgent(t *testing.T) {
	t.Parallel()
	needPython(t)
	s := startServer(t, t.TempDir(), "--max-messages=1000", agents(t, `
default_agent: shop
agents:
  shop: {kind: command, command: [python3, testdata/agents/shop.py]}
`))
	t.Run("the agent receives the earlier messages", func(t *testing.T) {
		const id = "shopping"
		for i, turn := range []struct{ content, answer string }{
			{"Add a product", "Which product, and at what price?"},
			{"Sugar for 50 cents", "Added Sugar for 50 cents, message 3 of this conversation"},
			{"What is on the list?", "Sugar for 50 cents"},
		} {
			if answer := ask(t, s, id, turn.content); answer != turn.answer {
				t.Errorf("answer to %q = %q, want %q", turn.content, answer, turn.answer)
			}
			// The turns have 0, 2 and 4 messages of history.
			if found, _ := s.log.Find("conversation history", "conversation_id="+id); len(found) != i+1 ||
				fmt.Sprint(found[i]["message_count"]) != fmt.Sprint(2*i) {
				t.Errorf("log entries of the history at %q = %v, want %d messages in the last", turn.content, found, 2*i)
			}
		}
		if found, _ := s.log.Find("conversation history"); len(found) != 3 {
			t.Errorf("%d log entries of a history, want one for each turn: %v", len(found), found)
		}
	})
	for _, product := range []string{"Tea", "Rice"} {
		t.Run("parallel conversations do not mix: "+product, func(t *testing.T) {
			t.Parallel()
			var list []string
			for i := range 3 {
				item := fmt.Sprintf("%s %d for %d cents", product, i, 10+i)
				list = append(list, item)
				ask(t, s, product, "Add a product")
				want := fmt.Sprintf("Added %s, message %d of this conversation", item, 4*i+3)
				if answer := ask(t, s, product, item); answer != want {
					t.Errorf("answer = %q, want %q", answer, want)
				}
			}
			want := strings.Join(list, "; ")
			if answer := ask(t, s, product, "What is on the list?"); answer != want {
				t.Errorf("list = %q, want %q", answer, want)
			}
		})
	}
}

func TestUserMessageIsStoredFirst(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	k := hold(t, s, "c")
	question := "USER " + k.request.GetContent() + "\n"
	during := history(t, s, "c")
	if got := contents(during.GetMessages()); got != question {
		t.Errorf("history while the agent answers =\n%s, want only the question", got)
	}
	if c := during.GetConversation(); c.GetActiveTurnId() == "" ||
		c.GetVersion() != k.started.GetConversation().GetVersion() {
		t.Errorf("header while the agent answers = %v, want an active turn and version %d", c,
			k.started.GetConversation().GetVersion())
	}
	err := firstError(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "hello"}))
	if metadata := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); metadata["active_turn_id"] != during.GetConversation().GetActiveTurnId() {
		t.Errorf("metadata of the second Chat's error = %v, want the active turn", metadata)
	}
	finished := k.release(t, "answer")
	if got := contents(finished.GetMessages()); got != "ASSISTANT half an answer\n" || k.text != "half an answer" {
		t.Errorf("stored answer = %q, streamed answer = %q; want %q", got, k.text, "half an answer")
	}
	after := history(t, s, "c")
	if c := after.GetConversation(); c.GetActiveTurnId() != "" || c.GetVersion() != finished.GetConversationVersion() {
		t.Errorf("header after finished = %v, want no active turn and version %d", c, finished.GetConversationVersion())
	}
	if d := cmp.Diff(finished.GetMessages()[0], after.GetMessages()[1], protocmp.Transform()); d != "" {
		t.Errorf("the answer as sent (-) and as stored (+):\n%s", d)
	}

	// An agent that fails before its first text does not affect the user's message.
	failed := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "anybody?", Agent: "absent"}).finish(t)
	if turn := failed.GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_FAILED ||
		len(failed.GetMessages()) != 0 {
		t.Errorf("turn of a missing program = %v, want FAILED without messages", failed)
	}
	want := question + "ASSISTANT half an answer\nUSER anybody?\n"
	if got := contents(history(t, s, "c").GetMessages()); got != want {
		t.Errorf("history =\n%s, want\n%s", got, want)
	}
}

func TestPartialAnswersAreKept(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "hello", Agent: "fail"})
	finished := k.finish(t)
	turn, failure := finished.GetTurn(), finished.GetTurn().GetError()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_FAILED || turn.GetInputSequence() != 1 ||
		turn.GetFirstAnswerSequence() != 2 || turn.GetLastAnswerSequence() != 2 {
		t.Errorf("the turn ended as %v, want FAILED with input 1 and answer 2", turn)
	}
	const message = "agent fail failed: sh ended with exit code 3: out of memory\nthe model has 3 GiB, 5 GiB are needed"
	if failure.GetReason() != "AGENT_FAILED" || failure.GetCode() != int32(codes.Unavailable) ||
		failure.GetMessage() != message {
		t.Errorf("error of the turn = %v, want AGENT_FAILED with %q", failure, message)
	}
	stored := history(t, s, "c")
	if c := stored.GetConversation(); c.GetActiveTurnId() != "" || c.GetLastSequence() != 2 {
		t.Fatalf("header after the turn = %v, want no active turn and 2 messages", c)
	}
	if m := stored.GetMessages()[1]; m.GetContent() != "half an " ||
		m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE || m.GetAgent() != "fail" {
		t.Errorf("the stored answer = %v, want the incomplete text of fail", m)
	}
	if d := cmp.Diff(finished.GetMessages(), stored.GetMessages()[1:], protocmp.Transform()); d != "" {
		t.Errorf("the answer as sent (-) and as stored (+):\n%s", d)
	}

	// The conversation continues, and the next agent receives all messages.
	next := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "again"})
	if next.started.GetHistoryCount() != 2 ||
		next.finish(t).GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("the next turn = %v, %v; want 2 messages of history and COMPLETED", next.started, next.finished)
	}
	want := "USER hello\nASSISTANT half an \nUSER again\nASSISTANT again\n"
	if got := contents(history(t, s, "c").GetMessages()); got != want {
		t.Errorf("history =\n%s, want\n%s", got, want)
	}
}

func TestSystemPromptAndAgents(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, `
default_agent: mirror
agents:
  mirror: {kind: command, command: [cat], system_prompt: "the agent's prompt"}
  second: {kind: command, command: [echo, second], description: Comes second.}
`))
	const id = "c"
	ask := func(change func(*parleyv1.ChatRequest)) (agent, answer string) {
		t.Helper()
		// A window of one message keeps the history out of mirror's answer.
		r := &parleyv1.ChatRequest{ConversationId: id, Content: "hello", Window: &parleyv1.ContextWindow{MaxMessages: 1}}
		if change != nil {
			change(r)
		}
		k := chat(t, s, r)
		k.finish(t)
		return k.started.GetAgent(), k.text
	}
	wantAnswer := func(wantAgent, want string, change func(*parleyv1.ChatRequest)) {
		t.Helper()
		if agent, answer := ask(change); agent != wantAgent || answer != want {
			t.Errorf("Chat = agent %s with %q, want %s with %q", agent, answer, wantAgent, want)
		}
	}
	update := func(c *parleyv1.Conversation) {
		t.Helper()
		c.Id = id
		if _, err := s.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{Conversation: c}); err != nil {
			t.Fatal(err)
		}
	}
	lease := func(agent string) {
		t.Helper()
		if _, err := s.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{ConversationId: id, Agent: agent}); err != nil {
			t.Fatal(err)
		}
	}

	// The request's system prompt is used, else the conversation's, else the agent's.
	wantAnswer("mirror", "[SYSTEM]: the agent's prompt\n\n[USER]: hello\n", nil)
	update(&parleyv1.Conversation{SystemPrompt: "the conversation's"})
	wantAnswer("mirror", "[SYSTEM]: the conversation's\n\n[USER]: hello\n", nil)
	wantAnswer("mirror", "[SYSTEM]: the request's\n\n[USER]: hello\n", func(r *parleyv1.ChatRequest) {
		r.SystemPrompt = new("the request's")
	})
	wantAnswer("mirror", "[USER]: hello\n", func(r *parleyv1.ChatRequest) { r.SystemPrompt = new("") })

	// The request's agent answers, else the lease's, else the conversation's, else the default.
	update(&parleyv1.Conversation{Agent: "echo"})
	wantAnswer("echo", "hello", nil)
	lease("second")
	wantAnswer("second", "second\n", nil)
	wantAnswer("echo", "hello", func(r *parleyv1.ChatRequest) { r.Agent = "echo" })

	before := history(t, s, id).GetConversation()
	err := firstError(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hello", Agent: "nobody"}))
	if metadata := wantError(t, err, codes.InvalidArgument, "UNKNOWN_AGENT"); metadata["known_agents"] != "echo, mirror, second" {
		t.Errorf("metadata of the error = %v, want the known agents", metadata)
	}
	lease("nobody")
	err = firstError(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hello"}))
	wantError(t, err, codes.FailedPrecondition, "AGENT_NOT_CONFIGURED")
	if c := history(t, s, id).GetConversation(); c.GetLastSequence() != before.GetLastSequence() ||
		c.GetActiveTurnId() != "" {
		t.Errorf("header after two refused turns = %v, want %v", c, before)
	}
	lease("")
	wantAnswer("echo", "hello", nil)

	list, err := s.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{})
	want := []*parleyv1.AgentInfo{
		{Name: "echo", Kind: "echo"},
		{Name: "mirror", Kind: "command", IsDefault: true},
		{Name: "second", Kind: "command", Description: "Comes second."},
	}
	if d := cmp.Diff(want, list.GetAgents(), protocmp.Transform()); err != nil || d != "" {
		t.Errorf("ListAgents: %v (-want +got)\n%s", err, d)
	}
}
