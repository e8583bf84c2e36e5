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

// commitImport passes the import of a conversation to the log. bytes is the length of its tenant.
func (s *testService) commitImport(id string, bytes int) {
	s.log.Committed([]store.Change{{
		Kind:   parleyv1.ChangeKind_CHANGE_KIND_CREATED,
		Tenant: strings.Repeat("t", bytes), ConversationID: id,
		UID: "u", Time: s.now,
		Conversation: &parleyv1.Conversation{LastSequence: 1},
	}})
}

// wantExclusions fails the test unless the log has exclusions for exactly these imports, and the size that
// it counts is correct. bytes is the length of their tenant.
func (s *testService) wantExclusions(bytes int, ids ...string) {
	s.tb.Helper()
	found, err := s.log.writer.exclusions()
	must(s.tb, err)
	for _, id := range ids {
		if _, ok := found[exclusion{Tenant: strings.Repeat("t", bytes), ID: id, UID: "u"}]; !ok {
			s.tb.Errorf("no exclusion of the import of %s", id)
		}
	}
	if len(found) != len(ids) {
		s.tb.Errorf("%d exclusions, want %d", len(found), len(ids))
	}
	info, err := os.Stat(s.log.writer.checkpointPath())
	must(s.tb, err)
	if size := int(info.Size()) - checkpointBytes; size != s.log.writer.pending.exclusionBytes {
		s.tb.Errorf("file has %d bytes of exclusions, exclusionBytes = %d", size, s.log.writer.pending.exclusionBytes)
	}
}

// TestCompactBesideImports checks that the new file is written without the lock, and that no exclusion
// and no change of the checkpoint in the meantime is lost.
func TestCompactBesideImports(t *testing.T) {
	const size = compactInterval / 4
	s := newTestService(t, logDir(t))
	for i := range 4 {
		s.commitImport(fmt.Sprint("old", i), size)
	}
	s.now = s.now.Add(time.Hour)
	s.commitImport("a", size)
	must(t, s.log.writer.advanceIdle())
	s.commitImport("b", size)
	if s.log.writer.pending.exclusionBytes < compactInterval {
		t.Fatalf("exclusionBytes = %d, want no compaction yet", s.log.writer.pending.exclusionBytes)
	}
	c, err := s.log.writer.beginCompaction()
	must(t, err)
	s.commitImport("c", size)
	s.log.writer.mu.Lock()
	must(t, c.write())
	s.log.writer.mu.Unlock()
	s.commitImport("d", size)
	s.now = s.now.Add(-2 * time.Hour)
	s.add("acme", "own", "sent after the clock was set back")
	until := s.log.writer.pending.saved.CompleteUntil
	must(t, c.replace(), c.from.Close())
	s.wantExclusions(size, "a", "b", "c", "d")
	if found, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || !found.CompleteUntil.Equal(until) {
		t.Errorf("checkpoint = %+v, %v, want complete until %v", found, err, until)
	}
	must(t, s.log.Close())
}

// TestCompactRemovedFile checks that compaction does not replace a file that another program has put
// in place of the one that was read.
func TestCompactRemovedFile(t *testing.T) {
	const size = compactInterval
	s := newTestService(t, logDir(t))
	s.commitImport("a", size)
	s.log.writer.mu.Lock()
	s.log.writer.pending.compactAt = 0
	s.log.writer.mu.Unlock()
	c, err := s.log.writer.beginCompaction()
	must(t, err, c.write(), os.Remove(s.log.writer.checkpointPath()), c.replace())
	must(t, s.log.writer.save(true), c.replace(), c.from.Close(), c.to.Close(), os.Remove(c.to.Name()))
	if found, err := s.log.writer.exclusions(); len(found) != 0 || err != nil {
		t.Errorf("exclusions = %v, %v, want none", found, err)
	}
	must(t, s.log.Close())
}

// TestTooManyImports checks that the log warns once when it cannot exclude more imports.
func TestTooManyImports(t *testing.T) {
	const size = 1 << 20
	s := newTestService(t, logDir(t))
	for i := range 12 {
		s.commitImport(fmt.Sprint(i), size)
		s.log.maintainOnce()
	}
	if output := s.log.output.take(); strings.Count(output, "entries for imported messages") != 1 {
		t.Errorf("log output = %q, want one warning", output)
	}
	must(t, s.log.Close())
}
