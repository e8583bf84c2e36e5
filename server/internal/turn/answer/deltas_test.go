package answer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	storev1 "github.com/parleyhq/parley/gen/parley/store/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
)

func reasoning(s string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Reasoning{Reasoning: s}}
}

func callDelta(id, name, arguments string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCallDelta{
		ToolCallDelta: &parleyv1.ToolCallDelta{Id: id, Name: name, Arguments: arguments, Index: 9, Offset: 9},
	}}
}

// sentEvents is a sink that describes the events of a log, unmerged.
type sentEvents []string

func (*sentEvents) HasSubscribers() bool { return true }

func (s *sentEvents) TurnEvent(_, _ string, event *parleyv1.TurnEvent) {
	switch e := event.GetEvent().(type) {
	case *parleyv1.TurnEvent_TextDelta:
		*s = append(*s, fmt.Sprintf("text %q at %d", e.TextDelta.GetText(), e.TextDelta.GetOffset()))
	case *parleyv1.TurnEvent_ReasoningDelta:
		*s = append(*s, fmt.Sprintf("reasoning %q at %d", e.ReasoningDelta.GetText(), e.ReasoningDelta.GetOffset()))
	case *parleyv1.TurnEvent_ToolCallDelta:
		d := e.ToolCallDelta
		*s = append(*s, fmt.Sprintf("call %d %s %s %q at %d", d.GetIndex(), d.GetId(), d.GetName(), d.GetArguments(),
			d.GetOffset()))
	default:
		*s = append(*s, strings.TrimPrefix(fmt.Sprintf("%T", e), "*parleyv1.TurnEvent_"))
	}
}

// TestDeltas: each piece is an event with its offset. The server sets index and offset.
func TestDeltas(t *testing.T) {
	got := new(sentEvents)
	a := New("turn", 1000, eventlog.New("turn", "tenant", "c", got))
	a.SetAgent("main")
	for _, piece := range []*parleyv1.RespondResponse{
		reasoning("h\xff"), reasoning("öm"), reasoning(""), text("a"), reasoning("so"),
		callDelta("1", "f", ""), callDelta("1", "f", "["), callDelta("2", "g", "{"), callDelta("1", "f", ""),
		callDelta("1", "f", "]\xff"), call("1"), call("2"), result("1"), reasoning("x"), callDelta("1", "f", "{"), text("b"),
	} {
		if err := a.Add(piece); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"reasoning \"h\ufffd\" at 0", `reasoning "öm" at 4`, `text "a" at 0`, `reasoning "so" at 7`, `call 0 1 f "" at 0`,
		`call 0 1 f "[" at 0`, `call 1 2 g "{" at 0`, "call 0 1 f \"]\ufffd\" at 1", "ToolCall", "ToolCall", "ToolResult",
		"AnswerStarted", `reasoning "x" at 0`, `call 0 1 f "{" at 0`, `text "b" at 0`,
	}
	if diff := cmp.Diff(want, []string(*got)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	messages, _ := a.Finish(true)
	if len(messages) != 3 || messages[0].GetReasoning() != "h\ufffdömso" || messages[2].GetReasoning() != "x" {
		t.Errorf("messages = %v, want the reasoning in the first and the last", messages)
	}
}

// TestRuns: the recorded runs are those of text and reasoning. A message of text alone has none.
func TestRuns(t *testing.T) {
	describeRuns := func(runs []*storev1.DeltaRun) string {
		var all []string
		for _, run := range runs {
			all = append(all, fmt.Sprintf("%d-%d %d %t", run.GetFirst(), run.GetLast(), run.GetBytes(), run.GetReasoning()))
		}
		return strings.Join(all, ", ")
	}
	for _, test := range []struct {
		name   string
		pieces []*parleyv1.RespondResponse
		want   string
	}{
		{"text", []*parleyv1.RespondResponse{text("a"), note("n"), text("b")}, ""},
		{"text before and after a call", []*parleyv1.RespondResponse{text("a"), call("1"), text("b")}, ""},
		{"deltas before the text", []*parleyv1.RespondResponse{callDelta("1", "f", ""), text("a"), text("b")}, ""},
		{
			"deltas in the text",
			[]*parleyv1.RespondResponse{text("a"), text("ä"), callDelta("1", "f", ""), text("b"), text("c")},
			"1-2 3 false, 4-5 2 false",
		},
		{"reasoning", []*parleyv1.RespondResponse{reasoning("a"), note("n"), reasoning("ö")}, "1-3 3 true"},
		{
			"reasoning and text",
			[]*parleyv1.RespondResponse{reasoning("a"), reasoning("b"), text("c"), text("d")},
			"1-2 2 true, 3-4 2 false",
		},
		{
			"text and reasoning",
			[]*parleyv1.RespondResponse{text("c"), text("d"), reasoning("a"), text("e")},
			"1-2 2 false, 3-3 1 true, 4-4 1 false",
		},
	} {
		a, _, err := answerOf(1000, test.pieces...)
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		_, indexes := a.Finish(true)
		if got := describeRuns(indexes[0].GetDeltas()); got != test.want {
			t.Errorf("%s: runs = %q, want %q", test.name, got, test.want)
		}
	}
}

// TestReasoningIsLimited: reasoning that exceeds its limits is left out, and the answer continues.
func TestReasoningIsLimited(t *testing.T) {
	a, l, err := answerOf(100, reasoning(strings.Repeat("x", 20)), reasoning("123456789"), reasoning("9"), text("yes"))
	if err != nil {
		t.Fatal(err)
	}
	messages, _ := a.Finish(true)
	if got, want := messages[0].GetReasoning(), strings.Repeat("x", 20)+"12345"; got != want || l.LastIndex() != 3 {
		t.Errorf("reasoning = %q in %d events, want %q in 2", got, l.LastIndex()-1, want)
	}
	a, _, err = answerOf(100, reasoning(strings.Repeat("x", 24)), reasoning("ö"), reasoning("z"))
	if err != nil {
		t.Fatal(err)
	}
	messages, _ = a.Finish(true)
	if got, want := messages[0].GetReasoning(), strings.Repeat("x", 24); got != want {
		t.Errorf("reasoning = %q, want %q without what follows the first omission", got, want)
	}
	var alternating []*parleyv1.RespondResponse
	for range maxRuns {
		alternating = append(alternating, reasoning("r"), text("t"))
	}
	a, _, err = answerOf(1<<20, alternating...)
	if err != nil {
		t.Fatal(err)
	}
	messages, indexes := a.Finish(true)
	bytes := map[bool]int{}
	for _, run := range indexes[0].GetDeltas() {
		bytes[run.GetReasoning()] += int(run.GetBytes())
	}
	n := len(indexes[0].GetDeltas())
	if n != maxRuns || bytes[true] != maxRuns/2 || bytes[false] != maxRuns || len(messages[0].GetReasoning()) != maxRuns/2 {
		t.Errorf("%d runs of %v bytes and %d bytes of reasoning, want %d runs, %d bytes of text and %d of reasoning", n, bytes,
			len(messages[0].GetReasoning()), maxRuns, maxRuns, maxRuns/2)
	}
}

// TestCallDeltasAreLimited: deltas of calls count like the calls, which then count in their place.
func TestCallDeltasAreLimited(t *testing.T) {
	large := new(*TooLargeError)
	if _, _, err := answerOf(100, callDelta("1", "f", strings.Repeat("x", 101))); !errors.As(err, large) {
		t.Errorf("Add of 101 bytes = %v, want a TooLargeError", err)
	}
	made := call("1")
	made.GetToolCall().Arguments = strings.Repeat("x", 60)
	if _, _, err := answerOf(100, callDelta("1", "find", strings.Repeat("x", 60)), made); err != nil {
		t.Errorf("Add of a call of 60 bytes with its deltas = %v", err)
	}
	var many []*parleyv1.RespondResponse
	for i := range MaxValues + 1 {
		many = append(many, callDelta(fmt.Sprint(i), "f", ""))
	}
	if a, _, err := answerOf(1<<20, many...); !errors.As(err, large) || a.Pieces() != MaxValues+1 {
		t.Errorf("Add of delta %d = %v, want a TooLargeError for %d", a.Pieces(), err, MaxValues+1)
	}
}

// TestCallDeltaRules: a delta that could not become a call fails the turn.
func TestCallDeltaRules(t *testing.T) {
	for name, pieces := range map[string][]*parleyv1.RespondResponse{
		"no id":                        {callDelta("", "f", "")},
		"no name":                      {callDelta("1", "", "")},
		"an id too long":               {callDelta(strings.Repeat("x", 257), "f", "")},
		"an id that is not UTF-8":      {callDelta("\xff", "f", "")},
		"a name that is not UTF-8":     {callDelta("1", "\xff", "")},
		"another name":                 {callDelta("1", "f", ""), callDelta("1", "g", "")},
		"the id of a call":             {call("1"), callDelta("1", "find", "")},
		"the id of an earlier message": {call("1"), call("2"), result("2"), callDelta("1", "find", "")},
	} {
		a, l, err := answerOf(1000, pieces...)
		if _, broken := errors.AsType[*agent.Error](err); !broken || a.Pieces() != len(pieces) {
			t.Errorf("%s: Add of piece %d = %v, want an agent.Error for %d", name, a.Pieces(), err, len(pieces))
		}
		if got := int(l.LastIndex()); got != len(pieces)-1 {
			t.Errorf("%s: %d events, want none of the piece that breaks a rule", name, got)
		}
	}
}

// TestCallThatIsCutOff: deltas alone are no message, and neither a snapshot nor the end of the answer has one.
func TestCallThatIsCutOff(t *testing.T) {
	for _, test := range []struct {
		pieces []*parleyv1.RespondResponse
		want   []string
	}{
		{[]*parleyv1.RespondResponse{callDelta("1", "f", "[")}, nil},
		{[]*parleyv1.RespondResponse{text("a"), callDelta("1", "f", "[")}, []string{"ASSISTANT main: a…"}},
		{[]*parleyv1.RespondResponse{reasoning("a"), callDelta("1", "f", "[")}, []string{"ASSISTANT main: …"}},
		{
			[]*parleyv1.RespondResponse{call("1"), result("1"), callDelta("2", "f", "["), handoff("b"), callDelta("3", "f", "[")},
			[]string{"ASSISTANT main: …", "TOOL main: "},
		},
		{
			[]*parleyv1.RespondResponse{callDelta("1", "f", "["), handoff("b"), text("c")}, []string{"ASSISTANT b: c…"},
		},
	} {
		a, _, err := answerOf(1000, test.pieces...)
		if err != nil {
			t.Fatal(err)
		}
		partial := a.Snapshot(-1)
		if diff := cmp.Diff(test.want, describe(partial.Messages)); diff != "" || len(partial.Indexes) != len(test.want) {
			t.Errorf("snapshot of %v with %d indexes (-want +got):\n%s", test.pieces, len(partial.Indexes), diff)
		}
		messages, indexes := a.Finish(false)
		if diff := cmp.Diff(test.want, describe(messages)); diff != "" || len(indexes) != len(test.want) {
			t.Errorf("messages of %v with %d indexes (-want +got):\n%s", test.pieces, len(indexes), diff)
		}
	}
}

// TestMessageAfterCutOffCall: a message that follows a call that was cut off begins with answer_started, so that
// readers do not continue the call.
func TestMessageAfterCutOffCall(t *testing.T) {
	got := new(sentEvents)
	a := New("turn", 1000, eventlog.New("turn", "tenant", "c", got))
	a.SetAgent("main")
	for _, piece := range []*parleyv1.RespondResponse{
		callDelta("1", "f", "["), handoff("b"), text("c"), callDelta("1", "f", "{"),
	} {
		if err := a.Add(piece); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{`call 0 1 f "[" at 0`, "AnswerStarted", `text "c" at 0`, `call 0 1 f "{" at 0`}
	if diff := cmp.Diff(want, []string(*got)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if _, indexes := a.Finish(true); len(indexes) != 1 || indexes[0].GetAnswerStarted() != 2 {
		t.Errorf("indexes = %v, want one message that begins at event 2", indexes)
	}
}

// TestSnapshotOfDeltas: a snapshot has the reasoning and the arguments so far.
func TestSnapshotOfDeltas(t *testing.T) {
	a, _, err := answerOf(1000, reasoning("a"), reasoning("b"), callDelta("1", "f", "["), callDelta("2", "g", "{"),
		callDelta("1", "f", "]"))
	if err != nil {
		t.Fatal(err)
	}
	partial := a.Snapshot(0)
	var calls []string
	for _, e := range partial.Calls {
		d := e.GetToolCallDelta()
		calls = append(calls, fmt.Sprintf("%d: %d %s %q at %d", e.GetIndex(), d.GetIndex(), d.GetId(), d.GetArguments(),
			d.GetOffset()))
	}
	if diff := cmp.Diff([]string{`5: 0 1 "[]" at 0`, `4: 1 2 "{" at 0`}, calls); diff != "" ||
		partial.Messages[0].GetReasoning() != "ab" {
		t.Errorf("snapshot has reasoning %q and calls (-want +got):\n%s", partial.Messages[0].GetReasoning(), diff)
	}
	if again := a.Snapshot(partial.Changes); again != nil {
		t.Errorf("Snapshot without a change = %v, want nil", again)
	}
}

// TestTextOnlyOfReasoning: if the store refuses an answer, its reasoning is left out with the runs of it.
func TestTextOnlyOfReasoning(t *testing.T) {
	a, _, err := answerOf(1000, reasoning("a"), text("b"), reasoning("c"), text("d"))
	if err != nil {
		t.Fatal(err)
	}
	messages, indexes := TextOnly(a.Finish(true))
	if len(messages) != 1 || messages[0].GetReasoning() != "" || len(indexes[0].GetDeltas()) != 2 {
		t.Errorf("TextOnly = %v with indexes %v, want text alone in two runs", messages, indexes)
	}
}

// TestFullAnswerKeepsItsMessages: reasoning and native forms that would need one more message than an answer can have
// are left out, and the answer does not fail.
func TestFullAnswerKeepsItsMessages(t *testing.T) {
	var pieces []*parleyv1.RespondResponse
	for range MaxMessages / 2 {
		pieces = append(pieces, call("1"), result("1"))
	}
	native := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Native{
		Native: &parleyv1.Native{Type: "x", Value: []byte("y")},
	}}
	a, _, err := answerOf(1<<20, append(pieces, reasoning("hm"), native)...)
	if messages, _ := a.Finish(true); err != nil || len(messages) != MaxMessages {
		t.Errorf("Add = %v, %d messages, want %d", err, len(messages), MaxMessages)
	}
}

// TestCutOffCallIsNotCounted: the bytes of a call that is cut off are free again.
func TestCutOffCallIsNotCounted(t *testing.T) {
	half := strings.Repeat("x", 60)
	a, _, err := answerOf(100, text("a"), callDelta("1", "f", half), handoff("b"), text(half))
	if messages, _ := a.Finish(true); err != nil || len(messages) != 2 {
		t.Errorf("Add = %v, %d messages, want 2", err, len(messages))
	}
}
