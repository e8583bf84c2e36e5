package mcp

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestListHistoryClear(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			session := tr.connect(t, nil)
			id := "shop-" + strings.ReplaceAll(tr.name, " ", "-")
			request := &parleyv1.AppendMessagesRequest{ConversationId: id}
			for i := range 5 {
				request.Messages = append(request.Messages, &parleyv1.Message{
					Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprintf("message %d", i+1),
					Native: &parleyv1.Native{Type: "form", Value: []byte("v")}, Reasoning: "why",
				})
			}
			if _, err := c.AppendMessages(t.Context(), request); err != nil {
				t.Fatal(err)
			}

			list := call(t, session, "list_conversations", object{"page_size": 1})
			row := valueAt(list, "conversations", 0)
			if len(listAt(t, list, "conversations")) != 1 || valueAt(row, "conversation_id") != id ||
				valueAt(row, "preview") != "message 5" || valueAt(row, "message_count") != 5.0 {
				t.Errorf("list_conversations = %v, want %s with 5 messages", list, id)
			}
			if all := call(t, session, "list_conversations", nil); all["total_size"] != list["total_size"] {
				t.Errorf("list_conversations without arguments = %v, want the same total_size", all)
			}

			var got []any
			arguments := object{"conversation_id": id, "page_size": 2}
			for more := true; more; {
				page := call(t, session, "get_history", arguments)
				for _, message := range listAt(t, page, "messages") {
					got = append(got, valueAt(message, "content"))
					if valueAt(message, "native") != nil || valueAt(message, "reasoning") != nil {
						t.Errorf("get_history returns %v, want no native form and no reasoning", message)
					}
				}
				arguments["page_token"], more = page["next_page_token"]
			}
			if diff := cmp.Diff([]any{"message 1", "message 2", "message 3", "message 4", "message 5"}, got); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
			newest := call(t, session, "get_history", object{"conversation_id": id, "newest_first": true, "after_sequence": 3})
			if len(listAt(t, newest, "messages")) != 2 || valueAt(newest, "messages", 0, "sequence") != 5.0 ||
				newest["last_sequence"] != 5.0 || newest["oldest_sequence"] != 1.0 {
				t.Errorf("get_history newest first = %v, want messages 5 and 4", newest)
			}

			for range 2 {
				want := object{"conversation_id": id, "message_count": 0.0, "last_sequence": 5.0}
				if diff := cmp.Diff(want, call(t, session, "clear_conversation", object{"conversation_id": id})); diff != "" {
					t.Errorf("clear (-want +got):\n%s", diff)
				}
			}
			if empty := call(t, session, "get_history", object{"conversation_id": id}); len(listAt(t, empty, "messages")) != 0 || empty["oldest_sequence"] != 6.0 {
				t.Errorf("get_history after clear = %v, want no messages", empty)
			}
		})
	}
}

// TestLargeHistory checks that the size of a page is limited and that the rest is in the next page.
func TestLargeHistory(t *testing.T) {
	_, c := startParley(t)
	content := strings.Repeat(`"`, 300<<10) // Each quote has two bytes in JSON, and four in JSON in JSON.
	for range 2 {
		message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: content}
		if _, err := c.AppendMessages(t.Context(),
			&parleyv1.AppendMessagesRequest{ConversationId: "large", Messages: []*parleyv1.Message{message}}); err != nil {
			t.Fatal(err)
		}
	}
	session := connect(t, serveHTTP(t, c), nil, "")
	arguments, pages := object{"conversation_id": "large"}, 0
	for more := true; more; pages++ {
		page := call(t, session, "get_history", arguments)
		messages := listAt(t, page, "messages")
		if len(messages) != 1 || valueAt(messages, 0, "sequence") != float64(pages+1) ||
			valueAt(messages, 0, "content") != content {
			t.Fatalf("page %d has %d messages, want only the next one", pages+1, len(messages))
		}
		arguments["page_token"], more = page["next_page_token"]
	}
	if pages != 2 {
		t.Errorf("%d pages, want 2", pages)
	}
}

func TestBadArguments(t *testing.T) {
	const unknownToAsk, unknownToGet = "is unknown, ask_question accepts question, conversation_id, agent", "is unknown, get_history accepts conversation_id, page_size, page_token, newest_first, after_sequence"
	type faults = map[string]string
	tests := []struct {
		tool, arguments string // as JSON
		reason          string
		want            faults
	}{
		{"ask_question", `{}`, "INVALID_REQUEST", faults{"question": "is required and must not be empty"}},
		{"ask_question", `null`, "INVALID_REQUEST", faults{"question": "is required and must not be empty"}},
		{"ask_question", `{"question": ""}`, "INVALID_REQUEST", faults{"question": "is required and must not be empty"}},
		{"ask_question", `{"question": null}`, "INVALID_REQUEST", faults{"question": "is required and must not be empty"}},
		{"ask_question", `{"question": 7, "agent": ["a"], "Question": "x", "model": "m"}`, "INVALID_REQUEST", faults{
			"question": "must be a string, not a number", "agent": "must be a string, not a list", "Question": unknownToAsk,
			"model": unknownToAsk,
		}},
		{
			"ask_question", `{"question": {"text": "x"}}`, "INVALID_REQUEST",
			faults{"question": "must be a string, not an object"},
		},
		{"ask_question", `["x"]`, "INVALID_REQUEST", faults{"arguments": "must be an object, not a list"}},
		{
			"ask_question", `{"question": "x", "conversation_id": " begins with a space"}`, "INVALID_REQUEST",
			faults{"conversation_id": "must have 1 to 256 bytes"},
		},
		{
			"ask_question", `{"question": "x", "agent": "nobody"}`, "UNKNOWN_AGENT",
			faults{"agent": "broken, echo, memory, puppet"},
		},
		{
			"list_conversations", `{"page_size": "many"}`, "INVALID_REQUEST",
			faults{"page_size": "must be a whole number, not a string"},
		},
		{
			"list_conversations", `{"page_size": 1.5}`, "INVALID_REQUEST",
			faults{"page_size": "must be a whole number of 32 bits, not 1.5"},
		},
		{
			"list_conversations", `{"page_size": 1e10}`, "INVALID_REQUEST",
			faults{"page_size": "must be a whole number of 32 bits, not 1e+10"},
		},
		{"list_conversations", `{"page_size": -1}`, "INVALID_REQUEST", faults{"page_size": "must be"}},
		{"list_conversations", `{"page_size": 1001}`, "INVALID_REQUEST", faults{"page_size": "must be"}},
		{"list_conversations", `{"page_token": "x"}`, "INVALID_REQUEST", faults{"page_token": "is not a token of this list"}},
		{"get_history", `{"newest_first": "yes", "last": 3}`, "INVALID_REQUEST", faults{
			"conversation_id": "is required and must not be empty", "newest_first": "must be true or false, not a string",
			"last": unknownToGet,
		}},
		{
			"get_history", `{"conversation_id": "x", "page_token": true}`, "INVALID_REQUEST",
			faults{"page_token": "must be a string, not true or false"},
		},
		{
			"get_history", `{"conversation_id": "nowhere"}`, "CONVERSATION_NOT_FOUND",
			faults{"conversation_id": `conversation "nowhere" does not exist`},
		},
		{
			"clear_conversation", `{"conversation_id": "nowhere"}`, "CONVERSATION_NOT_FOUND",
			faults{"conversation_id": `conversation "nowhere" does not exist`},
		},
		{
			"clear_conversation", `{"conversation_id": ".."}`, "INVALID_REQUEST",
			faults{"conversation_id": "must have 1 to 256 bytes"},
		},
		{"search_interactions", `{}`, "INVALID_REQUEST", faults{"query": "is required and must not be empty"}},
		{
			"search_interactions", `{"query": "x", "days": -1, "page_size": 2000}`, "INVALID_REQUEST",
			faults{"days": "must be", "page_size": "must be"},
		},
		{
			"search_interactions", `{"query": "x", "conversation_id": ".."}`, "INVALID_REQUEST",
			faults{"conversation_id": "must have 1 to 256 bytes"},
		},
		{
			"search_interactions", `{"query": "x", "page_token": "x"}`, "INVALID_REQUEST",
			faults{"page_token": "is not a token of this list"},
		},
		{
			"ask_question", `{"question": "` + strings.Repeat("x", 2<<20) + `"}`, "MESSAGE_TOO_LARGE",
			faults{"question": "the limit is 1048576"},
		},
	}
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			session := tr.connect(t, nil)
			for _, test := range tests {
				failure, data := callError(t, session, test.tool, json.RawMessage(test.arguments))
				name := fmt.Sprintf("%s(%.60s)", test.tool, test.arguments)
				if failure.Code != -32602 || data.Reason != test.reason {
					t.Errorf("%s: error %d, %s: %s, want -32602, %s", name, failure.Code, data.Reason, failure.Message, test.reason)
				}
				if diff := cmp.Diff(slices.Sorted(maps.Keys(test.want)), slices.Sorted(maps.Keys(data.Arguments))); diff != "" {
					t.Errorf("%s: arguments (-want +got):\n%s", name, diff)
				}
				for argument, problem := range test.want {
					if !strings.Contains(data.Arguments[argument], problem) || !strings.Contains(failure.Message, argument+": ") {
						t.Errorf("%s: %s: %s, want %q; the message is %s", name, argument, data.Arguments[argument], problem,
							failure.Message)
					}
				}
			}
			if failure, _ := callError(t, session, "get_history", object{"conversation_id": "nowhere"}); failure.Message !=
				`conversation_id: conversation "nowhere" does not exist; it was never created, or it has expired, was evicted or was deleted; list_conversations returns the existing ones` {
				t.Errorf("error of a missing conversation = %s", failure.Message)
			}
		})
	}
}

// TestSchemas checks that the input schemas describe exactly the arguments that the tools accept.
func TestSchemas(t *testing.T) {
	_, c := startParley(t)
	session := connect(t, serveHTTP(t, c), nil, "")
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		properties, ok := valueAt(tool.InputSchema, "properties").(object)
		if !ok || valueAt(tool.InputSchema, "additionalProperties") != false {
			t.Errorf("%s: the input schema allows additional properties", tool.Name)
		}
		wrong := object{}
		for name, property := range properties {
			if valueAt(property, "description") == nil {
				t.Errorf("%s: the schema has no description of %s", tool.Name, name)
			}
			wrong[name] = object{"of": "no argument has this type"}
		}
		wrong["nonsense"] = 1
		_, data := callError(t, session, tool.Name, wrong)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(wrong)), slices.Sorted(maps.Keys(data.Arguments))); diff != "" {
			t.Errorf("%s: refused arguments (-want +got):\n%s", tool.Name, diff)
		}
		required := map[any]bool{}
		if all, ok := valueAt(tool.InputSchema, "required").([]any); ok {
			for _, name := range all {
				required[name] = true
			}
		}
		_, data = callError(t, session, tool.Name, object{"nonsense": 1})
		delete(data.Arguments, "nonsense")
		missing := map[any]bool{}
		for name := range data.Arguments {
			missing[name] = true
		}
		if diff := cmp.Diff(required, missing); diff != "" {
			t.Errorf("%s: required arguments (-want +got):\n%s", tool.Name, diff)
		}
	}
	if diff := cmp.Diff([]string{"ask_question", "clear_conversation", "get_history", "list_conversations", "search_interactions"}, names); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
}
