package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestLogEntries(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir, "--log-level=debug", "--max-messages=2", "--max-conversations=3",
		"--memory-warning-bytes=1KiB")
	s.await(t, "store opened", "level=INFO", "store=bolt", "durable=true", "path="+filepath.Join(dataDir, "parley.db"))
	create := func(c *parleyv1.Conversation) {
		t.Helper()
		if _, err := s.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{Conversation: c}); err != nil {
			t.Fatal(err)
		}
		s.await(t, "conversation created", "level=INFO", "tenant=default", "conversation_id="+c.GetId())
	}

	create(&parleyv1.Conversation{Id: "a"})
	for range 3 {
		add(t, s, "a", &parleyv1.Message{Content: "hello"})
	}
	s.await(t, "message appended", "level=DEBUG", "tenant=default", "conversation_id=a", "message_count=1")
	s.await(t, "message appended", "conversation_id=a", "message_count=2")
	s.await(t, "conversation trimmed", "level=DEBUG", "conversation_id=a", "removed_messages=1", "message_count=2")
	if found, _ := s.log.Find("message appended"); len(found) != 3 {
		t.Errorf("%d log entries for three messages, want 3: %v", len(found), found)
	}
	s.await(t, "conversations stored", "level=INFO", "count=1")
	if _, err := s.ClearConversation(t.Context(), &parleyv1.ClearConversationRequest{ConversationId: "a"}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "conversation cleared", "level=INFO", "conversation_id=a", "removed_messages=2")
	if _, err := s.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: "a"}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "conversation deleted", "level=INFO", "conversation_id=a", "removed_messages=0")

	create(&parleyv1.Conversation{
		Id: "brief", Retention: &parleyv1.Retention{Ttl: durationpb.New(100 * time.Millisecond)},
	})
	s.await(t, "conversation expired", "level=INFO", "conversation_id=brief", "removed_messages=0")

	if answer := ask(t, s, "b", "one two three"); answer != "one two three" {
		t.Errorf("answer = %q, want %q", answer, "one two three")
	}
	s.await(t, "conversation history", "level=INFO", "conversation_id=b", "agent=echo", "message_count=0")
	s.await(t, "stream started", "level=DEBUG", "conversation_id=b")
	s.await(t, "answer appended", "level=DEBUG", "conversation_id=b", "pieces=3")
	if _, err := s.PurgeConversations(t.Context(), &parleyv1.PurgeConversationsRequest{InactiveFor: durationpb.New(1)}); err != nil {
		t.Fatal(err)
	}
	s.await(t, "conversation deleted", "conversation_id=b", "removed_messages=2")
	s.await(t, "purged", "level=INFO", "count=1")

	for _, id := range []string{"c", "d", "e", "f"} {
		add(t, s, id, &parleyv1.Message{Content: strings.Repeat("many texts ", 100)})
	}
	s.await(t, "conversation evicted; limit of --max-conversations reached", "level=WARN", "conversation_id=c",
		"removed_messages=1")
	const tooMuch = "conversations exceed --memory-warning-bytes"
	s.await(t, tooMuch, "level=WARN", "warning_bytes=1024")
	for range 2 { // The estimate is above the limit in each report.
		add(t, s, "f", &parleyv1.Message{Content: "more text"})
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		s.await(t, "conversations stored", fmt.Sprint("estimated_bytes=", stats.GetDataBytes()))
	}
	s.terminate()
	s.wantStop(t)
	if found, _ := s.log.Find(tooMuch); len(found) != 1 {
		t.Errorf("%d warnings within a minute, want 1: %v", len(found), found)
	}
	for _, line := range s.log.Entries() {
		if strings.Contains(fmt.Sprint(line), "conversation history") && line["msg"] != "conversation history" {
			t.Errorf("another log entry contains \"conversation history\": %v", line)
		}
	}

	startServer(t, t.TempDir(), "--store=memory").await(t, "store opened", "store=memory", "durable=false")
}

// TestUnknownVariable: the server starts although Kubernetes sets a variable that it does not know.
func TestUnknownVariable(t *testing.T) {
	t.Parallel()
	process := parleyd(t, "--store=memory")
	process.Env = append(process.Env, "PARLEY_PORT=tcp://10.0.0.1:50051")
	s := startProcess(t, process)
	s.await(t, "unknown environment variable ignored", "level=WARN", "setting=PARLEY_PORT",
		"advice=parleyd --help lists the known ones")
}
