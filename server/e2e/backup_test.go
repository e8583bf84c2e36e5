package e2e

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// backupOf backs up a server and returns the path of the backup.
func backupOf(t *testing.T, s *server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup.db")
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stream, err := s.BackupStore(t.Context(), &parleyv1.BackupStoreRequest{})
	if err != nil {
		t.Fatal(err)
	}
	written, size := int64(0), int64(0)
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		n, err := file.Write(reply.GetChunk())
		if err != nil {
			t.Fatal(err)
		}
		written, size = written+int64(n), size+reply.GetSizeBytes()
	}
	if written != size || size == 0 {
		t.Fatalf("BackupStore sent %d bytes, want size_bytes = %d, not 0", written, size)
	}
	return path
}

// TestBackupUnderLoad restores a backup that was made while 64 clients wrote, each to its own
// conversation. Each restored conversation ends at one instant, which is not before the request
// for the backup.
func TestBackupUnderLoad(t *testing.T) {
	const writers, before, most = 64, 30, 900
	s := startServer(t, t.TempDir(), "--max-messages=1000", "--max-conversations=0", "--interaction-log=false")
	var acknowledged [writers]atomic.Int32
	write := func(until func(n int32) bool) {
		var group sync.WaitGroup
		for w := range writers {
			group.Go(func() {
				for n := acknowledged[w].Load(); !until(n); n++ {
					content := fmt.Sprintf("%d %s", n, strings.Repeat("word ", 400))
					if _, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
						ConversationId: fmt.Sprint("c", w), Messages: []*parleyv1.Message{
							{Role: parleyv1.Role_ROLE_USER, Content: content},
						},
					}); err != nil {
						t.Error(err)
						return
					}
					acknowledged[w].Store(n + 1)
				}
			})
		}
		group.Wait()
	}
	write(func(n int32) bool { return n == before })
	var made atomic.Bool
	var group sync.WaitGroup
	group.Go(func() { write(func(n int32) bool { return made.Load() || n == most }) })
	var least [writers]int32
	for w := range writers {
		least[w] = acknowledged[w].Load()
	}
	backup := backupOf(t, s)
	made.Store(true)
	group.Wait()
	s.kill()

	dir := t.TempDir()
	wantOffline(t, 0, "; 0 faults\nrestored ", "", "restore", backup, "--data-dir="+dir)
	restored := startServer(t, dir, "--max-messages=1000", "--max-conversations=0", "--interaction-log=false")
	short := 0
	for w := range writers {
		messages := everyMessage(t, restored, fmt.Sprint("c", w))
		if n := int32(len(messages)); n < least[w] || n > acknowledged[w].Load()+1 {
			t.Errorf("conversation %d has %d messages, want %d to %d: the acknowledged ones before the backup and at the end",
				w, n, least[w], acknowledged[w].Load()+1)
		} else if n < acknowledged[w].Load() {
			short++
		}
		for i, m := range messages {
			if number, _, _ := strings.Cut(m.GetContent(), " "); number != fmt.Sprint(i) || m.GetSequence() != int32(i+1) {
				t.Fatalf("message %d of conversation %d = number %s, sequence %d; want %d, %d", i, w, number,
					m.GetSequence(), i, i+1)
			}
		}
	}
	t.Logf("%d of %d conversations received messages after the instant of the backup", short, writers)
}

// everyMessage exports a conversation and returns all its messages.
func everyMessage(t *testing.T, s *server, id string) (all []*parleyv1.Message) {
	t.Helper()
	stream, err := s.ExportConversations(t.Context(), &parleyv1.ExportConversationsRequest{ConversationIds: []string{id}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, part.GetMessages()...)
	}
}
