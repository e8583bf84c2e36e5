package command

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	user      = parleyv1.Role_ROLE_USER
	assistant = parleyv1.Role_ROLE_ASSISTANT
	system    = parleyv1.Role_ROLE_SYSTEM
	tool      = parleyv1.Role_ROLE_TOOL
	cutOff    = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
)

func TestInput(t *testing.T) {
	value, err := structpb.NewValue(map[string]any{
		"name": "R&D <b>", "price": 0.5, "n": 50, "tags": []any{"a", nil, true},
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		request *parleyv1.RespondRequest
		want    []string // The blocks.
	}{
		{"nothing", &parleyv1.RespondRequest{}, []string{""}},
		{"no native form and no reasoning", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{
			Role: assistant, Content: "Hi", Reasoning: "why", Native: &parleyv1.Native{Type: "form", Value: []byte("value")},
		}}}, []string{"[ASSISTANT]: Hi"}},
		{"new message alone", &parleyv1.RespondRequest{
			Messages: []*parleyv1.Message{{Role: user, Content: "Add a product"}},
		}, []string{"[USER]: Add a product"}},
		{"system prompt and new message", &parleyv1.RespondRequest{
			SystemPrompt: "Be brief.\nBe kind.",
			Messages:     []*parleyv1.Message{{Role: user, Content: "Hi"}},
		}, []string{"[SYSTEM]: Be brief.\nBe kind.", "[USER]: Hi"}},
		{"history", &parleyv1.RespondRequest{
			SystemPrompt: "Be brief.",
			Messages: []*parleyv1.Message{
				{Role: user, Content: "Add a product"},
				{Role: assistant, Content: "Which one?"},
				{Role: system, Content: "The shop has closed."},
				{Role: user, Content: "Sugar for 50 cents\n"},
			},
		}, []string{"[SYSTEM]: Be brief.", "[USER]: Add a product", "[ASSISTANT]: Which one?", "[SYSTEM]: The shop has " +
			"closed.", "[USER]: Sugar for 50 cents"}},
		{"tool calls and results", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: user, Content: "Weather?"},
			{Role: assistant, ToolCalls: []*parleyv1.ToolCall{
				{Id: "c1", Name: "weather", Arguments: `{"city": "Bonn"}`},
				{Id: "c2", Name: "clock"},
			}},
			{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "c1", Content: "sunny"}},
			{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "c2", Name: "watch", Content: "stopped", IsError: true}},
			{Role: tool, ToolResult: &parleyv1.ToolResult{CallId: "c3", Content: "of an unknown call"}},
			{
				Role: assistant, Content: "Let me see.",
				ToolCalls: []*parleyv1.ToolCall{{Id: "c4", Name: "weather", Arguments: "{}"}},
			},
		}}, []string{
			"[USER]: Weather?",
			`[TOOL_CALL weather c1]: {"city": "Bonn"}`,
			"[TOOL_CALL clock c2]:",
			"[TOOL_RESULT weather c1]: sunny",
			"[TOOL_RESULT watch c2]: error: stopped",
			"[TOOL_RESULT c3]: of an unknown call",
			"[ASSISTANT]: Let me see.",
			"[TOOL_CALL weather c4]: {}",
		}},
		{"other content of messages", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{Role: assistant, Content: "Here.", StructuredData: []*parleyv1.StructuredData{
				{Type: "list", Value: value},
				{Type: "nothing", Value: structpb.NewNullValue()},
				{Type: "odd", Value: structpb.NewNumberValue(math.Inf(1))},
			}},
			{
				Role: user, Attachments: []*parleyv1.Attachment{{Uri: "file:///a.png", MediaType: "image/png"}, {Uri: "file:///b"}},
			},
		}}, []string{
			"[ASSISTANT]: Here.",
			`[STRUCTURED_DATA list]: {"n":50,"name":"R&D <b>","price":0.5,"tags":["a",null,true]}`,
			"[STRUCTURED_DATA nothing]: null",
			`[STRUCTURED_DATA odd]: "Infinity"`,
			"[USER]:",
			"[ATTACHMENT image/png]: file:///a.png",
			"[ATTACHMENT]: file:///b",
		}},
		{"cut off", &parleyv1.RespondRequest{Messages: []*parleyv1.Message{
			{
				Role: assistant, Content: "The answer is", Status: cutOff,
				StructuredData: []*parleyv1.StructuredData{{Type: "n", Value: structpb.NewNumberValue(1)}},
			},
			{Role: assistant, Status: cutOff, Reasoning: "Hm"},
			{Role: assistant, Status: cutOff, ToolCalls: []*parleyv1.ToolCall{{Id: "c", Name: "clock"}}},
			{Role: tool, Status: cutOff, ToolResult: &parleyv1.ToolResult{CallId: "c", Content: "12:"}},
		}}, []string{
			"[ASSISTANT]: The answer is [cut off]", "[STRUCTURED_DATA n]: 1",
			"[ASSISTANT]: [cut off]", "[TOOL_CALL clock c]:",
			"[TOOL_RESULT clock c]: 12: [cut off]",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(strings.Join(test.want, "\n\n")+"\n", input(test.request)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestInputIsComplete(t *testing.T) {
	request := &parleyv1.RespondRequest{}
	for range 300 {
		request.Messages = append(request.Messages, &parleyv1.Message{Role: user, Content: strings.Repeat("x", 10_000)})
	}
	got := input(request)
	if blocks := strings.Count(got, "[USER]: "); blocks != 300 || strings.Count(got, "x") != 3_000_000 {
		t.Errorf("input has %d blocks and %d letters, want 300 and 3,000,000", blocks, strings.Count(got, "x"))
	}
}
