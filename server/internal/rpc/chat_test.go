package rpc

import (
	"context"
	"iter"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/store"
)

func TestChat(t *testing.T) {
	f := open(t, nil)
	events, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "Sugar for 50 cents"})
	if err != nil {
		t.Fatal(err)
	}
	text := (&stream{events: events}).text(t)
	started, finished := events[0].GetStarted(), events[len(events)-1].GetFinished()
	if !started.GetCreated() || started.GetReplayed() || started.GetUserMessage().GetSequence() != 1 ||
		started.GetHistoryCount() != 0 {
		t.Errorf("started = %v, want a new conversation without history", started)
	}
	if text != "Sugar for 50 cents" || finished.GetMessages()[0].GetContent() != text ||
		finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("text = %q, finished = %v", text, finished)
	}
	if n := f.get(t, "c1").GetMessageCount(); n != 2 {
		t.Errorf("message_count = %d, want 2", n)
	}
}

// TestChatIDs checks that a retry of a call without a conversation_id uses the conversation that the
// first call created.
func TestChatIDs(t *testing.T) {
	f := open(t, nil)
	id := func(r *parleyv1.ChatRequest) string {
		t.Helper()
		events, err := f.chat(t, r)
		if err != nil {
			t.Fatal(err)
		}
		return events[0].GetStarted().GetConversation().GetId()
	}
	first := id(&parleyv1.ChatRequest{Content: "x", RequestId: "r1"})
	if again := id(&parleyv1.ChatRequest{Content: "x", RequestId: "r1"}); again != first ||
		uuid.Validate(first) != nil {
		t.Errorf("conversation of the retry = %q, want %q", again, first)
	}
	if other := id(&parleyv1.ChatRequest{Content: "x"}); other == first || uuid.Validate(other) != nil {
		t.Errorf("conversation of another call = %q, want a new one", other)
	}
}

// TestChatRequest checks which fields of a Chat request a retry must have in common with the first call.
func TestChatRequest(t *testing.T) {
	var seen []*store.Request
	f := open(t, func(s *setup) {
		s.Turns = turnsFunc(
			func(_ context.Context, tenant string, r *parleyv1.ChatRequest, q *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
				if tenant != "default" || r.GetConversationId() == "" {
					t.Errorf("tenant %q, request %v", tenant, r)
				}
				seen = append(seen, q)
				return func(func(*parleyv1.TurnEvent, error) bool) {}
			},
		)
	})
	first := func() *parleyv1.ChatRequest {
		return &parleyv1.ChatRequest{ConversationId: "c1", Content: "x", RequestId: "r1"}
	}
	tests := []struct {
		name   string
		change func(r *parleyv1.ChatRequest)
		same   bool
	}{
		{"retry", func(*parleyv1.ChatRequest) {}, true},
		{
			"must_exist and if_version",
			func(r *parleyv1.ChatRequest) { r.MustExist, r.IfVersion = true, proto.Int32(3) },
			true,
		},
		{"content", func(r *parleyv1.ChatRequest) { r.Content = "y" }, false},
		{"data", func(r *parleyv1.ChatRequest) { r.StructuredData = data("t", structpb.NewNullValue()) }, false},
		{
			"tool results",
			func(r *parleyv1.ChatRequest) { r.ToolResults = []*parleyv1.ToolResult{{CallId: "1"}} },
			false,
		},
		{"attachments", func(r *parleyv1.ChatRequest) { r.Attachments = []*parleyv1.Attachment{{Uri: "x:"}} }, false},
		{"metadata", func(r *parleyv1.ChatRequest) { r.Metadata = map[string]string{"a": ""} }, false},
		{"agent", func(r *parleyv1.ChatRequest) { r.Agent = "echo" }, false},
		{"no system prompt", func(r *parleyv1.ChatRequest) { r.SystemPrompt = new("") }, false},
	}
	if _, err := f.chat(t, first()); err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		r := first()
		test.change(r)
		if _, err := f.chat(t, r); err != nil {
			t.Fatal(err)
		}
		got := seen[len(seen)-1]
		if got.ID != "r1" || got.Method != "Chat" || (got.Digest == seen[0].Digest) != test.same {
			t.Errorf(
				"%s: request = %v, first request = %v, want the same digest: %t",
				test.name,
				got,
				seen[0],
				test.same,
			)
		}
	}
	if _, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "x"}); err != nil ||
		seen[len(seen)-1] != nil {
		t.Errorf("without a request_id: request = %v, %v, want nil", seen[len(seen)-1], err)
	}
}

func TestChatErrors(t *testing.T) {
	var early, late error
	f := open(t, func(s *setup) {
		s.Turns = turnsFunc(
			func(context.Context, string, *parleyv1.ChatRequest, *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
				return func(yield func(*parleyv1.TurnEvent, error) bool) {
					if early != nil {
						yield(nil, early)
					} else if yield(&parleyv1.TurnEvent{Index: 1}, nil) {
						yield(nil, late)
					}
				}
			},
		)
	})
	late = turn.ErrConversationDeleted
	events, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "x"})
	if got := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND"); len(events) != 1 ||
		got.resource.GetResourceName() != "c1" {
		t.Errorf("got %d events and resource %v, want 1 and c1", len(events), got.resource)
	}
	early = &store.BusyError{TurnID: "t1"}
	_, err = f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "x"})
	if got := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); got.metadata["active_turn_id"] != "t1" {
		t.Errorf("metadata = %v, want active_turn_id t1", got.metadata)
	}
}
