package adk_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/adk/v2/model"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
	"google.golang.org/grpc"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/adk"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestMessagesOfOthersCostNoCallEach checks that Get finds the newest events in few calls, also if other programs have
// appended many messages since.
func TestMessagesOfOthersCostNoCallEach(t *testing.T) {
	t.Parallel()
	lists := 0
	count := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		if method == parleyv1.ConversationService_ListMessages_FullMethodName {
			lists++
		}
		return invoke(ctx, method, request, reply, conn, opts...)
	}
	c, err := client.Dial(shared, grpc.WithChainUnaryInterceptor(count))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := adk.NewSessionService(c)
	of := create(t, s, "others", "anna", "1", nil)
	if err := s.AppendEvent(t.Context(), of, says(t, "user", "event 0", nil)); err != nil {
		t.Fatal(err)
	}
	notes := &parleyv1.AppendMessagesRequest{ConversationId: "others/anna/1"}
	for range 100 {
		notes.Messages = append(notes.Messages, &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "a note"})
	}
	if _, err := c.AppendMessages(t.Context(), notes); err != nil {
		t.Fatal(err)
	}
	reply, err := s.Get(t.Context(), &session.GetRequest{
		AppName: "others", UserID: "anna", SessionID: "1", NumRecentEvents: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := textsOf(reply.Session); !slices.Equal(got, numbered(1)) || lists != 2 {
		t.Errorf("Get = %v in %d calls, want %v in 2", got, lists, numbered(1))
	}
}

// TestMessagesForPeople checks what other programs see of the events.
func TestMessagesForPeople(t *testing.T) {
	t.Parallel()
	c := dial(t, shared)
	s := adk.NewSessionService(c)
	of := create(t, s, "people", "anna", "1", nil)
	calls := says(t, "helper", "", nil)
	calls.Content = &genai.Content{Role: "model", Parts: []*genai.Part{
		{Text: "I think", Thought: true},
		{Text: "Two calls."},
		{FunctionCall: &genai.FunctionCall{ID: "1", Name: "add", Args: map[string]any{"a": 1}}},
		{FunctionCall: &genai.FunctionCall{ID: "2", Name: "sub"}},
	}}
	results := says(t, "helper", "", nil)
	results.Content = &genai.Content{Role: "user", Parts: []*genai.Part{
		{FunctionResponse: &genai.FunctionResponse{ID: "1", Name: "add", Response: map[string]any{"output": 3}}},
		{FunctionResponse: &genai.FunctionResponse{ID: "2", Name: "sub", Response: map[string]any{"error": "no"}}},
	}}
	image := says(t, "user", "", nil)
	image.Content = &genai.Content{Role: "user", Parts: []*genai.Part{
		{InlineData: &genai.Blob{MIMEType: "image/png", Data: []byte("abc")}},
		{FileData: &genai.FileData{FileURI: "gs://b/f", MIMEType: "text/plain"}},
	}}
	failed := &session.Event{ID: "e", Author: "helper", LLMResponse: model.LLMResponse{ErrorMessage: "quota", Interrupted: true}}
	want := []*session.Event{says(t, "user", "hello", nil), calls, results, image, failed}
	for _, event := range want {
		if err := s.AppendEvent(t.Context(), of, event); err != nil {
			t.Fatal(err)
		}
	}
	page, err := c.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "people/anna/1", Ascending: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range page.GetMessages() {
		line := fmt.Sprintf("%v %s: %s", m.GetRole(), m.GetAgent(), m.GetContent()+m.GetReasoning())
		for _, call := range m.GetToolCalls() {
			line += fmt.Sprintf(" %s=%s%s", call.GetId(), call.GetName(), call.GetArguments())
		}
		if result := m.GetToolResult(); result != nil {
			line += fmt.Sprintf("%s=%s %t", result.GetCallId(), result.GetContent(), result.GetIsError())
		}
		for _, file := range m.GetAttachments() {
			line += " " + file.GetUri()
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{
		"ROLE_USER : hello",
		`ROLE_ASSISTANT helper: Two calls.I think 1=add{"a":1} 2=subnull`,
		`ROLE_TOOL helper: 1={"output":3} false`,
		`ROLE_TOOL helper: 2={"error":"no"} true`,
		"ROLE_USER : [image/png, 3 bytes] gs://b/f",
		"ROLE_ASSISTANT helper: quota",
	}, got); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	read := get(t, s, of)
	if read.Events().Len() != len(want) {
		t.Errorf("%d events, want %d", read.Events().Len(), len(want))
	}
	// Two events are three messages: the limit counts events.
	reply, err := s.Get(t.Context(), &session.GetRequest{AppName: "people", UserID: "anna", SessionID: "1", NumRecentEvents: 4})
	if err != nil || reply.Session.Events().Len() != 4 || reply.Session.Events().At(0).ID != calls.ID {
		t.Errorf("Get of 4 events = %v, %v, want those from the calls", reply, err)
	}
}

// TestPythonSessions reads a session that the adapter for Python wrote, with URL-safe base64 and a time as a float.
func TestPythonSessions(t *testing.T) {
	t.Parallel()
	c := dial(t, shared)
	s := adk.NewSessionService(c)
	header := `{"app":"py","user":"anna","id":"1","updated":1733040000.123456,"events":1}`
	event := `{"content":{"parts":[{"inline_data":{"data":"-_-_","mime_type":"image/png"},"thought_signature":"__8="},` +
		`{"function_call":{"id":"1","args":{"data_x":"-_"},"name":"f"}}],"role":"model"},"invocation_id":"i","author":"helper",` +
		`"actions":{"state_delta":{"a_b":1},"artifact_delta":{"f_g":2},"requested_auth_configs":{},` +
		`"requested_tool_confirmations":{"t_u":{"confirmed":true}}},"custom_metadata":{"c_d":1},` +
		`"usage_metadata":{"prompt_token_count":3},"id":"e1","node_info":{"path":""},"timestamp":1733040000.123456}`
	_, err := c.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "py/anna/1",
		CreateWith:     &parleyv1.Conversation{Labels: map[string]string{"adk.app": "py", "adk.user": "anna"}},
		Messages: []*parleyv1.Message{{
			Role: parleyv1.Role_ROLE_ASSISTANT, Native: &parleyv1.Native{Type: "google.adk.event", Value: []byte(event)},
			Metadata: map[string]string{"adk.event": "1"},
		}},
		Records: []*parleyv1.RecordWrite{
			{Key: "adk/session/nonce", Value: []byte(header)}, {Key: "adk/state", Value: []byte(`{"k":1.0}`)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	reply, err := s.Get(t.Context(), &session.GetRequest{AppName: "py", UserID: "anna", SessionID: "1"})
	if err != nil || reply.Session.Events().Len() != 1 {
		t.Fatalf("Get = %v, %v, want one event", reply, err)
	}
	got := reply.Session.Events().At(0)
	parts := got.Content.Parts
	if string(parts[0].InlineData.Data) != "\xfb\xff\xbf" || string(parts[0].ThoughtSignature) != "\xff\xff" ||
		parts[0].InlineData.MIMEType != "image/png" || parts[1].FunctionCall.Args["data_x"] != "-_" {
		t.Errorf("content = %+v, %+v", parts[0], parts[1])
	}
	if got.InvocationID != "i" || got.Actions.StateDelta["a_b"] != 1.0 || got.Actions.ArtifactDelta["f_g"] != 2 ||
		!got.Actions.RequestedToolConfirmations["t_u"].Confirmed || got.CustomMetadata["c_d"] != 1.0 ||
		got.UsageMetadata.PromptTokenCount != 3 {
		t.Errorf("event = %+v", got)
	}
	at := time.UnixMicro(1733040000123456)
	if !got.Timestamp.Equal(at) || !reply.Session.LastUpdateTime().Equal(at) || got.NodeInfo != nil {
		t.Errorf("time = %v, last update = %v, want %v", got.Timestamp, reply.Session.LastUpdateTime(), at)
	}
	if err := s.AppendEvent(t.Context(), reply.Session, says(t, "user", "from Go", map[string]any{"g": 2})); err != nil {
		t.Fatal(err)
	}
	record, err := c.Records("py/anna/1").Get(t.Context(), "adk/state")
	if got := string(record.GetValue()); got != `{"g":2,"k":1.0}` || err != nil {
		t.Errorf("state of the session = %s, %v", got, err)
	}
}
