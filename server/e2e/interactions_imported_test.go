package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestImportFromTheFutureInLog kills the server while imported messages are dated after its clock, when
// the log was complete for all commits before them: the messages get no entries.
func TestImportFromTheFutureInLog(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := startLogged(t, dataDir)
	at := timestamppb.New(time.Now().Add(55 * time.Second))
	stream, err := l.ImportConversations(t.Context())
	if err == nil {
		err = stream.Send(&parleyv1.ImportConversationsRequest{
			Conversation: &parleyv1.Conversation{
				Id: "elsewhere", Version: 1, LastSequence: 1, CreateTime: at, UpdateTime: at, LastAppendTime: at,
			},
			Messages: []*parleyv1.Message{
				{Id: "m", Sequence: 1, Role: parleyv1.Role_ROLE_USER, Content: "imported", CreateTime: at},
			},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := stream.CloseAndRecv(); err != nil || reply.GetImportedCount() != 1 {
		t.Fatalf("ImportConversations = %v, %v, want 1 imported", reply, err)
	}
	for _, content := range []string{"one", "two"} {
		imported := time.Now()
		add(t, l.server, "own", userMessage(content))
		awaitComplete(t, l, imported)
	}
	l.kill()
	l = startLogged(t, dataDir)
	wantEntries(t, "after a crash", l.entries(t), "own 1 User: one", "own 2 User: two")
}

// awaitComplete waits until the checkpoint says that the log is complete up to a time, even after a power cut.
func awaitComplete(t *testing.T, l *loggedServer, until time.Time) {
	t.Helper()
	deadline := time.After(timeout)
	for {
		text, err := os.ReadFile(filepath.Join(l.dir, "checkpoint.json"))
		if err != nil {
			t.Fatal(err)
		}
		var checkpoint struct {
			Whole time.Time `json:"whole_until"`
		}
		if err := json.NewDecoder(strings.NewReader(string(text))).Decode(&checkpoint); err == nil &&
			checkpoint.Whole.After(until) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("log complete until %v, want %v", checkpoint.Whole, until)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
