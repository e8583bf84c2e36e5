package e2e

import (
	"fmt"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// TestTwoServersOverA2A: the agent of one server answers Chat of another one, as an A2A agent, through a call of a tool.
// The other server is killed while the tool runs.
func TestTwoServersOverA2A(t *testing.T) {
	t.Parallel()
	model := openaitest.New(t,
		openaitest.Calls(openaitest.Call{ID: "c1", Name: "price", Arguments: `{"product":"Sugar"}`}),
		openaitest.Text("Sugar ", "is 50 cents."), openaitest.Text("You ", "are welcome."))
	shop := startServer(t, t.TempDir(), "--a2a", "--http-address=127.0.0.1:0",
		agents(t, encodeJSON(t, map[string]any{"agents": map[string]any{"shop": toolConfig("openai", model.URL)}})))
	url := fmt.Sprintf("http://%s/a2a/shop", shop.await(t, "serving http")["address"])
	dir, config := t.TempDir(), agents(t, "default_agent: helper\nagents: {helper: {kind: a2a, url: '"+url+"'}}")
	s := startServer(t, dir, config)
	called := chat(t, s, &parleyv1.ChatRequest{ConversationId: "c", Content: "What is sugar?"}).finish(t)
	if called.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
		t.Fatalf("turn = %v, want INPUT_REQUIRED", called.GetTurn())
	}
	call := called.GetMessages()[0].GetToolCalls()[0]
	if call.GetName() != "price" || call.GetArguments() != `{"product":"Sugar"}` {
		t.Fatalf("call = %v, want price of Sugar", call)
	}
	s.kill()
	s = startServer(t, dir, config)
	answer := chat(t, s, &parleyv1.ChatRequest{
		ConversationId: "c", ToolResults: []*parleyv1.ToolResult{{CallId: call.GetId(), Content: "50"}},
	})
	if turn := answer.finish(t).GetTurn(); answer.text != "Sugar is 50 cents." {
		t.Fatalf("turn = %v with %q, want the answer", turn, answer.text)
	}
	if got := ask(t, s, "c", "Thanks"); got != "You are welcome." {
		t.Errorf("next answer = %q, want You are welcome.", got)
	}
	list, err := shop.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) != 1 {
		t.Fatalf("conversations of the other server = %v, %v, want one", list, err)
	}
	if got := contents(history(t, shop, list.GetConversations()[0].GetConversation().GetId()).GetMessages()); got !=
		"USER What is sugar?\nASSISTANT \nTOOL \nASSISTANT Sugar is 50 cents.\nUSER Thanks\nASSISTANT You are welcome.\n" {
		t.Errorf("history of the other server = %s, want the same conversation", got)
	}
}
