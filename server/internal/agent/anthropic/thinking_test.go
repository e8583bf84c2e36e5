package anthropic_test

import (
	"encoding/json"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic"
)

// TestThinking: a request asks for thinking if the configuration does, and has no temperature then, which the API would
// refuse. It does not ask in a loop of calls whose answer has no thinking, which the API would refuse as well.
func TestThinking(t *testing.T) {
	t.Parallel()
	half := 0.5
	lookUp := []*parleyv1.ToolCall{{Id: "t1", Name: "price", Arguments: "{}"}}
	result := &parleyv1.Message{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "t1", Content: "50"}}
	thought := &parleyv1.Message{Role: assistant, ToolCalls: lookUp, Native: &parleyv1.Native{
		Type: "anthropic.content", Value: []byte(`[{"type":"thinking","thinking":"Hm","signature":"s"},` +
			`{"type":"tool_use","id":"t1","name":"price","input":{}}]`),
	}}
	for name, test := range map[string]struct {
		tokens   int
		messages []*parleyv1.Message // after the first one
		want     string              // the field thinking; without it, there is a temperature
	}{
		"off":             {0, nil, ""},
		"on":              {1024, nil, `{"type":"enabled","budget_tokens":1024}`},
		"after an answer": {2048, []*parleyv1.Message{{Role: assistant, Content: "Hello."}, {Role: user, Content: "?"}}, `{"type":"enabled","budget_tokens":2048}`},
		"in a loop":       {2048, []*parleyv1.Message{thought, result}, `{"type":"enabled","budget_tokens":2048}`},
		"in a loop of an answer without thinking": {
			2048, []*parleyv1.Message{{Role: assistant, ToolCalls: lookUp}, result}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := sentRequest(t, agent.Model{ThinkingTokens: test.tokens, Temperature: &half}, &parleyv1.RespondRequest{
				Messages: append([]*parleyv1.Message{{Role: user, Content: "Hi."}}, test.messages...),
			})
			var body struct {
				Thinking    json.RawMessage
				Temperature *float64
			}
			if err := json.Unmarshal(sent.Body, &body); err != nil {
				t.Fatal(err)
			}
			if got := string(body.Thinking); got != test.want || (body.Temperature == nil) != (test.want != "") {
				t.Errorf("thinking = %s, temperature set = %t, want %s", got, body.Temperature != nil, test.want)
			}
		})
	}
}

// TestThinkingTokens: the budget is less than the limit of the answer, and not too small for the API.
func TestThinkingTokens(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		thinking, most int
		want           string
	}{
		{0, 0, ""},
		{1024, 0, ""},
		{8191, 0, ""},
		{8192, 0, "thinking_tokens: 8192 is not less than the limit of an answer, 8192; raise max_output_tokens"},
		{8192, 8193, ""},
		{1024, 1024, "thinking_tokens: 1024 is not less"},
		{1023, 0, "thinking_tokens: 1023 is less than 1024"},
		{-1, 0, "thinking_tokens: -1 is less than 1024"},
	} {
		_, err := anthropic.New(agent.Model{
			Model: "m", Key: "k", ThinkingTokens: test.thinking, MaxOutputTokens: test.most,
		})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("New with %d of %d tokens = %v, want %q", test.thinking, test.most, err, test.want)
		}
	}
}
