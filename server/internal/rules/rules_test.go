package rules

import (
	"fmt"
	"math"
	"slices"
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

// TestCheck covers each kind of rule, in requests and in pieces of agents.
func TestCheck(t *testing.T) {
	nan := &parleyv1.StructuredData{Type: "t", Value: structpb.NewNumberValue(math.NaN())}
	results := func(n int, id func(i int) string) (r []*parleyv1.ToolResult) {
		for i := range n {
			r = append(r, &parleyv1.ToolResult{CallId: id(i)})
		}
		return r
	}
	uniqueID, sameID := func(i int) string { return fmt.Sprint(i) }, func(int) string { return "same" }
	tests := []struct {
		name    string
		message proto.Message
		want    []Fault
	}{
		{"valid", &parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(64, uniqueID)}, nil},
		{"nil message", (*parleyv1.RespondResponse)(nil), nil},
		{"rule of a complete message", &parleyv1.ChatRequest{}, []Fault{
			{"content", "is required unless structured_data, attachments, tool_results or answer_pending are set"},
		}},
		{"results without a conversation", &parleyv1.ChatRequest{ToolResults: results(1, uniqueID)}, []Fault{
			{"conversation_id", "is required with tool_results and with answer_pending"},
		}},
		{
			"two results for one call",
			&parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(2, sameID)},
			[]Fault{
				{"tool_results", "no two may have the same call_id"},
			},
		},
		{"too many results", &parleyv1.ChatRequest{ConversationId: "c", ToolResults: results(65, uniqueID)}, []Fault{
			{"tool_results", "must contain no more than 64 item(s)"},
		}},
		{"no id", &parleyv1.GetConversationRequest{}, []Fault{{"conversation_id", "is required"}}},
		{"id of a conversation", &parleyv1.GetConversationRequest{ConversationId: ".."}, []Fault{
			{
				"conversation_id",
				"must have 1 to 256 bytes, no control characters or line breaks, no space at its start or end, " +
					`and not be "." or ".."`,
			},
		}},
		{"id of a request", &parleyv1.LoadConversationRequest{RequestId: "a\n"}, []Fault{
			{
				"request_id",
				"must have at most 256 bytes, no control characters or line breaks, and no space at its start or end",
			},
		}},
		{"pattern", &parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: "today"}}, []Fault{
			{"date", "must be a date like 2026-11-20"},
		}},
		{"value in a request", &parleyv1.ChatRequest{StructuredData: []*parleyv1.StructuredData{nan}}, []Fault{
			{"structured_data[0].value", "contains a number that is not finite"},
		}},
		{"value in a message", &parleyv1.AppendMessagesRequest{ConversationId: "c", Messages: []*parleyv1.Message{
			{
				Role: parleyv1.Role_ROLE_USER,
			}, {Role: parleyv1.Role_ROLE_USER, StructuredData: []*parleyv1.StructuredData{nan}},
		}}, []Fault{{"messages[1].structured_data[0].value", "contains a number that is not finite"}}},
		{"value in a piece", &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: nan},
		}, []Fault{{"structured_data.value", "contains a number that is not finite"}}},
		{"two faults", &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{}},
		}, []Fault{{"tool_call.id", "is required"}, {"tool_call.name", "is required"}}},
		{"invalid duration", &parleyv1.PurgeConversationsRequest{
			InactiveFor: &durationpb.Duration{Seconds: 5, Nanos: -7},
		}, []Fault{
			{
				"inactive_for",
				"must be within 10,000 years, with nanos below one second and of the same sign as the seconds",
			},
		}},
		{"valid duration", &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Hour)}, nil},
		{"update mask", &parleyv1.UpdateConversationRequest{
			Conversation: &parleyv1.Conversation{
				Id: "c",
			}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"title", "uid"}},
		}, []Fault{{"update_mask.paths[1]", `"uid" cannot be updated; use ` +
			"title, labels, agent, system_prompt, retention, or a field of it as in retention.ttl"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			before := proto.Clone(test.message)
			got, err := Check(test.message)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("Check(%v) (-want +got):\n%s", test.message, diff)
			}
			if !proto.Equal(before, test.message) {
				t.Errorf("Check(%v) changed the message to %v", before, test.message)
			}
		})
	}
}

// TestManyElements checks that Check returns one fault of a message with too many elements to search for all.
func TestManyElements(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{
		100: 100, maxExplained + 1: 1, // Each message lacks a role.
	} {
		faults, err := Check(&parleyv1.AppendMessagesRequest{
			ConversationId: "a", Messages: slices.Repeat([]*parleyv1.Message{{}}, n),
		})
		if err != nil || len(faults) != want {
			t.Errorf("Check of %d empty messages = %d faults, %v, want %d", n, len(faults), err, want)
		}
	}
}
