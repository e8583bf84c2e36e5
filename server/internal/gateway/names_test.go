package gateway

import (
	"strings"
	"testing"
)

func TestJSONPath(t *testing.T) {
	for path, want := range map[string]string{
		"":                                   "",
		"id":                                 "id",
		"conversation.system_prompt":         "conversation.systemPrompt",
		"messages[12].tool_calls[0].call_id": "messages[12].toolCalls[0].callId",
		`labels["my_key"]`:                   `labels["my_key"]`,
		`create_with.labels["a\"_b_c"]`:      `createWith.labels["a\"_b_c"]`,
	} {
		if got := jsonPath(path); got != want {
			t.Errorf("jsonPath(%q) = %q, want %q", path, got, want)
		}
	}
}

// TestFieldsOfTheService checks that errors of the service name fields as in JSON, in the violations and in the text, and
// that names the caller chose stay as they are.
func TestFieldsOfTheService(t *testing.T) {
	f := newFixture(t)
	a := f.do(t, "POST", "/v1/conversations", `{"conversation": {"id": "c", "labels": {"a_b": "`+strings.Repeat("x", 2000)+`"}},
		"requestId": "\u0000"}`)
	a.wantError(t, 400, "INVALID_REQUEST", `conversation.labels["a_b"]`, "requestId")
	text := a.status(t).Message()
	if !strings.Contains(text, "requestId: ") || !strings.Contains(text, `conversation.labels["a_b"]: `) ||
		strings.Contains(text, "request_id") {
		t.Errorf("message = %q, want the names of JSON", text)
	}
	f.do(t, "POST", "/v1/chat", `{"content_x": "a"}`).wantError(t, 400, "INVALID_REQUEST", "content_x")

	lines := f.do(t, "POST", "/v1/append", `{"append": {"conversationId": "c", "messages": [{"structuredData": [{}]}]}}`)
	if !strings.Contains(lines.body, "structuredData[0].type") || strings.Contains(lines.body, "structured_data") {
		t.Errorf("reply of an append = %s, want an error with the names of JSON", lines.body)
	}
}
