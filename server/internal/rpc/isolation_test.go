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
	f := open(t, func(s *setup) { s.Authenticate = signIn })
	a, b := as(t, "tenant", "a"), as(t, "tenant", "b")
	fill := func(ctx context.Context, content string) {
		t.Helper()
		if _, err := f.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user(content)}}); err != nil {
			t.Fatal(err)
		}
	}
	fill(a, "of a")
	if _, err := f.CreateConversation(a, &parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{Id: "secret"}}); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func(ctx context.Context, id string) error{
		"Get": func(ctx context.Context, id string) error {
			_, err := f.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
			return err
		},
		"Update": func(ctx context.Context, id string) error {
			_, err := f.UpdateConversation(ctx, &parleyv1.UpdateConversationRequest{Conversation: &parleyv1.Conversation{Id: id, Title: "x"}})
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
			_, err := f.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{ConversationId: id, MustExist: true, Messages: []*parleyv1.Message{user("x")}})
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
			stream, err := f.Chat(ctx, &parleyv1.ChatRequest{ConversationId: id, ToolResults: []*parleyv1.ToolResult{{CallId: "1"}}})
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
		foreign, missing := toldBy(calls[name](b, "secret")), toldBy(calls[name](b, "nobody"))
		if foreign.reason != "CONVERSATION_NOT_FOUND" {
			t.Errorf("%s: %v %q", name, foreign.code, foreign.reason)
		}
		if want := strings.ReplaceAll(missing.text, "nobody", "secret"); foreign.text != want {
			t.Errorf("%s: another tenant's %q differs from a missing %q", name, foreign.text, want)
		}
	}
	if n := f.changeCount(); n != written {
		t.Errorf("b made %d changes", n-written)
	}

	// The same id is another conversation; the same request_id another request.
	fill(b, "of b")
	loaded, err := f.LoadConversation(b, &parleyv1.LoadConversationRequest{ConversationId: "both"})
	if err != nil || len(loaded.GetMessages()) != 1 || loaded.GetMessages()[0].GetContent() != "of b" {
		t.Errorf("b loaded %v, %v", loaded, err)
	}
	list, err := f.ListConversations(b, &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetTotalSize() != 1 || len(list.GetConversations()) != 1 {
		t.Errorf("b lists %v, %v", list, err)
	}
	batch, err := f.BatchGetRoutingSummaries(b, &parleyv1.BatchGetRoutingSummariesRequest{ConversationIds: []string{"secret", "both"}})
	if err != nil || !slices.Equal(batch.GetMissingIds(), []string{"secret"}) {
		t.Errorf("b sums up %v, %v", batch, err)
	}
	purged, err := f.PurgeConversations(b, &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(time.Nanosecond)})
	if err != nil || purged.GetPurgedCount() != 1 {
		t.Errorf("b purged %v, %v", purged, err)
	}
	for _, id := range []string{"secret", "both"} {
		if err := calls["Get"](a, id); err != nil {
			t.Errorf("a lost %s: %v", id, err)
		}
	}
	first, err := f.CreateConversation(a, &parleyv1.CreateConversationRequest{RequestId: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.CreateConversation(b, &parleyv1.CreateConversationRequest{RequestId: "r1"})
	if err != nil || other.GetReplayed() || other.GetConversation().GetId() == first.GetConversation().GetId() {
		t.Errorf("the same request_id of another tenant: %v beside %v, %v", other, first, err)
	}
}

// TestIsolationOfTurns: neither the id of a turn, nor its request_id, nor that of its
// conversation leads to a turn of another tenant, whether it runs, waits or has ended.
func TestIsolationOfTurns(t *testing.T) {
	f, words := openScripted(t, func(s *setup) { s.Authenticate = signIn })
	a, b := as(t, "tenant", "a"), as(t, "tenant", "b")
	ended := f.begin(t, a, &parleyv1.ChatRequest{ConversationId: "both", Content: "of a", RequestId: "r1"})
	words.say(t, "both", "secret", end)
	ended.drain(t)
	runs := f.begin(t, a, &parleyv1.ChatRequest{ConversationId: "both", Content: "of a", RequestId: "r2"})
	waits := f.begin(t, a, &parleyv1.ChatRequest{ConversationId: "both", Content: "of a", RequestId: "r3", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE})
	if _, err := f.AppendMessages(b, &parleyv1.AppendMessagesRequest{ConversationId: "both", Messages: []*parleyv1.Message{user("of b")}}); err != nil {
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
	const nobody = "00000000-0000-4000-8000-000000000000"
	for name, call := range calls {
		missing := wantError(t, call(nobody), codes.NotFound, "TURN_NOT_FOUND")
		for state, one := range map[string]*stream{"ended": ended, "running": runs, "waiting": waits} {
			foreign := wantError(t, call(one.turnID), codes.NotFound, "TURN_NOT_FOUND")
			if want := strings.ReplaceAll(missing.text, nobody, one.turnID); foreign.text != want {
				t.Errorf("%s: a turn of another tenant, %s, is %q, a missing one %q", name, state, foreign.text, want)
			}
			if r := foreign.resource; r.GetResourceType() != "parley.v1.Turn" || r.GetResourceName() != one.turnID || r.GetOwner() != "both" {
				t.Errorf("%s: resource %v", name, r)
			}
		}
	}
	if list, err := f.ListTurns(b, &parleyv1.ListTurnsRequest{ConversationId: "both"}); err != nil || len(list.GetTurns()) != 0 {
		t.Errorf("b lists %v, %v", list, err)
	}
	_, err := f.resume(b, &parleyv1.ResumeTurnRequest{ConversationId: "both"})
	if got := wantError(t, err, codes.NotFound, "TURN_NOT_FOUND"); got.resource.GetResourceName() != "" {
		t.Errorf("resource %v", got.resource)
	}
	// The same request_id, and INTERRUPT, are of another conversation.
	own := f.begin(t, b, &parleyv1.ChatRequest{ConversationId: "both", Content: "of b", RequestId: "r2", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT})
	if own.turnID == runs.turnID || own.events[0].GetStarted().GetReplayed() {
		t.Errorf("b reads %v", own.events)
	}
	list, err := f.ListTurns(a, &parleyv1.ListTurnsRequest{ConversationId: "both"})
	if err != nil || len(list.GetTurns()) != 3 || list.GetTurns()[1].GetState() != parleyv1.TurnState_TURN_STATE_RUNNING {
		t.Errorf("a lists %v, %v", list, err)
	}
}
