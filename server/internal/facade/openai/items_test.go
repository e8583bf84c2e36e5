package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rules"
)

// newConversation returns the path of a new conversation.
func newConversation(tb testing.TB, f *fixture) string {
	tb.Helper()
	return "conversations/" + f.post(tb, "conversations", "{}").text("id")
}

func TestConversationsAreCreatedChangedAndDeleted(t *testing.T) {
	f := newFixture(t)
	c := f.post(t, "conversations", `{"metadata": {"topic": "a"}, "items": [{"role": "user", "content": "hi"}]}`)
	path := "conversations/" + c.text("id")
	if c.text("object") != "conversation" || c.text("metadata.topic") != "a" || !strings.HasPrefix(c.text("id"), "conv_") {
		t.Errorf("created %v", c)
	}
	if got := f.get(t, path); !reflect.DeepEqual(got, c) {
		t.Errorf("retrieved %v, want %v", got, c)
	}
	if got := f.post(t, path, `{"metadata": {"b": "c"}}`); !reflect.DeepEqual(got.get("metadata"), map[string]any{"b": "c"}) {
		t.Errorf("updated %v", got)
	}
	if got := f.do(t, del, path, "").ok(t); got.get("deleted") != true || got.text("id") != c.text("id") {
		t.Errorf("deleted %v", got)
	}
	f.do(t, get, path, "").wantError(t, 404, "conversation_not_found", "")
	f.do(t, get, path+"/items", "").wantError(t, 404, "conversation_not_found", "")
}

func TestConversationKeepsItsItems(t *testing.T) {
	f := newFixture(t)
	path := newConversation(t, f)
	const count = 120 // More than the default of the server keeps.
	for i := range count / 20 {
		var items []string
		for j := range 20 {
			items = append(items, fmt.Sprintf(`{"role": "user", "content": "%d"}`, i*20+j))
		}
		f.post(t, path+"/items", `{"items": [`+strings.Join(items, ",")+`]}`)
	}
	first := f.get(t, path+"/items?order=asc&limit=1")
	if first.text("data.0.content.0.text") != "0" || first.get("has_more") != true {
		t.Errorf("oldest item = %v", first)
	}
}

func TestForbiddenRetentionIsLeftOut(t *testing.T) {
	f := newFixtureWith(t, func(o *rpc.Options) {
		o.Retentions = rules.Retentions{ForbidKeepAll: true, ForbidNoExpiry: true, ForbidNoEviction: true}
	})
	path := newConversation(t, f)
	f.post(t, path+"/items", `{"items": [{"role": "user", "content": "hi"}]}`)
	if got := f.post(t, "responses", `{"model": "echo", "input": "x"}`).outputText(); got != "x" {
		t.Errorf("text = %q", got)
	}
}

func TestItemsComeBackAsTheyWere(t *testing.T) {
	f := newFixture(t)
	path := newConversation(t, f)
	large := strings.Repeat("größer ", 50_000)
	items := []string{
		`{"type": "message", "role": "user", "status": "completed", "content": [{"type": "input_text", "text": "a\u0000\ud83d\ude00\ud800"}]}`,
		`{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "why"}], "encrypted_content": "x=="}`,
		`{"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1.0}", "status": "completed"}`,
		`{"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"}], "status": "completed"}`,
		`{"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q", "n": 1.0}}`,
		`{"type": "message", "role": "assistant", "id": "msg_own", "status": "completed", "content": [{"type": "output_text", "text": "` +
			large + `", "annotations": []}]}`,
	}
	created := f.post(t, path+"/items", `{"items": [`+strings.Join(items, ",")+`]}`)
	list := f.get(t, path+"/items?order=asc")
	if !reflect.DeepEqual(list, created) {
		t.Errorf("list = %.2000v, want what create returned: %.2000v", list, created)
	}
	for i, item := range items {
		want, got := parse(t, item), list.object(fmt.Sprintf("data.%d", i))
		if want.get("id") == nil {
			want["id"] = got.get("id")
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("item %d = %.1000v, want %.1000v", i, got, want)
		}
		if one := f.get(t, path+"/items/"+got.text("id")); !reflect.DeepEqual(one, got) {
			t.Errorf("item %d alone = %.1000v, want %.1000v", i, one, got)
		}
	}
	// Other clients read the text, the call and its result.
	reply, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: storedConversationID(strings.TrimPrefix(path, "conversations/")), Ascending: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	m := reply.GetMessages()
	if m[1].GetReasoning() != "why" || m[2].GetToolCalls()[0].GetName() != "f" || m[3].GetToolResult().GetContent() != "ok" ||
		!strings.Contains(m[5].GetContent(), "[cut: ") {
		t.Errorf("messages = %.2000v", m)
	}
	for _, id := range []string{"msg_own", "ws_1", "fco_1", "fc_1"} { // From the end, so the result before its call.
		f.do(t, del, path+"/items/"+id, "").ok(t)
	}
	c, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: reply.GetConversation().GetId()})
	if err != nil || c.GetConversation().GetMessageCount() != 2 || c.GetConversation().GetRecordCount() != 0 {
		t.Errorf("conversation after the deletions = %v, %v", c, err)
	}
}

// TestItemsOfOtherWriters: messages of agents and other clients are items of the form that OpenAI has for them.
func TestItemsOfOtherWriters(t *testing.T) {
	f := newFixture(t)
	const id = "team/4 ü"
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_USER, Content: "look", Id: "own id", Attachments: []*parleyv1.Attachment{
			{Uri: "https://x.org/a.png", MediaType: "image/png"}, {Uri: "https://x.org/a.pdf", Filename: "a.pdf"},
		}},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "I call", ToolCalls: []*parleyv1.ToolCall{
			{Id: "c1", Name: "f", Arguments: "{}"}, {Id: "c2", Name: "g", Arguments: "{}"},
		}},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "c1", Content: "r"}},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Native: &parleyv1.Native{
			Type: itemsType, Value: []byte(`[{"role": "user", "content": "x"}, {"type": "reasoning", "id": "rs", "summary": []}]`),
		}},
		{Role: parleyv1.Role_ROLE_SYSTEM, Content: "kept", Native: &parleyv1.Native{Type: itemType, Value: []byte("no JSON")}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := "conversations/" + url.PathEscape(id)
	list := f.get(t, path+"/items?order=asc")
	var kinds []string
	for i := range list.list("data") {
		at := fmt.Sprintf("data.%d.", i)
		kinds = append(kinds, list.text(at+"type")+" "+list.text(at+"role")+list.text(at+"name")+list.text(at+"output"))
		it := f.get(t, path+"/items/"+url.PathEscape(list.text(at+"id")))
		if !reflect.DeepEqual(map[string]any(it), list.get(fmt.Sprintf("data.%d", i))) {
			t.Errorf("item %d alone = %v", i, it)
		}
	}
	want := []string{
		"message user", "message assistant", "function_call f", "function_call g", "function_call_output r", "message user",
		"reasoning ", "message system",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("items = %q, want %q", kinds, want)
	}
	if list.text("data.0.content.1.image_url") != "https://x.org/a.png" || list.text("data.0.content.2.filename") != "a.pdf" {
		t.Errorf("item 0 = %v", list.get("data.0"))
	}
	f.do(t, del, path+"/items/"+list.text("data.1.id"), "").wantError(t, 400, "unsupported_operation", "item_id")
}

// TestListOrdersAndCursors compares pages with a list of all items, after random additions and deletions.
func TestListOrdersAndCursors(t *testing.T) {
	f := newFixture(t)
	path := newConversation(t, f)
	random := rand.New(rand.NewPCG(1, 2))
	var ids []string
	for i := range 60 {
		created := f.post(t, path+"/items", fmt.Sprintf(`{"items": [{"role": "user", "content": "%d"}, {"role": "user", "content": "x"}]}`, i))
		ids = append(ids, created.text("data.0.id"), created.text("data.1.id"))
		for len(ids) > 2 && random.IntN(2) == 0 {
			at := random.IntN(len(ids))
			f.do(t, del, path+"/items/"+ids[at], "").ok(t)
			ids = slices.Delete(ids, at, at+1)
		}
	}
	for _, order := range []string{"asc", "desc"} {
		want := slices.Clone(ids)
		if order == "desc" {
			slices.Reverse(want)
		}
		for _, limit := range []int{1, 3, 100} {
			var got []string
			query := fmt.Sprintf("/items?order=%s&limit=%d", order, limit)
			for after := ""; ; {
				page := f.get(t, path+query+after)
				data := page.list("data")
				for i := range data {
					got = append(got, page.text(fmt.Sprintf("data.%d.id", i)))
				}
				if len(data) > limit || page.get("has_more") == true && len(data) != limit {
					t.Fatalf("%s: a page of %d items", query, len(data))
				}
				if page.get("has_more") != true {
					break
				}
				after = "&after=" + page.text("last_id")
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %q, want %q", query, got, want)
			}
		}
	}
}

func TestRefusedByName(t *testing.T) {
	f := newFixture(t)
	c := newConversation(t, f)
	conversation := strings.TrimPrefix(c, "conversations/")
	before := f.count(t)
	long := strings.Repeat("x", 9000)
	for _, test := range []struct {
		method, path, body string
		status             int
		code, param        string
	}{
		{post, "responses", ``, 400, codeInvalid, "body"},
		{post, "responses", `{`, 400, codeInvalid, "body"},
		{post, "responses", "{\"input\": \"\xff\"}", 400, codeInvalid, "body"},
		{post, "responses", `[]`, 400, codeInvalid, "body"},
		{post, "responses", `{"input": "x", "input": "y"}`, 400, codeInvalid, "input"},
		{post, "responses", `{"model": "echo"}`, 400, codeMissing, "input"},
		{post, "responses", `{"input": ""}`, 400, codeInvalid, "input"},
		{post, "responses", `{"input": 7}`, 400, codeInvalid, "input"},
		{post, "responses", `{"input": []}`, 400, codeInvalid, "input"},
		{post, "responses", `{"input": [7]}`, 400, codeInvalid, "input[0]"},
		{post, "responses", `{"input": [{"role": "boss", "content": "x"}]}`, 400, codeInvalid, "input[0].role"},
		{post, "responses", `{"input": [{"role": "user"}]}`, 400, codeMissing, "input[0].content"},
		{post, "responses", `{"input": [{"role": "user", "content": [{"text": "x"}]}]}`, 400, codeMissing, "input[0].content[0].type"},
		{post, "responses", `{"input": [{"type": "item_reference", "id": "msg_1"}]}`, 400, codeUnsupported, "input[0]"},
		{post, "responses", `{"input": [{"id": "msg_1"}]}`, 400, codeUnsupported, "input[0]"},
		{post, "responses", `{"input": [{"type": "function_call_output", "output": "x"}]}`, 400, codeMissing, "input[0].call_id"},
		{post, "responses", `{"input": [{"role": "assistant", "content": "x"}]}`, 400, codeInvalid, "input"},
		{post, "responses", `{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,eA=="}]}]}`, 400, codeUnsupported, "input[0].content[0]"},
		{post, "responses", `{"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://x.org/` + long + `"}]}]}`, 400, codeUnsupported, "input[0].content[0]"},
		{post, "responses", `{"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}`, 400, codeUnsupported, "input[0].content[0]"},
		{post, "responses", `{"input": [{"role": "user", "content": [{"type": "input_audio", "data": "x"}]}]}`, 400, codeUnsupported, "input[0].content[0]"},
		{post, "responses", `{"input": "x", "model": "nobody"}`, 400, "model_not_found", "model"},
		{post, "responses", `{"model": "nobody", "input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}`, 400, "model_not_found", "model"},
		{post, "responses", `{"input": "x", "model": 7}`, 400, codeInvalid, "model"},
		{post, "responses", `{"input": "x", "stream": "yes"}`, 400, codeInvalid, "stream"},
		{post, "responses", `{"input": "x", "tools": [{"type": "web_search"}]}`, 400, codeUnsupported, "tools"},
		{post, "responses", `{"input": "x", "tool_choice": "required"}`, 400, codeUnsupported, "tool_choice"},
		{post, "responses", `{"input": "x", "temperature": 1}`, 400, codeUnsupported, "temperature"},
		{post, "responses", `{"input": "x", "text": {"format": {"type": "json_object"}}}`, 400, codeUnsupported, "text"},
		{post, "responses", `{"input": "x", "reasoning": {"effort": "low"}}`, 400, codeUnsupported, "reasoning"},
		{post, "responses", `{"input": "x", "truncation": "disabled"}`, 400, codeUnsupported, "truncation"},
		{post, "responses", `{"input": "x", "include": ["reasoning.encrypted_content"]}`, 400, codeUnsupported, "include"},
		{post, "responses", `{"input": "x", "speed": 1}`, 400, codeUnknown, "speed"},
		{post, "responses", `{"input": "x", "store": false, "background": true}`, 400, codeInvalid, "background"},
		{post, "responses", `{"input": "x", "store": false, "conversation": "` + conversation + `"}`, 400, codeUnsupported, "store"},
		{post, "responses", `{"input": "x", "conversation": "c", "previous_response_id": "r"}`, 400, codeInvalid, "previous_response_id"},
		{post, "responses", `{"input": "x", "conversation": {}}`, 400, codeInvalid, "conversation"},
		{post, "responses", `{"input": "x", "conversation": "none"}`, 404, "conversation_not_found", ""},
		{post, "responses", `{"input": "x", "previous_response_id": "resp_1"}`, 404, "not_found", "previous_response_id"},
		{post, "responses", `{"input": "x", "metadata": {"openai.x": "y"}}`, 400, codeInvalid, "metadata.openai.x"},
		{post, "responses", `{"input": "x", "metadata": {"a": 1}}`, 400, codeInvalid, "metadata.a"},
		{post, "responses", `{"input": "x", "metadata": {"a": "` + long + `"}}`, 400, codeInvalid, `metadata["a"]`},
		{post, "responses?x=1", `{"input": "x"}`, 400, codeUnknown, "x"},
		{get, "responses/resp_1", ``, 404, "not_found", "response_id"},
		{post, "responses/resp_1/cancel", ``, 404, "not_found", "response_id"},
		{get, "responses/resp_1/input_items", ``, 404, "not_found", "response_id"},
		{get, "responses/resp_1?stream=maybe", ``, 400, codeInvalid, "stream"},
		{get, "responses/resp_1?starting_after=-1", ``, 400, codeInvalid, "starting_after"},
		{del, "responses/resp_1", ``, 400, "unsupported_operation", ""},
		{post, "responses/compact", `{}`, 400, "unsupported_operation", ""},
		{post, "conversations", `{"title": "x"}`, 400, codeUnknown, "title"},
		{post, "conversations", `{"items": [{"role": "user", "content": 7}]}`, 400, codeInvalid, "items[0].content"},
		{post, "conversations", `{"metadata": {"": "x"}}`, 400, codeInvalid, "metadata"},
		{post, c, `{}`, 400, codeMissing, "metadata"},
		{post, c + "/items", `{}`, 400, codeMissing, "items"},
		{post, c + "/items", `{"items": []}`, 400, codeInvalid, "items"},
		{post, c + "/items", `{"items": [{"role": "user", "content": "x"}, {"type": "thought"}]}`, 400, codeInvalid, "items[1].type"},
		{post, c + "/items", `{"items": [{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "", "name": "f", "arguments": ""}]}`, 400, codeInvalid, "items[1].call_id"},
		{post, c + "/items", `{"items": [{"role": "user", "content": "x", "id": "` + long + `"}]}`, 400, codeInvalid, "items[0].id"},
		{get, c + "/items?limit=0", ``, 400, codeInvalid, "limit"},
		{get, c + "/items?limit=101", ``, 400, codeInvalid, "limit"},
		{get, c + "/items?order=up", ``, 400, codeInvalid, "order"},
		{get, c + "/items?after=msg_1", ``, 404, "not_found", "after"},
		{get, c + "/items?include=x", ``, 400, codeUnsupported, "include"},
		{get, c + "/items/msg_1", ``, 404, "not_found", "item_id"},
		{del, c + "/items/msg_1", ``, 404, "not_found", "item_id"},
		{get, "models/nobody", ``, 404, "model_not_found", "model"},
		{get, "files", ``, 404, "unknown_url", ""},
		{del, "models", ``, 405, "method_not_allowed", ""},
		{get, "conversations//items", ``, 404, "unknown_url", ""},
	} {
		t.Run(test.method+" "+test.path+" "+test.body[:min(60, len(test.body))], func(t *testing.T) {
			f.do(t, test.method, test.path, test.body).wantError(t, test.status, test.code, test.param)
		})
	}
	if got := f.count(t); got != before {
		t.Errorf("%d conversations, want %d: a refused request was stored", got, before)
	}
	if items := f.get(t, c+"/items"); len(items.list("data")) != 0 {
		t.Errorf("items = %v, want none", items)
	}
}

func TestRefusedTurnRemovesItsInput(t *testing.T) {
	f := newFixture(t)
	c := newConversation(t, f)
	f.do(t, post, "responses", fmt.Sprintf(`{"model": "nobody", "conversation": %q, "input": [
		{"role": "developer", "content": "d"}, {"role": "user", "content": "x"}]}`, strings.TrimPrefix(c, "conversations/"))).
		wantError(t, 400, "model_not_found", "model")
	if items := f.get(t, c+"/items"); len(items.list("data")) != 0 {
		t.Errorf("items = %v, want none", items)
	}
}

func TestNeutralParametersAreAccepted(t *testing.T) {
	f := newFixture(t)
	got := f.post(t, "responses", `{"model": "echo", "input": "x", "tools": [], "tool_choice": "auto", "temperature": null,
		"text": {"format": {"type": "text"}, "verbosity": null}, "reasoning": {"effort": null}, "user": "u", "include": [],
		"parallel_tool_calls": true, "prompt_cache_key": "k", "safety_identifier": "s", "service_tier": "auto"}`)
	if got.outputText() != "x" {
		t.Errorf("response = %v", got)
	}
}

func TestModelsAreTheAgents(t *testing.T) {
	f := newFixture(t)
	list := f.get(t, "models")
	if list.text("data.0.id") != "echo" || list.text("data.1.id") != "scripted" {
		t.Errorf("models = %v", list)
	}
	if got := f.get(t, "models/echo"); got.text("object") != "model" {
		t.Errorf("model = %v", got)
	}
}

// FuzzBodies: any body gets a response or an error in the form of OpenAI, and a refused one stores nothing.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{
		`{"input": "x"}`, `{"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "store": false}`,
		`{"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
			{"type": "function_call_output", "call_id": "c", "output": "x"}], "metadata": {"a": "b"}}`,
		`{"items": [{"role": "user", "content": "\ud800"}], "metadata": null}`, `{"input": [{"id": "x"}], "tools": [{}]}`,
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	s := newFixture(f)
	f.Fuzz(func(t *testing.T, body string, responses bool) {
		if strings.Contains(body, "scripted") {
			t.Skip() // This agent waits for the test.
		}
		path := "conversations"
		if responses {
			path = "responses"
		}
		before := s.count(t)
		got := s.do(t, post, path, body)
		switch {
		case got.code == 200:
			return
		case got.code >= 500:
			t.Errorf("%q: %d %s", body, got.code, got.body)
		}
		var fault struct {
			Error struct{ Message, Type, Code string }
		}
		if json.Unmarshal([]byte(got.body), &fault) != nil || fault.Error.Message == "" || fault.Error.Code == "" {
			t.Errorf("%q: %d %s", body, got.code, got.body)
		}
		if after := s.count(t); after != before {
			t.Errorf("%q: %d conversations, want %d", body, after, before)
		}
	})
}
