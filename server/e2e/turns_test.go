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
	t.Run("the second answer shows that the first was seen", func(t *testing.T) {
		const id = "shopping"
		for i, turn := range []struct{ content, answer string }{
			{"Add a product", "Which product, and at what price?"},
			{"Sugar for 50 cents", "Added Sugar for 50 cents, message 3 of this conversation"},
			{"What is on the list?", "Sugar for 50 cents"},
		} {
			if answer := say(t, s, id, turn.content); answer != turn.answer {
				t.Errorf("the answer to %q is %q, want %q", turn.content, answer, turn.answer)
			}
			// 0, 2, 4 messages came before.
			if found, _ := s.log.find("conversation history", "conversation_id="+id); len(found) != i+1 || fmt.Sprint(found[i]["message_count"]) != fmt.Sprint(2*i) {
				t.Errorf("history in the log at %q: %v, want %d messages in the last line", turn.content, found, 2*i)
			}
		}
		if found, _ := s.log.find("conversation history"); len(found) != 3 {
			t.Errorf("%d lines tell of a conversation's history, want one a turn: %v", len(found), found)
		}
	})
	for _, product := range []string{"Tea", "Rice"} {
		t.Run("two conversations at once never mix: "+product, func(t *testing.T) {
			t.Parallel()
			var list []string
			for i := range 5 {
				item := fmt.Sprintf("%s %d for %d cents", product, i, 10+i)
				list = append(list, item)
				say(t, s, product, "Add a product")
				want := fmt.Sprintf("Added %s, message %d of this conversation", item, 4*i+3)
				if answer := say(t, s, product, item); answer != want {
					t.Errorf("answer %q, want %q", answer, want)
				}
			}
			want := strings.Join(list, "; ")
			if answer := say(t, s, product, "What is on the list?"); answer != want {
				t.Errorf("the list is %q, want %q", answer, want)
			}
		})
	}
}

func TestUserFirst(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	k := hold(t, s, "c")
	question := "USER " + k.request.GetContent() + "\n"
	during := history(t, s, "c")
	if got := contents(during.GetMessages()); got != question {
		t.Errorf("while the agent answers there is:\n%s", got)
	}
	if c := during.GetConversation(); c.GetActiveTurnId() == "" || c.GetVersion() != k.started.GetConversation().GetVersion() {
		t.Errorf("while the agent answers: %v, want a turn and version %d", c, k.started.GetConversation().GetVersion())
	}
	err := refused(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "me too"}))
	if told := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); told["active_turn_id"] != during.GetConversation().GetActiveTurnId() {
		t.Errorf("a second Chat is told %v", told)
	}
	finished := k.release(t, "answer")
	if got := contents(finished.GetMessages()); got != "ASSISTANT half an answer\n" || k.text != "half an answer" {
		t.Errorf("the answer is %q, and was streamed as %q", got, k.text)
	}
	after := history(t, s, "c")
	if c := after.GetConversation(); c.GetActiveTurnId() != "" || c.GetVersion() != finished.GetConversationVersion() {
		t.Errorf("after the finished event: %v, want no turn and version %d", c, finished.GetConversationVersion())
	}
	if d := cmp.Diff(finished.GetMessages()[0], after.GetMessages()[1], protocmp.Transform()); d != "" {
		t.Errorf("the answer as it was sent and as it is kept:\n%s", d)
	}

	// An agent that never says a word costs nothing of the user's.
	failed := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "anybody?", Agent: "absent"}).end(t)
	if turn := failed.GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_FAILED || len(failed.GetMessages()) != 0 {
		t.Errorf("a turn of a program that is not there ends with %v", failed)
	}
	want := question + "ASSISTANT half an answer\nUSER anybody?\n"
	if got := contents(history(t, s, "c").GetMessages()); got != want {
		t.Errorf("there is:\n%swant:\n%s", got, want)
	}
}

func TestPartialAnswersAreKept(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, testAgents))
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "hello", Agent: "fail"})
	finished := k.end(t)
	turn, failure := finished.GetTurn(), finished.GetTurn().GetError()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_FAILED || turn.GetInputSequence() != 1 ||
		turn.GetFirstAnswerSequence() != 2 || turn.GetLastAnswerSequence() != 2 {
		t.Errorf("the turn ended as %v", turn)
	}
	const why = "agent fail failed: sh ended with exit code 3: out of memory\nthe model has 3 GiB, 5 GiB are needed"
	if failure.GetReason() != "AGENT_FAILED" || failure.GetCode() != int32(codes.Unavailable) || failure.GetMessage() != why {
		t.Errorf("the turn failed with %v, want %q", failure, why)
	}
	kept := history(t, s, "c")
	if c := kept.GetConversation(); c.GetActiveTurnId() != "" || c.GetLastSequence() != 2 {
		t.Fatalf("after the turn: %v", c)
	}
	if m := kept.GetMessages()[1]; m.GetContent() != "half an " || m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE || m.GetAgent() != "fail" {
		t.Errorf("what is kept of the answer: %v", m)
	}
	if d := cmp.Diff(finished.GetMessages(), kept.GetMessages()[1:], protocmp.Transform()); d != "" {
		t.Errorf("the answer as it was sent and as it is kept:\n%s", d)
	}

	// The conversation goes on, and the next agent sees all of it.
	next := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "once more"})
	if next.started.GetHistoryCount() != 2 || next.end(t).GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("the next turn: %v, %v", next.started, next.finished)
	}
	want := "USER hello\nASSISTANT half an \nUSER once more\nASSISTANT once more\n"
	if got := contents(history(t, s, "c").GetMessages()); got != want {
		t.Errorf("there is:\n%swant:\n%s", got, want)
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
		// A window of one message keeps the history out of what mirror shows.
		r := &parleyv1.ChatRequest{ConversationId: id, Content: "hello", Window: &parleyv1.ContextWindow{MaxMessages: 1}}
		if change != nil {
			change(r)
		}
		k := chat(t, s, r)
		k.end(t)
		return k.started.GetAgent(), k.text
	}
	wantAnswer := func(wantAgent, want string, change func(*parleyv1.ChatRequest)) {
		t.Helper()
		if agent, answer := ask(change); agent != wantAgent || answer != want {
			t.Errorf("agent %s answers %q, want %s, %q", agent, answer, wantAgent, want)
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

	// The prompt is the agent's, else the conversation's goes before it, else the request's.
	wantAnswer("mirror", "[SYSTEM]: the agent's prompt\n\n[USER]: hello\n", nil)
	update(&parleyv1.Conversation{SystemPrompt: "the conversation's"})
	wantAnswer("mirror", "[SYSTEM]: the conversation's\n\n[USER]: hello\n", nil)
	wantAnswer("mirror", "[SYSTEM]: the request's\n\n[USER]: hello\n", func(r *parleyv1.ChatRequest) { r.SystemPrompt = new("the request's") })
	wantAnswer("mirror", "[USER]: hello\n", func(r *parleyv1.ChatRequest) { r.SystemPrompt = new("") })

	// The agent is the default, the conversation's, the lease's, the request's, the later ones first.
	update(&parleyv1.Conversation{Agent: "echo"})
	wantAnswer("echo", "hello", nil)
	lease("second")
	wantAnswer("second", "second\n", nil)
	wantAnswer("echo", "hello", func(r *parleyv1.ChatRequest) { r.Agent = "echo" })

	before := history(t, s, id).GetConversation()
	err := refused(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hello", Agent: "nobody"}))
	if told := wantError(t, err, codes.InvalidArgument, "UNKNOWN_AGENT"); told["known_agents"] != "echo, mirror, second" {
		t.Errorf("the caller is told %v", told)
	}
	lease("nobody")
	err = refused(s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: id, Content: "hello"}))
	wantError(t, err, codes.FailedPrecondition, "AGENT_NOT_CONFIGURED")
	if c := history(t, s, id).GetConversation(); c.GetLastSequence() != before.GetLastSequence() || c.GetActiveTurnId() != "" {
		t.Errorf("two refusals made %v of %v", c, before)
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
		t.Errorf("agents: %v\n%s", err, d)
	}
}
