package agui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func text(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
}

func reasoning(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: s}}
}

func call(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments},
	}}
}

func callDelta(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: name, Arguments: arguments},
	}}
}

func result(id, content string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{
		ToolResult: &parleyv1.ToolResult{CallId: id, Content: content},
	}}
}

func data(kind string, value any) *parleyv1.RespondResponse {
	v, err := structpb.NewValue(value)
	if err != nil {
		panic(err)
	}
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
		StructuredData: &parleyv1.StructuredData{Type: kind, Value: v},
	}}
}

func fail() *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: "fail"}}
}

func progress(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
		Progress: &parleyv1.TurnProgress{Text: s},
	}}
}

func usageOfModel(model string, tokens int32) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{
		Usage: &parleyv1.Usage{Model: model, InputTokens: tokens, OutputTokens: 1},
	}}
}

// everything is an answer with each kind of piece.
func everything() []*parleyv1.RespondResponse {
	return []*parleyv1.RespondResponse{
		progress("thinking"), reasoning("Two "), reasoning("eggs."), text("Let "), text("me "),
		data("list", []any{"flour", 1.5, nil}), reasoning("Hm."), text("look. é"),
		callDelta("c1", "price", ""), callDelta("c1", "price", `{"a":`), callDelta("c2", "stock", `{`),
		callDelta("c1", "price", `"é/ "}`), call("c1", "price", `{"a":"é/ "}`), call("c2", "stock", `{}`),
		data(stateType, map[string]any{"step": 1.0}),
		result("c1", "50"), result("c2", ""), usageOfModel("m", 5),
		{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "waiter"}},
		reasoning("Done."), text("50 "), text("cents."),
		call("c1", "price", ""), result("c1", "60"), text("Bye."), usageOfModel("m", 7),
	}
}

// TestEventsOfEachKind checks that each kind of event has its events in AG-UI, and that the thread has the same
// messages afterwards.
func TestEventsOfEachKind(t *testing.T) {
	f := newFixture(t, map[string][]*parleyv1.RespondResponse{"all": everything()})
	list := f.run(t, "script", "t", "r", user("u", "all"))
	got, err := show(list)
	if err != nil {
		t.Fatalf("a client of AG-UI refuses the stream: %v", err)
	}
	want := `[{a Let me look. é [{a-0-c1 price {"a":"é/ "}} {a-0-c2 stock {}}]} ` +
		`{a-0-c1-result 50 []} {a-0-c2-result  []} {a-1 50 cents. [{a-1-c1 price }]} {a-1-c1-result 60 []} {a-2 Bye. []}]`
	turnID, _, _ := strings.Cut(list[0].id, "/")
	var shownMessages []string
	for _, m := range got.messages {
		if m.Role != "reasoning" {
			shownMessages = append(shownMessages, strings.ReplaceAll(fmt.Sprint(struct {
				ID, Text string
				Calls    []shownCall
			}{m.ID, m.Text, m.Calls}), turnID, "a"))
		}
	}
	if text := fmt.Sprint(shownMessages); text != want {
		t.Errorf("the page shows\n%s\nwant\n%s", text, want)
	}
	if want := []string{`parley.progress {"text":"thinking"}`, `list ["flour",1.5,null]`}; !slices.Equal(got.custom, want) {
		t.Errorf("custom events = %q, want %q", got.custom, want)
	}
	if fmt.Sprint(got.state) != "map[step:1]" {
		t.Errorf("state = %v, want step 1", got.state)
	}
	if text, _ := json.Marshal(got.end["usage"]); string(text) != `[{"inputTokens":12,"model":"m","outputTokens":2}]` {
		t.Errorf("usage = %s, want the sum of both messages", text)
	}

	loaded, err := show(f.connect(t))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sortedByID(got), sortedByID(loaded)[:len(got.messages)]); diff != "" {
		t.Errorf("the messages after a reload differ from those of the stream (-stream +reload):\n%s", diff)
	}
	if loaded.find("u") == nil || fmt.Sprint(loaded.state) != "map[step:1]" {
		t.Errorf("the page after a reload is %s; want the message of the user, and the state", loaded)
	}
}

// sortedByID returns the messages of a page, those of the answer first.
func sortedByID(p *page) []*shown {
	list := slices.Clone(p.messages)
	slices.SortFunc(list, func(a, b *shown) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// TestEndsOfRuns checks the last event of a run for each state in which its turn may end.
func TestEndsOfRuns(t *testing.T) {
	f := newFixture(t, map[string][]*parleyv1.RespondResponse{
		"done": {text("yes")}, "fails": {text("part"), fail()}, "asks": {call("c1", "place", "{}"), call("c2", "time", "{}")},
		"waits": {text("Once"), nil, text(" more")}, "here": {text("Thanks")},
	})
	for _, test := range []struct{ content, want string }{
		{"done", `{"outcome":{"type":"success"},"runId":"done","threadId":"done","type":"RUN_FINISHED"}`},
		{
			"fails",
			`{"code":"AGENT_FAILED","message":"agent script failed: the model is broken","type":"RUN_ERROR"}`,
		},
		{"asks", `{"outcome":{"pendingToolCallIds":["T-0-c1","T-0-c2"],"type":"success"},"runId":"asks","threadId":"asks",` +
			`"type":"RUN_FINISHED"}`},
	} {
		list := f.run(t, "script", test.content, test.content, user("u", test.content))
		p, err := show(list)
		turnID, _, _ := strings.Cut(list[0].id, "/")
		text, _ := json.Marshal(p.end)
		if text := strings.ReplaceAll(string(text), turnID, "T"); err != nil || text != test.want {
			t.Errorf("the run %q ends with %s, %v; want %s", test.content, text, err, test.want)
		}
	}
	// A cancelled run finishes as cancelled.
	var p page
	for one := range events(t, f.open(t, http.MethodPost, PathPrefix+"script", runInput("w", "w", user("u", "waits")))) {
		if err := p.apply(one.event); err != nil {
			t.Fatal(err)
		}
		if one.kind() == "TEXT_MESSAGE_CONTENT" && len(f.scripts.started) > 0 {
			<-f.scripts.started
			r := f.open(t, http.MethodDelete, PathPrefix+"script?threadId=w&runId=w", "")
			if r.StatusCode != http.StatusNoContent {
				t.Fatalf("DELETE = %s, want 204", r.Status)
			}
		} else if one.kind() == "TEXT_MESSAGE_CONTENT" {
			<-f.scripts.started
			f.open(t, http.MethodDelete, PathPrefix+"script?threadId=w", "")
		}
	}
	if text, _ := json.Marshal(p.end["outcome"]); string(text) != `{"type":"cancelled"}` || p.text() != "Once" {
		t.Errorf("the cancelled run ends with %s and the text %q, want cancelled and Once", text, p.text())
	}
}

// TestResultsOfTools checks that the results of tools that the page sends continue the conversation.
func TestResultsOfTools(t *testing.T) {
	f := newFixture(t, map[string][]*parleyv1.RespondResponse{
		"asks": {call("c1", "place", "{}"), call("c2", "time", "{}")}, "noon": {text("Thanks")}, "next": {text("Next")},
	})
	asked, err := show(f.run(t, "script", "t", "r1", user("u", "asks")))
	if err != nil {
		t.Fatal(err)
	}
	pending := listOf(objectOf(asked.end, "outcome"), "pendingToolCallIds")
	c1, c2 := fmt.Sprint(pending[0]), fmt.Sprint(pending[1])
	answer := fmt.Sprintf(`{"id":%q,"role":"assistant"}`, asked.messages[0].ID)
	tool := func(id, callID, content string) string {
		return fmt.Sprintf(`{"id":%q,"role":"tool","toolCallId":%q,"content":%q}`, id, callID, content)
	}
	p, err := show(f.run(t, "script", "t", "r2", user("u", "asks"), answer, tool("x1", c1, "here"), tool("x2", c2, "noon")))
	if err != nil || p.text() != "Thanks" {
		t.Fatalf("the run with results shows %q, %v; want Thanks", p.text(), err)
	}
	loaded, err := show(f.connect(t))
	if err != nil || loaded.find("x1") == nil || loaded.find("x2") == nil || loaded.find("x1").CallID != c1 {
		t.Errorf("after a reload the page shows %s, %v; want the results with their ids", loaded, err)
	}
	r := f.open(t, http.MethodPost, PathPrefix+"script", runInput("t", "r3", tool("x9", "c9", "late")))
	if message := failed(t, r, http.StatusBadRequest, "NOTHING_TO_ANSWER"); len(f.stored(t)) != 5 {
		t.Errorf("a result without a call is stored: %s", message)
	}
}
