package gateway

import (
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// TestFaultsOfBodies: one response lists all faults, each with the path that gRPC's rules use.
func TestFaultsOfBodies(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		name, body string
		fields     []string
		text       string // A part of the message.
	}{
		{name: "unknown", body: `{"contents": "hi", "agent": "echo"}`, fields: []string{"contents"}, text: "structuredData"},
		{name: "unknown, quoted", body: `{"a\nb": 1}`, fields: []string{`"a\nb"`}},
		{
			name: "number for a string", body: `{"content": 5}`, fields: []string{"content"},
			text: "must be a string, is a number",
		},
		{
			name: "string for a number", body: `{"content": "a", "ifVersion": "x"}`, fields: []string{"ifVersion"},
			text: "whole number of 32 bits",
		},
		{name: "too large a number", body: `{"content": "a", "if_version": 4294967296}`, fields: []string{"ifVersion"}},
		{
			name: "unknown enum value", body: `{"content": "a", "onBusy": "WAIT"}`, fields: []string{"onBusy"},
			text: "ON_BUSY_REJECT, ON_BUSY_QUEUE, ON_BUSY_INTERRUPT",
		},
		{
			name: "string for a boolean", body: `{"content": "a", "mustExist": "true"}`, fields: []string{"mustExist"},
			text: "must be true or false, is a string",
		},
		{
			name: "object for a list", body: `{"toolResults": {}}`, fields: []string{"toolResults"},
			text: "must be a list, is an object",
		},
		{
			name: "list for an object", body: `{"content": "a", "window": []}`, fields: []string{"window"},
			text: "must be an object, is a list",
		},
		{name: "list for a message", body: `[]`, fields: []string{"body"}, text: "must be an object, is a list"},
		{name: "null for a message", body: `null`, fields: []string{"body"}, text: "must be an object, is null"},
		{name: "null in a list", body: `{"attachments": [null]}`, fields: []string{"attachments[0]"}},
		{name: "null in a map", body: `{"content": "a", "metadata": {"k": null}}`, fields: []string{`metadata["k"]`}},
		{name: "null for a field", body: `{"content": null, "bad": 1}`, fields: []string{"bad"}},
		{name: "twice", body: `{"content": "a", "content": "b"}`, fields: []string{"content"}, text: "twice"},
		{
			name: "twice, in both spellings", body: `{"content": "a", "ifVersion": 1, "if_version": 1}`,
			fields: []string{"ifVersion"},
		},
		{
			name: "twice in a map", body: `{"content": "a", "metadata": {"k": "1", "k": "2"}}`,
			fields: []string{`metadata["k"]`}, text: "twice",
		},
		{
			name: "twice in a value", body: `{"structuredData": [{"type": "t", "value": {"k": 1, "k": 2}}]}`,
			fields: []string{"structuredData[0].value"},
		},
		{name: "half a surrogate", body: `{"content": "\ud800"}`, fields: []string{"content"}, text: "escape sequence"},
		{
			name: "many at once",
			body: `{"content": 1, "windw": {}, "window": {"maxMessages": 1.5, "max_bytes": true, "x": 0},
				"toolResults": [{"callId": "a"}, {"callId": 3}, 4], "metadata": {"a": "b", "c": 1}, "onBusy": "X"}`,
			fields: []string{
				"content", "windw", "window.maxMessages", "window.maxBytes", "window.x",
				"toolResults[1].callId", "toolResults[2]", `metadata["c"]`, "onBusy",
			},
		},
		{name: "cut off", body: `{"content": `, fields: []string{"body"}, text: "line 1, column 13"},
		{
			name: "text after the value", body: "{\n \"content\": \"hi\"\n} x", fields: []string{"body"},
			text: "line 3, column 3",
		},
		{
			name: "second value", body: `{"content": "a"} {"content": "b"}`, fields: []string{"body"}, text: "line 1, column 18",
		},
		{name: "comma", body: `{"content": "ä",}`, fields: []string{"body"}, text: "line 1, column 17"},
		{name: "no UTF-8", body: "{\"content\":\n\"\xff\"}", fields: []string{"body"}, text: "line 2, column 2"},
		{name: "a form", body: `content=hi`, fields: []string{"body"}, text: "line 1, column 1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := f.do(t, "POST", "/v1/chat", test.body)
			a.wantError(t, 400, "INVALID_REQUEST", test.fields...)
			if message := a.status(t).Message(); !strings.Contains(message, test.text) {
				t.Errorf("message = %q, want one with %q", message, test.text)
			}
		})
	}
}

// TestRulesOfBodies: the rules of the service are checked when the JSON is valid, and name fields
// in the same way.
func TestRulesOfBodies(t *testing.T) {
	f := newFixture(t)
	messages := `{"messages": [{"role": "ROLE_USER", "content": "a"}, {}, {"role": %s, "toolResult": {}}]}`
	f.do(t, "POST", "/v1/conversations/c/messages", strings.Replace(messages, "%s", `"USER"`, 1)).
		wantError(t, 400, "INVALID_REQUEST", "messages[2].role")
	f.do(t, "POST", "/v1/conversations/c/messages", strings.Replace(messages, "%s", `"ROLE_USER"`, 1)).
		wantError(t, 400, "INVALID_REQUEST", "messages[1].role", "messages[2].toolResult", "messages[2].toolResult.callId")
}

// TestFaultsAreBounded: the response is short, however many and however long the faults are.
func TestFaultsAreBounded(t *testing.T) {
	f := newFixture(t)
	for name, body := range map[string]string{
		"many fields":   `{` + strings.Repeat(`"x": 1, "`+strings.Repeat("long", 1000)+`": {},`, 200) + `"y": 1}`,
		"many elements": `{"attachments": [` + strings.Repeat(`{}, `, 200_000) + `{"x": 1}]}`,
		"all elements":  `{"attachments": [` + strings.Repeat(`1, `, 200_000) + `1]}`,
		"deep":          `{"structuredData": ` + strings.Repeat(`[`, 1_000_000),
		"long":          `{"content": "a", "onBusy": "` + strings.Repeat("long", 500_000) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			a := f.do(t, "POST", "/v1/chat", body)
			s := a.status(t)
			if a.code != 400 || len(fields(s)) == 0 || len(fields(s)) > maxFaults || len(a.body) > 64<<10 ||
				len(s.Message()) > rules.MaxTextBytes {
				t.Errorf("status = %d with %d fields, %d bytes: %.2000s", a.code, len(fields(s)), len(a.body), a.body)
			}
		})
	}
}

// FuzzFaults: checkJSON finds a fault if and only if protojson returns an error.
func FuzzFaults(f *testing.F) {
	for _, seed := range []string{
		`{"content": "a"}`, `{"messages": [{"role": 1}, null]}`,
		`{"structuredData": [{"value": {"a": [1, null, "\ud800"]}}]}`,
		`{"toolCall": {}, "textDelta": {}}`, `{"ttl": "1s", "createTime": "2026-11-20T08:30:00Z"}`, `{"metadata": {"k": 1}}`,
		`{"a":`, "\xff", `null`,
		`{"conversation": {"labels": {"a": "b"}, "retention": {"ttl": "1.5s"}}}`, `{"sizeBytes": "12", "index": 1e2}`,
		`{"\u0069ndex": 1}`, `{"index": 1, "index": 2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, m := range []proto.Message{new(parleyv1.ChatRequest), new(parleyv1.ImportConversationsRequest), new(parleyv1.TurnEvent), new(parleyv1.Interaction)} {
			var found faults
			found.checkJSON("", text, m.ProtoReflect().Descriptor())
			err := protojson.Unmarshal(text, m)
			if (err != nil) != (len(found.violations) > 0) {
				t.Fatalf("checkJSON of %T = %v, want faults if and only if Unmarshal fails: %v", m, found.violations, err)
			}
			for _, v := range found.violations {
				if v.GetField() == "" || v.GetDescription() == "" || !utf8.ValidString(v.GetField()+v.GetDescription()) {
					t.Errorf("%T: %v", m, v)
				}
			}
		}
	})
}
