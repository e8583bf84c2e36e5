package interactionlog

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/store"
)

// longestMessages returns messages of 3 MiB, the maximum that a server accepts from clients and agents,
// with the longest entries that such messages can have.
func longestMessages() map[string]*parleyv1.Message {
	const most = 3 << 20
	metadata, types := map[string]string{}, make([]*parleyv1.StructuredData, 64)
	for i := range 64 {
		metadata[fmt.Sprintf("%02d%s", i, strings.Repeat(",", 62))] = strings.Repeat("[", 1<<10)
		types[i] = &parleyv1.StructuredData{Type: fmt.Sprintf("%02d%s", i, strings.Repeat("{", 126))}
	}
	pad := func(m *parleyv1.Message, unit string) *parleyv1.Message {
		m.Id, m.Role = "m", parleyv1.Role_ROLE_USER
		m.Content = strings.Repeat(unit, (most-proto.Size(m)-16)/len(unit))
		return m
	}
	return map[string]*parleyv1.Message{
		"digits":             pad(new(parleyv1.Message), "7"),
		"metadata and types": pad(&parleyv1.Message{Metadata: metadata, StructuredData: types}, "\x01"),
		"a tool's result": {
			Id: "m", Role: parleyv1.Role_ROLE_TOOL,
			ToolResult: &parleyv1.ToolResult{CallId: "c", Name: "t", Content: strings.Repeat("\x01", most-100)},
		},
	}
}

// TestLongestEntries lists, adds once and erases the entries of the largest messages, with and
// without redaction, which may lengthen a text. With -short, it takes the longest entry of all.
func TestLongestEntries(t *testing.T) {
	for name, m := range longestMessages() {
		for _, redact := range [][]*regexp.Regexp{nil, {regexp.MustCompile(`\d`), regexp.MustCompile(`[a-z,{[]`)}} {
			long := name == "metadata and types"
			if !long && (redact != nil) != (name == "digits") || testing.Short() && (!long || redact == nil) {
				continue
			}
			t.Run(fmt.Sprint(name, ", expressions ", len(redact)), func(t *testing.T) {
				s := newTestService(t, logDir(t))
				s.log.writer.encoder = entry.NewEncoder(redact)
				_, err := s.Append(t.Context(), &store.Append{
					Tenant: "acme", ConversationID: "c", Messages: []*parleyv1.Message{m},
				})
				must(t, err)
				if s.log.Lost() > 0 {
					t.Fatalf("Lost() = %d, want 0: %v", s.log.Lost(), s.log.writer.loss.cause)
				}
				path := s.log.path(dayfile.DayOf(noon).FileName())
				before, err := os.Stat(path)
				must(t, err)
				s.restart()
				after, err := os.Stat(path)
				must(t, err)
				if after.Size() != before.Size() {
					t.Errorf("file of %d bytes after a crash, want %d", after.Size(), before.Size())
				}
				listed, err := s.log.List(t.Context(), &List{Tenant: "acme", ConversationID: "c"})
				must(t, err)
				if len(listed.Interactions) != 1 || listed.Skipped != 0 {
					t.Errorf("List returned %d entries, %d skipped, want 1 and 0", len(listed.Interactions), listed.Skipped)
				}
				if n, err := s.log.Erase(t.Context(), "acme", "c"); n != 1 || err != nil {
					t.Errorf("Erase = %d, %v, want 1", n, err)
				}
				if left, err := os.Stat(path); err != nil || left.Size() != 0 {
					t.Errorf("%d bytes left, %v, want 0", left.Size(), err)
				}
				must(t, s.log.Close())
			})
		}
	}
}

// TestEntryTooLong checks that an entry that readers would skip counts as lost.
func TestEntryTooLong(t *testing.T) {
	w := newTestLog(t)
	w.commit(strings.Repeat("\x01", entry.MaxBytes/6), "next")
	got := fileContents(t, w.dir)[dayfile.DayOf(noon).FileName()]
	if len(got) != 2 || got[0] != "-1" || got[1] != "next" || w.Lost() != 1 {
		t.Errorf("file = %.100q, Lost() = %d, want an entry that reports the lost one, and the next entry", got, w.Lost())
	}
}
