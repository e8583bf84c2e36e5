package e2e

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// kept returns the fields of a conversation that loses nothing.
func kept() *parleyv1.Conversation {
	return &parleyv1.Conversation{Title: "Kept", Retention: &parleyv1.Retention{
		MaxMessages: 1, Ttl: durationpb.New(ttl), KeepAll: true, NoExpiry: true, NoEviction: true,
	}}
}

// ttl is the time to live of the conversations of this test, the shortest that the API allows.
const ttl = 100 * time.Millisecond

// TestKeptConversation keeps a conversation from expiry, eviction and the loss of messages, over a kill of the
// server, a check and a compaction of its file, and makes it an ordinary conversation again.
func TestKeptConversation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := []string{"--max-conversations=2", "--max-messages=2"}
	s := startServer(t, dir, flags...)
	create := func(s *server, id string, with *parleyv1.Conversation, content string) (created bool) {
		t.Helper()
		reply, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: id, CreateWith: with, Messages: []*parleyv1.Message{
				{Role: parleyv1.Role_ROLE_USER, Content: content},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return reply.GetCreated()
	}
	if !create(s, "kept", kept(), "0") {
		t.Error("the first append did not create the conversation")
	}
	for _, id := range []string{"a", "b", "c"} {
		create(s, id, &parleyv1.Conversation{Retention: &parleyv1.Retention{Ttl: durationpb.New(ttl)}}, "temporary")
		create(s, "kept", kept(), "more")
	}
	s.await(t, "conversation expired", "conversation_id=c")
	wantKept := func(s *server) {
		t.Helper()
		c := header(t, s, "kept")
		if c.GetMessageCount() != 4 || c.GetExpireTime() != nil || c.GetTitle() != "Kept" {
			t.Errorf("kept conversation = %v, want four messages and no expire_time", c)
		}
	}
	wantKept(s)
	ended := func(s *server, id, want string) {
		t.Helper()
		_, err := s.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
		metadata := wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
		if metadata["ended"] != want || (metadata["at"] != "") != (want != "") || want != "" && !strings.Contains(
			err.Error(), strings.ToLower(want)) {
			t.Errorf("error for %s = %v %v, want %s", id, err, metadata, want)
		}
	}
	ended(s, "c", "EXPIRED")
	s.kill()
	<-s.process.Ended()
	wantOffline(t, 0, "; 0 faults\n", "", "check", "--data-dir="+dir)
	wantOffline(t, 0, "compacted ", "", "compact", "--data-dir="+dir)
	wantOffline(t, 0, "; 0 faults\n", "", "check", "--data-dir="+dir)

	s = startServer(t, dir, append(flags, "--allow-no-expiry=false")...)
	wantKept(s)
	ended(s, "c", "") // A restart forgets the ends.
	create(s, "kept2", &parleyv1.Conversation{Retention: &parleyv1.Retention{NoEviction: true}}, "second")
	_, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{})
	wantError(t, err, codes.ResourceExhausted, "STORE_FULL")
	_, err = s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{CreateWith: kept()})
	if metadata := wantError(t, err, codes.FailedPrecondition, "RETENTION_FORBIDDEN"); metadata["field"] !=
		"retention.no_expiry" {
		t.Errorf("metadata = %v, want retention.no_expiry", metadata)
	}
	reply, err := s.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "kept", Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Hour)}},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"retention"}},
	})
	if c := reply.GetConversation(); err != nil || c.GetMessageCount() != 2 || c.GetExpireTime() == nil {
		t.Fatalf("UpdateConversation = %v, %v, want two messages and an expire_time", c, err)
	}
	if _, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{}); err != nil {
		t.Fatal(err)
	}
	ended(s, "kept", "EVICTED")
	s.terminate()
	s.wantStop(t)
}
