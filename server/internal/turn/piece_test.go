package turn

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/turn/history"
)

func data(kind string, value *structpb.Value) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
		StructuredData: &parleyv1.StructuredData{Type: kind, Value: value},
	}}
}

func usage(u *parleyv1.Usage) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: u}}
}

func reason(word string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: word}}
}

// nested returns a value inside this number of lists.
func nested(levels int) *structpb.Value {
	v := structpb.NewBoolValue(true)
	for range levels {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	return v
}

// TestPiecesThatBreakRules: a piece that breaks a rule fails the turn with an error that names the
// rule and the field. Earlier pieces are stored, and nothing of this piece.
func TestPiecesThatBreakRules(t *testing.T) {
	type pieces = []*parleyv1.RespondResponse
	null, long := structpb.NewNullValue(), strings.Repeat("x", 129)
	toolCall := func(c *parleyv1.ToolCall) pieces {
		return pieces{{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: c}}}
	}
	toolResult := func(r *parleyv1.ToolResult) pieces {
		return pieces{call("1"), {Piece: &parleyv1.RespondResponse_ToolResult{ToolResult: r}}}
	}
	tests := []struct {
		name   string
		pieces pieces // the last one breaks a rule
		want   string
	}{
		{"data without a type", pieces{data("", null)}, "structured_data.type: is required"},
		{"data with a long type", pieces{data(long, null)}, "structured_data.type: must be at most 128 bytes"},
		{"data without a value", pieces{data("t", nil)}, "structured_data.value: "},
		{"data of no kind", pieces{data("t", &structpb.Value{})}, "structured_data.value: contains a value without a kind"},
		{
			"data that is infinite",
			pieces{data("t", structpb.NewNumberValue(math.Inf(1)))},
			"structured_data.value: contains a number that is not finite",
		},
		{"data that is deep", pieces{data("t", nested(17))}, "structured_data.value: is more than 16 levels deep"},
		{"no data", pieces{{Piece: &parleyv1.RespondResponse_StructuredData{}}}, "structured_data.type: is required"},
		{"much data", slices.Repeat(pieces{data("t", null)}, 65), "structured_data: a message has at most 64 values"},
		{"a call without an id", toolCall(&parleyv1.ToolCall{Name: "n"}), "tool_call.id: is required"},
		{
			"a call with a long id", toolCall(&parleyv1.ToolCall{Id: strings.Repeat("x", 257), Name: "n"}),
			"tool_call.id: must be at most 256 bytes",
		},
		{"a call without a name", toolCall(&parleyv1.ToolCall{Id: "1"}), "tool_call.name: is required"},
		{
			"a call with a long name", toolCall(&parleyv1.ToolCall{Id: "1", Name: long}),
			"tool_call.name: must be at most 128 bytes",
		},
		{"no call", toolCall(nil), "tool_call.id: is required"},
		{"a call again", pieces{call("1"), call("1")}, `tool_call.id: "1" is already the id of an open call of the answer`},
		{
			"a call again, after a handoff",
			pieces{call("1"), handoff("other"), call("1")},
			`tool_call.id: "1" is already the id of an open call`,
		},
		{"a result without an id", toolResult(&parleyv1.ToolResult{}), "tool_result.call_id: is required"},
		{
			"a result with a long name", toolResult(&parleyv1.ToolResult{CallId: "1", Name: long}),
			"tool_result.name: must be at most 128 bytes",
		},
		{
			"a result of no call", toolResult(&parleyv1.ToolResult{CallId: "2"}),
			`tool_result.call_id: "2" is not an open call of the answer`,
		},
		{"no result", toolResult(nil), "tool_result.call_id: is required"},
		{
			"a result again",
			pieces{call("1"), result("1", ""), result("1", "")},
			`tool_result.call_id: "1" is not an open call of the answer`,
		},
		{"negative usage", pieces{usage(&parleyv1.Usage{OutputTokens: -1})}, "usage.output_tokens: "},
		{"usage of a long model", pieces{usage(&parleyv1.Usage{Model: long})}, "usage.model: must be at most 128 bytes"},
		{"a long reason", pieces{reason(long)}, "finish_reason: must be at most 128 bytes"},
		{"a native form without a type", pieces{native("", 1)}, "native.type: is required"},
		{"a native form with a long type", pieces{native(long, 1)}, "native.type: must be at most 128 bytes"},
		{"a native form of no text", pieces{native("\xff", 1)}, "native.type: is not valid UTF-8"},
		{"a handoff to no agent", pieces{handoff("")}, "next_agent: is required"},
		{"a handoff to a long name", pieces{handoff(long)}, "next_agent: must be at most 128 bytes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rest := slices.Concat(pieces{text("before ")}, test.pieces[:len(test.pieces)-1])
			last := test.pieces[len(test.pieces)-1]
			f := newFixture(t, map[string]agent.Agent{
				"main": respondWith(append(rest, last, text("after"))...),
				"good": respondWith(rest...),
			}, nil)
			good := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "good", Content: "q", Agent: "good"}))
			if good.GetTurn().GetError() != nil {
				t.Fatalf("turn with the earlier pieces failed: %v", good.GetTurn())
			}
			all := collect(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
			turn := all[len(all)-1].GetFinished().GetTurn()
			problem := turn.GetError()
			want := "agent main failed: it sent a piece that breaks an API rule: " + test.want
			if stateName(turn.GetState()) != "FAILED" || problem.GetReason() != "AGENT_FAILED" || problem.GetRetryable() ||
				!strings.HasPrefix(problem.GetMessage(), want) {
				t.Errorf("turn ended %v, want the error %q", turn, want)
			}
			stored := f.history(t, "good")
			for i, line := range slices.Backward(stored) { // Expect the same messages, but an incomplete end.
				if strings.HasPrefix(line, "assistant: ") {
					stored[i] += " …"
					break
				}
			}
			if diff := cmp.Diff(stored, f.stored(t)); diff != "" {
				t.Errorf("stored messages (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStoredAnswersObeyRules: whatever an agent sends, a client could have sent the stored
// messages, and every stored result has its call.
func TestStoredAnswersObeyRules(t *testing.T) {
	var pieces []*parleyv1.RespondResponse
	f := newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(ctx context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			respondWith(pieces...)(ctx, r, yield)
		})}, nil)
	short := rapid.SampledFrom([]string{"1", "2", "3", "1", "2", "3", "1", "2", "3", "", strings.Repeat("x", 129), "\xff"})
	value := rapid.SampledFrom([]*structpb.Value{
		nested(0), nested(16), nested(0), nested(17),
		{},
		nil,
		structpb.NewNumberValue(math.NaN()),
	})
	draws := []func(rt *rapid.T) *parleyv1.RespondResponse{
		func(rt *rapid.T) *parleyv1.RespondResponse { return text(short.Draw(rt, "text")) },
		func(rt *rapid.T) *parleyv1.RespondResponse {
			return data(short.Draw(rt, "type"), value.Draw(rt, "value"))
		},
		func(rt *rapid.T) *parleyv1.RespondResponse { return call(short.Draw(rt, "call")) },
		func(rt *rapid.T) *parleyv1.RespondResponse { return call(short.Draw(rt, "call")) },
		func(rt *rapid.T) *parleyv1.RespondResponse { return result(short.Draw(rt, "result"), "") },
		func(rt *rapid.T) *parleyv1.RespondResponse { return handoff(short.Draw(rt, "next_agent")) },
		func(rt *rapid.T) *parleyv1.RespondResponse { return reason(short.Draw(rt, "finish_reason")) },
		func(rt *rapid.T) *parleyv1.RespondResponse { return native(short.Draw(rt, "native"), len(pieces)) },
		func(rt *rapid.T) *parleyv1.RespondResponse {
			return usage(&parleyv1.Usage{
				Model:       short.Draw(rt, "model"),
				InputTokens: rapid.Int32Range(-1, 9).Draw(rt, "tokens"),
			})
		},
		func(rt *rapid.T) *parleyv1.RespondResponse {
			summary := rapid.SampledFrom([]string{"s", "\xff", strings.Repeat("é", 400)}).Draw(rt, "summary")
			return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Summary{Summary: summary}}
		},
	}
	conversations := 0
	rapid.Check(t, func(rt *rapid.T) {
		pieces = nil
		for _, draw := range rapid.SliceOfN(rapid.SampledFrom(draws), 0, 20).Draw(rt, "pieces") {
			pieces = append(pieces, draw(rt))
		}
		conversations++
		id := fmt.Sprint("c", conversations)
		stored := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: id, Content: "q"})).GetMessages()
		if len(stored) == 0 {
			return
		}
		faults, err := rules.Check(&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: stored})
		if err != nil || len(faults) > 0 {
			rt.Errorf("Check(%v) = %v, %v", stored, faults, err)
		}
		_, answers := history.Track(stored)
		for i, m := range stored {
			if m.GetToolResult() != nil && answers[i] < 0 {
				rt.Errorf("message %d of %q has no call", i, describeMessages(stored))
			}
		}
	})
}

// TestValidPieces: pieces of the maximum size and unknown pieces are accepted.
func TestValidPieces(t *testing.T) {
	long := strings.Repeat("x", 128)
	unknown := &parleyv1.RespondResponse{}
	unknown.ProtoReflect().SetUnknown([]byte{0xf2, 0x07, 0x01, 'x'}) // field 126
	pieces := []*parleyv1.RespondResponse{
		nil,
		{},
		unknown,
		text(""),
		{Piece: &parleyv1.RespondResponse_Progress{}},
		{Piece: &parleyv1.RespondResponse_Usage{}},
		data(long, nested(16)), reason(long), reason(""), usage(&parleyv1.Usage{Model: long}),
		{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: long, Name: long}}},
		{Piece: &parleyv1.RespondResponse_ToolResult{ToolResult: &parleyv1.ToolResult{CallId: long, Name: long}}},
		call(long), result(long, ""), // The id can be used again.
		handoff(long), text("end"),
	}
	pieces = append(pieces, slices.Repeat([]*parleyv1.RespondResponse{data("t", structpb.NewNullValue())}, 64)...)
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(pieces...)}, nil)
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	if stateName(end.GetTurn().GetState()) != "COMPLETED" {
		t.Errorf("turn ended %v, want COMPLETED", end.GetTurn())
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: ", "tool: ", "assistant: ", "tool: ", "assistant: end"},
		f.stored(t)); diff != "" {
		t.Errorf("stored messages (-want +got):\n%s", diff)
	}
}

// TestOpenCallsRequireInput: a turn ends with INPUT_REQUIRED if a call of its answer has no result,
// whichever agent made the call and whatever followed.
func TestOpenCallsRequireInput(t *testing.T) {
	type pieces = []*parleyv1.RespondResponse
	tests := []struct {
		name   string
		pieces pieces
		open   bool
	}{
		{"none", pieces{text("a")}, false},
		{"one", pieces{text("a"), call("1")}, true},
		{"one, then text", pieces{call("1"), text("a")}, true},
		{"answered", pieces{call("1"), result("1", "r"), text("a")}, false},
		{"answered, at the end", pieces{call("1"), result("1", "r")}, false},
		{"one of two", pieces{call("1"), call("2"), result("1", "r"), text("a")}, true},
		{"answered in another order", pieces{call("1"), call("2"), result("2", "r"), result("1", "r")}, false},
		{"an id used again", pieces{call("1"), result("1", "r"), call("1")}, true},
		{"handed over", pieces{call("1"), handoff("other"), text("a")}, true},
		{"handed over, answered by the other", pieces{call("1"), handoff("other"), result("1", "r"), text("a")}, false},
		{"answered, then handed over", pieces{call("1"), result("1", "r"), handoff("other"), text("a")}, false},
		{"a call of the other", pieces{text("a"), handoff("other"), call("1")}, true},
	}
	for i, test := range tests {
		f := newFixture(t, map[string]agent.Agent{"main": respondWith(test.pieces...)}, nil)
		id := fmt.Sprint("c", i)
		want := "COMPLETED"
		if test.open {
			want = "INPUT_REQUIRED"
		}
		turn := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: id, Content: "q"})).GetTurn()
		if got := stateName(turn.GetState()); got != want || turn.GetError() != nil {
			t.Errorf("%s: turn ended %s, %v, want %s", test.name, got, turn.GetError(), want)
		}
	}
}
