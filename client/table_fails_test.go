package client_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestTableRunReportsFaults checks that tableRun reports each kind of fault. Otherwise a passing table
// would prove nothing.
func TestTableRunReportsFaults(t *testing.T) {
	run := &tableRun{client: dialServer(t), saved: map[string]string{}}
	good := []string{
		`{"name": "append", "call": "AppendMessages", "request": {"conversationId": "c", "messages": [{"role": "ROLE_USER", "content": "hi"}]}, "want": {"created": true}}`,
		`{"name": "save a cursor", "call": "ListConversations", "request": {}, "want": {"totalSize": "1"}, "save": {"cursor": "watchCursor"}}`,
		`{"name": "chat", "call": "Chat", "request": {"conversationId": "c", "content": "ho"}, "turn": {"text": "ho", "state": "TURN_STATE_COMPLETED", "messages": [{"content": "ho"}]}}`,
	}
	for _, step := range good {
		if err := run.execute(t.Context(), parseStep(t, step)); err != nil {
			t.Fatal(err)
		}
	}
	const get, chat, watch, bad = `"call": "ListMessages", "request": {"conversationId": "c", "ascending": true}`,
		`"call": "Chat", "request": {"conversationId": "c", "content": "hello"}`,
		`"call": "WatchConversations", "request": {"cursor": "${cursor}"}`,
		`"call": "ListMessages", "request": {"conversationId": "no blank at the end ", "pageSize": -1}`
	const completed = `"state": "TURN_STATE_COMPLETED", "messages": [{}]`
	tests := []struct{ name, step, want string }{
		{"another value", get + `, "want": {"conversation": {"id": "d"}}`, `conversation.id is "c", want "d"`},
		{
			"another value in a list", get + `, "want": {"messages": [{}, {}, {"content": "hi"}]}`,
			`messages.2.content is "ho", want "hi"`,
		},
		{"another kind of value", get + `, "want": {"oldestSequence": "1"}`, `oldestSequence is 1, want "1"`},
		{"a field that is not there", get + `, "want": {"titel": "*"}`, `titel is missing`},
		{"\"*\" for a number", get + `, "want": {"oldestSequence": "*"}`, `oldestSequence is 1, want "*"`},
		{"fewer elements wanted", get + `, "want": {"messages": [{}]}`, `messages is `},
		{"more elements wanted", get + `, "want": {"messages": [{}, {}, {}, {}]}`, `want 4 elements`},
		{"an object for a list", get + `, "want": {"messages": {}}`, `want an object`},
		{"an object for a number", get + `, "want": {"oldestSequence": {}}`, `want an object`},
		{
			"a missing error", get + `, "error": {"code": "NOT_FOUND", "reason": "CONVERSATION_NOT_FOUND"}`,
			"no error, want NOT_FOUND",
		},
		{"an unexpected error", bad + `, "want": {}`, `reason "INVALID_REQUEST"`},
		{
			"another code",
			bad + `, "error": {"code": "NOT_FOUND", "reason": "INVALID_REQUEST", "fields": ["conversation_id", "page_size"]}`,
			"Code:INVALID_ARGUMENT",
		},
		{
			"another reason",
			bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "BAD", "fields": ["conversation_id", "page_size"]}`,
			"Reason:INVALID_REQUEST",
		},
		{
			"one field of two",
			bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST", "fields": ["page_size"]}`,
			"Fields:[conversation_id page_size]",
		},
		{
			"no fields", bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST"}`,
			"Fields:[conversation_id page_size]",
		},
		{
			"another field",
			bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST", "fields": ["conversation_id", "id"]}`,
			"Fields:[conversation_id page_size]",
		},
		{"another text", chat + `, "turn": {"text": "hullo", ` + completed + `}`, `text is "hello", want "hullo"`},
		{
			"another state", chat + `, "turn": {"text": "hello", "state": "TURN_STATE_FAILED", "messages": [{}]}`,
			`state is "TURN_STATE_COMPLETED"`,
		},
		{
			"another message",
			chat + `, "turn": {"text": "hello", "state": "TURN_STATE_COMPLETED", "messages": [{"agent": "shop"}]}`,
			`messages.0.agent is "echo"`,
		},
		{
			"another number of messages", chat + `, "turn": {"text": "hello", "state": "TURN_STATE_COMPLETED", "messages": []}`,
			`want 0 elements`,
		},
		{
			"a refused turn", `"call": "Chat", "request": {}, "turn": {"text": "", ` + completed + `}`,
			`reason "INVALID_REQUEST"`,
		},
		{
			"a missing refusal", chat + `, "error": {"code": "ABORTED", "reason": "CONVERSATION_BUSY"}`,
			"no error, want ABORTED",
		},
		{
			"another change", watch + `, "changes": [{"kind": "CHANGE_KIND_HEARTBEAT"}, {"kind": "CHANGE_KIND_DELETED"}]`,
			`1.kind is "CHANGE_KIND_MESSAGE_APPENDED"`,
		},
		{"nothing to save", get + `, "want": {}, "save": {"title": "conversation.title"}`, "no text at conversation.title"},
		{"a value to save that is not text", get + `, "want": {}, "save": {"it": "messages.0"}`, "no text at messages.0"},
		{"an unknown method", `"call": "Listen", "request": {}, "want": {}`, `no method "Listen"`},
		{"a streaming call", `"call": "ImportConversations", "request": {}, "want": {}`, "takes no single request"},
		{
			"a request with an unknown field", `"call": "ListMessages", "request": {"conversation": "c"}, "want": {}`,
			`unknown field "conversation"`,
		},
		{
			"a name without a saved value", `"call": "ListMessages", "request": {"pageToken": "${page}"}, "want": {}`,
			"no value was saved",
		},
		{"no expectation", get, "a step needs one of"},
		{"two expectations", get + `, "want": {}, "changes": []`, "a step needs one of"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := run.execute(t.Context(), parseStep(t, `{"name": "wrong", `+test.step+`}`))
			if !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("error = %v, want one that contains %q", err, test.want)
			}
		})
	}
}

func TestDecodeStrictlyRefusesUnknownKeys(t *testing.T) {
	var step callStep
	if err := decodeStrictly([]byte(`{"name": "a step", "wants": {}}`), &step); err == nil {
		t.Error("decodeStrictly accepted an unknown key, want an error")
	}
}

func parseStep(t *testing.T, text string) (step callStep) {
	t.Helper()
	if err := decodeStrictly([]byte(text), &step); err != nil {
		t.Fatal(err)
	}
	return step
}
