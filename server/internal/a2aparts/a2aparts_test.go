package a2aparts

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestCall: a call comes back from its part as it was, and arguments that are an object become their JSON.
func TestCall(t *testing.T) {
	want := &parleyv1.ToolCall{Id: "c", Name: "search", Arguments: `{"q": "x"}`}
	if got, isCall := Call(OfCall(want)); !isCall || !proto.Equal(got, want) {
		t.Errorf("Call(OfCall(%v)) = %v, %t", want, got, isCall)
	}
	for name, test := range map[string]struct {
		part   *a2a.Part
		isCall bool
		want   string // arguments; "" if the call is malformed
	}{
		"object": {
			New(TypeCall, map[string]any{"toolCall": map[string]any{
				"id": "c", "name": "n", "arguments": map[string]any{"q": 1},
			}}), true, `{"q":1}`,
		},
		"no name":   {New(TypeCall, map[string]any{"toolCall": map[string]any{"id": "c"}}), true, ""},
		"no call":   {New(TypeCall, map[string]any{"toolCall": "c"}), true, ""},
		"result":    {OfResult(&parleyv1.ToolResult{CallId: "c"}), false, ""},
		"text":      {a2a.NewTextPart("x"), false, ""},
		"data":      {OfData(&parleyv1.StructuredData{Type: "x", Value: structpb.NewStringValue("y")}), false, ""},
		"text call": {&a2a.Part{Content: a2a.Text("x"), Metadata: map[string]any{TypeKey: TypeCall}}, true, ""},
	} {
		got, isCall := Call(test.part)
		if isCall != test.isCall || got.GetArguments() != test.want || (got == nil) != (test.want == "") {
			t.Errorf("%s: Call = %v, %t, want %q, %t", name, got, isCall, test.want, test.isCall)
		}
	}
}
