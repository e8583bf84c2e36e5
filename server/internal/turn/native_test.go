package turn

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/store"
)

// native returns a piece with a native form whose value has this size.
func native(kind string, size int) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Native{
		Native: &parleyv1.Native{Type: kind, Value: []byte(strings.Repeat("\xff", size))},
	}}
}

// TestNativeForms: the native form of an answer message is stored with it and is in the finished event. The last one
// counts, and a message of its own begins with it if there is no other content.
func TestNativeForms(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(
		native("first", 3), text("look"), native("form", 2), call("1"), result("1", "found"), text("done"),
		handoff("other"), native("alone", 1),
	)}, nil)
	messages := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetMessages()
	var got []string
	for _, m := range messages {
		got = append(got, m.GetContent()+"|"+m.GetNative().GetType()+"|"+string(m.GetNative().GetValue()))
	}
	if diff := cmp.Diff([]string{"look|form|\xff\xff", "||", "done||", "|alone|\xff"}, got); diff != "" {
		t.Errorf("messages of the answer (-want +got):\n%s", diff)
	}
	snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := snapshot.Messages.Messages()
	if diff := cmp.Diff(messages, stored[1:], protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("stored messages: %v (-finished +stored):\n%s", err, diff)
	}
}

// TestNativeNeverFailsTheAnswer: a native form that does not fit in the limit, or that has to give its space to text,
// data or calls, is left out. So is one that the agent left out. The message says so, and the log.
func TestNativeNeverFailsTheAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		pieces []*parleyv1.RespondResponse
		want   []string
	}{
		"fits":               {[]*parleyv1.RespondResponse{text("ok"), native("form", 900)}, []string{"ok form "}},
		"too large":          {[]*parleyv1.RespondResponse{text("ok"), native("form", 1000)}, []string{"ok  form"}},
		"left out":           {[]*parleyv1.RespondResponse{text("ok"), native("form", 0)}, []string{"ok  form"}},
		"too large, then ok": {[]*parleyv1.RespondResponse{text("ok"), native("large", 1000), native("form", 9)}, []string{"ok form "}},
		"ok, then too large": {[]*parleyv1.RespondResponse{text("ok"), native("form", 9), native("large", 1000)}, []string{"ok  large"}},
		"text needs space": {
			[]*parleyv1.RespondResponse{native("form", 900), text(strings.Repeat("x", 500))},
			[]string{strings.Repeat("x", 500) + "  form"},
		},
		"a later message needs space": {
			[]*parleyv1.RespondResponse{text("a"), native("form", 900), handoff("b"), call(strings.Repeat("x", 128))},
			[]string{"a  form", "  "},
		},
		"each replaces the one before": {
			[]*parleyv1.RespondResponse{text("a"), native("one", 600), native("two", 600), native("three", 600)},
			[]string{"a three "},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, map[string]agent.Agent{"main": respondWith(test.pieces...)},
				func(o *Options) { o.MaxAnswerBytes = 1000 })
			end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
			if end.GetTurn().GetError() != nil {
				t.Errorf("turn = %v, want no error", end.GetTurn())
			}
			var got []string
			dropped := false
			for _, m := range end.GetMessages() {
				kind := m.GetMetadata()[answer.NativeDropped]
				dropped = dropped || kind != ""
				got = append(got, m.GetContent()+" "+m.GetNative().GetType()+" "+kind)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("messages as content, native form and dropped form (-want +got):\n%s", diff)
			}
			if logged := strings.Contains(f.logged.String(), "native form of the answer dropped"); logged != dropped {
				t.Errorf("logged: %t, want %t:\n%s", logged, dropped, f.logged)
			}
		})
	}
}

// TestNativeDoesNotExtendTheLimit: text that exceeds the limit alone is cut off, whatever space a native form had.
func TestNativeDoesNotExtendTheLimit(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{
		"main": respondWith(text("a"), native("form", 900), text(strings.Repeat("x", 2000))),
	}, func(o *Options) { o.MaxAnswerBytes = 1000 })
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	if got := end.GetTurn().GetError().GetReason(); got != "AGENT_OUTPUT_TOO_LARGE" {
		t.Errorf("reason = %q, want AGENT_OUTPUT_TOO_LARGE", got)
	}
	if n := len(end.GetMessages()[0].GetContent()); n != 1000 {
		t.Errorf("stored text has %d bytes, want 1000", n)
	}
}

// TestAgentsGetNativeAndNoReasoning: the request to an agent has the native forms of the history, and the reasoning of
// neither the history nor the message to be answered. The stored messages keep both.
func TestAgentsGetNativeAndNoReasoning(t *testing.T) {
	var got *parleyv1.RespondRequest
	main := agentFunc(func(_ context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
		got = r
		yield(text("ok"), nil)
	})
	f := newFixture(t, map[string]agent.Agent{"main": main}, nil)
	message := func(role parleyv1.Role) *parleyv1.Message {
		return &parleyv1.Message{
			Role: role, Content: "text", Reasoning: "why", Native: &parleyv1.Native{Type: "form", Value: []byte("\xff")},
		}
	}
	_, err := f.store.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: "c", Messages: []*parleyv1.Message{
		message(parleyv1.Role_ROLE_USER), message(parleyv1.Role_ROLE_ASSISTANT), message(parleyv1.Role_ROLE_USER),
	}})
	if err != nil {
		t.Fatal(err)
	}
	readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", AnswerPending: true}))
	if len(got.GetMessages()) != 3 {
		t.Fatalf("the agent got %d messages, want 3", len(got.GetMessages()))
	}
	for i, m := range got.GetMessages() {
		if m.GetReasoning() != "" || string(m.GetNative().GetValue()) != "\xff" {
			t.Errorf("message %d of the request = %v, want the native form and no reasoning", i, m)
		}
	}
	snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	stored, err := snapshot.Messages.Messages()
	if err != nil || stored[1].GetReasoning() != "why" || stored[2].GetReasoning() != "why" {
		t.Errorf("stored messages = %v, %v, want their reasoning", stored, err)
	}
}
