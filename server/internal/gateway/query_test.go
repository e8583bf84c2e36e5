package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestFaultsOfQueries(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/conversations:load", `{"conversationId": "a:b"}`).wantOK(t)
	for _, test := range []struct {
		name, method, path, body string
		fields                   []string
		text                     string
	}{
		{
			name: "unknown", method: "GET", path: "/v1/conversations?pagesize=3&labels[a]=b", fields: []string{"pagesize"},
			text: "this call accepts pageSize, pageToken, labels",
		},
		{name: "unknown, quoted", method: "GET", path: "/v1/conversations?%0A=3", fields: []string{`"\n"`}},
		{name: "of no parameters", method: "GET", path: "/v1/agents?x=1", fields: []string{"x"}, text: "accepts none"},
		{
			name: "wrong types", method: "GET",
			path:   "/v1/conversations?page_size=x&order=newest&labels=a&labels[k]=a&labels[k]=b&x=1",
			fields: []string{"pageSize", "order", "labels", "labels", "x"}, text: "LIST_ORDER_CREATE_TIME_DESC",
		},
		{
			name: "twice", method: "GET", path: "/v1/conversations?pageSize=1&pageSize=2", fields: []string{"pageSize"},
			text: "once",
		},
		{
			name: "in both spellings", method: "DELETE", path: "/v1/conversations/a:b?ifVersion=999&if_version=1",
			fields: []string{"ifVersion"}, text: "as ifVersion and as if_version",
		},
		{
			name: "in both spellings, the same", method: "DELETE", path: "/v1/conversations/a:b?if_version=1&ifVersion=1",
			fields: []string{"ifVersion"}, text: "once",
		},
		{
			name: "an object in both spellings", method: "GET",
			path:   "/v1/conversations/a:b/context?window.maxMessages=1&window.max_messages=2",
			fields: []string{"window.maxMessages"}, text: "once",
		},
		{
			name: "a list in both spellings", method: "GET", path: "/v1/export?conversationIds=a&conversation_ids=b",
			fields: []string{"conversationIds"}, text: "once",
		},
		{
			name: "a mask in both spellings", method: "PATCH", path: "/v1/conversations/a:b?updateMask=title&update_mask=agent",
			body: `{"title": "x"}`, fields: []string{"updateMask"},
		},
		{
			name: "of the path in both spellings", method: "GET",
			path: "/v1/conversations/a:b?conversationId=a:b&conversation_id=a:b", fields: []string{"conversationId"},
		},
		{
			name: "a mask twice", method: "PATCH", path: "/v1/conversations/a:b?updateMask=title&updateMask=agent",
			body: `{"title": "x"}`, fields: []string{"updateMask"}, text: "once",
		},
		{
			name: "twice in an import", method: "POST", path: "/v1/import?overwrite=false&overwrite=true", body: `{}`,
			fields: []string{"overwrite"}, text: "once",
		},
		{
			name: "incomplete key of a map", method: "GET", path: "/v1/conversations?labels[k=a", fields: []string{`"labels[k"`},
		},
		{
			name: "two keys of a map", method: "GET", path: "/v1/conversations?labels[k][l]=a",
			fields: []string{`"labels[k][l]"`},
		},
		{
			name: "key of a map with a line break", method: "GET", path: "/v1/conversations?labels[a%0Ab]=c",
			fields: []string{"labels"},
		},
		{
			name: "key of a field that is not a map", method: "GET", path: "/v1/export?conversationIds[a]=b",
			fields: []string{`"conversationIds[a]"`}, text: "conversationIds=…&conversationIds=…",
		},
		{
			name: "indexes of a list", method: "GET", path: "/v1/turns?states[0]=TURN_STATE_RUNNING&states[]=TURN_STATE_QUEUED",
			fields: []string{`"states[0]"`, `"states[]"`}, text: "once for each value, as in states=…&states=…",
		},
		{
			name: "commas in a list", method: "GET", path: "/v1/turns?states=TURN_STATE_RUNNING,TURN_STATE_QUEUED",
			fields: []string{"states"}, text: "once for each value, as in states=…&states=…",
		},
		{
			name: "short names in a list", method: "GET", path: "/v1/conversations/a:b/turns?states=RUNNING&states=QUEUED",
			fields: []string{"states"}, text: "each value must be one of TURN_STATE_QUEUED, TURN_STATE_RUNNING,",
		},
		{
			name: "commas in a list of numbers", method: "DELETE", path: "/v1/conversations/a:b/messages?sequences=1,2",
			fields: []string{"sequences"}, text: "as in sequences=…&sequences=…",
		},
		{
			name: "null in a map to merge", method: "PATCH", path: "/v1/conversations/a:b", body: `{"labels": {"k": null}}`,
			fields: []string{`conversation.labels["k"]`},
		},
		{name: "empty number", method: "GET", path: "/v1/conversations?pageSize=", fields: []string{"pageSize"}},
		{
			name: "object", method: "GET", path: "/v1/conversations/a:b/context?window=1", fields: []string{"window"},
			text: "window.maxMessages",
		},
		{
			name: "in an object", method: "GET", path: "/v1/conversations/a:b/context?window.maxMessages=x&window.y=1",
			fields: []string{"window.maxMessages", "window.y"},
		},
		{
			name: "too deep", method: "GET", path: "/v1/conversations/a:b/context?window.maxMessages.z=1",
			fields: []string{"window.maxMessages.z"},
		},
		{
			name: "duration", method: "GET", path: "/v1/conversations/a:b/routing-summary?waitTimeout=5",
			fields: []string{"waitTimeout"}, text: `"90s"`,
		},
		{
			name: "boolean", method: "GET", path: "/v1/watch?includeTurnEvents", fields: []string{"includeTurnEvents"},
			text: "true or false",
		},
		{
			name: "two fields of a oneof", method: "GET", path: "/v1/interactions?date=2026-11-20&within=5s",
			fields: []string{"within"}, text: "span",
		},
		{
			name: "another id", method: "GET", path: "/v1/conversations/a:b?conversationId=c",
			fields: []string{"conversationId"}, text: "the path",
		},
		{
			name: "beside a body", method: "POST", path: "/v1/chat?agent=echo&x=1", body: `{"content": "hi"}`,
			fields: []string{"agent", "x"}, text: "body",
		},
		{
			name: "of the body", method: "PATCH", path: "/v1/conversations/a:b?conversation.title=x&ifVersion=x", body: `{}`,
			fields: []string{"conversation.title", "ifVersion"},
		},
		{
			name: "beside faults of the body", method: "PATCH", path: "/v1/conversations/a:b?x=1", body: `{"title": 5}`,
			fields: []string{"conversation.title", "x"},
		},
		{
			name: "another id in the body", method: "POST", path: "/v1/conversations/a:b/chat",
			body: `{"content": "hi", "conversation_id": "c"}`, fields: []string{"conversationId"}, text: "the path",
		},
		{
			name: "another id in a body to merge", method: "PATCH", path: "/v1/conversations/a:b", body: `{"id": "c"}`,
			fields: []string{"conversation.id"}, text: "the path",
		},
		{name: "no id", method: "GET", path: "/v1/conversations/", fields: []string{"conversationId"}},
		{
			name: "invalid UTF-8 in the path", method: "GET", path: "/v1/conversations/%ff", fields: []string{"conversationId"},
		},
		{name: "invalid UTF-8", method: "GET", path: "/v1/conversations?pageToken=%ff", fields: []string{"pageToken"}},
		{name: "malformed query", method: "GET", path: "/v1/conversations?a=%zz", fields: []string{"query"}},
		{
			name: "body of a DELETE", method: "DELETE", path: "/v1/conversations/a:b", body: `{"ifVersion": 7}`,
			fields: []string{"body"},
		},
		{name: "broken rule", method: "GET", path: "/v1/conversations?pageSize=-1", fields: []string{"pageSize"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := f.do(t, test.method, test.path, test.body)
			a.wantError(t, 400, "INVALID_REQUEST", test.fields...)
			if message := a.status(t).Message(); !strings.Contains(message, test.text) {
				t.Errorf("message = %q, want one with %q", message, test.text)
			}
		})
	}
}

// TestQueries: both spellings of a parameter work, and a parameter may repeat the path.
func TestQueries(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/conversations:load", `{"conversationId": "a:b"}`).wantOK(t)
	for _, path := range []string{
		"/v1/conversations?page_size=1&labels%5Bteam%5D=x&labels[a.b]=&order=LIST_ORDER_UPDATE_TIME_DESC",
		"/v1/conversations?pageSize=1&order=2",
		"/v1/conversations/a:b?conversation_id=a:b",
		"/v1/conversations/a%3Ab",
		"/v1/conversations/a:b/context?window.max_messages=3&window.cacheStable=true",
		"/v1/conversations/a:b/routing-summary?knownVersion=7&waitTimeout=0s&messageLimit=0",
	} {
		f.do(t, "GET", path, "").wantOK(t)
	}
	if got := f.do(t, "POST", "/v1/conversations/a:b/chat", ` {"conversationId": "a:b", "content": "conversation_id"}`); got.code != 200 {
		t.Errorf("POST with the id of the path in the body = %d %s, want 200", got.code, got.body)
	}
}

// TestListsInQueries: a list in a query is a parameter that occurs once for each value, by its name or number.
func TestListsInQueries(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/conversations/c/chat", `{"content": "hi"}`).wantOK(t)
	for _, path := range []string{"/v1/turns", "/v1/conversations/c/turns"} {
		for query, want := range map[string]bool{
			"":                          true,
			"?states=TURN_STATE_QUEUED": false,
			"?states=TURN_STATE_QUEUED&states=TURN_STATE_COMPLETED": true,
			"?states=TURN_STATE_COMPLETED&states=TURN_STATE_QUEUED": true,
			"?states=TURN_STATE_QUEUED&states=TURN_STATE_RUNNING":   false,
			"?states=1&pageSize=5&states=3":                         true,
		} {
			text := f.do(t, "GET", path+query, "").wantOK(t)
			if got := strings.Contains(text, "TURN_STATE_COMPLETED"); got != want {
				t.Errorf("GET %s%s = %s, want the completed turn: %t", path, query, text, want)
			}
		}
	}
}

func TestUpdates(t *testing.T) {
	f := newFixture(t)
	const created = `{"conversation": {"id": "a:b", "title": "T", "labels": {"k": "v", "l": "w"}, "agent": "echo", "systemPrompt": "Be brief.",
		"retention": {"maxMessages": 5, "ttl": "100s"}}}`
	for _, test := range []struct {
		name, query, body string
		want              string // Title, labels, agent, system prompt and retention, in this order.
	}{
		{name: "nothing", body: `{}`, want: "T map[k:v l:w] echo Be brief. 5 100s"},
		{name: "no body", want: "T map[k:v l:w] echo Be brief. 5 100s"},
		{name: "a field", body: `{"title": "U"}`, want: "U map[k:v l:w] echo Be brief. 5 100s"},
		{name: "snake case", body: `{"system_prompt": "U"}`, want: "T map[k:v l:w] echo U 5 100s"},
		{name: "cleared", body: `{"title": "", "systemPrompt": "", "agent": ""}`, want: " map[k:v l:w]   5 100s"},
		{
			name: "null",
			body: `{"title": null, "labels": null, "agent": null, "system_prompt": null, "retention": null, "id": null}`,
			want: "T map[k:v l:w] echo Be brief. 5 100s",
		},
		{name: "null beside others", body: `{"title": null, "agent": ""}`, want: "T map[k:v l:w]  Be brief. 5 100s"},
		{
			name: "null in an object", body: `{"retention": {"ttl": null, "maxMessages": 6}}`,
			want: "T map[k:v l:w] echo Be brief. 6 100s",
		},
		{
			name: "nothing but null in an object", body: `{"retention": {"ttl": null}}`,
			want: "T map[k:v l:w] echo Be brief. 5 100s",
		},
		{name: "an empty object", body: `{"retention": {}}`, want: "T map[k:v l:w] echo Be brief. 5 100s"},
		{
			name: "mask of what is null", query: "?updateMask=title", body: `{"title": null, "agent": null}`,
			want: " map[k:v l:w] echo Be brief. 5 100s",
		},
		{name: "labels as a whole", body: `{"labels": {"k": "x"}}`, want: "T map[k:x] echo Be brief. 5 100s"},
		{name: "no labels", body: `{"labels": {}}`, want: "T map[] echo Be brief. 5 100s"},
		{name: "a part", body: `{"retention": {"ttl": "200s"}}`, want: "T map[k:v l:w] echo Be brief. 5 200s"},
		{name: "the other part", body: `{"retention": {"max_messages": 6}}`, want: "T map[k:v l:w] echo Be brief. 6 100s"},
		{
			name: "what the server sets",
			body: `{"id": "a:b", "version": 99, "uid": "x", "activeAgent": {"agent": "y"}, "createTime": "2001-01-01T00:00:00Z"}`,
			want: "T map[k:v l:w] echo Be brief. 5 100s",
		},
		{
			name: "mask", query: "?updateMask=title", body: `{"title": "U", "agent": "y"}`,
			want: "U map[k:v l:w] echo Be brief. 5 100s",
		},
		{name: "mask that clears", query: "?update_mask=title,systemPrompt", want: " map[k:v l:w] echo  5 100s"},
		{
			name: "mask in camel case", query: "?updateMask=retention.maxMessages,labels",
			body: `{"retention": {"maxMessages": 7}, "labels": {"a.b": "c"}}`, want: "T map[a.b:c] echo Be brief. 7 100s",
		},
		{
			name: "mask in snake case", query: "?update_mask=retention.max_messages", body: `{"retention": {"maxMessages": 7}}`,
			want: "T map[k:v l:w] echo Be brief. 7 100s",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.do(t, "POST", "/v1/conversations", created).wantOK(t)
			f.do(t, "PATCH", "/v1/conversations/a:b"+test.query, test.body, "Content-Type: application/x-www-form-urlencoded").wantOK(t)
			var got parleyv1.GetConversationResponse
			text := f.do(t, "GET", "/v1/conversations/a:b", "").wantOK(t)
			if err := protojson.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			c := got.GetConversation()
			if got := fmt.Sprint(c.GetTitle(), " ", c.GetLabels(), " ", c.GetAgent(), " ", c.GetSystemPrompt(), " ",
				c.GetRetention().GetMaxMessages(), " ", c.GetRetention().GetTtl().GetSeconds(), "s"); got != test.want {
				t.Errorf("conversation = %q, want %q", got, test.want)
			}
			f.do(t, "DELETE", "/v1/conversations/a:b", "").wantOK(t)
		})
	}
}

// TestNullIsAbsent: in every body null counts as an absent field, except in structured data, where
// it is a value.
func TestNullIsAbsent(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/conversations",
		`{"conversation": {"id": "c", "title": null, "labels": null, "retention": {"ttl": null, "maxMessages": null}, "version": null}}`).wantOK(t)
	f.do(t, "POST", "/v1/conversations:load", `{"conversationId": "c", "messageLimit": null}`).wantOK(t)
	f.do(t, "POST", "/v1/conversations/c/messages", `{"conversationId": null, "ifVersion": null, "messages": [{"role": "ROLE_USER", "content": null, "metadata": null,
		"structuredData": [{"type": "t", "value": null}], "toolCalls": null, "toolResult": null, "createTime": null}]}`).wantOK(t)
	f.do(t, "PUT", "/v1/conversations/c/active-agent", `{"agent": null, "leaseDuration": null, "ifVersion": null}`).wantOK(t)
	f.do(t, "POST", "/v1/conversations/c/chat",
		`{"content": "x", "agent": null, "window": null, "toolResults": null, "onBusy": null, "requestId": null}`).wantOK(t)
	f.do(t, "POST", "/v1/conversations/c/fork", `{"newConversationId": "d", "atSequence": null}`).wantOK(t)
	if text := f.do(t, "GET", "/v1/conversations/c/messages", "").wantOK(t); !strings.Contains(text,
		`"structuredData":[{"type":"t","value":null}]`) {
		t.Errorf("messages = %s, want the value null", text)
	}
	f.do(t, "POST", "/v1/import", `{"conversation": {"id": "e", "title": null}, "messages": null, "overwrite": null}`).wantOK(t)
}

// TestReadChangeAndWrite: a conversation that was read can be changed and sent back completely.
func TestReadChangeAndWrite(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/chat", `{"conversationId": "c", "content": "hi"}`).wantOK(t)
	f.do(t, "PUT", "/v1/conversations/c/active-agent", `{"agent": "echo", "reason": "r"}`).wantOK(t)
	f.do(t, "POST", "/v1/conversations/c/fork", `{"newConversationId": "d"}`).wantOK(t)
	for _, id := range []string{"c", "d"} {
		var read struct{ Conversation map[string]any }
		if err := json.Unmarshal([]byte(f.do(t, "GET", "/v1/conversations/"+id, "").wantOK(t)), &read); err != nil {
			t.Fatal(err)
		}
		read.Conversation["title"] = "changed"
		changed, err := json.Marshal(read.Conversation)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.do(t, "PATCH", "/v1/conversations/"+id, string(changed)).wantOK(t); !strings.Contains(got, `"changed"`) {
			t.Errorf("PATCH = %s, want the changed title", got)
		}
	}
}
