package rpc

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// These tests check the guarantees of the README through the API. Other packages guarantee durability,
// the detection of corruption, and the end of turns, and their tests check that.

// concurrently makes the same call from many goroutines and returns the replies.
func concurrently[R any](t *testing.T, call func(i int) (R, error)) []R {
	t.Helper()
	const callers = 64
	replies := make([]R, callers)
	var calls sync.WaitGroup
	start := make(chan struct{})
	for i := range replies {
		calls.Go(func() {
			<-start
			var err error
			if replies[i], err = call(i); err != nil {
				t.Errorf("caller %d: %v", i, err)
			}
		})
	}
	close(start)
	calls.Wait()
	return replies
}

func TestIdempotent(t *testing.T) {
	t.Run("AppendMessages", func(t *testing.T) {
		f := open(t, nil)
		replies := concurrently(t, func(int) (*parleyv1.AppendMessagesResponse, error) {
			return f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
				ConversationId: "c1", RequestId: "r1", Messages: []*parleyv1.Message{user("1"), assistant("2")},
			})
		})
		first := 0
		for _, r := range replies {
			if !r.GetReplayed() {
				first++
			}
			if diff := cmp.Diff(replies[0].GetAppended(), r.GetAppended(), protocmp.Transform()); diff != "" ||
				!r.GetCreated() {
				t.Errorf("created = %t, replies of two callers differ (-one +other):\n%s", r.GetCreated(), diff)
			}
		}
		if c := f.get(t, "c1"); first != 1 || c.GetMessageCount() != 2 || c.GetVersion() != 1 {
			t.Errorf("%d replies are not replayed, want 1; conversation = %v", first, c)
		}
		_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c1", RequestId: "r1", Messages: []*parleyv1.Message{user("other")},
		})
		wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	})
	// The same request_id in another method is another request, even without a conversation_id.
	f := open(t, nil)
	f.append(t, "source", user("1"))
	ids := make(map[string]bool)
	wantSame := func(t *testing.T, conversations []*parleyv1.Conversation) {
		t.Helper()
		for _, c := range conversations {
			if c.GetUid() != conversations[0].GetUid() || c.GetUid() == "" {
				t.Fatalf("conversations of two callers = %q and %q, want the same", c, conversations[0])
			}
		}
		ids[conversations[0].GetId()] = true
	}
	t.Run("CreateConversation", func(t *testing.T) {
		wantSame(t, concurrently(t, func(int) (*parleyv1.Conversation, error) {
			r, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
				Conversation: &parleyv1.Conversation{
					Title:  "x",
					Labels: map[string]string{"a": "1", "b": "2"},
				}, RequestId: "r1",
			})
			return r.GetConversation(), err
		}))
		_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{RequestId: "r1"})
		wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
	})
	t.Run("LoadConversation", func(t *testing.T) {
		wantSame(t, concurrently(t, func(int) (*parleyv1.Conversation, error) {
			r, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{RequestId: "r1"})
			if !r.GetCreated() {
				t.Error("created = false for a retry of the request that created the conversation")
			}
			return r.GetConversation(), err
		}))
	})
	t.Run("ForkConversation", func(t *testing.T) {
		wantSame(t, concurrently(t, func(int) (*parleyv1.Conversation, error) {
			r, err := f.ForkConversation(
				t.Context(),
				&parleyv1.ForkConversationRequest{ConversationId: "source", RequestId: "r1"},
			)
			return r.GetConversation(), err
		}))
	})
	if n, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{}); err != nil || len(ids) != 3 ||
		n.GetTotalSize() != 4 {
		t.Errorf("got %d ids, ListConversations = %v, %v, want 3 ids and 4 conversations", len(ids), n, err)
	}
}

// TestIdempotentChat makes concurrent Chat calls with the same request_id. All but the first read the
// events of the first call's turn, whether it is starting, running or ended.
func TestIdempotentChat(t *testing.T) {
	f := open(t, nil)
	replies := concurrently(t, func(int) (string, error) {
		for {
			events, err := f.chat(t, &parleyv1.ChatRequest{Content: "once", RequestId: "r1"})
			if statusOf(err).reason == "CONVERSATION_BUSY" {
				continue
			}
			if err != nil {
				return "", err
			}
			text := ""
			for _, e := range events {
				text += e.GetTextDelta().GetText()
			}
			return text + events[0].GetTurnId(), nil
		}
	})
	if len(slices.Compact(replies)) != 1 || !strings.HasPrefix(replies[0], "once") {
		t.Errorf("replies = %q, want one", slices.Compact(replies))
	}
	list, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || list.GetTotalSize() != 1 || list.GetConversations()[0].GetConversation().GetMessageCount() != 2 {
		t.Errorf("ListConversations = %v, %v, want 1 conversation with 2 messages", list, err)
	}
}

func TestAtomic(t *testing.T) {
	f := open(t, nil)
	c := fullConversation("c1")
	c.Retention.MaxMessages = 1000
	f.create(t, c)
	bad := []*parleyv1.Message{user("1"), user("2"), {}}
	_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: "c1", Messages: bad})
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if n := f.get(t, "c1").GetMessageCount(); n != 0 {
		t.Errorf("message_count after an invalid batch = %d, want 0", n)
	}

	const batch = 5
	concurrently(t, func(i int) (any, error) {
		var messages []*parleyv1.Message
		for j := range batch {
			messages = append(messages, user(fmt.Sprintf("%d/%d", i, j)))
		}
		_, err := f.AppendMessages(
			t.Context(),
			&parleyv1.AppendMessagesRequest{ConversationId: "c1", Messages: messages},
		)
		return nil, err
	})
	loaded, err := f.LoadConversation(
		t.Context(),
		&parleyv1.LoadConversationRequest{ConversationId: "c1", MessageLimit: proto.Int32(1000)},
	)
	if err != nil || len(loaded.GetMessages()) != 64*batch {
		t.Fatalf("LoadConversation = %d messages, %v, want %d", len(loaded.GetMessages()), err, 64*batch)
	}
	for i, m := range loaded.GetMessages() {
		caller, _, _ := strings.Cut(loaded.GetMessages()[i/batch*batch].GetContent(), "/")
		if want := fmt.Sprintf("%s/%d", caller, i%batch); m.GetContent() != want || m.GetSequence() != int32(i+1) {
			t.Fatalf("message %d = %q with sequence %d, want %q", i+1, m.GetContent(), m.GetSequence(), want)
		}
	}
}

func TestOrdered(t *testing.T) {
	f := open(t, nil)
	f.append(t, "c1", user("1"))
	succeeded := 0
	for _, err := range concurrently(t, func(i int) (error, error) {
		_, err := f.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c1", IfVersion: proto.Int32(1), Messages: []*parleyv1.Message{user(fmt.Sprint(i))},
		})
		return err, nil
	}) {
		if err == nil {
			succeeded++
		} else if got := wantError(t, err, codes.Aborted, "VERSION_MISMATCH"); got.metadata["current_version"] != "2" {
			t.Errorf("metadata = %v, want current_version 2", got.metadata)
		}
	}
	if succeeded != 1 || f.get(t, "c1").GetMessageCount() != 2 {
		t.Errorf("%d appends at the same version succeeded, want 1", succeeded)
	}
	// if_version 0 means that the conversation must not exist.
	_, err := f.AppendMessages(
		t.Context(),
		&parleyv1.AppendMessagesRequest{
			ConversationId: "c1",
			IfVersion:      proto.Int32(0),
			Messages:       []*parleyv1.Message{user("x")},
		},
	)
	wantError(t, err, codes.Aborted, "VERSION_MISMATCH")
	if _, err := f.AppendMessages(t.Context(),
		&parleyv1.AppendMessagesRequest{ConversationId: "c2", IfVersion: proto.Int32(0), Messages: []*parleyv1.Message{user("x")}}); err != nil {
		t.Error(err)
	}
	for name, call := range map[string]func(v *int32) error{
		"Update": func(v *int32) error {
			_, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
				Conversation: &parleyv1.Conversation{Id: "c1", Title: "x"}, IfVersion: v,
			})
			return err
		},
		"Clear": func(v *int32) error {
			_, err := f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "c1", IfVersion: v})
			return err
		},
		"SetActiveAgent": func(v *int32) error {
			_, err := f.SetActiveAgent(t.Context(), &parleyv1.SetActiveAgentRequest{
				ConversationId: "c1", Agent: "echo", IfVersion: v,
			})
			return err
		},
		"Chat": func(v *int32) error {
			_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "x", IfVersion: v})
			return err
		},
	} {
		before := f.get(t, "c1").GetVersion()
		wantError(t, call(new(before-1)), codes.Aborted, "VERSION_MISMATCH")
		if after := f.get(t, "c1").GetVersion(); after != before {
			t.Errorf("%s at an older version changed version %d to %d", name, before, after)
		}
		if err := call(&before); err != nil {
			t.Errorf("%s at the current version = %v", name, err)
		}
	}
}

func TestHistory(t *testing.T) {
	f := open(t, nil)
	f.create(t, &parleyv1.Conversation{Id: "c1", SystemPrompt: "Be brief."})
	for i := range 25 {
		m := user(fmt.Sprint(i + 1))
		if i%2 == 0 {
			m.Role = parleyv1.Role_ROLE_ASSISTANT
		}
		f.append(t, "c1", m)
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	var want []int32
	for i := range 20 {
		want = append(want, int32(i+6))
	}
	if diff := cmp.Diff(want, sequences(loaded.GetMessages())); diff != "" {
		t.Errorf("sequences (-want +got):\n%s", diff)
	}
	window, err := f.GetContext(
		t.Context(),
		&parleyv1.GetContextRequest{ConversationId: "c1", Window: &parleyv1.ContextWindow{MaxMessages: 5}},
	)
	if err != nil || window.GetSystemPrompt() != "Be brief." ||
		!slices.Equal(sequences(window.GetMessages()), want[16:]) {
		t.Errorf("GetContext with 5 messages = %v, %v", window, err)
	}
}
