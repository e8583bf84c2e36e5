package anthropic_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// sentRequest returns the request that the provider receives, and checks that Respond does not
// change its argument.
func sentRequest(t *testing.T, config agent.Model, request *parleyv1.RespondRequest) providertest.Request {
	t.Helper()
	fake := anthropictest.New(t, anthropictest.Text("Hello."))
	config.BaseURL = fake.URL
	before := proto.CloneOf(request)
	if _, err := answer(t, newAgent(t, config), request); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(before, request) {
		t.Errorf("Respond changed the request to %v", request)
	}
	return fake.Requests()[0]
}

// checkJSON compares two JSON values, ignoring the order of keys.
func checkJSON(t *testing.T, want string, sent []byte) {
	t.Helper()
	var w, s any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("want is not JSON: %v", err)
	}
	if err := json.Unmarshal(sent, &s); err != nil {
		t.Fatalf("sent body is not JSON: %v", err)
	}
	if diff := cmp.Diff(w, s); diff != "" {
		t.Errorf("body (-want +sent):\n%s", diff)
	}
}

func data(t *testing.T, kind, value string) *parleyv1.StructuredData {
	t.Helper()
	v := new(structpb.Value)
	if err := protojson.Unmarshal([]byte(value), v); err != nil {
		t.Fatal(err)
	}
	return &parleyv1.StructuredData{Type: kind, Value: v}
}

// TestConversation: structured data of earlier turns is in the request, so that the model can
// resolve "the second one".
func TestConversation(t *testing.T) {
	t.Parallel()
	products := data(t, "product_list", `{"products":[{"name":"Flour"},{"name":"Sugar"},{"name":"Salt"}]}`)
	sugar := data(t, "product", `{"name":"Sugar","price_cents":50}`)
	sent := sentRequest(t, agent.Model{Model: "claude-shop", Key: "sk-test-key", Temperature: new(0.25)}, &parleyv1.RespondRequest{
		SystemPrompt: "You keep a shop's <list>.",
		Messages: []*parleyv1.Message{
			{Role: user, Content: "Create three products: flour, sugar, salt"},
			{Role: assistant, Content: "Done.", StructuredData: []*parleyv1.StructuredData{products}},
			{Role: user, Content: "Sugar costs 50 cents"},
			{Role: assistant, Content: "Noted.", StructuredData: []*parleyv1.StructuredData{sugar}},
			{Role: user, Content: "the second one is sold out"},
		},
	})
	if sent.Method != http.MethodPost || sent.URI != "/v1/messages" || sent.Header.Get("X-Api-Key") != "sk-test-key" ||
		sent.Header.Get("Anthropic-Version") != "2023-06-01" {
		t.Errorf("request = %s %s with header %v", sent.Method, sent.URI, sent.Header)
	}
	checkJSON(t, `{
		"model": "claude-shop", "max_tokens": 8192, "temperature": 0.25, "stream": true,
		"system": [{"type": "text", "text": "You keep a shop's <list>."}],
		"messages": [
			{"role": "user", "content": [{"type": "text", "text": "Create three products: flour, sugar, salt"}]},
			{"role": "assistant", "content": [{"type": "text", "text":
				"Done.\n\n`+"```"+`json type=product_list\n{\"products\":[{\"name\":\"Flour\"},{\"name\":\"Sugar\"},{\"name\":\"Salt\"}]}\n`+"```"+`"}]},
			{"role": "user", "content": [{"type": "text", "text": "Sugar costs 50 cents"}]},
			{"role": "assistant", "content": [{"type": "text", "text":
				"Noted.\n\n`+"```"+`json type=product\n{\"name\":\"Sugar\",\"price_cents\":50}\n`+"```"+`"}]},
			{"role": "user", "content": [{"type": "text", "text": "the second one is sold out"}]}
		]
	}`, sent.Body)
}

func TestMessages(t *testing.T) {
	t.Parallel()
	result := func(id, content string, isError bool) *parleyv1.Message {
		return &parleyv1.Message{
			Role: tool, ToolResult: &parleyv1.ToolResult{CallId: id, Name: "list", Content: content, IsError: isError},
		}
	}
	calling := func(calls ...*parleyv1.ToolCall) *parleyv1.Message {
		return &parleyv1.Message{Role: assistant, ToolCalls: calls}
	}
	attached := func(role parleyv1.Role, content string, attachments ...*parleyv1.Attachment) *parleyv1.Message {
		return &parleyv1.Message{Role: role, Content: content, Attachments: attachments}
	}
	png := &parleyv1.Attachment{Uri: "https://files.example/a.png", MediaType: "IMAGE/PNG; q=1", Filename: "a.png"}
	pdf := &parleyv1.Attachment{Uri: "https://files.example/a.pdf", MediaType: "application/pdf"}
	hi := &parleyv1.Message{Role: user, Content: "Hi."}
	const asksHi = `{"content":[{"text":"Hi.","type":"text"}],"role":"user"}`

	for name, test := range map[string]struct {
		messages []*parleyv1.Message
		want     []string
	}{
		"adjacent messages of one role": {
			[]*parleyv1.Message{
				hi, {Role: user, Content: "Anyone?"}, {Role: assistant, Content: "Yes."}, {Role: assistant, Content: "Here."}, hi,
			},
			[]string{
				`{"content":[{"text":"Hi.","type":"text"},{"text":"Anyone?","type":"text"}],"role":"user"}`,
				`{"content":[{"text":"Yes.","type":"text"},{"text":"Here.","type":"text"}],"role":"assistant"}`, asksHi,
			},
		},
		"the assistant first": {
			[]*parleyv1.Message{{Role: assistant, Content: "Welcome!"}, hi},
			[]string{
				`{"content":[{"text":"[start of the conversation]","type":"text"}],"role":"user"}`,
				`{"content":[{"text":"Welcome!","type":"text"}],"role":"assistant"}`, asksHi,
			},
		},
		"system message": {
			[]*parleyv1.Message{
				hi,
				{Role: assistant, Content: "Hello."},
				{Role: system, Content: "The shop is closed."},
				{Role: system, Content: " "},
				hi,
			},
			[]string{
				asksHi, `{"content":[{"text":"Hello.","type":"text"}],"role":"assistant"}`,
				`{"content":[{"text":"<system_message>\nThe shop is closed.\n</system_message>","type":"text"},{"text":"Hi.","type":"text"}],"role":"user"}`,
			},
		},
		"empty messages": {
			[]*parleyv1.Message{{Role: user}, {Role: assistant, Content: "\n"}, {Role: user, Content: " \t"}},
			[]string{
				`{"content":[{"text":"[empty message]","type":"text"},{"text":"[empty message]","type":"text"}],"role":"user"}`,
			},
		},
		"an answer cut off": {
			[]*parleyv1.Message{
				hi,
				{Role: assistant, Content: "Hel", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
				hi,
				{Role: assistant, Reasoning: "Hm", Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE},
			},
			[]string{asksHi, `{"content":[{"text":"Hel [cut off]","type":"text"}],"role":"assistant"}`, asksHi},
		},
		"attachments of the user": {
			[]*parleyv1.Message{
				attached(user, "Look:", png, pdf, &parleyv1.Attachment{
					Uri: "https://files.example/a.svg", MediaType: "image/svg+xml", Filename: "a.svg",
				},
					&parleyv1.Attachment{Uri: "s3://files/a.png", MediaType: "image/png"}, &parleyv1.Attachment{Uri: "file:a"}),
				{Role: assistant, Content: "I see."},
				attached(user, "", png),
			},
			[]string{
				`{"content":[{"text":"Look:","type":"text"},{"source":{"type":"url","url":"https://files.example/a.png"},"type":"image"},` +
					`{"source":{"type":"url","url":"https://files.example/a.pdf"},"type":"document"},` +
					`{"text":"[attachment image/svg+xml a.svg]: https://files.example/a.svg","type":"text"},` +
					`{"text":"[attachment image/png]: s3://files/a.png","type":"text"},{"text":"[attachment]: file:a","type":"text"}],"role":"user"}`,
				`{"content":[{"text":"I see.","type":"text"}],"role":"assistant"}`,
				`{"content":[{"source":{"type":"url","url":"https://files.example/a.png"},"type":"image"}],"role":"user"}`,
			},
		},
		"attachments of the assistant": {
			[]*parleyv1.Message{hi, attached(assistant, "", png), hi},
			[]string{
				asksHi,
				`{"content":[{"text":"[attachment IMAGE/PNG; q=1 a.png]: https://files.example/a.png","type":"text"}],"role":"assistant"}`,
				asksHi,
			},
		},
		"results first, with other content": {
			[]*parleyv1.Message{
				hi, calling(&parleyv1.ToolCall{Id: "a", Name: "list", Arguments: `{"n":1}`},
					&parleyv1.ToolCall{Id: "b", Name: "list"}, &parleyv1.ToolCall{Id: "c", Name: "list"}),
				result("c", "", false), result("b", "", true),
				{
					Role: tool, Content: "See:", Attachments: []*parleyv1.Attachment{png},
					ToolResult: &parleyv1.ToolResult{CallId: "a", Content: "one"},
				},
				{Role: user, Content: "Well?"},
			},
			[]string{
				asksHi,
				`{"content":[{"id":"a","input":{"n":1},"name":"list","type":"tool_use"},{"id":"b","input":{},"name":"list","type":"tool_use"},` +
					`{"id":"c","input":{},"name":"list","type":"tool_use"}],"role":"assistant"}`,
				`{"content":[{"content":[{"text":"one","type":"text"},{"text":"See:","type":"text"},{"source":{"type":"url","url":"https://files.example/a.png"},"type":"image"}],"tool_use_id":"a","type":"tool_result"},` +
					`{"content":[{"text":"failed","type":"text"}],"is_error":true,"tool_use_id":"b","type":"tool_result"},` +
					`{"tool_use_id":"c","type":"tool_result"},{"text":"Well?","type":"text"}],"role":"user"}`,
			},
		},
		"failure with an attachment": {
			[]*parleyv1.Message{
				hi, calling(&parleyv1.ToolCall{Id: "a", Name: "list"}),
				{
					Role: tool, Attachments: []*parleyv1.Attachment{pdf}, ToolResult: &parleyv1.ToolResult{CallId: "a", IsError: true},
				},
			},
			[]string{
				asksHi, `{"content":[{"id":"a","input":{},"name":"list","type":"tool_use"}],"role":"assistant"}`,
				`{"content":[{"content":[{"text":"[attachment application/pdf]: https://files.example/a.pdf","type":"text"}],"is_error":true,"tool_use_id":"a","type":"tool_result"}],"role":"user"}`,
			},
		},
		"a call without a result": {
			[]*parleyv1.Message{hi, calling(&parleyv1.ToolCall{Id: "a", Name: "list"}), hi},
			[]string{
				asksHi, `{"content":[{"id":"a","input":{},"name":"list","type":"tool_use"}],"role":"assistant"}`,
				`{"content":[{"content":[{"text":"no result","type":"text"}],"tool_use_id":"a","type":"tool_result"},{"text":"Hi.","type":"text"}],"role":"user"}`,
			},
		},
		"calls from elsewhere": {
			[]*parleyv1.Message{
				hi, calling(&parleyv1.ToolCall{Id: "shop:1", Name: "shop.list/" + strings.Repeat("é", 60), Arguments: `["a"]`},
					&parleyv1.ToolCall{Id: "shop:2", Name: "list", Arguments: `{"a": tru`}),
				result("shop:2", "2", false), result("shop:1", "1", false),
			},
			[]string{
				asksHi,
				`{"content":[{"id":"call_3309cf224132de3c68d12fedce1486aa","input":{"invalid_arguments":"[\"a\"]"},"name":"shop_list_` + strings.Repeat("_", 54) + `","type":"tool_use"},` +
					`{"id":"call_1d288bd8ae673d74f41cf82b6f0f81bf","input":{"invalid_arguments":"{\"a\": tru"},"name":"list","type":"tool_use"}],"role":"assistant"}`,
				`{"content":[{"content":[{"text":"1","type":"text"}],"tool_use_id":"call_3309cf224132de3c68d12fedce1486aa","type":"tool_result"},` +
					`{"content":[{"text":"2","type":"text"}],"tool_use_id":"call_1d288bd8ae673d74f41cf82b6f0f81bf","type":"tool_result"}],"role":"user"}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := sentRequest(t, agent.Model{}, &parleyv1.RespondRequest{Messages: test.messages})
			if diff := cmp.Diff(test.want, sent.Messages()); diff != "" {
				t.Errorf("messages (-want +sent):\n%s", diff)
			}
			if sent.JSON()["system"] != nil {
				t.Errorf("body has a system prompt: %s", sent.Body)
			}
		})
	}
}

// TestToolLoop: the model continues after the results of two calls.
func TestToolLoop(t *testing.T) {
	t.Parallel()
	fake := anthropictest.New(t,
		anthropictest.Answer(anthropictest.Message{Words: []string{"Let me see."}, Calls: []anthropictest.Call{
			{ID: "toolu_1", Name: "price", Arguments: `{"product":"Sugar"}`}, {ID: "toolu_2", Name: "stock"},
		}}),
		anthropictest.Text("50 cents, none left."))
	a := newAgent(t, agent.Model{BaseURL: fake.URL, MaxOutputTokens: 100, Tools: []agent.Tool{
		{Name: "price", Description: "Price of a product", Parameters: map[string]any{
			"type": "object", "required": []any{"product"}, "additionalProperties": false,
			"properties": map[string]any{"product": map[string]any{"type": "string"}},
		}},
		{Name: "stock"},
	}})
	history := newRequest("Is there sugar?").GetMessages()
	reply := &parleyv1.Message{Role: assistant}
	pieces, err := answer(t, a, &parleyv1.RespondRequest{Messages: history})
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range pieces {
		reply.Content += piece.GetText()
		if call := piece.GetToolCall(); call != nil {
			reply.ToolCalls = append(reply.ToolCalls, call)
		}
	}
	history = append(history, reply)
	for _, call := range reply.GetToolCalls() {
		history = append(history, &parleyv1.Message{Role: tool, ToolResult: &parleyv1.ToolResult{
			CallId: call.GetId(), Name: call.GetName(), Content: "result of " + call.GetName(),
			IsError: call.GetName() == "stock",
		}})
	}
	pieces, err = answer(t, a, &parleyv1.RespondRequest{Messages: history})
	if err != nil || pieces[0].GetText() != "50 cents, none left." {
		t.Fatalf("Respond = %v, %v, want the second answer", pieces, err)
	}
	checkJSON(t, `{
		"model": "claude-test", "max_tokens": 100, "stream": true,
		"tools": [
			{"name": "price", "description": "Price of a product", "input_schema": {"type": "object", "required": ["product"],
				"additionalProperties": false, "properties": {"product": {"type": "string"}}}},
			{"name": "stock", "input_schema": {"type": "object", "properties": {}}}
		],
		"messages": [
			{"role": "user", "content": [{"type": "text", "text": "Is there sugar?"}]},
			{"role": "assistant", "content": [
				{"type": "text", "text": "Let me see."},
				{"type": "tool_use", "id": "toolu_1", "name": "price", "input": {"product": "Sugar"}},
				{"type": "tool_use", "id": "toolu_2", "name": "stock", "input": {}}]},
			{"role": "user", "content": [
				{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "result of price"}]},
				{"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "result of stock"}], "is_error": true}]}
		]
	}`, fake.Requests()[1].Body)
}

// TestArguments: arguments are sent as the model wrote them, including numbers that a float cannot
// represent.
func TestArguments(t *testing.T) {
	t.Parallel()
	sent := sentRequest(t, agent.Model{}, &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
		{Role: user, Content: "Hi."},
		{
			Role:      assistant,
			ToolCalls: []*parleyv1.ToolCall{{Id: "a", Name: "list", Arguments: ` {"n":12345678901234567890,"b":1,"a":2} `}},
		},
	}})
	if !strings.Contains(string(sent.Body), `{"n":12345678901234567890,"b":1,"a":2}`) {
		t.Errorf("body = %s, want the original arguments", sent.Body)
	}
}

func TestLongConversation(t *testing.T) {
	t.Parallel()
	var messages []*parleyv1.Message
	var want []string
	for i := range 151 {
		role, name := user, "user"
		if i%2 == 1 {
			role, name = assistant, "assistant"
		}
		messages = append(messages, &parleyv1.Message{Role: role, Content: fmt.Sprint("message ", i)})
		want = append(want, fmt.Sprintf(`{"content":[{"text":"message %d","type":"text"}],"role":%q}`, i, name))
	}
	sent := sentRequest(t, agent.Model{}, &parleyv1.RespondRequest{Messages: messages})
	if diff := cmp.Diff(want, sent.Messages()); diff != "" {
		t.Errorf("messages (-want +sent):\n%s", diff)
	}
}

// TestCacheMarks checks the positions of the marks, and that the body is identical each time,
// because the cache requires equal beginnings.
func TestCacheMarks(t *testing.T) {
	t.Parallel()
	const mark = `"cache_control":{"type":"ephemeral"}`
	tools := []agent.Tool{{Name: "list"}, {Name: "price", Parameters: map[string]any{
		"type": "object", "a": 1, "b": 2, "c": 3, "d": 4, "e": 5,
		"properties": map[string]any{"f": true, "g": true, "h": true},
	}}}
	history := []*parleyv1.Message{
		{Role: user, Content: "1"},
		{Role: assistant, Content: "2"},
		{Role: user, Content: "3"},
		{Role: assistant, Content: "4", ToolCalls: []*parleyv1.ToolCall{{Id: "a", Name: "list"}}},
		{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "a", Content: "5"}},
		{Role: assistant, Content: "6"},
		{Role: user, Content: "7"},
		{Role: user, Content: "8"},
	}
	for name, test := range map[string]struct {
		prompt string
		tools  []agent.Tool
		stable bool
		marked []string // The text before each mark.
	}{
		"stable": {
			"Be brief.", tools, true,
			[]string{`"system":[{"type":"text","text":"Be brief.",`, `"tool_use_id":"a",`, `"text":"8",`},
		},
		"no system prompt":         {" ", tools, true, []string{`"name":"price",`, `"tool_use_id":"a",`, `"text":"8",`}},
		"nothing but the messages": {"", nil, true, []string{`"tool_use_id":"a",`, `"text":"8",`}},
		"not stable":               {"Be brief.", tools, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first string
			for range 5 {
				sent := sentRequest(t, agent.Model{Tools: test.tools}, &parleyv1.RespondRequest{
					SystemPrompt: test.prompt, CacheStable: test.stable, Messages: history,
				})
				body := string(sent.Body)
				if first == "" {
					first = body
				}
				if body != first {
					t.Fatalf("body =\n%s\nthen\n%s", first, body)
				}
			}
			if n := strings.Count(first, mark); n != len(test.marked) {
				t.Errorf("body has %d marks, want %d: %s", n, len(test.marked), first)
			}
			for _, before := range test.marked {
				if at := strings.Index(first, before); at < 0 ||
					!strings.Contains(first[at:min(len(first), at+len(before)+200)], mark) {
					t.Errorf("no mark after %s in %s", before, first)
				}
			}
		})
	}
}

// TestAddress: the request goes to the right path for all forms of base URLs.
func TestAddress(t *testing.T) {
	t.Parallel()
	for suffix, want := range map[string]string{
		"": "/v1/messages", "/": "/v1/messages", "/v1": "/v1/messages", "/v1/": "/v1/messages",
		"/gateway/anthropic": "/gateway/anthropic/v1/messages", "/a%2Fb/v1": "/a%2Fb/v1/messages", "/v10": "/v10/v1/messages",
		"?api-version=1&x=a%20b": "/v1/messages?api-version=1&x=a+b",
	} {
		fake := anthropictest.New(t, anthropictest.Text("Hello."))
		if _, err := answer(t, newAgent(t, agent.Model{BaseURL: fake.URL + suffix}), newRequest("Hi.")); err != nil {
			t.Fatal(err)
		}
		if got := fake.Requests()[0].URI; got != want {
			t.Errorf("base URL …%s: path = %s, want %s", suffix, got, want)
		}
	}
}
