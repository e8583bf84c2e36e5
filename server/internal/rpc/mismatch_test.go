package rpc

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestTextOfVersionMismatch: each call that fails because of if_version says which version the conversation has and
// which one the call requires.
func TestTextOfVersionMismatch(t *testing.T) {
	f, _ := openScripted(t, nil)
	f.append(t, "idle", user("1"))
	running := f.startChat(t, t.Context(), chatRequest("busy", "q", reject))
	defer running.disconnect()
	chat := func(r *parleyv1.ChatRequest) error {
		_, err := f.chat(t, r)
		return err
	}
	calls := map[string]func(v *int32) error{
		"AppendMessages": func(v *int32) error {
			_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
				ConversationId: "idle", Messages: []*parleyv1.Message{user("x")}, IfVersion: v,
			})
			return err
		},
		"UpdateConversation": func(v *int32) error {
			_, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
				Conversation: &parleyv1.Conversation{Id: "idle", Title: "x"}, IfVersion: v,
			})
			return err
		},
		"DeleteConversation": func(v *int32) error {
			_, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{
				ConversationId: "idle", IfVersion: v,
			})
			return err
		},
		"ClearConversation": func(v *int32) error {
			_, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{
				ConversationId: "idle", IfVersion: v,
			})
			return err
		},
		"SetActiveAgent": func(v *int32) error {
			_, err := f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{
				ConversationId: "idle", Agent: "main", IfVersion: v,
			})
			return err
		},
		"WriteRecords": func(v *int32) error {
			_, err := f.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
				ConversationId: "idle", IfVersion: v, Writes: []*parleyv1.RecordWrite{{Key: "k"}},
			})
			return err
		},
		"Chat": func(v *int32) error {
			return chat(&parleyv1.ChatRequest{ConversationId: "idle", Content: "x", IfVersion: v})
		},
		"Chat with answer_pending": func(v *int32) error {
			return chat(&parleyv1.ChatRequest{ConversationId: "idle", AnswerPending: true, IfVersion: v})
		},
		"Chat that interrupts": func(v *int32) error {
			return chat(&parleyv1.ChatRequest{
				ConversationId: "busy", Content: "x", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT, IfVersion: v,
			})
		},
	}
	for name, call := range calls {
		for required, fault := range map[int32]string{
			9: "is at version 1, but if_version is 9", 0: "already exists at version 1, but if_version is 0",
		} {
			id := "idle"
			if name == "Chat that interrupts" {
				id = "busy"
			}
			got := wantError(t, call(&required), codes.Aborted, "VERSION_MISMATCH")
			want := fmt.Sprintf("conversation %q %s; read it and decide again", id, fault)
			if got.text != want || got.metadata["current_version"] != "1" {
				t.Errorf("%s = %q, %v, want %q", name, got.text, got.metadata, want)
			}
		}
	}
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "none", Messages: []*parleyv1.Message{user("x")}, IfVersion: new(int32(9)),
	})
	got := wantError(t, err, codes.Aborted, "VERSION_MISMATCH")
	if want := `conversation "none" does not exist, but if_version is 9; read it and decide again`; got.text != want {
		t.Errorf("AppendMessages to a new conversation = %q, want %q", got.text, want)
	}
}
