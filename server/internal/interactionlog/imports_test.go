package interactionlog

import (
	"os"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestImports writes no lines for what was imported, whatever it was elsewhere and whatever
// follows, but for all that was said here since.
func TestImports(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one", "two", "three")
	read := func(id string) *store.Snapshot {
		t.Helper()
		snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1})
		do(t, err)
		return snapshot
	}
	whole := read("c1")
	bring := func(id string, messages store.Frames, change func(*parleyv1.Conversation)) {
		t.Helper()
		header := proto.CloneOf(whole.Conversation)
		header.Id, header.Uid = id, id
		change(header)
		_, err := s.Import(t.Context(), &store.Import{Tenant: "acme", Conversation: header, Messages: messages, Overwrite: true})
		do(t, err)
	}
	bring("fork", whole.Messages, func(c *parleyv1.Conversation) {
		c.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: "elsewhere", Sequence: 1}
	})
	s.holds = true
	bring("batch", whole.Messages, func(*parleyv1.Conversation) {})
	s.add("acme", "batch", "four")
	s.holds = false
	s.log.Committed(s.held)
	bring("again", whole.Messages, func(*parleyv1.Conversation) {})
	bring("again", nil, func(c *parleyv1.Conversation) { c.LastSequence = 1 })
	s.deaf = true
	s.add("acme", "again", "five")
	s.add("acme", "fork", "six")
	s.restart()
	s.wants("one", "two", "three", "four", "five", "six")
	do(t, s.log.Close())
}

// TestImportsAfterPowerCut reads what was remembered behind what a power cut has left.
func TestImportsAfterPowerCut(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.log.erase("c1", 1)
	path := s.log.checkpointPath()
	text, err := os.ReadFile(path)
	do(t, err)
	zeros := make([]byte, maxImportsBytes-len(text))
	do(t, os.WriteFile(path, append(append(text[:checkpointBytes:checkpointBytes], zeros...), text[checkpointBytes:]...), fileMode))
	s.deaf = true
	s.add("acme", "c1", "two")
	s.restart()
	s.wants("two")
	do(t, s.log.Close())
}
