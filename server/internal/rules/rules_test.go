package rules

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestCompile(t *testing.T) {
	if err := Compile(); err != nil {
		t.Fatal(err)
	}
}

// Each kind of rule, in a request and in a piece of an agent.
func TestCheck(t *testing.T) {
	nan := &parleyv1.StructuredData{Type: "t", Value: structpb.NewNumberValue(math.NaN())}
	results := func(n int, id func(i int) string) (r []*parleyv1.ToolResult) {
		for i := range n {
			r = append(r, &parleyv1.ToolResult{CallId: id(i)})
		}
		return r
	}
	own, same := func(i int) string { return fmt.Sprint(i) }, func(int) string { return "same" }
	tests := []struct {
		name    string
		message proto.Message
		want    []Fault
	}{
		{"nothing wrong", &parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(64, own)}, nil},
		{"no message", (*parleyv1.RespondResponse)(nil), nil},
		{"a rule over a message", &parleyv1.ChatRequest{}, []Fault{
			{"content", "is required unless structured_data, attachments, tool_results or answer_pending are set"},
		}},
		{"results nowhere", &parleyv1.ChatRequest{ToolResults: results(1, own)}, []Fault{
			{"conversation_id", "is required with tool_results and with answer_pending"},
		}},
		{"two results of a call", &parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(2, same)}, []Fault{
			{"tool_results", "no two may have the same call_id"},
		}},
		{"too many results", &parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(65, own)}, []Fault{
			{"tool_results", "must contain no more than 64 item(s)"},
		}},
		{"a pattern", &parleyv1.GetConversationRequest{ConversationId: "../x"}, []Fault{
			{"conversation_id", "must be 1 to 128 of A-Z, a-z, 0-9 and . _ : -, beginning with a letter or a digit"},
		}},
		{"a value, in a request", &parleyv1.ChatRequest{StructuredData: []*parleyv1.StructuredData{nan}}, []Fault{
			{"structured_data[0].value", "a number in it is not finite"},
		}},
		{"a value, in a message", &parleyv1.AppendMessagesRequest{ConversationId: "c", Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_USER}, {Role: parleyv1.Role_ROLE_USER, StructuredData: []*parleyv1.StructuredData{nan}},
		}}, []Fault{{"messages[1].structured_data[0].value", "a number in it is not finite"}}},
		{"a value, in a piece", &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: nan}}, []Fault{
			{"structured_data.value", "a number in it is not finite"},
		}},
		{"all faults", &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{}}}, []Fault{
			{"tool_call.id", "is required"}, {"tool_call.name", "is required"},
		}},
		{"a duration", &parleyv1.PurgeConversationsRequest{InactiveFor: &durationpb.Duration{Seconds: 5, Nanos: -7}}, []Fault{
			{"inactive_for", "must have seconds within 10,000 years, and less than a second of nanos, with the same sign"},
		}},
		{"a duration that is fine", &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Hour)}, nil},
		{"a mask", &parleyv1.UpdateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: "c"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"title", "uid"}},
		}, []Fault{{"update_mask.paths[1]", `"uid" cannot be updated, only title, labels, agent, system_prompt, retention, retention.max_messages, retention.ttl can`}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := proto.Clone(test.message)
			got, err := Check(test.message)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if !proto.Equal(before, test.message) {
				t.Errorf("it was changed to %v", test.message)
			}
		})
	}
}
