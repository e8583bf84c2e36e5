package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/parleydtest"
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
		go func() { defer close(reading); s.log.Read(unread) }()
		if count := fmt.Sprint(s.await(t, "log entries dropped", "level=WARN")["count"]); strings.Trim(count, "0123456789") != "" || count == "0" {
			t.Errorf("log entries dropped = %s, want a number above 0", count)
		}
		ask(t, s, "read", "Hi")
		s.await(t, "conversation created", "conversation_id=read")
		s.terminate()
		s.wantStop(t)
		<-reading
		s.await(t, "stopped")
		if texts, _ := s.log.Find(parleydtest.NotAnEntry); len(texts) > 0 {
			t.Errorf("output %v, want only log entries", texts[0])
		}
	})
	t.Run("never read", func(t *testing.T) {
		t.Parallel()
		s, _ := startUnread(t)
		chatUnread(t, s)
		s.terminate()
		select {
		case <-s.process.Ended():
		case <-time.After(timeout):
			t.Fatalf("the server did not stop within %v", timeout)
		}
		s.wantStop(t)
	})
	t.Run("the reader ended", func(t *testing.T) {
		t.Parallel()
		s, unread := startUnread(t)
		ask(t, s, "before", "Hi")
		unread.Close()
		if testing.Short() {
			ask(t, s, "after", "Hi")
		} else {
			chatUnread(t, s)
		}
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
	command := parleyd(t, "--store=memory", "--grpc-address="+socket, "--log-level=debug")
	command.Stderr = stderr
	s := startUnconnected(t, command)
	stderr.Close()
	s.connect(t, socket, true)
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
