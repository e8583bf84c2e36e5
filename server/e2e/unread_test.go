package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestUnreadLog: the pipe behind standard error is full, or its reader has ended. Turns complete, and
// the server stops normally. When the pipe is read again, the log says how many entries are missing.
func TestUnreadLog(t *testing.T) {
	t.Parallel()
	t.Run("read again", func(t *testing.T) {
		t.Parallel()
		s, unread := startUnread(t)
		chatUnread(t, s)
		reading := make(chan struct{})
		go func() { defer close(reading); s.log.read(unread) }()
		if count := fmt.Sprint(s.await(t, "log entries dropped", "level=WARN")["count"]); strings.Trim(count, "0123456789") != "" || count == "0" {
			t.Errorf("log entries dropped = %s, want a number above 0", count)
		}
		ask(t, s, "read", "Hi")
		s.await(t, "conversation created", "conversation_id=read")
		s.terminate()
		s.wantStop(t)
		<-reading
		s.await(t, "stopped")
		if foreignLines, _ := s.log.find(foreign); len(foreignLines) > 0 {
			t.Errorf("output %v, want only log entries", foreignLines[0])
		}
	})
	t.Run("never read", func(t *testing.T) {
		t.Parallel()
		s, _ := startUnread(t)
		chatUnread(t, s)
		s.terminate()
		select {
		case <-s.ended:
		case <-time.After(patience):
			t.Fatalf("the server did not stop within %v", patience)
		}
		s.wantStop(t)
	})
	t.Run("the reader ended", func(t *testing.T) {
		t.Parallel()
		s, unread := startUnread(t)
		ask(t, s, "before", "Hi")
		unread.Close()
		chatUnread(t, s)
		s.terminate()
		s.wantStop(t)
	})
}

// startUnread starts a server whose standard error is a pipe that is not read yet.
func startUnread(t *testing.T) (*server, *os.File) {
	t.Helper()
	socket := "unix:" + filepath.Join(t.TempDir(), "parley.sock")
	unread, stderr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unread.Close() })
	s := &server{
		process: parleyd(t, "--store=memory", "--grpc-address="+socket, "--log-level=debug"),
		log:     logLines{more: make(chan struct{})}, ended: make(chan struct{}),
	}
	s.process.Stderr = stderr
	err = s.process.Start()
	stderr.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() { defer close(s.ended); _ = s.process.Wait() }()
	t.Cleanup(s.kill)
	s.conn, err = grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(
		fmt.Sprintf(`{"methodConfig": [{"name": [{}], "waitForReady": true, "timeout": "%.0fs"}]}`, patience.Seconds())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	s.ConversationServiceClient = parleyv1.NewConversationServiceClient(s.conn)
	return s, unread
}

// chatUnread runs 1000 turns, which log half as much again as the pipe and the queue hold.
func chatUnread(t *testing.T, s *server) {
	t.Helper()
	for i := range 1000 {
		if answer := ask(t, s, fmt.Sprint(strings.Repeat("unread-", 18), i%7), "Hi"); answer != "Hi" {
			t.Fatalf("answer of turn %d = %q, want Hi", i, answer)
		}
	}
}
