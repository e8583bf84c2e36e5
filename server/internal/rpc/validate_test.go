package rpc

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
)

// request returns an empty request of a method.
func request(t *testing.T, method protoreflect.MethodDescriptor) protoreflect.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New()
}

// methods returns the methods of ConversationService and RecordService by full name.
func methods() map[string]protoreflect.MethodDescriptor {
	all := make(map[string]protoreflect.MethodDescriptor)
	for _, service := range []protoreflect.ServiceDescriptor{
		parleyv1.File_parley_v1_conversation_service_proto.Services().Get(0),
		parleyv1.File_parley_v1_record_service_proto.Services().Get(0),
	} {
		for i := range service.Methods().Len() {
			method := service.Methods().Get(i)
			all[fmt.Sprintf("/%s/%s", service.FullName(), method.Name())] = method
		}
	}
	return all
}

// TestRulesCompile evaluates all rules in the protos.
func TestRulesCompile(t *testing.T) {
	for name, method := range methods() {
		var invalid *invalidError
		if err := validate(request(t, method).Interface()); err != nil && !errors.As(err, &invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInvalidFields sends invalid values in fields that several methods have.
func TestInvalidFields(t *testing.T) {
	f := open(t, nil)
	invalidIDs := []protoreflect.Value{}
	for _, id := range []string{
		".", "..", "a\x00b", "a\tb", " a", "a ", "a\n", "a\u0085b", "\u00a0a", "a\u3000", "a\u2028b", "a\u2029b", "\x7f",
		strings.Repeat("x", 257), strings.Repeat("é", 128) + "x",
	} {
		invalidIDs = append(invalidIDs, protoreflect.ValueOfString(id))
	}
	tests := []struct {
		field  protoreflect.Name
		values []protoreflect.Value
	}{
		{"conversation_id", invalidIDs},
		{"new_conversation_id", invalidIDs},
		{"request_id", []protoreflect.Value{
			protoreflect.ValueOfString(strings.Repeat("x", 257)), protoreflect.ValueOfString(" a"),
			protoreflect.ValueOfString("é\u00a0"), protoreflect.ValueOfString("a\n"),
		}},
		{"if_version", []protoreflect.Value{protoreflect.ValueOfInt32(-1)}},
		{"message_limit", []protoreflect.Value{protoreflect.ValueOfInt32(-1), protoreflect.ValueOfInt32(1001)}},
		{"page_size", []protoreflect.Value{protoreflect.ValueOfInt32(-1), protoreflect.ValueOfInt32(1001)}},
		{"after_sequence", []protoreflect.Value{protoreflect.ValueOfInt32(-1)}},
		{"at_sequence", []protoreflect.Value{protoreflect.ValueOfInt32(-1)}},
		{"max_bytes", []protoreflect.Value{protoreflect.ValueOfInt32(-1)}},
		{"known_version", []protoreflect.Value{protoreflect.ValueOfInt32(-1)}},
		{"known_uid", []protoreflect.Value{protoreflect.ValueOfString(strings.Repeat("x", 65))}},
		{"agent", []protoreflect.Value{protoreflect.ValueOfString(strings.Repeat("x", 129))}},
	}
	for _, test := range tests {
		sent := 0
		for name, method := range methods() {
			field := method.Input().Fields().ByName(test.field)
			if field == nil || method.IsStreamingClient() {
				continue
			}
			for _, value := range test.values {
				r := request(t, method)
				r.Set(field, value)
				err := f.conn.Invoke(t.Context(), name, r.Interface(), &parleyv1.DeleteConversationResponse{})
				got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
				if !slices.Contains(got.fields, string(test.field)) {
					t.Errorf("%s with %s %q: fields = %q", name, test.field, value, got.fields)
				}
				sent++
			}
		}
		if sent == 0 {
			t.Errorf("no method has the field %s", test.field)
		}
	}
	if n := f.changeCount(); n != 0 {
		t.Errorf("got %d changes, want 0", n)
	}
}

// TestRequiredID sends requests without the required conversation_id.
func TestRequiredID(t *testing.T) {
	f := open(t, nil)
	optional := []string{"LoadConversation", "Chat", "WriteRecords", "GetRecords", "ListRecords", "GetTurn", "ListTurns"}
	for name, method := range methods() {
		field := method.Input().Fields().ByName("conversation_id")
		if field == nil || slices.Contains(optional, string(method.Name())) {
			continue
		}
		err := f.conn.Invoke(t.Context(), name, request(t, method).Interface(), &parleyv1.DeleteConversationResponse{})
		if got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST"); !slices.Contains(got.fields, "conversation_id") {
			t.Errorf("%s without an id: fields = %q, want conversation_id", name, got.fields)
		}
	}
}

// nested returns a value inside depth lists.
func nested(depth int, inner *structpb.Value) *structpb.Value {
	for range depth {
		inner = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{inner}})
	}
	return inner
}

func data(kind string, value *structpb.Value) []*parleyv1.StructuredData {
	return []*parleyv1.StructuredData{{Type: kind, Value: value}}
}

func entries(n, keyBytes, valueBytes int) map[string]string {
	m := make(map[string]string)
	for i := range n {
		m[fmt.Sprintf("%0*d", keyBytes, i)] = strings.Repeat("v", valueBytes)
	}
	return m
}

func TestInvalidInput(t *testing.T) {
	f := open(t, nil)
	f.append(t, "taken", user("hello"))
	text, number := structpb.NewStringValue("x"), structpb.NewNumberValue
	x := func(n int) string { return strings.Repeat("x", n) }
	one := func(m *parleyv1.Message) proto.Message {
		return &parleyv1.AppendMessagesRequest{ConversationId: "c", Messages: []*parleyv1.Message{user("fine"), m}}
	}
	create := func(c *parleyv1.Conversation) proto.Message {
		return &parleyv1.CreateConversationRequest{Conversation: c}
	}
	update := func(c *parleyv1.Conversation, paths ...string) proto.Message {
		return &parleyv1.UpdateConversationRequest{Conversation: c, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths}}
	}
	taken := &parleyv1.Conversation{Id: "taken", Title: "new"}
	retention := func(messages int32, ttl *durationpb.Duration) *parleyv1.Conversation {
		return &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxMessages: messages, Ttl: ttl}}
	}
	calls := []*parleyv1.ToolCall{{Id: "1", Name: "tool"}}
	summaries := func(ids ...string) proto.Message {
		return &parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: ids}
	}
	tests := []struct {
		name    string
		request proto.Message
		fields  []string
	}{
		{"no message", &parleyv1.AppendMessagesRequest{ConversationId: "c"}, []string{"messages"}},
		{
			"101 messages",
			&parleyv1.AppendMessagesRequest{ConversationId: "c", Messages: slices.Repeat([]*parleyv1.Message{user("")}, 101)},
			[]string{"messages"},
		},
		{"no role", one(&parleyv1.Message{Content: "x"}), []string{"messages[1].role"}},
		{"unknown role", one(&parleyv1.Message{Role: 9}), []string{"messages[1].role"}},
		{"unknown status", one(&parleyv1.Message{Role: 1, Status: 7}), []string{"messages[1].status"}},
		{"long id of a message", one(&parleyv1.Message{Role: 1, Id: x(257)}), []string{"messages[1].id"}},
		{"long agent of a message", one(&parleyv1.Message{Role: 1, Agent: x(129)}), []string{"messages[1].agent"}},
		{"long summary", one(&parleyv1.Message{Role: 1, Summary: x(501)}), []string{"messages[1].summary"}},
		{"long finish reason", one(&parleyv1.Message{Role: 1, FinishReason: x(129)}), []string{"messages[1].finish_reason"}},
		{
			"negative usage", one(&parleyv1.Message{Role: 1, Usage: &parleyv1.Usage{InputTokens: -1}}),
			[]string{"messages[1].usage.input_tokens"},
		},
		{
			"65 metadata entries", one(&parleyv1.Message{Role: 1, Metadata: entries(65, 2, 1)}),
			[]string{"messages[1].metadata"},
		},
		{
			"long metadata key", one(&parleyv1.Message{Role: 1, Metadata: entries(1, 65, 1)}),
			[]string{`messages[1].metadata["` + strings.Repeat("0", 65) + `"]`},
		},
		{
			"empty metadata key", one(&parleyv1.Message{Role: 1, Metadata: map[string]string{"": "x"}}),
			[]string{`messages[1].metadata[""]`},
		},
		{
			"long metadata value", one(&parleyv1.Message{Role: 1, Metadata: entries(1, 1, 1025)}),
			[]string{`messages[1].metadata["0"]`},
		},
		{
			"tool message without result", one(&parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL}),
			[]string{"messages[1].tool_result"},
		},
		{
			"user message with result", one(&parleyv1.Message{Role: 1, ToolResult: &parleyv1.ToolResult{CallId: "1"}}),
			[]string{"messages[1].tool_result"},
		},
		{"user message with calls", one(&parleyv1.Message{Role: 1, ToolCalls: calls}), []string{"messages[1].tool_calls"}},
		{
			"call without id and name", one(&parleyv1.Message{Role: 2, ToolCalls: []*parleyv1.ToolCall{{}}}),
			[]string{"messages[1].tool_calls[0].id", "messages[1].tool_calls[0].name"},
		},
		{
			"attachment without uri", one(&parleyv1.Message{Role: 1, Attachments: []*parleyv1.Attachment{{SizeBytes: -1}}}),
			[]string{"messages[1].attachments[0].uri", "messages[1].attachments[0].size_bytes"},
		},
		{
			"native form without type", one(&parleyv1.Message{Role: 1, Native: &parleyv1.Native{Value: []byte("v")}}),
			[]string{"messages[1].native.type"},
		},
		{
			"native form with a long type", one(&parleyv1.Message{Role: 1, Native: &parleyv1.Native{Type: x(129)}}),
			[]string{"messages[1].native.type"},
		},
		{
			"data without type", one(&parleyv1.Message{Role: 1, StructuredData: data("", text)}),
			[]string{"messages[1].structured_data[0].type"},
		},
		{
			"data with a long type", one(&parleyv1.Message{Role: 1, StructuredData: data(x(129), text)}),
			[]string{"messages[1].structured_data[0].type"},
		},
		{
			"data without value", one(&parleyv1.Message{Role: 1, StructuredData: data("t", nil)}),
			[]string{"messages[1].structured_data[0].value"},
		},
		{
			"data without kind", one(&parleyv1.Message{Role: 1, StructuredData: data("t", &structpb.Value{})}),
			[]string{"messages[1].structured_data[0].value"},
		},
		{
			"not a number", one(&parleyv1.Message{Role: 1, StructuredData: data("t", number(math.NaN()))}),
			[]string{"messages[1].structured_data[0].value"},
		},
		{"nested infinity", one(&parleyv1.Message{Role: 1, StructuredData: data("t", structpb.NewStructValue(&structpb.Struct{
			Fields: map[string]*structpb.Value{"a": nested(3, number(math.Inf(-1)))},
		}))}), []string{"messages[1].structured_data[0].value"}},
		{
			"17 levels", one(&parleyv1.Message{Role: 1, StructuredData: data("t", nested(17, text))}),
			[]string{"messages[1].structured_data[0].value"},
		},
		{
			"3000 levels", one(&parleyv1.Message{Role: 1, StructuredData: data("t", nested(3000, text))}),
			[]string{"messages[1].structured_data[0].value"},
		},
		{"several faults", &parleyv1.AppendMessagesRequest{
			ConversationId: "..", RequestId: "a ", IfVersion: proto.Int32(-1),
			Messages: []*parleyv1.Message{{}, {Role: 1, ToolCalls: calls, StructuredData: data("", nested(17, text))}},
		}, []string{
			"conversation_id", "messages[0].role", "messages[1].tool_calls", "messages[1].structured_data[0].type",
			"request_id", "if_version", "messages[1].structured_data[0].value",
		}},

		{"long title", create(&parleyv1.Conversation{Title: x(513)}), []string{"conversation.title"}},
		{"invalid id", create(&parleyv1.Conversation{Id: ".."}), []string{"conversation.id"}},
		{"long agent", create(&parleyv1.Conversation{Agent: x(129)}), []string{"conversation.agent"}},
		{
			"long system prompt", create(&parleyv1.Conversation{SystemPrompt: x(65537)}), []string{"conversation.system_prompt"},
		},
		{"65 labels", create(&parleyv1.Conversation{Labels: entries(65, 2, 1)}), []string{"conversation.labels"}},
		{"long label", create(&parleyv1.Conversation{Labels: entries(1, 1, 1025)}), []string{`conversation.labels["0"]`}},
		{"negative max_messages", create(retention(-1, nil)), []string{"conversation.retention.max_messages"}},
		{"1000001 max_messages", create(retention(1000001, nil)), []string{"conversation.retention.max_messages"}},
		{"no ttl", create(retention(0, &durationpb.Duration{})), []string{"conversation.retention.ttl"}},
		{"ttl of 99 ms", create(retention(0, durationpb.New(99*time.Millisecond))), []string{"conversation.retention.ttl"}},
		{
			"ttl of 100 years", create(retention(0, durationpb.New(100*365*24*time.Hour))),
			[]string{"conversation.retention.ttl"},
		},

		{"no conversation", &parleyv1.UpdateConversationRequest{}, []string{"conversation"}},
		{"no id", update(&parleyv1.Conversation{Title: "x"}), []string{"conversation.id"}},
		{"unknown field", update(taken, "title", "nonsense"), []string{"update_mask.paths[1]"}},
		{"output-only fields", update(taken, "version", "id", "retention.ttl.seconds", "active_agent"), []string{
			"update_mask.paths[0]", "update_mask.paths[1]", "update_mask.paths[2]", "update_mask.paths[3]",
		}},
		{"all fields", update(taken, "*"), []string{"update_mask.paths[0]"}},
		{"JSON name", update(taken, "systemPrompt"), []string{"update_mask.paths[0]"}},
		{
			"ttl of 0 in an update",
			update(&parleyv1.Conversation{Id: "taken", Retention: &parleyv1.Retention{Ttl: &durationpb.Duration{}}},
				"retention.ttl"),
			[]string{"conversation.retention.ttl"},
		},

		{"unknown order", &parleyv1.ListConversationsRequest{Order: 9}, []string{"order"}},
		{
			"long type in a list", &parleyv1.ListConversationsRequest{StructuredDataType: x(129)},
			[]string{"structured_data_type"},
		},
		{"long text in a list", &parleyv1.ListConversationsRequest{Text: x(513)}, []string{"text"}},
		{
			"empty label in a list", &parleyv1.ListConversationsRequest{Labels: map[string]string{"": ""}},
			[]string{`labels[""]`},
		},
		{"invalid token", &parleyv1.ListConversationsRequest{PageToken: "nonsense"}, []string{"page_token"}},
		{
			"invalid token of messages", &parleyv1.ListMessagesRequest{ConversationId: "taken", PageToken: "AAAA"},
			[]string{"page_token"},
		},
		{
			"negative window",
			&parleyv1.GetContextRequest{ConversationId: "taken", Window: &parleyv1.ContextWindow{MaxMessages: -1, MaxBytes: -1}},
			[]string{"window.max_messages", "window.max_bytes"},
		},
		{"purge without inactive_for", &parleyv1.PurgeConversationsRequest{}, []string{"inactive_for"}},
		{
			"purge with negative inactive_for", &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(-time.Hour)},
			[]string{"inactive_for"},
		},
		{
			"summary with 21 messages",
			&parleyv1.GetRoutingSummaryRequest{ConversationId: "taken", MessageLimit: proto.Int32(21)},
			[]string{"message_limit"},
		},
		{
			"wait of 61 s",
			&parleyv1.GetRoutingSummaryRequest{ConversationId: "taken", WaitTimeout: durationpb.New(61 * time.Second)},
			[]string{"wait_timeout"},
		},
		{"no summaries", summaries(), []string{"conversation_ids"}},
		{"101 summaries", summaries(slices.Repeat([]string{"taken"}, 101)...), []string{"conversation_ids"}},
		{"summary of an invalid id", summaries("taken", ""), []string{"conversation_ids[1]"}},
		{"long reason", &parleyv1.SetActiveAgentRequest{ConversationId: "taken", Reason: x(1025)}, []string{"reason"}},
		{
			"lease of 0 s", &parleyv1.SetActiveAgentRequest{ConversationId: "taken", LeaseDuration: &durationpb.Duration{}},
			[]string{"lease_duration"},
		},
		{
			"lease of 100 years",
			&parleyv1.SetActiveAgentRequest{ConversationId: "taken", LeaseDuration: durationpb.New(876000 * time.Hour)},
			[]string{"lease_duration"},
		},

		{"no content", &parleyv1.ChatRequest{ConversationId: "taken"}, []string{"content"}},
		{
			"content and answer_pending", &parleyv1.ChatRequest{ConversationId: "taken", Content: "x", AnswerPending: true},
			[]string{"answer_pending"},
		},
		{
			"results without call_id",
			&parleyv1.ChatRequest{ConversationId: "taken", ToolResults: []*parleyv1.ToolResult{{Name: x(129)}}},
			[]string{"tool_results[0].call_id", "tool_results[0].name"},
		},
		{
			"results without conversation_id", &parleyv1.ChatRequest{ToolResults: []*parleyv1.ToolResult{{CallId: "1"}}},
			[]string{"conversation_id"},
		},
		{
			"65 results",
			&parleyv1.ChatRequest{
				ConversationId: "taken", ToolResults: slices.Repeat([]*parleyv1.ToolResult{{CallId: "1"}}, 65),
			},
			[]string{"tool_results", "tool_results"},
		},
		{
			"results and answer_pending",
			&parleyv1.ChatRequest{
				ConversationId: "taken", AnswerPending: true, ToolResults: []*parleyv1.ToolResult{{CallId: "1"}},
			},
			[]string{"answer_pending"},
		},
		{
			"chat with nested data", &parleyv1.ChatRequest{StructuredData: data("t", nested(17, text))},
			[]string{"structured_data[0].value"},
		},
		{
			"chat with 65 metadata entries", &parleyv1.ChatRequest{Content: "x", Metadata: entries(65, 2, 1)},
			[]string{"metadata"},
		},
		{
			"chat with long system prompt", &parleyv1.ChatRequest{Content: "x", SystemPrompt: new(x(65537))},
			[]string{"system_prompt"},
		},
		{
			"unknown on_busy and on_disconnect", &parleyv1.ChatRequest{Content: "x", OnBusy: 9, OnDisconnect: 9},
			[]string{"on_busy", "on_disconnect"},
		},
		{"unknown agent", &parleyv1.ChatRequest{Content: "x", Agent: "nobody"}, []string{"agent"}},
	}
	written := f.changeCount()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := statusOf(f.conn.Invoke(t.Context(), methodOf(test.request), test.request,
				&parleyv1.DeleteConversationResponse{}))
			if got.code != codes.InvalidArgument || got.reason == "" {
				t.Errorf("status = %v %q %q, want InvalidArgument with a reason", got.code, got.reason, got.text)
			}
			slices.Sort(got.fields)
			slices.Sort(test.fields)
			if diff := cmp.Diff(test.fields, got.fields); diff != "" {
				t.Errorf("fields of %q (-want +got):\n%s", got.text, diff)
			}
			for _, field := range test.fields {
				if !strings.Contains(got.text, field) {
					t.Errorf("text = %q, want it to contain %s", got.text, field)
				}
			}
			if n := f.changeCount(); n != written {
				t.Errorf("got %d changes, want 0", n-written)
			}
		})
	}
}

// methodOf returns the full name of the method of a request.
func methodOf(request proto.Message) string {
	name := string(request.ProtoReflect().Descriptor().Name())
	return "/parley.v1.ConversationService/" + strings.TrimSuffix(name, "Request")
}

// TestFaultTexts checks complete texts of faults.
func TestFaultTexts(t *testing.T) {
	f := open(t, nil)
	for want, m := range map[string]*parleyv1.Message{
		"messages[0].role: is required":                          {},
		`messages[0].metadata[""]: key must be at least 1 bytes`: {Role: 1, Metadata: map[string]string{"": ""}},
	} {
		_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c", Messages: []*parleyv1.Message{m},
		})
		if got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST"); got.text != "invalid request: "+want {
			t.Errorf("text = %q, want %q", got.text, want)
		}
	}
}

// TestValidInput sends fields that are at their limits.
func TestValidInput(t *testing.T) {
	f := open(t, nil)
	x := func(n int) string { return strings.Repeat("x", n) }
	value := nested(16, structpb.NewNullValue())
	f.append(t, x(256), &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Id: x(256), Agent: x(128), Summary: x(500), FinishReason: x(128),
		Metadata:       entries(64, 64, 1024),
		StructuredData: data(x(128), value), ToolCalls: []*parleyv1.ToolCall{{Id: x(256), Name: x(128)}},
		Attachments: []*parleyv1.Attachment{{Uri: x(8192), MediaType: x(255), Filename: x(1024)}},
	})
	for _, r := range []proto.Message{
		&parleyv1.AppendMessagesRequest{
			ConversationId: "a.b:c_d-E", Messages: slices.Repeat([]*parleyv1.Message{user("")}, 100),
			RequestId: strings.Repeat("~", 256),
		},
		&parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{
			Id: "0", Title: x(512), Agent: x(128), SystemPrompt: x(65536), Labels: entries(64, 64, 1024),
			Retention: &parleyv1.Retention{MaxMessages: 1000, Ttl: durationpb.New(366 * 24 * time.Hour)},
		}},
		&parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{
			Id: "1", Retention: &parleyv1.Retention{MaxMessages: 1, Ttl: durationpb.New(100 * time.Millisecond)},
		}},
		&parleyv1.LoadConversationRequest{ConversationId: "0", MessageLimit: proto.Int32(1000)},
		&parleyv1.ListMessagesRequest{ConversationId: "0", PageSize: 1000},
		&parleyv1.ListConversationsRequest{PageSize: 1000},
		&parleyv1.GetRoutingSummaryRequest{
			ConversationId: "0", MessageLimit: proto.Int32(20), WaitTimeout: durationpb.New(time.Minute),
		},
		&parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: slices.Repeat([]string{"0"}, 100)},
		&parleyv1.SetActiveAgentRequest{
			ConversationId: "0", Agent: x(128), Reason: x(1024), LeaseDuration: durationpb.New(366 * 24 * time.Hour),
		},
	} {
		if err := f.conn.Invoke(t.Context(), methodOf(r), r, &parleyv1.DeleteConversationResponse{}); err != nil {
			t.Errorf("%s: %v", methodOf(r), err)
		}
	}
}

// TestPatternTexts checks that the faults of patterns do not contain the pattern.
func TestPatternTexts(t *testing.T) {
	for _, m := range []proto.Message{
		&parleyv1.GetConversationRequest{ConversationId: ".."},
		&parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{Id: "a "}, RequestId: " a"},
		&parleyv1.ListInteractionsRequest{Span: &parleyv1.ListInteractionsRequest_Date{Date: "today"}},
	} {
		if err := validate(m); err == nil || !strings.Contains(err.Error(), "must ") ||
			strings.Contains(err.Error(), "pattern") {
			t.Errorf("validate(%T) = %v, want a text without a pattern", m, err)
		}
	}
}

// TestManyFaults checks that the status of a request with many faults contains only some of them.
func TestManyFaults(t *testing.T) {
	f := open(t, nil)
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c", Messages: slices.Repeat([]*parleyv1.Message{{Metadata: entries(64, 100, 2000)}}, 10),
	})
	got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if len(got.fields) < 10 || got.metadata["violation_count"] != "1290" {
		t.Errorf("got %d fields of %s, want at least 10 of 1290", len(got.fields), got.metadata["violation_count"])
	}
	if len(got.text) > rules.MaxTextBytes {
		t.Errorf("text has %d bytes, want at most %d", len(got.text), rules.MaxTextBytes)
	}
}
