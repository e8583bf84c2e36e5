package openai

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// TestCallDeltas: the parts of calls are passed on as they come. A call without a valid id and name of its
// own is passed on only when it is complete.
func TestCallDeltas(t *testing.T) {
	part := agent.CallDelta
	tests := []struct {
		name  string
		calls []string // Tool calls of each delta.
		want  []*parleyv1.RespondResponse
	}{
		{"in parts", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":""}}]`,
			`[{"index":0,"function":{"arguments":"{\"city\""}}]`,
			`[{"index":0,"function":{"arguments":""}}]`,
			`[{"index":0,"function":{"arguments":": \"Bonn\"}"}}]`,
		}, []*parleyv1.RespondResponse{
			part("c1", "weather", ""), part("c1", "weather", `{"city"`), part("c1", "weather", `: "Bonn"}`),
		}},
		{"interleaved", []string{
			`[{"index":0,"id":"c1","function":{"name":"f"}},{"index":1,"id":"c2","function":{"name":"g","arguments":"["}}]`,
			`[{"index":0,"function":{"arguments":"{}"}},{"index":1,"function":{"arguments":"]"}}]`,
		}, []*parleyv1.RespondResponse{part("c1", "f", ""), part("c2", "g", "["), part("c1", "f", "{}"), part("c2", "g", "]")}},
		{"arguments before id and name", []string{
			`[{"index":0,"function":{"arguments":"{"}}]`, `[{"index":0,"id":"c1","function":{"arguments":"\"a"}}]`,
			`[{"index":0,"function":{"name":"f","arguments":"\":1}"}}]`,
		}, []*parleyv1.RespondResponse{part("c1", "f", `{"a":1}`)}},
		{"split characters", []string{
			`[{"index":0,"id":"c","function":{"name":"f","arguments":"[\"\ud83d"}}]`,
			`[{"index":0,"function":{"arguments":"\ude00` + "\xc3" + `"}}]`,
			`[{"index":0,"function":{"arguments":"` + "\xa9" + `\"]"}}]`,
		}, []*parleyv1.RespondResponse{part("c", "f", `["`), part("c", "f", "😀"), part("c", "f", `é"]`)}},
		{"no id", []string{`[{"index":0,"function":{"name":"f","arguments":"{}"}}]`}, nil},
		{"one id for two calls", []string{
			`[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c","function":{"name":"f","arguments":"[]"}}]`,
		}, []*parleyv1.RespondResponse{part("c", "f", "{}")}},
		{"an id that another call has first", []string{
			`[{"index":0,"function":{"name":"f","arguments":"{}"}},{"index":1,"id":"c","function":{"name":"f","arguments":"[]"}}]`,
			`[{"index":0,"id":"c"}]`,
		}, []*parleyv1.RespondResponse{part("c", "f", "[]")}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var chunks []string
			for _, calls := range test.calls {
				chunks = append(chunks, `{"choices":[{"index":0,"delta":{"tool_calls":`+calls+`}}]}`)
			}
			a := agentOf(t, openaitest.New(t, openaitest.Events(append(chunks, openaitest.Finish("tool_calls"), openaitest.Done)...)))
			var got []*parleyv1.RespondResponse
			parts, calls := make(map[string]string), make(map[string]string)
			for piece, err := range a.Respond(t.Context(), newRequest("Hi")) {
				if err != nil {
					t.Fatal(err)
				}
				if delta := piece.GetToolCallDelta(); delta != nil {
					got = append(got, piece)
					parts[delta.GetId()] += delta.GetArguments()
				}
				if call := piece.GetToolCall(); call != nil {
					calls[call.GetId()] = call.GetArguments()
				}
			}
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for id, arguments := range parts {
				if calls[id] != arguments {
					t.Errorf("call %q has arguments %q, its parts are %q", id, calls[id], arguments)
				}
			}
		})
	}
}

// TestReasoning: reasoning is passed on as it comes, before the text.
func TestReasoning(t *testing.T) {
	s := openaitest.New(t, openaitest.Events(slices.Concat(openaitest.Reasoning("The user ", "greets."),
		openaitest.Words("Hi"), []string{openaitest.Finish("stop"), openaitest.Done})...))
	pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
	want := []*parleyv1.RespondResponse{
		agent.ReasoningPiece("The user "), agent.ReasoningPiece("greets."), textPiece("Hi"),
		agent.NativePiece(nativeType, []byte(`{"content":"Hi","reasoning_content":"The user greets.","role":"assistant"}`)),
		finishPiece("stop"),
	}
	if diff := cmp.Diff(want, pieces, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
