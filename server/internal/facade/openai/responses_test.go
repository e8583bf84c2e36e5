package openai

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/gateway"
)

const post, get, del = http.MethodPost, http.MethodGet, http.MethodDelete

func TestResponseIsStored(t *testing.T) {
	f := newFixture(t)
	created := f.post(t, "responses", `{"model": "echo", "input": "hello you", "metadata": {"a": "b"}, "instructions": "be"}`)
	if created.outputText() != "hello you" || created.text("status") != completed || created.text("model") != "echo" {
		t.Errorf("response = %v", created)
	}
	if again := f.get(t, "responses/"+created.text("id")); !reflect.DeepEqual(again, created) {
		t.Errorf("retrieved %v, want %v", again, created)
	}
	list := f.get(t, "conversations/"+created.text("conversation.id")+"/items?order=asc")
	if got := list.text("data.0.content.0.text") + " " + list.text("data.1.content.0.text"); got != "hello you hello you" {
		t.Errorf("items = %v", list)
	}
}

func TestPreviousResponseContinuesItsConversation(t *testing.T) {
	f := newFixture(t)
	first := f.post(t, "responses", `{"model": "echo", "input": "one"}`)
	next := func(text string) values {
		return f.post(t, "responses", fmt.Sprintf(`{"model": "echo", "input": %q, "previous_response_id": %q}`, text,
			first.text("id")))
	}
	second := next("two")
	if got, want := second.text("conversation.id"), first.text("conversation.id"); got != want {
		t.Errorf("conversation = %q, want %q", got, want)
	}
	if got := second.text("previous_response_id"); got != first.text("id") {
		t.Errorf("previous_response_id = %q", got)
	}
	// The conversation has continued, so another response after the first one has its own copy.
	third := next("three")
	if third.text("conversation.id") == first.text("conversation.id") {
		t.Fatal("a response after an older one changed its conversation")
	}
	list := f.get(t, "conversations/"+third.text("conversation.id")+"/items?order=asc")
	var texts []string
	for i := range 4 {
		texts = append(texts, list.text(fmt.Sprintf("data.%d.content.0.text", i)))
	}
	if got := strings.Join(texts, ","); got != "one,one,three,three" {
		t.Errorf("items of the copy = %q", got)
	}
}

func TestUnstoredResponseLeavesNothing(t *testing.T) {
	f := newFixture(t)
	input := `[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c d"}]`
	got := f.post(t, "responses", `{"model": "echo", "store": false, "input": `+input+`}`)
	if got.outputText() != "c d" || got.get("store") != false || got.get("conversation") != nil {
		t.Errorf("response = %v", got)
	}
	if n := f.count(t); n != 0 {
		t.Errorf("%d conversations are left, want none", n)
	}
	f.do(t, get, "responses/"+got.text("id"), "").wantError(t, 404, "conversation_not_found", "")
	events := f.open(t, post, "responses", `{"model": "echo", "store": false, "stream": true, "input": "x"}`).all(t)
	if last := events[len(events)-1]; last.text("response.status") != completed {
		t.Errorf("last event = %v", last)
	}
	if n := f.count(t); n != 0 {
		t.Errorf("%d conversations are left after a stream, want none", n)
	}
}

func TestFunctionCallsContinueWithTheirOutputs(t *testing.T) {
	f := newFixture(t)
	s := f.open(t, post, "responses", `{"model": "scripted", "input": "weather?", "stream": true}`)
	f.agent.say("I ask.")
	f.agent.call("own", "inside", "{}")
	f.agent.result("own", "done")
	f.agent.say("Then you.")
	f.agent.call("c1", "weather", `{"city": "Köln"}`)
	f.agent.end()
	events := s.all(t)
	final := events[len(events)-1].object("response")
	if final.text("status") != completed || final.text("output.2.name") != "weather" ||
		final.text("output.2.arguments") != `{"city": "Köln"}` || len(final.list("output")) != 3 {
		t.Fatalf("response = %v", final)
	}
	// The ids of the output are cursors of the conversation, too. A text and a call may be parts of one message.
	items := "conversations/" + final.text("conversation.id") + "/items?limit=1"
	call := f.get(t, items+"&order=asc&after="+final.text("output.1.id"))
	text := f.get(t, items+"&after="+final.text("output.2.id"))
	if call.text("data.0.name") != "weather" || text.text("data.0.content.0.text") != "Then you." {
		t.Errorf("after the text: %v, before the call: %v", call, text)
	}
	body := fmt.Sprintf(`{"model": "scripted", "previous_response_id": %q, "input": [
		{"type": "function_call_output", "call_id": "c1", "output": "12 °C"}]}`, final.text("id"))
	done := make(chan values)
	go func() { done <- f.post(t, "responses", body) }()
	f.agent.say("12 °C")
	f.agent.usage(&parleyv1.Usage{InputTokens: 7, OutputTokens: 2, CachedInputTokens: 3})
	f.agent.end()
	second := <-done
	if second.outputText() != "12 °C" || second.get("usage.total_tokens") != 9.0 {
		t.Errorf("response = %v", second)
	}
	input := f.get(t, "responses/"+second.text("id")+"/input_items")
	if input.text("data.0.type") != "function_call_output" || input.text("data.0.output") != "12 °C" {
		t.Errorf("input items = %v", input)
	}
	f.do(t, post, "responses", strings.Replace(body, `"c1"`, `"other"`, 1)).wantError(t, 400, "nothing_to_answer", "input")
}

func TestStreamHasTheIDsAndTheTextOfTheResponse(t *testing.T) {
	f := newFixture(t)
	events := f.open(t, post, "responses", `{"model": "echo", "input": "one two Ü three", "stream": true}`).all(t)
	final := events[len(events)-1].object("response")
	text, last := "", -1.0
	for _, event := range events {
		text += event.text("delta")
		if id := event.text("item_id"); id != "" && id != final.text("output.0.id") {
			t.Errorf("%v has an item_id other than %s", event, final.text("output.0.id"))
		}
		if n := event.sequenceNumber(); n <= last {
			t.Errorf("%v follows number %v", event, last)
		} else {
			last = n
		}
	}
	if text != "one two Ü three" || final.outputText() != text {
		t.Errorf("text of the deltas = %q, of the response = %q", text, final.outputText())
	}
	if again := f.get(t, "responses/"+final.text("id")); !reflect.DeepEqual(again, final) {
		t.Errorf("retrieved %v, want %v", again, final)
	}
	item := f.get(t, "conversations/"+final.text("conversation.id")+"/items/"+final.text("output.0.id"))
	if !reflect.DeepEqual(map[string]any(item), final.get("output.0")) {
		t.Errorf("item = %v, want %v", item, final.get("output.0"))
	}
}

func TestStreamResumesAfterAnyEvent(t *testing.T) {
	f := newFixture(t)
	s := f.open(t, post, "responses", `{"model": "scripted", "input": "go", "stream": true}`)
	f.agent.say("Stück ", "für ", "Stück")
	f.agent.call("own", "inside", "{}")
	f.agent.result("own", "done")
	f.agent.say("zweite ", "Nachricht")
	f.agent.call("c1", "weather", `{"city": "Köln"}`)
	f.agent.end()
	complete := s.all(t)
	id := complete[0].text("response.id")
	for i := range complete {
		after := int(complete[i].sequenceNumber())
		path := fmt.Sprintf("responses/%s?stream=true&starting_after=%d", id, after)
		got, want := joined(f.open(t, get, path, "").all(t)), joined(complete[i+1:])
		if len(want) == 0 { // A client that has all gets the end again, since it cannot know.
			if len(got) != 1 || got[0].text("response.status") != completed {
				t.Errorf("after the last event: %v", got)
			}
			continue
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("after %d: %v, want %v", after, got, want)
		}
	}
}

func TestIdempotencyKeyStartsOneTurn(t *testing.T) {
	f := newFixture(t)
	first := f.post(t, "responses", `{"model": "echo", "input": "one"}`, "Idempotency-Key: k0")
	f.post(t, "responses", fmt.Sprintf(`{"model": "echo", "input": "two", "previous_response_id": %q}`, first.text("id")))
	for i, body := range []string{
		`{"model": "echo", "input": "x"}`,
		`{"model": "echo", "input": [{"role": "developer", "content": "d"}, {"role": "user", "content": "x"}]}`,
		fmt.Sprintf(`{"model": "echo", "input": "x", "previous_response_id": %q}`, first.text("id")),
		fmt.Sprintf(`{"model": "echo", "conversation": %q, "input": [
			{"role": "user", "content": "d"}, {"role": "user", "content": "x"}]}`, first.text("conversation.id")),
	} {
		key := fmt.Sprintf("Idempotency-Key: k%d", i+1)
		got := f.post(t, "responses", body, key)
		before := f.count(t)
		if again := f.post(t, "responses", body, key); !reflect.DeepEqual(got, again) || f.count(t) != before {
			t.Errorf("%s: repeated %v, want %v", body, again, got)
		}
		items := f.get(t, "conversations/"+got.text("conversation.id")+"/items?limit=100")
		if again := f.get(t, "conversations/"+got.text("conversation.id")+"/items?limit=100"); !reflect.DeepEqual(items, again) {
			t.Errorf("%s: items %v, want %v", body, again, items)
		}
	}
	f.do(t, post, "responses", `{"model": "echo", "input": "other"}`, "Idempotency-Key: k0").
		wantError(t, 409, "request_id_reused", "")
}

func TestBackgroundResponseContinuesWithoutItsClient(t *testing.T) {
	f := newFixture(t)
	begun := f.post(t, "responses", `{"model": "scripted", "input": "go", "background": true}`)
	if begun.text("status") != inProgress || begun.get("background") != true {
		t.Fatalf("response = %v", begun)
	}
	path := "responses/" + begun.text("id")
	f.agent.say("one ")
	s := f.open(t, get, path+"?stream=true", "")
	s.until(t, "response.output_text.delta")
	s.leave()
	if got := f.get(t, path); got.text("status") != inProgress {
		t.Errorf("status = %v", got)
	}
	f.agent.say("two")
	f.agent.end()
	end := f.open(t, get, path+"?stream=true", "").until(t, "response.completed")
	if got := end.object("response"); got.outputText() != "one two" || got.get("background") != true {
		t.Errorf("response = %v", got)
	}
}

func TestClientThatLeavesCancelsItsResponse(t *testing.T) {
	f := newFixture(t)
	s := f.open(t, post, "responses", `{"model": "scripted", "input": "go", "stream": true}`)
	id := s.until(t, "response.in_progress").text("response.id")
	f.agent.say("part")
	s.until(t, "response.output_text.delta")
	s.leave()
	got := f.get(t, "responses/"+id)
	for got.text("status") == inProgress { // A second reader of the stream would keep the turn running.
		got = f.get(t, "responses/"+id)
	}
	if got.text("status") != cancelled || got.outputText() != "part" {
		t.Errorf("response = %v", got)
	}
}

func TestClientWithAKeyMayComeBack(t *testing.T) {
	f := newFixture(t)
	const body, key = `{"model": "scripted", "input": "go", "stream": true}`, "Idempotency-Key: k"
	s := f.open(t, post, "responses", body, key)
	f.agent.say("part ")
	s.until(t, "response.output_text.delta")
	s.leave()
	again := f.open(t, post, "responses", body, key)
	f.agent.say("rest")
	f.agent.end()
	end := again.until(t, "response.completed")
	if got := end.object("response").outputText(); got != "part rest" {
		t.Errorf("text = %q", got)
	}
}

func TestCancelKeepsThePart(t *testing.T) {
	f := newFixture(t)
	s := f.open(t, post, "responses", `{"model": "scripted", "input": "go", "stream": true}`)
	id := s.until(t, "response.in_progress").text("response.id")
	f.agent.say("part")
	s.until(t, "response.output_text.delta")
	got := f.post(t, "responses/"+id+"/cancel", "")
	if got.text("status") != cancelled || got.outputText() != "part" || got.text("output.0.status") != incomplete {
		t.Errorf("response = %v", got)
	}
	if end := s.until(t, "response.incomplete"); end.text("response.status") != cancelled {
		t.Errorf("end = %v", end)
	}
	if again := f.post(t, "responses/"+id+"/cancel", ""); !reflect.DeepEqual(got, again) {
		t.Errorf("second cancel = %v, want %v", again, got)
	}
}

func TestFailedAgentIsAFailedResponse(t *testing.T) {
	f := newFixture(t)
	s := f.open(t, post, "responses", `{"model": "scripted", "input": "go", "stream": true}`)
	f.agent.say("part")
	f.agent.fail(&agent.Error{Message: "out of order"})
	end := s.until(t, "response.failed")
	if !strings.Contains(end.text("response.error.message"), "out of order") ||
		end.object("response").outputText() != "part" {
		t.Errorf("end = %v", end)
	}
}

func TestConversationWithARunningResponseIsLocked(t *testing.T) {
	f := newFixture(t)
	begun := f.post(t, "responses", `{"model": "scripted", "input": "go", "background": true}`)
	id := begun.text("conversation.id")
	for _, input := range []string{`"x"`, `[{"role": "developer", "content": "d"}, {"role": "user", "content": "x"}]`} {
		got := f.do(t, post, "responses", fmt.Sprintf(`{"model": "echo", "conversation": %q, "input": %s}`, id, input))
		got.wantError(t, 409, "conversation_locked", "")
		if strings.Contains(got.body, "on_busy") {
			t.Errorf("error = %s, which names a parameter of another API", got.body)
		}
	}
	if items := f.get(t, "conversations/"+id+"/items"); len(items.list("data")) != 1 {
		t.Errorf("items = %v, want only the first", items)
	}
	f.post(t, "responses/"+begun.text("id")+"/cancel", "")
}

func TestLongInputIsStoredInSeveralSteps(t *testing.T) {
	f := newFixture(t)
	var items []string
	for i := range 250 {
		items = append(items, fmt.Sprintf(`{"role": "user", "content": "%d"}`, i))
	}
	got := f.post(t, "responses", `{"model": "echo", "input": [`+strings.Join(items, ",")+`]}`)
	first := f.get(t, "responses/"+got.text("id")+"/input_items?order=asc&limit=1")
	if got.outputText() != "249" || first.text("data.0.content.0.text") != "0" {
		t.Errorf("response = %v, first input %v", got, first)
	}
	c := newConversation(t, f)
	f.do(t, post, "responses", fmt.Sprintf(`{"model": "nobody", "conversation": %q, "input": [%s]}`,
		strings.TrimPrefix(c, "conversations/"), strings.Join(items, ","))).wantError(t, 400, "model_not_found", "model")
	if items := f.get(t, c+"/items"); len(items.list("data")) != 0 {
		t.Errorf("items = %v, want none", items)
	}
}

// TestCallerIsCheckedBeforeTheBody: a caller that may not make the call gets the error before its body is read.
func TestCallerIsCheckedBeforeTheBody(t *testing.T) {
	var called string
	authorize := func(_ context.Context, method string, _ metadata.MD) (func(error), error) {
		called = method
		return nil, gateway.NewStatus(codes.Unauthenticated, "UNAUTHENTICATED", "no token").Err()
	}
	server := httptest.NewServer(New(nil, authorize, gateway.NewBodies()))
	defer server.Close()
	f := &fixture{url: server.URL + Prefix, client: server.Client()}
	got := f.do(t, post, "responses", "{")
	got.wantError(t, 401, "invalid_api_key", "")
	if called != parleyv1.ConversationService_Chat_FullMethodName || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("authorize was called for %q, header %v", called, got.header)
	}
}
