package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// toolConfig returns the configuration of a model that may call a tool.
func toolConfig(kind, url string) map[string]any {
	return map[string]any{
		"kind": kind, "base_url": url, "model": "test",
		"tools": []any{map[string]any{
			"name": "price", "description": "Looks a price up.",
			"parameters": map[string]any{
				"type": "object", "properties": map[string]any{"product": map[string]any{"type": "string"}},
			},
		}},
	}
}

// TestToolLoop lets a model request two calls, twice. The caller sends both results of the first pair and
// the model continues. Of the second pair the caller sends one result and a new message.
func TestToolLoop(t *testing.T) {
	t.Parallel()
	arguments := func(product string) string { return fmt.Sprintf(`{"product":%q}`, product) }
	openai := openaitest.New(t,
		openaitest.Calls(openaitest.Call{ID: "c1", Name: "price", Arguments: arguments("Sugar")}, openaitest.Call{
			ID: "c2", Name: "price", Arguments: arguments("Salt"),
		}),
		openaitest.Text("Sugar ", "is dearer."),
		openaitest.Calls(openaitest.Call{ID: "c3", Name: "price", Arguments: arguments("Flour")}, openaitest.Call{
			ID: "c4", Name: "price", Arguments: arguments("Rice"),
		}),
		openaitest.Text("As you wish."))
	anthropic := anthropictest.New(t,
		anthropictest.Calls(anthropictest.Call{ID: "c1", Name: "price", Arguments: arguments("Sugar")}, anthropictest.Call{
			ID: "c2", Name: "price", Arguments: arguments("Salt"),
		}),
		anthropictest.Text("Sugar ", "is dearer."),
		anthropictest.Calls(anthropictest.Call{ID: "c3", Name: "price", Arguments: arguments("Flour")}, anthropictest.Call{
			ID: "c4", Name: "price", Arguments: arguments("Rice"),
		}),
		anthropictest.Text("As you wish."))
	config := encodeJSON(t, map[string]any{"agents": map[string]any{
		"openai": toolConfig("openai", openai.URL), "anthropic": toolConfig("anthropic", anthropic.URL),
	}})
	s := startServer(t, t.TempDir(), agents(t, config))
	for name, results := range map[string]func() [][]string{
		"openai": func() (all [][]string) {
			for _, r := range openai.Requests() {
				all = append(all, openaiCalls(t, r))
			}
			return all
		},
		"anthropic": func() (all [][]string) {
			for _, r := range anthropic.Requests() {
				all = append(all, anthropicCalls(t, r))
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			ask := func(want parleyv1.TurnState, r *parleyv1.ChatRequest) *parleyv1.TurnFinished {
				t.Helper()
				r.ConversationId, r.Agent = name, name
				finished := chat(t, s, r).finish(t)
				if finished.GetTurn().GetState() != want {
					t.Fatalf("Chat(%v) = %v, want %v", r, finished.GetTurn(), want)
				}
				return finished
			}
			calls := ask(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED, &parleyv1.ChatRequest{Content: "which is dearer?"}).GetMessages()[0].GetToolCalls()
			if len(calls) != 2 || calls[0].GetName() != "price" || calls[1].GetArguments() != arguments("Salt") {
				t.Fatalf("tool calls = %v, want price of Sugar and of Salt", calls)
			}
			if pending := summarize(t, s, name).GetPendingToolCalls(); len(pending) != 2 {
				t.Errorf("pending tool calls = %v, want 2", pending)
			}
			answer := ask(parleyv1.TurnState_TURN_STATE_COMPLETED, &parleyv1.ChatRequest{ToolResults: []*parleyv1.ToolResult{
				{CallId: "c2", Content: "10"}, {CallId: "c1", Content: "50"},
			}})
			if text := answer.GetMessages()[0].GetContent(); text != "Sugar is dearer." {
				t.Errorf("answer after the results = %q, want %q", text, "Sugar is dearer.")
			}
			ask(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED, &parleyv1.ChatRequest{Content: "and of these?"})
			ask(parleyv1.TurnState_TURN_STATE_COMPLETED, &parleyv1.ChatRequest{
				Content: "never mind", ToolResults: []*parleyv1.ToolResult{{CallId: "c3", Content: "there is none", IsError: true}},
			})

			// The calls and results of each request, in its order: each call has a result.
			var none []string
			both := []string{"call c1", "call c2", "c1: 50", "c2: 10"}
			want := [][]string{
				none, both, both, slices.Concat(both, []string{"call c3", "call c4", "c3: error: there is none", "c4: no result"}),
			}
			got := results()
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("calls and results in the provider's requests (-want +got):\n%s", d)
			}
			roles := contents(history(t, s, name).GetMessages())
			if d := cmp.Diff(strings.Join([]string{
				"USER which is dearer?", "ASSISTANT ", "TOOL ", "TOOL ", "ASSISTANT Sugar is dearer.",
				"USER and of these?", "ASSISTANT ", "TOOL ", "USER never mind", "ASSISTANT As you wish.", "",
			}, "\n"), roles); d != "" {
				t.Errorf("history (-want +got):\n%s", d)
			}
		})
	}
}

// openaiCalls returns the calls and results in a request, in their order.
func openaiCalls(t *testing.T, r providertest.Request) (all []string) {
	t.Helper()
	for _, line := range r.Messages() {
		var m struct {
			ToolCalls  []struct{ ID string } `json:"tool_calls"`
			ToolCallID string                `json:"tool_call_id"`
			Content    any                   `json:"content"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		for _, call := range m.ToolCalls {
			all = append(all, "call "+call.ID)
		}
		if m.ToolCallID != "" {
			all = append(all, fmt.Sprintf("%s: %v", m.ToolCallID, m.Content))
		}
	}
	return all
}

// anthropicCalls is openaiCalls for the other provider, in whose requests a field marks errors.
func anthropicCalls(t *testing.T, r providertest.Request) (all []string) {
	t.Helper()
	for _, line := range r.Messages() {
		var m struct {
			Content []struct {
				Type, ID  string
				ToolUseID string `json:"tool_use_id"`
				IsError   bool   `json:"is_error"`
				Content   []struct{ Text string }
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		for _, block := range m.Content {
			switch block.Type {
			case "tool_use":
				all = append(all, "call "+block.ID)
			case "tool_result":
				text := block.Content[0].Text
				if block.IsError {
					text = "error: " + text
				}
				all = append(all, block.ToolUseID+": "+text)
			}
		}
	}
	return all
}
