package rpc

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestIsolation(t *testing.T) {
	f := open(t, func(s *setup) { s.Auth = byMetadata() })
	a, b := withMetadata(t, "tenant", "a"), withMetadata(t, "tenant", "b")
	fill := func(ctx context.Context, content string) {
		t.Helper()
		if _, err := f.AppendMessages(ctx,
			&parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user(content)}}); err != nil {
			t.Fatal(err)
		}
	}
	fill(a, "of a")
	if _, err := f.CreateConversation(a,
		&parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{Id: "secret"}}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ctx context.Context, id string) error{
		"Get": func(ctx context.Context, id string) error {
			_, err := f.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
			return err
		},
		"Update": func(ctx context.Context, id string) error {
			_, err := f.UpdateConversation(
				ctx,
				&parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: id, Title: "x"}},
			)
			return err
		},
		"Clear": func(ctx context.Context, id string) error {
			_, err := f.ClearConversation(ctx, &parleyv1.ClearConversationRequest{ConversationId: id})
			return err
		},
		"Delete": func(ctx context.Context, id string) error {
			_, err := f.DeleteConversation(ctx, &parleyv1.DeleteConversationRequest{ConversationId: id})
			return err
		},
		"Fork": func(ctx context.Context, id string) error {
			_, err := f.ForkConversation(ctx, &parleyv1.ForkConversationRequest{ConversationId: id})
			return err
		},
		"Append": func(ctx context.Context, id string) error {
			_, err := f.AppendMessages(
				ctx,
				&parleyv1.AppendMessagesRequest{
					ConversationId: id,
					MustExist:      true,
					Messages:       []*parleyv1.Message{user("x")},
				},
			)
			return err
		},
		"ListMessages": func(ctx context.Context, id string) error {
			_, err := f.ListMessages(ctx, &parleyv1.ListMessagesRequest{ConversationId: id})
			return err
		},
		"GetContext": func(ctx context.Context, id string) error {
			_, err := f.GetContext(ctx, &parleyv1.GetContextRequest{ConversationId: id})
			return err
		},
		"GetRoutingSummary": func(ctx context.Context, id string) error {
			_, err := f.GetRoutingSummary(ctx, &parleyv1.GetRoutingSummaryRequest{ConversationId: id})
			return err
		},
		"SetActiveAgent": func(ctx context.Context, id string) error {
			_, err := f.SetActiveAgent(ctx, &parleyv1.SetActiveAgentRequest{ConversationId: id, Agent: "x"})
			return err
		},
		"ResumeTurn": func(ctx context.Context, id string) error {
			_, err := f.resume(ctx, &parleyv1.ResumeTurnRequest{ConversationId: id})
			return err
		},
		"GetTurn": func(ctx context.Context, id string) error {
			_, err := f.GetTurn(ctx, &parleyv1.GetTurnRequest{ConversationId: id, TurnId: "t"})
			return err
		},
		"ListTurns": func(ctx context.Context, id string) error {
			_, err := f.ListTurns(ctx, &parleyv1.ListTurnsRequest{ConversationId: id})
			return err
		},
		"CancelTurn": func(ctx context.Context, id string) error {
			_, err := f.CancelTurn(ctx, &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: "t"})
			return err
		},
		"tool_results": func(ctx context.Context, id string) error {
			stream, err := f.Chat(
				ctx,
				&parleyv1.ChatRequest{ConversationId: id, ToolResults: []*parleyv1.ToolResult{{CallId: "1"}}},
			)
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"answer_pending": func(ctx context.Context, id string) error {
			stream, err := f.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, AnswerPending: true})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
		"Chat": func(ctx context.Context, id string) error {
			stream, err := f.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, Content: "x", MustExist: true})
			if err == nil {
				_, err = stream.Recv()
			}
			return err
		},
	}
	written := f.changeCount()
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		foreign, missing := statusOf(calls[name](b, "secret")), statusOf(calls[name](b, "nobody"))
		if foreign.reason != "CONVERSATION_NOT_FOUND" {
			t.Errorf("%s: error = %v %q, want CONVERSATION_NOT_FOUND", name, foreign.code, foreign.reason)
		}
		if want := strings.ReplaceAll(missing.text, "nobody", "secret"); foreign.text != want {
			t.Errorf("%s: error for another tenant's conversation = %q, want %q", name, foreign.text, want)
		}
	}
	if n := f.changeCount(); n != written {
		t.Errorf("tenant b made %d changes, want 0", n-written)
	}

	// The same id names another conversation, and the same request_id another request.
	fill(b, "of b")
	loaded, err := f.LoadConversation(b, &parleyv1.LoadConversationRequest{ConversationId: "both"})
	if err != nil || len(loaded.GetMessages()) != 1 || loaded.GetMessages()[0].GetContent() != "of b" {
		t.Errorf("LoadConversation of b = %v, %v", loaded, err)
	}
	list, err := f.ListConversations(b, &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetTotalSize() != 1 || len(list.GetConversations()) != 1 {
		t.Errorf("ListConversations of b = %v, %v", list, err)
	}
	batch, err := f.BatchGetRoutingSummaries(
		b,
		&parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: []string{"secret", "both"}},
	)
	if err != nil || !slices.Equal(batch.GetMissingIds(), []string{"secret"}) {
		t.Errorf("BatchGetRoutingSummaries of b = %v, %v", batch, err)
	}
	purged, err := f.PurgeConversations(
		b,
		&parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Nanosecond)},
	)
	if err != nil || purged.GetPurgedCount() != 1 {
		t.Errorf("PurgeConversations of b = %v, %v", purged, err)
	}
	for _, id := range []string{"secret", "both"} {
		if err := calls["Get"](a, id); err != nil {
			t.Errorf("GetConversation(%s) of a = %v", id, err)
		}
	}
	first, err := f.CreateConversation(a, &parleyv1.CreateConversationRequest{RequestId: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.CreateConversation(b, &parleyv1.CreateConversationRequest{RequestId: "r1"})
	if err != nil || other.GetReplayed() || other.GetConversation().GetId() == first.GetConversation().GetId() {
		t.Errorf(
			"CreateConversation of b with a's request_id = %v, %v, want another conversation than %v",
			other,
			err,
			first,
		)
	}
}

// TestIsolationOfTurns checks that a tenant cannot reach a turn of another tenant with its turn id, its
// request_id or its conversation_id. The turns are running, queued and ended.
func TestIsolationOfTurns(t *testing.T) {
	f, script := openScripted(t, func(s *setup) { s.Auth = byMetadata() })
	a, b := withMetadata(t, "tenant", "a"), withMetadata(t, "tenant", "b")
	ended := f.startChat(t, a, &parleyv1.ChatRequest{ConversationId: "both", Content: "of a", RequestId: "r1"})
	script.send(t, "both", "secret", end)
	ended.wait(t)
	running := f.startChat(t, a, &parleyv1.ChatRequest{ConversationId: "both", Content: "of a", RequestId: "r2"})
	queued := f.startChat(t, a, &parleyv1.ChatRequest{
		ConversationId: "both", Content: "of a", RequestId: "r3", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	})
	if _, err := f.AppendMessages(b,
		&parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user("of b")}}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(id string) error{
		"ResumeTurn": func(id string) error {
			_, err := f.resume(b, &parleyv1.ResumeTurnRequest{ConversationId: "both", TurnId: id})
			return err
		},
		"GetTurn": func(id string) error {
			_, err := f.GetTurn(b, &parleyv1.GetTurnRequest{ConversationId: "both", TurnId: id})
			return err
		},
		"CancelTurn": func(id string) error {
			_, err := f.CancelTurn(b, &parleyv1.CancelTurnRequest{ConversationId: "both", TurnId: id})
			return err
		},
	}
	for state, s := range map[string]*stream{"ended": ended, "running": running, "queued": queued} {
		if _, err := f.GetTurn(a, &parleyv1.GetTurnRequest{TurnId: s.turnID}); err != nil {
			t.Errorf("GetTurn of the own %s turn = %v", state, err)
		}
		_, err := f.GetTurn(b, &parleyv1.GetTurnRequest{TurnId: s.turnID})
		if foreign := wantError(t, err, codes.NotFound, "TURN_NOT_FOUND"); foreign.resource.GetOwner() != "" {
			t.Errorf("GetTurn of another tenant's %s turn: resource = %v, want no owner", state, foreign.resource)
		}
	}
	if list, err := f.ListTurns(b, &parleyv1.ListTurnsRequest{}); err != nil || len(list.GetTurns()) != 0 {
		t.Errorf("ListTurns of the tenant b = %v, %v, want no turns", list, err)
	}
	const nobody = "00000000-0000-4000-8000-000000000000"
	for name, call := range calls {
		missing := wantError(t, call(nobody), codes.NotFound, "TURN_NOT_FOUND")
		for state, s := range map[string]*stream{"ended": ended, "running": running, "queued": queued} {
			foreign := wantError(t, call(s.turnID), codes.NotFound, "TURN_NOT_FOUND")
			if want := strings.ReplaceAll(missing.text, nobody, s.turnID); foreign.text != want {
				t.Errorf("%s of another tenant's %s turn: error = %q, want %q", name, state, foreign.text, want)
			}
			if r := foreign.resource; r.GetResourceType() != "parley.v1.Turn" || r.GetResourceName() != s.turnID ||
				r.GetOwner() != "both" {
				t.Errorf("%s: resource = %v, want the turn", name, r)
			}
		}
	}
	if list, err := f.ListTurns(b, &parleyv1.ListTurnsRequest{ConversationId: "both"}); err != nil ||
		len(list.GetTurns()) != 0 {
		t.Errorf("ListTurns of b = %v, %v", list, err)
	}
	_, err := f.resume(b, &parleyv1.ResumeTurnRequest{ConversationId: "both"})
	if got := wantError(t, err, codes.NotFound, "TURN_NOT_FOUND"); got.resource.GetResourceName() != "" {
		t.Errorf("resource = %v, want no name", got.resource)
	}
	// A request_id and INTERRUPT apply to the tenant's own conversation.
	own := f.startChat(
		t,
		b,
		&parleyv1.ChatRequest{
			ConversationId: "both",
			Content:        "of b",
			RequestId:      "r2",
			OnBusy:         parleyv1.OnBusy_ON_BUSY_INTERRUPT,
		},
	)
	if own.turnID == running.turnID || own.events[0].GetStarted().GetReplayed() {
		t.Errorf("events of b = %v, want a new turn", own.events)
	}
	list, err := f.ListTurns(a, &parleyv1.ListTurnsRequest{ConversationId: "both"})
	if err != nil || len(list.GetTurns()) != 3 ||
		list.GetTurns()[1].GetState() != parleyv1.TurnState_TURN_STATE_RUNNING {
		t.Errorf("ListTurns of a = %v, %v, want 3 turns, the second running", list, err)
	}
}
