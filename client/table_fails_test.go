package client_test

import (
	"fmt"
	"strings"
	"testing"
)

// A reader of the table that finds nothing wrong proves nothing, so here all is wrong.
func TestTheTableCanFail(t *testing.T) {
	run := &tableRun{client: dialServer(t), saved: map[string]string{}}
	good := []string{
		`{"name": "made", "call": "AppendMessages", "request": {"conversationId": "c", "messages": [{"role": "ROLE_USER", "content": "hi"}]}, "want": {"created": true}}`,
		`{"name": "from where", "call": "ListConversations", "request": {}, "want": {"totalSize": "1"}, "save": {"cursor": "watchCursor"}}`,
		`{"name": "answered", "call": "Chat", "request": {"conversationId": "c", "content": "ho"}, "turn": {"text": "ho", "state": "TURN_STATE_COMPLETED", "messages": [{"content": "ho"}]}}`,
	}
	for _, step := range good {
		if err := run.make(t.Context(), parseStep(t, step)); err != nil {
			t.Fatal(err)
		}
	}
	const get, chat, watch, bad = `"call": "ListMessages", "request": {"conversationId": "c", "ascending": true}`,
		`"call": "Chat", "request": {"conversationId": "c", "content": "hello"}`,
		`"call": "WatchConversations", "request": {"cursor": "${cursor}"}`,
		`"call": "ListMessages", "request": {"conversationId": "no blanks", "pageSize": -1}`
	const completed = `"state": "TURN_STATE_COMPLETED", "messages": [{}]`
	tests := []struct{ name, step, want string }{
		{"another value", get + `, "want": {"conversation": {"id": "d"}}`, `conversation.id is "c", want "d"`},
		{"another value in a list", get + `, "want": {"messages": [{}, {}, {"content": "hi"}]}`, `messages.2.content is "ho", want "hi"`},
		{"another kind of value", get + `, "want": {"oldestSequence": "1"}`, `oldestSequence is 1, want "1"`},
		{"a field that is not there", get + `, "want": {"titel": "*"}`, `titel is missing`},
		{"any text, where there is a number", get + `, "want": {"oldestSequence": "*"}`, `oldestSequence is 1, want "*"`},
		{"too short a list", get + `, "want": {"messages": [{}]}`, `messages is `},
		{"too long a list", get + `, "want": {"messages": [{}, {}, {}, {}]}`, `want 4 elements`},
		{"an object for a list", get + `, "want": {"messages": {}}`, `want an object`},
		{"no object", get + `, "want": {"oldestSequence": {}}`, `want an object`},
		{"an error that does not come", get + `, "error": {"code": "NOT_FOUND", "reason": "CONVERSATION_NOT_FOUND"}`, "no error, want NOT_FOUND"},
		{"an error that nobody wants", bad + `, "want": {}`, `reason "INVALID_REQUEST"`},
		{"another code", bad + `, "error": {"code": "NOT_FOUND", "reason": "INVALID_REQUEST", "fields": ["conversation_id", "page_size"]}`, "Code:INVALID_ARGUMENT"},
		{"another reason", bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "BAD", "fields": ["conversation_id", "page_size"]}`, "Reason:INVALID_REQUEST"},
		{"a field too few", bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST", "fields": ["page_size"]}`, "Fields:[conversation_id page_size]"},
		{"no fields", bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST"}`, "Fields:[conversation_id page_size]"},
		{"another field", bad + `, "error": {"code": "INVALID_ARGUMENT", "reason": "INVALID_REQUEST", "fields": ["conversation_id", "id"]}`, "Fields:[conversation_id page_size]"},
		{"another text", chat + `, "turn": {"text": "hullo", ` + completed + `}`, `text is "hello", want "hullo"`},
		{"another state", chat + `, "turn": {"text": "hello", "state": "TURN_STATE_FAILED", "messages": [{}]}`, `state is "TURN_STATE_COMPLETED"`},
		{"another message", chat + `, "turn": {"text": "hello", "state": "TURN_STATE_COMPLETED", "messages": [{"agent": "shop"}]}`, `messages.0.agent is "echo"`},
		{"another number of messages", chat + `, "turn": {"text": "hello", "state": "TURN_STATE_COMPLETED", "messages": []}`, `want 0 elements`},
		{"a turn that is refused", `"call": "Chat", "request": {}, "turn": {"text": "", ` + completed + `}`, `reason "INVALID_REQUEST"`},
		{"a refusal that does not come", chat + `, "error": {"code": "ABORTED", "reason": "CONVERSATION_BUSY"}`, "no error, want ABORTED"},
		{"another change", watch + `, "changes": [{"kind": "CHANGE_KIND_HEARTBEAT"}, {"kind": "CHANGE_KIND_DELETED"}]`, `1.kind is "CHANGE_KIND_MESSAGE_APPENDED"`},
		{"nothing to save", get + `, "want": {}, "save": {"title": "conversation.title"}`, "there is no text at conversation.title"},
		{"no text to save", get + `, "want": {}, "save": {"it": "messages.0"}`, "there is no text at messages.0"},
		{"a call that there is not", `"call": "Listen", "request": {}, "want": {}`, `no method "Listen"`},
		{"a call that is none", `"call": "ImportConversations", "request": {}, "want": {}`, "takes no single request"},
		{"a request with an unknown field", `"call": "ListMessages", "request": {"conversation": "c"}, "want": {}`, `unknown field "conversation"`},
		{"a name that nothing was saved for", `"call": "ListMessages", "request": {"pageToken": "${page}"}, "want": {}`, "nothing was saved"},
		{"nothing wanted", get, "a step needs one of"},
		{"two things wanted", get + `, "want": {}, "changes": []`, "a step needs one of"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := run.make(t.Context(), parseStep(t, `{"name": "wrong", `+test.step+`}`))
			if !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("error = %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestTheTableHasNoOtherKeys(t *testing.T) {
	var step callStep
	if err := decodeStrictly([]byte(`{"name": "a step", "wants": {}}`), &step); err == nil {
		t.Error("a key that means nothing was read")
	}
}

func parseStep(t *testing.T, text string) (step callStep) {
	t.Helper()
	if err := decodeStrictly([]byte(text), &step); err != nil {
		t.Fatal(err)
	}
	return step
}
