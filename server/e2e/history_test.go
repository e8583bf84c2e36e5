package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	for i := range 25 {
		add(t, s, "c", &parleyv1.Message{Content: strconv.Itoa(i + 1)})
	}
	reply, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if c := reply.GetConversation(); len(reply.GetMessages()) != 20 || c.GetMessageCount() != 20 ||
		c.GetLastSequence() != 25 {
		t.Fatalf("LoadConversation = %d messages of %v, want 20", len(reply.GetMessages()), c)
	}
	for i, m := range reply.GetMessages() {
		if want := i + 6; m.GetSequence() != int32(want) || m.GetContent() != strconv.Itoa(want) {
			t.Errorf("message %d has sequence %d and content %q, want %d", i, m.GetSequence(), m.GetContent(), want)
		}
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	// The sweep may delete a conversation between its expiry and the next read. That is unlikely to
	// happen in every attempt.
	for attempt := range 5 {
		id := fmt.Sprint("c", attempt)
		created, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: &parleyv1.Conversation{
			Id: id, Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)},
		}})
		if err != nil {
			t.Fatal(err)
		}
		end := created.GetConversation().GetExpireTime().AsTime()
		if start := created.GetConversation().GetCreateTime().AsTime(); end.Sub(start) != time.Second {
			t.Fatalf("created at %v, expires at %v; want 1s between them", start, end)
		}
		get := func() error {
			_, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
			return err
		}
		for time.Until(end) > 0 {
			// Reads do not extend the retention. The test and the server use the same clock.
			if err := get(); err != nil && time.Until(end) > 0 {
				t.Fatalf("GetConversation %v before the expiry = %v, want no error", time.Until(end), err)
			}
			<-time.After(min(time.Until(end), 100*time.Millisecond))
		}
		wantError(t, get(), codes.NotFound, "CONVERSATION_NOT_FOUND")
		if swept, _ := s.log.Find("conversation expired", "conversation_id="+id); len(swept) == 0 {
			s.await(t, "conversation expired", "conversation_id="+id) // the sweep comes later
			return
		}
	}
	t.Error("every conversation was swept before a read saw its expiry")
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--max-conversations=3", agents(t, testAgents))
	for _, id := range []string{"a", "b", "c"} {
		add(t, s, id, &parleyv1.Message{Content: "hello"})
	}
	add(t, s, "a", &parleyv1.Message{Content: "The oldest by create time, changed last."})
	add(t, s, "d", &parleyv1.Message{Content: "hello"})
	if line := s.await(t, "conversation evicted; limit of --max-conversations reached", "conversation_id=a"); line["level"] != "WARN" {
		t.Errorf("log level of the eviction = %v, want WARN", line["level"])
	}
	ids := func() (ids []string) {
		list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range list.GetConversations() {
			ids = append(ids, entry.GetConversation().GetId())
		}
		return ids
	}
	if d := cmp.Diff([]string{"d", "c", "b"}, ids()); d != "" {
		t.Errorf("conversations after the fourth (-want +got):\n%s", d)
	}

	// b has the oldest change now, and has a running turn.
	b := hold(t, s, "b")
	add(t, s, "e", &parleyv1.Message{Content: "hello"})
	if d := cmp.Diff([]string{"e", "d", "b"}, ids()); d != "" {
		t.Errorf("conversations with a turn on b (-want +got):\n%s", d)
	}
	// With a running turn on each conversation, none can be evicted.
	hold(t, s, "d")
	hold(t, s, "e")
	_, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "f"},
	})
	wantError(t, err, codes.ResourceExhausted, "STORE_FULL")
	b.release(t, "answer")
	add(t, s, "f", &parleyv1.Message{Content: "hello"})
	if d := cmp.Diff([]string{"f", "e", "d"}, ids()); d != "" {
		t.Errorf("conversations after the turn on b (-want +got):\n%s", d)
	}
}

func TestRoutingSummary(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	list, err := structpb.NewValue([]any{"Zustand", "Jotai", map[string]any{"name": "Redux", "stars": 60000}})
	if err != nil {
		t.Fatal(err)
	}
	analysis := structpb.NewStringValue("small, quick, no boilerplate")
	libraries := []*parleyv1.StructuredData{{Type: "library_list", Value: list}}
	add(t, s, "c",
		&parleyv1.Message{Content: "Which libraries keep state in React?"},
		&parleyv1.Message{
			Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "searcher", Content: "Three.", Summary: "searched for React libraries",
			StructuredData: libraries,
		},
		&parleyv1.Message{Content: "What about the first one?"},
		&parleyv1.Message{
			Role: parleyv1.Role_ROLE_ASSISTANT, Agent: "analyst", Content: "Fine.", Summary: "analyzed Zustand",
			StructuredData: []*parleyv1.StructuredData{{Type: "analysis", Value: analysis}},
		})
	summary := func() *parleyv1.RoutingSummary {
		reply, err := s.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{ConversationId: "c"})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetSummary()
	}
	got := summary()
	if want := "Previous: searched for React libraries, analyzed Zustand"; got.GetText() != want {
		t.Errorf("GetRoutingSummary text = %q, want %q", got.GetText(), want)
	}
	if d := cmp.Diff(history(t, s, "c").GetMessages()[1:], got.GetRecentMessages(), protocmp.Transform()); d != "" {
		t.Errorf("the last three messages with their data (-want +got):\n%s", d)
	}
	types := []*parleyv1.StructuredDataUse{
		{Type: "analysis", Count: 1, LastSequence: 4, LastAgent: "analyst"},
		{Type: "library_list", Count: 1, LastSequence: 2, LastAgent: "searcher"},
	}
	if d := cmp.Diff(types, got.GetStructuredDataTypes(), protocmp.Transform()); d != "" {
		t.Errorf("structured data types (-want +got):\n%s", d)
	}
	if len(got.GetReferencedData()) != 0 || got.GetAwaitingAnswer() {
		t.Errorf("GetRoutingSummary = %v, want no referenced data and no awaited answer", got)
	}

	add(t, s, "c", &parleyv1.Message{Content: "And the second one?"})
	got = summary()
	referenced := []*parleyv1.ReferencedData{{Sequence: 2, Agent: "searcher", Data: libraries[0]}}
	if d := cmp.Diff(referenced, got.GetReferencedData(), protocmp.Transform()); d != "" {
		t.Errorf("referenced data, older than three messages (-want +got):\n%s", d)
	}
	if !got.GetAwaitingAnswer() || got.GetRecentMessages()[0].GetSequence() != 3 {
		t.Errorf("GetRoutingSummary after another question = %v, want an awaited answer", got)
	}
}
