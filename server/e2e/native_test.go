package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// thinkingCall is an answer of the messages API with a signed thought and a call.
func thinkingCall() providertest.Reply {
	return providertest.Parts(
		anthropictest.Message{}.Start(),
		anthropictest.Event(map[string]any{"type": "content_block_start", "index": 0, "content_block": map[string]any{
			"type": "thinking", "thinking": "", "signature": "",
		}}),
		anthropictest.Event(map[string]any{"type": "content_block_delta", "index": 0, "delta": map[string]any{
			"type": "thinking_delta", "thinking": "The shop knows.",
		}}),
		anthropictest.Event(map[string]any{"type": "content_block_delta", "index": 0, "delta": map[string]any{
			"type": "signature_delta", "signature": "c2lnbmF0dXJl+/==",
		}}),
		anthropictest.Event(map[string]any{"type": "content_block_stop", "index": 0}),
		anthropictest.Event(map[string]any{"type": "content_block_start", "index": 1, "content_block": map[string]any{
			"type": "tool_use", "id": "toolu_1", "name": "price", "input": map[string]any{},
		}}),
		anthropictest.Event(map[string]any{"type": "content_block_delta", "index": 1, "delta": map[string]any{
			"type": "input_json_delta", "partial_json": `{"product": "sugar"}`,
		}}),
		anthropictest.Event(map[string]any{"type": "content_block_stop", "index": 1}),
		anthropictest.Event(map[string]any{
			"type": "message_delta", "delta": map[string]any{"stop_reason": "tool_use"}, "usage": map[string]any{},
		}),
		anthropictest.Event(map[string]any{"type": "message_stop"}),
	)
}

// TestToolLoopKeepsReasoning lets a model of each kind think and request a call. The next requests to its provider, also
// after a restart of the server and a later question, have the reasoning with its signatures as it arrived. A model of
// the other kind gets nothing of it.
func TestToolLoopKeepsReasoning(t *testing.T) {
	t.Parallel()
	openai := openaitest.New(t, openaitest.Events(
		openaitest.Delta(map[string]any{"role": "assistant", "reasoning_content": "The shop "}),
		openaitest.Delta(map[string]any{"reasoning_content": "knows.", "reasoning_details": []any{
			map[string]any{"type": "reasoning.encrypted", "data": "ZW5jcnlwdGVk+/=="},
		}}),
		openaitest.ToolDelta(map[string]any{
			"index": 0, "id": "c1", "type": "function",
			"function": map[string]any{"name": "price", "arguments": `{"product": "sugar"}`},
		}),
		openaitest.Finish("tool_calls"), openaitest.Done,
	))
	openai.Always(openaitest.Text("50 cents."))
	anthropic := anthropictest.New(t, thinkingCall())
	anthropic.Always(anthropictest.Text("50 cents."))
	config := encodeJSON(t, map[string]any{"agents": map[string]any{
		"openai": toolConfig("openai", openai.URL), "anthropic": toolConfig("anthropic", anthropic.URL),
	}})
	dir := t.TempDir()
	s := startServer(t, dir, agents(t, config))
	want := map[string]string{
		"openai": `{"reasoning_content":"The shop knows.",` +
			`"reasoning_details":[{"data":"ZW5jcnlwdGVk+/==","type":"reasoning.encrypted"}],"role":"assistant","tool_calls":` +
			`[{"function":{"arguments":"{\"product\": \"sugar\"}","name":"price"},"id":"c1","type":"function"}]}`,
		"anthropic": `{"content":[{"signature":"c2lnbmF0dXJl+/==","thinking":"The shop knows.","type":"thinking"},` +
			`{"id":"toolu_1","input":{"product":"sugar"},"name":"price","type":"tool_use"}],"role":"assistant"}`,
	}
	providers := map[string]*providertest.Server{"openai": openai, "anthropic": anthropic}
	run := func(s *server, agent string, r *parleyv1.ChatRequest) *parleyv1.TurnFinished {
		t.Helper()
		r.Agent = agent
		finished := chat(t, s, r).finish(t)
		if e := finished.GetTurn().GetError(); e != nil {
			t.Fatalf("Chat(%v) = %v", r, e)
		}
		return finished
	}
	for name := range want {
		calls := run(s, name, &parleyv1.ChatRequest{ConversationId: name, Content: "What is sugar?"}).GetMessages()[0].GetToolCalls()
		run(s, name, &parleyv1.ChatRequest{ConversationId: name, ToolResults: []*parleyv1.ToolResult{
			{CallId: calls[0].GetId(), Content: "50"},
		}})
	}
	s.terminate()
	s.wantStop(t)
	s = startServer(t, dir, agents(t, config))
	for name, message := range want {
		run(s, name, &parleyv1.ChatRequest{ConversationId: name, Content: "Sure?"})
		requests := providers[name].Requests()
		for i, r := range requests[1:] {
			if got := r.Messages()[1]; got != message {
				t.Errorf("%s: answer in request %d = %s, want %s", name, i+2, got, message)
			}
		}
	}
	for name := range want {
		other := map[string]string{"openai": "anthropic", "anthropic": "openai"}[name]
		run(s, other, &parleyv1.ChatRequest{ConversationId: name, Content: "And you?"})
		sent := providers[other].Requests()
		if last := string(sent[len(sent)-1].Body); strings.Contains(last, "The shop") || !strings.Contains(last, "And you?") {
			t.Errorf("%s sends the reasoning of %s: %s", other, name, last)
		}
	}
}

// TestNativeOverHTTP: over HTTP, the value of a native form is base64, and the context has the reasoning if asked.
func TestNativeOverHTTP(t *testing.T) {
	t.Parallel()
	d := startHTTPServer(t, t.TempDir())
	value := []byte("\xff\x00\x12{")
	body := `{"messages":[{"role":"ROLE_USER","content":"q"},{"role":"ROLE_ASSISTANT","content":"a","reasoning":"why",` +
		`"native":{"type":"acme.item","value":"` + base64.StdEncoding.EncodeToString(value) + `"}}]}`
	if code, text := d.do(t, "POST", "/v1/conversations/c/messages", body); code != http.StatusOK {
		t.Fatalf("append = %d: %s", code, text)
	}
	type native struct {
		Type  string
		Value []byte
	}
	for path, reasoning := range map[string]string{
		"/v1/conversations/c/messages?ascending=true":       "why",
		"/v1/conversations/c/context":                       "",
		"/v1/conversations/c/context?includeReasoning=true": "why",
	} {
		var reply struct {
			Messages []struct {
				Native    *native
				Reasoning string
			}
		}
		code, text := d.do(t, "GET", path, "")
		if err := json.Unmarshal([]byte(text), &reply); err != nil || code != http.StatusOK || len(reply.Messages) != 2 {
			t.Fatalf("%s = %d, %v: %s", path, code, err, text)
		}
		if diff := cmp.Diff(&native{"acme.item", value}, reply.Messages[1].Native); diff != "" {
			t.Errorf("%s: native (-want +got):\n%s", path, diff)
		}
		if got := reply.Messages[1].Reasoning; got != reasoning {
			t.Errorf("%s: reasoning = %q, want %q", path, got, reasoning)
		}
	}
	code, text := d.do(t, "POST", "/v1/conversations/c/messages",
		`{"messages":[{"role":"ROLE_USER","native":{"type":"","value":"AA=="}}]}`)
	if code != http.StatusBadRequest || !strings.Contains(text, "messages[0].native.type") {
		t.Errorf("append without a type = %d: %s, want 400 that names messages[0].native.type", code, text)
	}
}
