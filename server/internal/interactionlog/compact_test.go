package interactionlog

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// note tells the log of the import of a conversation whose tenant has so many bytes.
func (s *testService) commitImport(id string, bytes int) {
	s.log.Committed([]store.Change{{
		Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, Tenant: strings.Repeat("t", bytes), ConversationID: id, UID: "u", Time: s.now,
		Conversation: &parleyv1.Conversation{LastSequence: 1},
	}})
}

// remembers fails the test unless the log remembers these imports, of tenants of so many bytes,
// and no other ones, in a file of the size that it counts.
func (s *testService) wantExclusions(bytes int, ids ...string) {
	s.tb.Helper()
	found, err := s.log.exclusions()
	must(s.tb, err)
	for _, id := range ids {
		if _, ok := found[exclusion{Tenant: strings.Repeat("t", bytes), ID: id, UID: "u"}]; !ok {
			s.tb.Errorf("the import of %s is not remembered", id)
		}
	}
	if len(found) != len(ids) {
		s.tb.Errorf("%d imports are remembered, want %d", len(found), len(ids))
	}
	info, err := os.Stat(s.log.checkpointPath())
	must(s.tb, err)
	if size := int(info.Size()) - checkpointBytes; size != s.log.pending.exclusionBytes {
		s.tb.Errorf("the file has %d bytes of imports, the log counts %d", size, s.log.pending.exclusionBytes)
	}
}

// TestCompactBesideImports needs no lock to write the new file, and loses nothing that is
// remembered, and no state of the checkpoint, while it does.
func TestCompactBesideImports(t *testing.T) {
	const size = compactInterval / 4
	s := newTestService(t, logDir(t))
	for i := range 4 {
		s.commitImport(fmt.Sprint("old", i), size)
	}
	s.now = s.now.Add(time.Hour)
	s.commitImport("a", size)
	must(t, s.log.advanceIdle())
	s.commitImport("b", size)
	if s.log.pending.exclusionBytes < compactInterval {
		t.Fatalf("idle or a commit compacts: %d bytes are left", s.log.pending.exclusionBytes)
	}
	c, err := s.log.beginCompaction()
	must(t, err)
	s.commitImport("c", size)
	s.log.Log.mu.Lock()
	must(t, c.write())
	s.log.Log.mu.Unlock()
	s.commitImport("d", size)
	s.now = s.now.Add(-2 * time.Hour)
	s.add("acme", "own", "said after the clock was set back")
	whole := s.log.pending.saved.CompleteUntil
	must(t, c.replace(), c.from.Close())
	s.wantExclusions(size, "a", "b", "c", "d")
	if found, _, err := readCheckpoint(s.log.checkpointPath()); err != nil || !found.CompleteUntil.Equal(whole) {
		t.Errorf("the checkpoint is %+v, %v, want %v", found, err, whole)
	}
	must(t, s.log.Close())
}

// TestCompactRemovedFile leaves a file alone that another program has put in the place of the one that
// was read.
func TestCompactRemovedFile(t *testing.T) {
	const size = compactInterval
	s := newTestService(t, logDir(t))
	s.commitImport("a", size)
	s.log.Log.mu.Lock()
	s.log.pending.compactAt = 0
	s.log.Log.mu.Unlock()
	c, err := s.log.beginCompaction()
	must(t, err, c.write(), os.Remove(s.log.checkpointPath()), c.replace())
	must(t, s.log.save(true), c.replace(), c.from.Close(), c.to.Close(), os.Remove(c.to.Name()))
	if found, err := s.log.exclusions(); len(found) != 0 || err != nil {
		t.Errorf("imports = %v, %v, want none", found, err)
	}
	must(t, s.log.Close())
}

// TestTooManyImports tells operators once when imports can no longer be remembered.
func TestTooManyImports(t *testing.T) {
	const size = 1 << 20
	s := newTestService(t, logDir(t))
	for i := range 12 {
		s.commitImport(fmt.Sprint(i), size)
		s.log.maintainOnce()
	}
	if said := s.log.output.take(); strings.Count(said, "entries for imported messages") != 1 {
		t.Errorf("operators read %q, want one warning", said)
	}
	must(t, s.log.Close())
}
