package e2e

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestLongestMessageInLog lists and erases the entry of the largest message that a client may
// send, of which JSON escapes each byte, and does not add it again after a crash.
func TestLongestMessageInLog(t *testing.T) {
	t.Parallel()
	skipShort(t)
	dataDir := t.TempDir()
	l := startLogged(t, dataDir, "--max-message-bytes=3MiB")
	m := userMessage("")
	m.Content = strings.Repeat("\x01", 3<<20-proto.Size(m)-8)
	add(t, l.server, "c", m)
	size := func() int64 {
		t.Helper()
		days := l.days(t)
		if len(days) != 1 {
			t.Fatalf("log files of days %q, want one", days)
		}
		info, err := os.Stat(l.path(days[0]))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	if before < 18<<20-1000 {
		t.Errorf("entry of %d bytes, want about 18 MiB", before)
	}
	for range 2 {
		l.kill()
		l = startLogged(t, dataDir, "--max-message-bytes=3MiB")
		if after := size(); after != before {
			t.Errorf("after a crash the file has %d bytes, want %d", after, before)
		}
	}
	listed, err := l.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{ConversationId: "c"})
	if err != nil || len(listed.GetInteractions()) != 1 || listed.GetSkippedCount() != 0 ||
		listed.GetInteractions()[0].GetContent() != m.GetContent() {
		t.Errorf("ListInteractions returned %d entries, %d skipped, %v, want the message", len(listed.GetInteractions()),
			listed.GetSkippedCount(), err)
	}
	erased, err := l.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
	if err != nil || erased.GetDeletedCount() != 1 || size() != 0 {
		t.Errorf("DeleteInteractions = %v, %v, and %d bytes are left, want 1 and 0", erased, err, size())
	}
}
