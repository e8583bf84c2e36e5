package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestOneConversationOverHTTP sends every call for a conversation whose id contains ":". Each reply
// must show the result of the call before it.
func TestOneConversationOverHTTP(t *testing.T) {
	d := startHTTPServer(t, t.TempDir(), "--store=memory")
	turnID := ""
	for _, step := range []struct {
		method, path, body string
		want               string // a part of the reply
	}{
		{"POST", "/v1/conversations", `{"conversation": {"id": "team:a.b", "title": "T", "agent": "echo"}}`, `"version":1`},
		{"POST", "/v1/conversations:load", `{"conversationId": "team:a.b"}`, `"title":"T"`},
		{"GET", "/v1/conversations?pageSize=5", "", `"team:a.b"`},
		{"GET", "/v1/conversations/team:a.b", "", `"title":"T"`},
		{"PATCH", "/v1/conversations/team:a.b?ifVersion=1", `{"title": "", "labels": {"k": "v"}}`, `"labels":{"k":"v"}`},
		{
			"POST", "/v1/conversations/team:a.b/messages", `{"messages": [{"role": "ROLE_USER", "content": "one"}]}`,
			`"sequence":1`,
		},
		{"GET", "/v1/conversations/team:a.b/messages?ascending=true", "", `"one"`},
		{"GET", "/v1/conversations/team:a.b/context?window.maxMessages=1", "", `"one"`},
		{"PUT", "/v1/conversations/team:a.b/active-agent", `{"agent": "echo", "reason": "R"}`, `"reason":"R"`},
		{"GET", "/v1/conversations/team:a.b/routing-summary", "", `"reason":"R"`},
		{"POST", "/v1/routing-summaries:batchGet", `{"conversationIds": ["team:a.b", "x"]}`, `"missingIds":["x"]`},
		{
			"POST", "/v1/records:write",
			`{"conversationId": "team:a.b", "writes": [{"key": "a/b", "value": "e30="}, {"key": "s", "tenantScope": true}]}`,
			`"tenantRevision":"1"`,
		},
		{"GET", "/v1/records?conversationId=team:a.b&prefix=a/&descending=true", "", `"value":"e30="`},
		{"GET", "/v1/records?keysOnly=true", "", `"key":"s"`},
		{"POST", "/v1/records:batchGet", `{"conversationId": "team:a.b", "keys": ["a/b"]}`, `"sizeBytes":2`},
		{"GET", "/v1/conversations/team:a.b/context?recordPrefixes=a/&recordPrefixes=b/", "", `"value":"e30="`},
		{"POST", "/v1/conversations/team:a.b/chat", `{"content": "two"}`, `"textDelta":{"text":"two"}`},
		{"POST", "/v1/chat", `{"conversationId": "team:a.b", "content": "three"}`, `"TURN_STATE_COMPLETED"`},
		{"GET", "/v1/conversations/team:a.b/turns", "", `"TURN_STATE_COMPLETED"`},
		{"GET", "/v1/conversations/team:a.b/turns/{turn}", "", `"TURN_STATE_COMPLETED"`},
		{"GET", "/v1/turns/{turn}", "", `"conversationId":"team:a.b"`},
		{"GET", "/v1/turns?states=TURN_STATE_COMPLETED&states=TURN_STATE_FAILED&pageSize=1", "", `"nextPageToken":"`},
		{"GET", "/v1/turns?conversationId=team:a.b&states=TURN_STATE_RUNNING", "", `{}`},
		{"GET", "/v1/conversations/team:a.b/turns/{turn}/events", "", `"text":"three"`},
		{"POST", "/v1/conversations/team:a.b/turns/{turn}/cancel", "", `"TURN_STATE_COMPLETED"`},
		{
			"POST", "/v1/conversations/team:a.b/fork", `{"newConversationId": "team:c"}`,
			`"forkedFrom":{"conversationId":"team:a.b"`,
		},
		{"GET", "/v1/export?conversationIds=team:c", "", `"content":"three"`},
		{"DELETE", "/v1/conversations/team:a.b/messages?afterSequence=4", "", `"messageCount":4`},
		{"DELETE", "/v1/conversations/team:a.b", "", `{}`},
		{"POST", "/v1/conversations:purge", `{"inactiveFor": "1s", "dryRun": true}`, `{`},
		{"GET", "/v1/agents", "", `"echo"`},
		{"GET", "/v1/stats", "", `"conversationCount":"1"`},
		{"GET", "/openapi.json", "", `"openapi":"3.`},
	} {
		code, text := d.do(t, step.method, strings.ReplaceAll(step.path, "{turn}", turnID), step.body)
		// protojson inserts spaces at random.
		if code != http.StatusOK ||
			!strings.Contains(strings.NewReplacer(`": `, `":`, `, "`, `,"`).Replace(text), step.want) {
			t.Fatalf("%s %s = %d, want 200 with %s: %s", step.method, step.path, code, step.want, text)
		}
		if strings.HasSuffix(step.path, "/turns") {
			var reply struct{ Turns []struct{ ID string } }
			if err := json.Unmarshal([]byte(text), &reply); err != nil || len(reply.Turns) != 2 {
				t.Fatalf("%v: %s", err, text)
			}
			turnID = reply.Turns[0].ID
		}
	}
}

// TestEmptyIDsOverHTTP: a path with an empty id is an error. It must not reach another call.
func TestEmptyIDsOverHTTP(t *testing.T) {
	d := startHTTPServer(t, t.TempDir(), "--store=memory")
	if code, text := d.do(t, "POST", "/v1/conversations:load", `{"conversationId": "messages"}`); code != http.StatusOK {
		t.Fatal(code, text)
	}
	for _, path := range []string{"/v1/conversations//messages", "/v1/conversations/", "/v1/conversations/x/../messages/"} {
		if code, text := d.do(t, "DELETE", path, ""); code != http.StatusBadRequest && code != http.StatusNotFound &&
			code != http.StatusMethodNotAllowed {
			t.Errorf("DELETE %s = %d, want 400, 404 or 405: %s", path, code, text)
		}
	}
	for _, path := range []string{"/v1/conversations//turns", "/v1/conversations//turns/x"} {
		code, text := d.do(t, "GET", path, "")
		if code != http.StatusBadRequest || !strings.Contains(text, `"conversationId"`) {
			t.Errorf("GET %s = %d, want 400 that names conversationId: %s", path, code, text)
		}
	}
	if code, text := d.do(t, "GET", "/v1/conversations/messages", ""); code != http.StatusOK {
		t.Error(code, text)
	}
}

// TestErrorsOverHTTP causes one error in each layer of the HTTP listener.
func TestErrorsOverHTTP(t *testing.T) {
	d := startHTTPServer(t, t.TempDir(), "--store=memory")
	for _, step := range []struct {
		method, path, body string
		code               int
		reason             string
	}{
		{"POST", "/v1/chat", `{"content": 5}`, 400, "INVALID_REQUEST"},
		{"POST", "/v1/chat", `{"content": ""}`, 400, "INVALID_REQUEST"},
		{"POST", "/v1/chat", strings.Repeat(" ", 5<<20), 413, "BODY_TOO_LARGE"},
		{"POST", "/v1/chat", `{"content": "` + strings.Repeat("x", 1<<20) + `"}`, 413, "MESSAGE_TOO_LARGE"},
		{"GET", "/v1/conversations/x", "", 404, "CONVERSATION_NOT_FOUND"},
		{"GET", "/v1/conversations/x/turns/y/events", "", 404, "CONVERSATION_NOT_FOUND"},
		{"GET", "/v1/nothing", "", 404, "PATH_NOT_FOUND"},
		{"PUT", "/v1/chat", "", 405, "METHOD_NOT_ALLOWED"},
	} {
		code, text := d.do(t, step.method, step.path, step.body)
		var body struct {
			Message string
			Details []struct{ Reason string }
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || code != step.code || body.Message == "" ||
			len(body.Details) == 0 || body.Details[0].Reason != step.reason {
			t.Errorf("%s %s = %d, want %d with reason %s: %s", step.method, step.path, code, step.code, step.reason, text)
		}
	}
}

// do sends a request with the content type of curl and follows no redirection.
func (d *httpServer) do(t *testing.T, method, path, body string) (code int, text string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	reply, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(fmt.Errorf("%s %s: %w", method, path, err))
	}
	defer reply.Body.Close()
	read, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(read)
}
