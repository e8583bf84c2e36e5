package rpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func TestExpiry(t *testing.T) {
	clock := newManualClock()
	f := open(t, onClock(clock))
	f.create(t, &parleyv1.Conversation{Id: "c1", Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}})
	clock.advance(900 * time.Millisecond)
	f.append(t, "c1", user("1")) // Extends the expire_time.
	clock.advance(999 * time.Millisecond)
	f.get(t, "c1") // Does not extend it.
	clock.advance(time.Millisecond)
	for name, call := range map[string]func() error{
		"Get": func() error {
			_, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "c1"})
			return err
		},
		"GetContext": func() error {
			_, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1"})
			return err
		},
		"ListMessages": func() error {
			_, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c1"})
			return err
		},
		"Update": func() error {
			_, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
				Conversation: &parleyv1.Conversation{Id: "c1", Title: "x"},
			})
			return err
		},
		"Delete": func() error {
			_, err := f.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "c1"})
			return err
		},
		"Fork": func() error {
			_, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1"})
			return err
		},
		"GetRoutingSummary": func() error {
			_, err := f.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
				ConversationId: "c1", KnownVersion: proto.Int32(2),
			})
			return err
		},
		"Chat": func() error {
			_, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: "c1", Content: "x", MustExist: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, call(), codes.NotFound, "CONVERSATION_NOT_FOUND") })
	}
	if again := f.append(t, "c1", user("1")); !again.GetCreated() || again.GetAppended()[0].GetSequence() != 1 {
		t.Errorf("AppendMessages after the expiry = %v, want a new conversation", again)
	}
}

func TestCapacity(t *testing.T) {
	f := open(t, func(s *setup) { s.storeOptions.MaxConversations = 3 })
	startTurn := func(id string) {
		t.Helper()
		_, err := f.store.Append(t.Context(), &store.Append{
			Tenant: "default", ConversationID: id, Messages: []*parleyv1.Message{user("1")},
			Begin: &parleyv1.Turn{Id: "turn of " + id},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	listed := func() string {
		t.Helper()
		reply, err := f.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		ids := ""
		for _, e := range reply.GetConversations() {
			ids += e.GetConversation().GetId()
		}
		return ids
	}
	f.append(t, "a", user("1"))
	f.append(t, "b", user("1"))
	f.append(t, "c", user("1"))
	f.append(t, "a", user("newer")) // The oldest create time is evicted, not the oldest update time.
	f.append(t, "d", user("1"))
	if got := listed(); got != "dcb" {
		t.Errorf("conversations after the fourth = %s, want dcb", got)
	}
	startTurn("b")
	f.append(t, "e", user("1"))
	if got := listed(); got != "edb" {
		t.Errorf("conversations after the fifth = %s, want edb because of the turn on b", got)
	}
	startTurn("d")
	startTurn("e")
	_, err := f.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{})
	if got := wantError(t, err, codes.ResourceExhausted, "STORE_FULL"); got.retry == 0 {
		t.Error("the error has no RetryInfo")
	}
	if got := listed(); got != "edb" {
		t.Errorf("conversations after the sixth = %s, want edb", got)
	}
	_, err = f.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "b"})
	wantError(t, err, codes.Aborted, "CONVERSATION_BUSY")
}

// TestMaxReplySize fills a conversation to its limits and checks that every reply is below gRPC's
// default limit of 4 MiB. Other tests check other limits: TestInvalidInput and TestValidInput the limits
// of fields, TestMessageTooLarge that of a message, TestTooManyWatchers that of watchers, TestMaxDeadline
// that of the time of a call, and TestSlowReader that of a stream.
func TestMaxReplySize(t *testing.T) {
	f := open(t, nil)
	c := &parleyv1.Conversation{
		Id: "c1", Title: strings.Repeat("t", 512), Labels: entries(64, 64, 1024), SystemPrompt: strings.Repeat("p", 65536),
		Retention: &parleyv1.Retention{MaxMessages: 1000},
	}
	f.create(t, c)
	for i := range 14 {
		f.append(t, "c1", user(fmt.Sprint(i)), user(strings.Repeat("x", defaultMaxMessageBytes-100)))
	}
	loaded, err := f.LoadConversation(
		t.Context(),
		&parleyv1.LoadConversationRequest{ConversationId: "c1", MessageLimit: proto.Int32(1000)},
	)
	if err != nil || loaded.GetConversation().GetSizeBytes() > 3<<20 ||
		loaded.GetConversation().GetSizeBytes() < 2<<20 {
		t.Errorf("LoadConversation = %d bytes, %v, want 2 to 3 MiB", loaded.GetConversation().GetSizeBytes(), err)
	}
	listed, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c1", PageSize: 1000})
	if err != nil || len(listed.GetMessages()) != len(loaded.GetMessages()) {
		t.Errorf("ListMessages = %d messages, %v, want %d", len(listed.GetMessages()), err, len(loaded.GetMessages()))
	}
	if _, err := f.GetContext(t.Context(), &parleyv1.GetContextRequest{ConversationId: "c1"}); err != nil {
		t.Errorf("GetContext = %v", err)
	}
	if _, err := f.GetRoutingSummary(t.Context(),
		&parleyv1.GetRoutingSummaryRequest{ConversationId: "c1", MessageLimit: proto.Int32(20)}); err != nil {
		t.Errorf("GetRoutingSummary = %v", err)
	}
	fork, err := f.ForkConversation(t.Context(), &parleyv1.ForkConversationRequest{ConversationId: "c1"})
	if err != nil || fork.GetConversation().GetMessageCount() != loaded.GetConversation().GetMessageCount() {
		t.Errorf("ForkConversation = %v, %v", fork, err)
	}
}
