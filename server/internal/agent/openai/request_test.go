package openai

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

const (
	user      = parleyv1.Role_ROLE_USER
	assistant = parleyv1.Role_ROLE_ASSISTANT
	system    = parleyv1.Role_ROLE_SYSTEM
	tool      = parleyv1.Role_ROLE_TOOL
)

// sentRequest returns the request that the provider receives, and checks that Respond does not
// change its argument.
func sentRequest(t *testing.T, config agent.Model, request *parleyv1.RespondRequest) providertest.Request {
	t.Helper()
	s := openaitest.New(t, openaitest.Text("ok"))
	config.BaseURL = s.URL
	before := proto.CloneOf(request)
	if _, err := answer(t.Context(), newAgent(t, config), request); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(before, request) {
		t.Error("Respond changed the request")
	}
	return s.Requests()[0]
}

func result(id, content string, isError bool) *parleyv1.Message {
	return &parleyv1.Message{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: id, Content: content, IsError: isError}}
}

func TestMessages(t *testing.T) {
	attachments := []*parleyv1.Attachment{
		{Uri: "https://files/a.png", MediaType: "IMAGE/png"},
		{Uri: "https://files/b.pdf", MediaType: "application/pdf", Filename: "b.pdf"},
		{Uri: "https://files/c.jpg", MediaType: "image/jpeg"},
		{Uri: "https://files/d"},
		{Uri: "https://files/e.svg", MediaType: "image/svg+xml"},
		{Uri: "s3://files/f.png", MediaType: "image/png"},
	}
	tests := []struct {
		name    string
		request *parleyv1.RespondRequest
		want    []string
	}{
		{"system prompt first", &parleyv1.RespondRequest{SystemPrompt: "Be brief.", Messages: []*parleyv1.Message{
			{Role: user, Content: "R&D <b> “ü”"},
			{Role: assistant, Content: "Yes.", Agent: "writer"},
			{Role: system, Content: "The shop has closed."},
			{Role: user},
		}}, []string{
			`{"content":"Be brief.","role":"system"}`,
			`{"content":"R&D <b> “ü”","role":"user"}`,
			`{"content":"Yes.","role":"assistant"}`,
			`{"content":"The shop has closed.","role":"system"}`,
			`{"content":"","role":"user"}`,
		}},
		{"only reasoning", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: user, Content: "Hi"}, {Role: assistant, Reasoning: "Hm."}, {Role: user, Content: "Well?"},
		}}, []string{`{"content":"Hi","role":"user"}`, `{"content":"Well?","role":"user"}`}},
		{"cut off", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: assistant, Content: "It is", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
			{Role: assistant, Reasoning: "Hm", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
		}}, []string{`{"content":"It is [cut off]","role":"assistant"}`}},
		{"attachments", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: user, Content: "Look.", Attachments: attachments},
			{Role: user, Attachments: attachments[:1]},
			{Role: user, Attachments: attachments[1:2]},
			{Role: assistant, Content: "Here.", Attachments: attachments[:1]},
			{Role: system, Attachments: attachments[3:4]},
		}}, []string{
			`{"content":[{"text":"Look.\n\n[attachment application/pdf]: https://files/b.pdf\n[attachment]: https://files/d` +
				`\n[attachment image/svg+xml]: https://files/e.svg\n[attachment image/png]: s3://files/f.png","type":"text"},` +
				`{"image_url":{"url":"https://files/a.png"},"type":"image_url"},{"image_url":{"url":"https://files/c.jpg"},"type":"image_url"}],"role":"user"}`,
			`{"content":[{"image_url":{"url":"https://files/a.png"},"type":"image_url"}],"role":"user"}`,
			`{"content":"[attachment application/pdf]: https://files/b.pdf","role":"user"}`,
			`{"content":"Here.\n\n[attachment IMAGE/png]: https://files/a.png","role":"assistant"}`,
			`{"content":"[attachment]: https://files/d","role":"system"}`,
		}},
		{"tool calls", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: user, Content: "Weather?"},
			{Role: assistant, ToolCalls: []*parleyv1.ToolCall{
				{Id: "c1", Name: "weather", Arguments: `{"city":  "Bonn"}`}, {Id: "c2", Name: "clock"}, {
					Id: "c3", Name: "clock", Arguments: `{"zo`,
				},
			}},
			result("c2", "stopped", true),
			result("c1", "sunny", false),
			{
				Role: assistant, Content: "One moment.",
				ToolCalls: []*parleyv1.ToolCall{{Id: "c4", Name: "clock", Arguments: "{}"}},
			},
			{Role: user, Content: "Never mind."},
		}}, []string{
			`{"content":"Weather?","role":"user"}`,
			`{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"city\":  \"Bonn\"}","name":"weather"},"id":"c1","type":"function"},` +
				`{"function":{"arguments":"{}","name":"clock"},"id":"c2","type":"function"},` +
				`{"function":{"arguments":"{\"not_json\":\"{\\\"zo\"}","name":"clock"},"id":"c3","type":"function"}]}`,
			`{"content":"sunny","role":"tool","tool_call_id":"c1"}`,
			`{"content":"error: stopped","role":"tool","tool_call_id":"c2"}`,
			`{"content":"no result","role":"tool","tool_call_id":"c3"}`,
			`{"content":"One moment.","role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"clock"},"id":"c4","type":"function"}]}`,
			`{"content":"no result","role":"tool","tool_call_id":"c4"}`,
			`{"content":"Never mind.","role":"user"}`,
		}},
		{"result with other content", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: assistant, ToolCalls: []*parleyv1.ToolCall{{Id: "c1", Name: "draw", Arguments: "{}"}}},
			{
				Role: tool, Content: "See the picture.", ToolResult: &parleyv1.ToolResult{CallId: "c1", Content: "done"},
				Attachments: attachments[:1],
			},
		}}, []string{
			`{"role":"assistant","tool_calls":[{"function":{"arguments":"{}","name":"draw"},"id":"c1","type":"function"}]}`,
			`{"content":"done\n\nSee the picture.\n\n[attachment IMAGE/png]: https://files/a.png","role":"tool","tool_call_id":"c1"}`,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, sentRequest(t, agent.Model{}, test.request).Messages()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestThreeTurns: structured data of earlier turns is in the request, so that the model can resolve
// "the second one".
func TestThreeTurns(t *testing.T) {
	products := func(prices ...any) []*parleyv1.StructuredData {
		var list []any
		for i, name := range []string{"Flour", "Sugar", "Salt"} {
			list = append(list, map[string]any{"name": name, "cents": prices[i]})
		}
		value, err := structpb.NewValue(list)
		if err != nil {
			t.Fatal(err)
		}
		return []*parleyv1.StructuredData{{Type: "product_list", Value: value}}
	}
	s := openaitest.New(t, openaitest.Text("Sugar", " is sold out."))
	temperature := 0.0
	a := newAgent(t, agent.Model{
		BaseURL: s.URL, Key: testKey, Model: "shop-model", MaxOutputTokens: 500, Temperature: &temperature,
	})
	pieces, err := answer(t.Context(), a, &parleyv1.RespondRequest{SystemPrompt: "You keep a shop.", Messages: []*parleyv1.Message{
		{Role: user, Content: "Create three products: flour, sugar, salt"},
		{Role: assistant, Content: "Created.", StructuredData: products(nil, nil, nil)},
		{Role: user, Content: "Sugar costs 50 cents"},
		{Role: assistant, Content: "Noted.", StructuredData: products(nil, 50, nil)},
		{Role: user, Content: "The second one is sold out"},
	}})
	if texts(pieces) != "Sugar is sold out." || err != nil {
		t.Errorf("Respond = %v, %v, want another text", pieces, err)
	}
	data := func(content, price string) string {
		return content + "\n\n```json type=product_list\n" +
			`[{"cents":null,"name":"Flour"},{"cents":` + price + `,"name":"Sugar"},{"cents":null,"name":"Salt"}]` + "\n```"
	}
	want := map[string]any{
		"model": "shop-model", "stream": true, "stream_options": map[string]any{"include_usage": true},
		"max_tokens": 500.0, "temperature": 0.0,
		"messages": []any{
			map[string]any{"role": "system", "content": "You keep a shop."},
			map[string]any{"role": "user", "content": "Create three products: flour, sugar, salt"},
			map[string]any{"role": "assistant", "content": data("Created.", "null")},
			map[string]any{"role": "user", "content": "Sugar costs 50 cents"},
			map[string]any{"role": "assistant", "content": data("Noted.", "50")},
			map[string]any{"role": "user", "content": "The second one is sold out"},
		},
	}
	if diff := cmp.Diff(want, s.Requests()[0].JSON()); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestLongConversationInOrder(t *testing.T) {
	request := new(parleyv1.RespondRequest)
	var want []string
	for i := range 150 {
		role, name := user, "user"
		if i%2 == 1 {
			role, name = assistant, "assistant"
		}
		content := fmt.Sprint("message ", i, strings.Repeat(" long", 100))
		request.Messages = append(request.Messages, &parleyv1.Message{Role: role, Content: content})
		want = append(want, fmt.Sprintf(`{"content":%q,"role":%q}`, content, name))
	}
	if diff := cmp.Diff(want, sentRequest(t, agent.Model{}, request).Messages()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTools(t *testing.T) {
	parameters := map[string]any{
		"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}, "required": []any{"city"},
	}
	got := sentRequest(t, agent.Model{Tools: []agent.Tool{
		{Name: "weather", Description: "Tells the weather.", Parameters: parameters}, {Name: "clock"},
	}}, newRequest("Hi")).JSON()
	want := []any{
		map[string]any{
			"type":     "function",
			"function": map[string]any{"name": "weather", "description": "Tells the weather.", "parameters": parameters},
		},
		map[string]any{
			"type": "function",
			"function": map[string]any{
				"name": "clock", "parameters": map[string]any{"type": "object", "properties": map[string]any{}},
			},
		},
	}
	if diff := cmp.Diff(want, got["tools"]); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}

// TestToolLoop: the model continues after the results of two calls.
func TestToolLoop(t *testing.T) {
	s := openaitest.New(t,
		openaitest.Calls(openaitest.Call{ID: "c1", Name: "weather", Arguments: `{"city": "Zürich"}`}, openaitest.Call{
			ID: "c2", Name: "clock", Arguments: "{}",
		}),
		openaitest.Text("Sunny, and noon."))
	a := newAgent(t, agent.Model{BaseURL: s.URL, Tools: []agent.Tool{{Name: "weather"}, {Name: "clock"}}})
	request := newRequest("Weather and time?")
	pieces, err := answer(t.Context(), a, request)
	if err != nil {
		t.Fatal(err)
	}
	message := &parleyv1.Message{Role: assistant}
	for _, piece := range pieces {
		if call := piece.GetToolCall(); call != nil {
			message.ToolCalls = append(message.ToolCalls, call)
		}
	}
	request.Messages = append(request.Messages, message, result("c2", "noon", false), result("c1", "sunny", false))
	if pieces, err = answer(t.Context(), a, request); texts(pieces) != "Sunny, and noon." || err != nil {
		t.Errorf("Respond = %v, %v, want another text", pieces, err)
	}
	want := []string{
		`{"content":"Weather and time?","role":"user"}`,
		`{"role":"assistant","tool_calls":[{"function":{"arguments":"{\"city\": \"Zürich\"}","name":"weather"},"id":"c1","type":"function"},` +
			`{"function":{"arguments":"{}","name":"clock"},"id":"c2","type":"function"}]}`,
		`{"content":"sunny","role":"tool","tool_call_id":"c1"}`,
		`{"content":"noon","role":"tool","tool_call_id":"c2"}`,
	}
	if diff := cmp.Diff(want, s.Requests()[1].Messages()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMaxTokensByProvider: OpenAI uses a different parameter than other servers.
func TestMaxTokensByProvider(t *testing.T) {
	for address, own := range map[string]bool{
		"": true, "https://eu.api.openai.com/v1": true, "https://shop.openai.azure.com/openai/v1": true,
		"http://127.0.0.1:11434/v1": false, "https://notopenai.com": false,
	} {
		body := newAgent(t, agent.Model{BaseURL: address, MaxOutputTokens: 7}).body(nil)
		if got := body.MaxCompletionTokens == 7 && body.MaxTokens == 0; got != own {
			t.Errorf("%s: max_completion_tokens = %v, max_tokens = %v, want only one", address, body.MaxCompletionTokens,
				body.MaxTokens)
		}
		if got := body.MaxTokens == 7 && body.MaxCompletionTokens == 0; got == own {
			t.Errorf("%s: max_completion_tokens = %v, max_tokens = %v, want only one", address, body.MaxCompletionTokens,
				body.MaxTokens)
		}
	}
}
