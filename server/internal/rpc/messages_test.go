package rpc

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestEncodedReplies checks the fields of the replies that contain frames of messages. The field of messages must have
// the number of the field in frames.
func TestEncodedReplies(t *testing.T) {
	want := map[string]string{
		"LoadConversationResponse": "1 conversation, 2 messages, 3 created, 4 records, 5 more_records",
		"ListMessagesResponse":     "1 conversation, 2 messages, 3 next_page_token, 4 oldest_sequence",
		"GetContextResponse":       "1 system_prompt, 2 messages, 3 omitted_count, 4 version, 5 records, 6 more_records",
	}
	got := make(map[string]string)
	service := parleyv1.File_parley_v1_conversation_service_proto.Services().ByName("ConversationService")
	for method := range new(messageReader).handlers() {
		if method == parleyv1.RecordService_GetRecords_FullMethodName {
			continue // Its frames are those of records, see store.RecordFrames.
		}
		d := service.Methods().ByName(protoreflect.Name(path.Base(method))).Output()
		if d.Name() == "GetRoutingSummaryResponse" {
			continue // It contains no frames: all of it is encoded.
		}
		var fields []string
		for i := range d.Fields().Len() {
			fields = append(fields, fmt.Sprintf("%d %s", d.Fields().Get(i).Number(), d.Fields().Get(i).Name()))
		}
		got[string(d.Name())] = strings.Join(fields, ", ")
		field := d.Fields().ByNumber(store.FrameField)
		if field == nil || field.Name() != "messages" || !field.IsList() || field.Kind() != protoreflect.MessageKind ||
			field.Message().FullName() != (&parleyv1.Message{}).ProtoReflect().Descriptor().FullName() {
			t.Errorf("%s: field %d = %v, want the messages", d.Name(), store.FrameField, field)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// fullMessage returns a message with all fields that a client can set.
func fullMessage() *parleyv1.Message {
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_ASSISTANT, Content: "Here: 日本", Agent: "writer", Summary: "wrote", FinishReason: "stop",
		Status: parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE, Metadata: map[string]string{"a": "1", "b": "2"},
		StructuredData: data("list", nested(2, structpb.NewNumberValue(1.5))),
		ToolCalls:      []*parleyv1.ToolCall{{Id: "1", Name: "tool", Arguments: `{"x": 1}`}},
		Usage:          &parleyv1.Usage{Model: "m", InputTokens: 1, OutputTokens: 2},
		Attachments:    []*parleyv1.Attachment{{Uri: "file:1", SizeBytes: 3}},
	}
}

func TestAppendMessages(t *testing.T) {
	f := open(t, nil)
	named := fullMessage()
	named.Id = "mine"
	// The server ignores these fields.
	named.Sequence, named.TurnId, named.Exchange, named.CreateTime = 99, "t", 99, timestamppb.New(time.Unix(9, 0))
	sent := []*parleyv1.Message{user("question"), named, {
		Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "result"},
	}}
	f.create(t, fullConversation("c1"))
	reply := f.append(t, "c1", sent...)
	if c := reply.GetConversation(); c.GetSystemPrompt() != "" || c.GetMessageCount() != 3 || c.GetVersion() != 2 ||
		reply.GetCreated() {
		t.Errorf("AppendMessages = %v, want 3 messages and no system prompt", reply)
	}
	var want []*parleyv1.Message
	for i, m := range sent {
		a := reply.GetAppended()[i]
		if i != 1 && uuid.Validate(a.GetId()) != nil || a.GetSequence() != int32(i+1) || a.GetExchange() != 1 {
			t.Errorf("appended message %d = %v", i, a)
		}
		m = proto.CloneOf(m)
		m.Id, m.Sequence, m.TurnId, m.Exchange, m.CreateTime = a.GetId(), a.GetSequence(), "", a.GetExchange(),
			a.GetCreateTime()
		m.Status = max(m.GetStatus(), parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE)
		want = append(want, m)
	}
	if want[1].GetId() != "mine" || want[1].GetCreateTime().AsTime().Unix() == 9 {
		t.Errorf("message with an id = %v, want the id kept and the time set", reply.GetAppended()[1])
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, loaded.GetMessages(), protocmp.Transform()); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}

	if !f.append(t, "new", user("x")).GetCreated() {
		t.Error("created = false for a new conversation")
	}
	_, err = f.AppendMessages(
		t.Context(),
		&parleyv1.AppendMessagesRequest{ConversationId: "missing", MustExist: true, Messages: sent},
	)
	if got := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND"); got.resource.GetResourceName() != "missing" {
		t.Errorf("resource = %v, want missing", got.resource)
	}
}

// TestRetryWithServerFields checks that a request with the output-only fields of a reply is a retry of
// the request without them.
func TestRetryWithServerFields(t *testing.T) {
	f := open(t, nil)
	request := &parleyv1.AppendMessagesRequest{
		ConversationId: "c1",
		RequestId:      "r1",
		Messages:       []*parleyv1.Message{user("x")},
	}
	if _, err := f.AppendMessages(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	request.Messages[0].Sequence, request.Messages[0].CreateTime = 1, timestamppb.Now()
	if reply, err := f.AppendMessages(t.Context(), request); err != nil || !reply.GetReplayed() {
		t.Errorf("retry of AppendMessages = %v, %v, want replayed", reply, err)
	}
	request.Messages[0].Content = "y"
	_, err := f.AppendMessages(t.Context(), request)
	wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
}

func TestMessageTooLarge(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = 1000 })
	sized := func(size int) *parleyv1.Message {
		m := user(strings.Repeat("x", size))
		m.Content = m.GetContent()[proto.Size(m)-size:]
		return m
	}
	_, err := f.AppendMessages(
		t.Context(),
		&parleyv1.AppendMessagesRequest{ConversationId: "c1", Messages: []*parleyv1.Message{sized(1000), sized(1001)}},
	)
	got := wantError(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	if !strings.Contains(got.text, "messages[1] has 1001 bytes") || got.metadata["limit_bytes"] != "1000" {
		t.Errorf("text = %q, metadata = %v", got.text, got.metadata)
	}
	_, err = f.chat(t, &parleyv1.ChatRequest{Content: sized(1001).GetContent()})
	wantError(t, err, codes.ResourceExhausted, "MESSAGE_TOO_LARGE")
	// Validation comes before the check of sizes.
	_, err = f.AppendMessages(
		t.Context(),
		&parleyv1.AppendMessagesRequest{ConversationId: "..", Messages: []*parleyv1.Message{sized(1001)}},
	)
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if f.changeCount() != 0 {
		t.Errorf("got %d changes, want 0", f.changeCount())
	}
	f.append(t, "c1", sized(1000))
}

func TestListMessages(t *testing.T) {
	f := open(t, nil)
	c := fullConversation("c1")
	c.Retention.MaxMessages = 10
	f.create(t, c)
	for i := range 12 { // The store retains messages 3 to 12.
		f.append(t, "c1", user(fmt.Sprint(i+1)))
	}
	tests := []struct {
		name    string
		request *parleyv1.ListMessagesRequest
		pages   [][]int32
	}{
		{"newest first", &parleyv1.ListMessagesRequest{}, [][]int32{{12, 11, 10, 9, 8, 7, 6, 5, 4, 3}}},
		{"pages of 4", &parleyv1.ListMessagesRequest{PageSize: 4}, [][]int32{{12, 11, 10, 9}, {8, 7, 6, 5}, {4, 3}}},
		{"pages of 5", &parleyv1.ListMessagesRequest{PageSize: 5}, [][]int32{{12, 11, 10, 9, 8}, {7, 6, 5, 4, 3}}},
		{
			"oldest first",
			&parleyv1.ListMessagesRequest{PageSize: 6, Ascending: true},
			[][]int32{{3, 4, 5, 6, 7, 8}, {9, 10, 11, 12}},
		},
		{"after a sequence", &parleyv1.ListMessagesRequest{PageSize: 2, AfterSequence: 9}, [][]int32{{12, 11}, {10}}},
		{
			"oldest first after a sequence",
			&parleyv1.ListMessagesRequest{PageSize: 2, AfterSequence: 9, Ascending: true},
			[][]int32{{10, 11}, {12}},
		},
		{
			"after a removed message",
			&parleyv1.ListMessagesRequest{PageSize: 1000, AfterSequence: 1, Ascending: true},
			[][]int32{{3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
		},
		{"after the last", &parleyv1.ListMessagesRequest{AfterSequence: 12}, [][]int32{nil}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var pages [][]int32
			test.request.ConversationId = "c1"
			for {
				reply, err := f.ListMessages(t.Context(), test.request)
				if err != nil {
					t.Fatal(err)
				}
				pages = append(pages, sequences(reply.GetMessages()))
				if reply.GetOldestSequence() != 3 || reply.GetConversation().GetLastSequence() != 12 {
					t.Errorf("ListMessages = %v, want oldest_sequence 3 and last_sequence 12", reply)
				}
				for _, m := range reply.GetMessages() {
					if m.GetContent() != fmt.Sprint(m.GetSequence()) {
						t.Errorf("message = %v, want its sequence as content", m)
					}
				}
				if test.request.PageToken = reply.GetNextPageToken(); test.request.GetPageToken() == "" {
					break
				}
			}
			if diff := cmp.Diff(test.pages, pages); diff != "" {
				t.Errorf("pages (-want +got):\n%s", diff)
			}
		})
	}
}

// TestListMessagesPageBytes checks the maximum size of a page. The store of the test stores larger
// conversations.
func TestListMessagesPageBytes(t *testing.T) {
	f := open(t, func(s *setup) { s.storeOptions.MaxConversationBytes = 8 << 20 })
	for range 20 {
		f.append(t, "c1", user(strings.Repeat("x", 200<<10)))
	}
	for _, ascending := range []bool{true, false} {
		request := &parleyv1.ListMessagesRequest{ConversationId: "c1", Ascending: ascending}
		var all []int32
		for pages := 1; ; pages++ {
			reply, err := f.ListMessages(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, sequences(reply.GetMessages())...)
			if request.PageToken = reply.GetNextPageToken(); request.GetPageToken() == "" {
				if pages != 2 || len(all) != 20 || len(slices.Compact(all)) != 20 {
					t.Errorf("ascending %t: %d pages with sequences %v, want 2 pages with 20", ascending, pages, all)
				}
				break
			}
		}
	}
}

func TestListNoMessages(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"), user("2"))
	if _, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "c1"}); err != nil {
		t.Fatal(err)
	}
	reply, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c1"})
	if err != nil || len(reply.GetMessages()) != 0 || reply.GetNextPageToken() != "" || reply.GetOldestSequence() != 3 {
		t.Errorf("ListMessages = %v, %v, want no messages", reply, err)
	}
}

// TestListMessagesToken checks that a token is valid for its own list only, and that the list continues
// correctly when messages are appended between the pages.
func TestListMessagesToken(t *testing.T) {
	f := open(t, nil)
	for _, id := range []string{"c1", "c2"} {
		f.append(t, id, user("1"), user("2"), user("3"))
	}
	list := func(r *parleyv1.ListMessagesRequest) (*parleyv1.ListMessagesResponse, error) {
		return f.ListMessages(t.Context(), r)
	}
	first, err := list(&parleyv1.ListMessagesRequest{ConversationId: "c1", PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	token := first.GetNextPageToken()
	for name, r := range map[string]*parleyv1.ListMessagesRequest{
		"another conversation": {ConversationId: "c2", PageToken: token},
		"another direction":    {ConversationId: "c1", PageToken: token, Ascending: true},
		"another start":        {ConversationId: "c1", PageToken: token, AfterSequence: 1},
		"truncated":            {ConversationId: "c1", PageToken: token[:len(token)-1]},
	} {
		_, err := list(r)
		if got := wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST"); strings.Join(
			got.fields,
			"",
		) != "page_token" {
			t.Errorf("%s: fields = %q, want page_token", name, got.fields)
		}
	}
	f.append(t, "c1", user("4"))
	rest, err := list(&parleyv1.ListMessagesRequest{ConversationId: "c1", PageToken: token, PageSize: 5})
	if err != nil || !slices.Equal(sequences(rest.GetMessages()), []int32{2, 1}) {
		t.Errorf("next page = %v, %v, want sequences 2, 1", rest, err)
	}
	if _, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c1"}); err != nil {
		t.Fatal(err)
	}
	f.append(t, "c1", user("1"), user("2"), user("3"))
	_, err = list(&parleyv1.ListMessagesRequest{ConversationId: "c1", PageToken: token})
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

func TestGetContext(t *testing.T) {
	f := open(t, nil)
	f.create(t, fullConversation("c1"))
	f.append(t, "c1", assistant("1"), user("2"), assistant("3"), user("4"), assistant("5"))
	tests := []struct {
		name   string
		window *parleyv1.ContextWindow
		want   []int32
	}{
		{"no limit", nil, []int32{2, 3, 4, 5}},
		{"one exchange", &parleyv1.ContextWindow{MaxExchanges: 1}, []int32{4, 5}},
		{"three messages", &parleyv1.ContextWindow{MaxMessages: 3}, []int32{4, 5}},
		{"too small", &parleyv1.ContextWindow{MaxBytes: 1}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			reply, err := f.GetContext(
				t.Context(),
				&parleyv1.GetContextRequest{ConversationId: "c1", Window: test.window},
			)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, sequences(reply.GetMessages())); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
			if reply.GetSystemPrompt() != "Be brief." || reply.GetVersion() != 2 ||
				int(reply.GetOmittedCount()) != 5-len(test.want) {
				t.Errorf("GetContext = %v, want the system prompt, version 2 and %d omitted", reply, 5-len(test.want))
			}
		})
	}
	_, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "missing"})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
}
