package openai

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// TestToolCalls: calls in the forms of several servers are passed on once and complete.
func TestToolCalls(t *testing.T) {
	sunny, noon := callPiece("c1", "weather", `{"city": "Bonn"}`), callPiece("c2", "clock", "{}")
	tests := []struct {
		name  string
		calls []string // Tool calls of each delta.
		want  []*parleyv1.RespondResponse
	}{
		{"in parts", []string{
			`[{"index":0,"id":"c1","type":"function","function":{"name":"weather","arguments":""}}]`,
			`[{"index":0,"function":{"arguments":"{\"city\""}}]`,
			`[{"index":0,"function":{"arguments":": \"Bonn\"}"}}]`,
			`[{"index":1,"id":"c2","type":"function","function":{"name":"clock","arguments":""}}]`,
			`[{"index":1,"function":{"arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"interleaved parts", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather"}},{"index":1,"id":"c2","function":{"name":"clock"}}]`,
			`[{"index":0,"function":{"arguments":"{\"city\""}},{"index":1,"function":{"arguments":"{"}}]`,
			`[{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":": \"Bonn\"}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"complete", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\": \"Bonn\"}"}},{"index":1,"id":"c2","function":{"name":"clock","arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"complete, index 0 for all", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\": \"Bonn\"}"}}]`,
			`[{"index":0,"id":"c2","function":{"name":"clock","arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"in parts, index 0 for all", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\""}}]`,
			`[{"index":0,"id":"c1","function":{"arguments":": \"Bonn\"}"}}]`,
			`[{"index":0,"id":"c2","function":{"name":"clock","arguments":"{"}}]`,
			`[{"index":0,"function":{"arguments":"}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"in parts, no index, ids in each", []string{
			`[{"id":"c1","function":{"name":"weather","arguments":"{\"city\""}},{"id":"c2","function":{"name":"clock","arguments":"{"}}]`,
			`[{"id":"c1","function":{"arguments":": \"Bonn\"}"}},{"id":"c2","function":{"arguments":"}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"in parts, no index, id first", []string{
			`[{"id":"c1","function":{"name":"weather","arguments":"{\"city\""}}]`,
			`[{"function":{"arguments":": \"Bonn\"}"}}]`,
			`[{"id":"c2","function":{"name":"clock"}}]`,
			`[{"id":null,"function":{"arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"index in the first part", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\": \"Bonn\"}"}},{"index":1,"id":"c2","function":{"name":"clock","arguments":"{"}}]`,
			`[{"function":{"arguments":"}"}}]`,
		}, []*parleyv1.RespondResponse{sunny, noon}},
		{"different id in each part", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\""}}]`,
			`[{"index":0,"id":"x1","function":{"name":null,"arguments":": \"Bonn\"}"}}]`,
		}, []*parleyv1.RespondResponse{sunny}},
		{"name in each part", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":"{\"city\""}}]`,
			`[{"index":0,"id":"","function":{"name":"weather","arguments":": \"Bonn\"}"}}]`,
			`[{"index":0,"id":"","function":{"name":"weather","arguments":""}}]`,
		}, []*parleyv1.RespondResponse{sunny}},
		{"name later", []string{
			`[{"index":0,"id":"c2","function":{"arguments":""}}]`, `[{"index":0,"function":{"name":"clock","arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{noon}},
		{"arguments as an object", []string{
			`[{"index":0,"id":"c1","function":{"name":"weather","arguments":{"city": "Bonn"}}}]`,
		}, []*parleyv1.RespondResponse{sunny}},
		{"not JSON", []string{
			`[{"index":0,"id":"c","function":{"name":"f","arguments":"{'a':\n<é>"}}]`,
		}, []*parleyv1.RespondResponse{callPiece("c", "f", "{'a':\n<é>")}},
		{"split characters", []string{
			`[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a\":\"\ud83d"}}]`,
			`[{"index":0,"function":{"arguments":"\ude00` + "\xc3" + `"}}]`,
			`[{"index":0,"function":{"arguments":"` + "\xa9\xff" + `\"}"}}]`,
		}, []*parleyv1.RespondResponse{callPiece("c", "f", `{"a":"😀é`+"\uFFFD"+`"}`)}},
		{"numbers of another type", []string{
			`[{"index":"0","id":7,"function":{"name":"clock","arguments":"{"}},{"index":1.0,"id":-8,"function":{"name":"clock","arguments":"{"}}]`,
			`[{"index":"0","function":{"arguments":"}"}},{"index":1.0,"function":{"arguments":"}"}}]`,
		}, []*parleyv1.RespondResponse{callPiece("7", "clock", "{}"), callPiece("-8", "clock", "{}")}},
		{"no ids", []string{
			`[{"function":{"name":"clock","arguments":"{}"}},{"function":{"name":"clock","arguments":"{}"}},{"function":{"name":"weather"}},{"function":{"name":"clock"}}]`,
		}, []*parleyv1.RespondResponse{callPiece("new", "clock", "{}"), callPiece("new", "clock", "{}"), callPiece("new",
			"weather", ""), callPiece("new", "clock", "")}},
		{"long ids", []string{
			`[{"index":0,"id":"` + strings.Repeat("x", 256) + `","function":{"name":"clock","arguments":"{}"}},` +
				`{"index":1,"id":"` + strings.Repeat("y", 257) + `","function":{"name":"clock","arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{callPiece(strings.Repeat("x", 256), "clock", "{}"), callPiece("new", "clock", "{}")}},
		{"one id for all", []string{
			`[{"index":0,"id":"c","function":{"name":"clock","arguments":"{}"}},{"index":1,"id":"c","function":{"name":"clock","arguments":"{}"}}]`,
		}, []*parleyv1.RespondResponse{callPiece("c", "clock", "{}"), callPiece("new", "clock", "{}")}},
	}
	newID := regexp.MustCompile("^call_[A-Z2-7]{26}$")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			chunks := []string{openaitest.Delta(map[string]any{"role": "assistant"})}
			for _, calls := range test.calls {
				chunks = append(chunks, `{"choices":[{"index":0,"delta":{"tool_calls":`+calls+`}}]}`)
			}
			s := openaitest.New(t, openaitest.Events(append(chunks, openaitest.Finish("tool_calls"), openaitest.Done)...))
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			if err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]bool)
			for _, piece := range pieces {
				call := piece.GetToolCall()
				if call != nil && seen[call.GetId()] {
					t.Errorf("id %q is not unique", call.GetId())
				}
				if seen[call.GetId()] = true; newID.MatchString(call.GetId()) {
					call.Id = "new"
				}
			}
			if diff := cmp.Diff(append(test.want, finishPiece("tool_calls")), pieces, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestCallsThatAreCutOff: a call that is not JSON is passed on only if the model ended the answer
// itself.
func TestCallsThatAreCutOff(t *testing.T) {
	list := callPiece("c1", "list", "{}")
	for finish, want := range map[string][]*parleyv1.RespondResponse{
		"length":         {list},
		"content_filter": {list},
		"tool_calls":     {list, callPiece("c2", "look_up", `{"product": "Su`)},
		"function_call":  {list, callPiece("c2", "look_up", `{"product": "Su`)},
		"stop":           {list, callPiece("c2", "look_up", `{"product": "Su`)},
		"":               {list, callPiece("c2", "look_up", `{"product": "Su`)},
	} {
		t.Run(finish, func(t *testing.T) {
			chunks := []string{`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"list","arguments":"{}"}},` +
				`{"index":1,"id":"c2","function":{"name":"look_up","arguments":"{\"product\": \"Su"}}]}}]}`}
			if finish != "" {
				chunks = append(chunks, openaitest.Finish(finish))
				want = append(want, finishPiece(finish))
			}
			s := openaitest.New(t, openaitest.Events(append(chunks, openaitest.Done)...))
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			if diff := cmp.Diff(want, pieces, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestEmptyAnswer: an empty answer is a failure if its finish reason explains it. The usage is
// reported anyway.
func TestEmptyAnswer(t *testing.T) {
	cutOff := openaitest.ToolDelta(map[string]any{
		"index": 0, "id": "c", "function": map[string]any{"name": "f", "arguments": "{"},
	})
	nameless := openaitest.ToolDelta(map[string]any{"index": 0, "id": "c"})
	for name, test := range map[string]struct {
		delta, finish, want string
	}{
		"all tokens used for reasoning": {
			openaitest.Delta(map[string]any{"reasoning_content": "Hm"}), "length", "max_output_tokens",
		},
		"only white space":              {openaitest.Delta(map[string]any{"content": " \n"}), "length", "max_output_tokens"},
		"the only call is cut off":      {cutOff, "length", "max_output_tokens"},
		"a call is cut off in its name": {nameless, "length", "max_output_tokens"},
		"filtered":                      {openaitest.Delta(nil), "content_filter", "filter"},
		"refused":                       {openaitest.Delta(nil), "refusal", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openaitest.New(t, openaitest.Events(test.delta, openaitest.Finish(test.finish), openaitest.Usage(9, 100),
				openaitest.Done))
			pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
			failure, ok := errors.AsType[*agent.Error](err)
			if !ok || !strings.HasPrefix(failure.Message, "the answer is empty: ") ||
				!strings.Contains(failure.Message, test.want) || failure.Retryable {
				t.Errorf("Respond = %+v, want an empty answer", err)
			}
			if n := len(pieces); n < 2 || pieces[n-2].GetUsage().GetOutputTokens() != 100 ||
				pieces[n-1].GetFinishReason() != test.finish {
				t.Errorf("pieces = %v, want usage and finish reason at the end", pieces)
			}
		})
	}
}
