package interactionlog

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// TestImports checks that CatchUp adds no entries for imported messages, whatever was imported and
// whatever follows, but does for messages that were appended later.
func TestImports(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one", "two", "three")
	read := func(id string) *store.Snapshot {
		t.Helper()
		snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: id, Newest: -1})
		must(t, err)
		return snapshot
	}
	original := read("c1")
	bring := func(id string, messages store.Frames, change func(*parleyv1.Conversation)) {
		t.Helper()
		header := proto.CloneOf(original.Conversation)
		header.Id, header.Uid = id, id
		change(header)
		_, err := s.Import(t.Context(), &store.Import{
			Tenant: "acme", Conversation: header, Messages: messages, Overwrite: true,
		})
		must(t, err)
	}
	bring("fork", original.Messages, func(c *parleyv1.Conversation) {
		c.ForkedFrom = &parleyv1.ForkOrigin{ConversationId: "elsewhere", Sequence: 1}
	})
	s.buffering = true
	bring("batch", original.Messages, func(*parleyv1.Conversation) {})
	s.add("acme", "batch", "four")
	s.buffering = false
	s.log.Committed(s.buffered)
	bring("again", original.Messages, func(*parleyv1.Conversation) {})
	bring("again", nil, func(c *parleyv1.Conversation) { c.LastSequence = 1 })
	s.detached = true
	s.add("acme", "again", "five")
	s.add("acme", "fork", "six")
	s.restart()
	s.wantEntries("one", "two", "three", "four", "five", "six")
	must(t, s.log.Close())
}

// TestImportsAfterPowerCut reads exclusions after zeros that a power cut has left.
func TestImportsAfterPowerCut(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.log.erase("c1", 1)
	path := s.log.writer.checkpointPath()
	text, err := os.ReadFile(path)
	must(t, err)
	zeros := make([]byte, maxExclusionBytes-len(text))
	text = append(append(text[:checkpointBytes:checkpointBytes], zeros...), text[checkpointBytes:]...)
	must(t, os.WriteFile(path, text, dayfile.FileMode))
	s.detached = true
	s.add("acme", "c1", "two")
	s.restart()
	s.wantEntries("two")
	must(t, s.log.Close())
}

// importAt imports a conversation with one message that is dated at.
func (s *testService) importAt(id string, at time.Time) {
	s.tb.Helper()
	stamp := timestamppb.New(at)
	body, err := proto.Marshal(&parleyv1.Message{
		Id: "m", Sequence: 1, Role: parleyv1.Role_ROLE_USER, Content: "imported", CreateTime: stamp,
	})
	must(s.tb, err)
	_, err = s.Import(s.tb.Context(), &store.Import{
		Tenant:   "acme",
		Messages: store.AppendFrame(nil, body),
		Conversation: &parleyv1.Conversation{
			Id: id, Version: 1, LastSequence: 1, CreateTime: stamp, UpdateTime: stamp, LastAppendTime: stamp,
		},
	})
	must(s.tb, err)
}

// TestImportFutureMessages checks that imported messages that are dated after the clock get no entries,
// even if a crash comes when the checkpoint is after the import.
func TestImportFutureMessages(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.now = s.now.Add(time.Hour)
	s.importAt("elsewhere", s.now.Add(50*time.Second))
	for range 3 {
		s.now = s.now.Add(time.Second)
		s.add("acme", "own", "own")
		s.log.maintainOnce()
	}
	s.restart()
	s.restart()
	s.wantEntries("own", "own", "own")
	must(t, s.log.Close())
}

// TestEraseFutureEntry checks that an entry that is dated after the clock, because its conversation was
// imported, stays erased, whatever happens before.
func TestEraseFutureEntry(t *testing.T) {
	for name, between := range map[string]func(*testService){
		"nothing":    func(*testService) {},
		"a crash":    (*testService).restart,
		"a restart":  func(s *testService) { must(t, s.log.Close()); s.open(); must(t, s.catchUp()) },
		"an erasure": func(s *testService) { s.log.erase("another", 0) },
		"a line by hand, dated far after the clock": func(s *testService) {
			path := s.log.path((dayfile.DayOf(noon) + 1000).FileName())
			line := entrytest.Sample{
				At: "2029-11-20T09:00:00.000000Z", Conversation: "elsewhere", Tenant: "acme", Content: "by hand",
			}
			must(t, os.WriteFile(path, []byte(line.String()), dayfile.FileMode))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestService(t, logDir(t))
			s.importAt("elsewhere", s.now.Add(50*time.Second))
			s.add("acme", "elsewhere", "secret")
			between(s)
			s.now = s.now.Add(time.Second)
			if n, err := s.log.Erase(t.Context(), "acme", "elsewhere"); n == 0 || err != nil {
				t.Errorf("Erase = %d, %v, want entries erased", n, err)
			}
			s.restart()
			s.wantEntries()
			s.now = s.now.Add(2 * time.Minute)
			s.detached = true
			s.add("acme", "elsewhere", "later")
			s.restart()
			s.wantEntries("later")
			must(t, s.log.Close())
		})
	}
}

// TestEraseDuringCommit checks that a message that is committed and erased during an Erase stays erased.
func TestEraseDuringCommit(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "gone", "one")
	trigger := s.log.path(dayfile.TemporaryName(dayfile.DayOf(noon).FileName()))
	committing := &hookContext{Context: t.Context(), trigger: trigger, hook: func() {
		s.now = s.now.Add(time.Second)
		s.add("acme", "gone", "two")
	}}
	if n, err := s.log.Erase(committing, "acme", "gone"); n != 2 || err != nil {
		t.Errorf("Erase = %d, %v, want 2 entries erased", n, err)
	}
	s.restart()
	s.wantEntries()
	must(t, s.log.Close())
}

// TestExclusionTwice checks that the later times of two exclusions count, even if the clock was set back,
// and the last sequence of two imports.
func TestExclusionTwice(t *testing.T) {
	s := newTestService(t, logDir(t))
	earlier, later := noon.Add(time.Minute), noon.Add(time.Hour)
	first := exclusion{Tenant: "acme", ID: "c1", UID: "u", Sequence: 7, Until: later}
	again := exclusion{Tenant: "acme", ID: "c1", UID: "u", Sequence: 5, Until: earlier}
	gone := exclusion{Tenant: "acme", ID: "c1", Erased: later, Until: later}
	still := exclusion{Tenant: "acme", ID: "c1", Erased: earlier, Until: earlier}
	for _, i := range []exclusion{first, again, gone, still} {
		must(t, s.log.writer.addExclusion(i))
	}
	found, err := s.log.writer.exclusions()
	must(t, err)
	again.Until = later
	want := map[exclusion]exclusion{first.key(): again, gone.key(): gone}
	if diff := cmp.Diff(want, found); diff != "" {
		t.Errorf("exclusions (-want +got):\n%s", diff)
	}
	must(t, s.log.Close())
}

// manyImports commits imports whose exclusions take about 20 MiB, one a second.
func (s *testService) manyImports() {
	for i := range 5000 {
		s.now = s.now.Add(time.Second)
		s.log.Committed([]store.Change{{
			Kind:   parleyv1.ChangeKind_CHANGE_KIND_CREATED,
			Tenant: strings.Repeat("t", 4000), ConversationID: fmt.Sprint("c", i),
			UID: "u", Time: s.now,
			Conversation: &parleyv1.Conversation{LastSequence: 1},
		}})
		if i%20 == 0 {
			s.log.maintainOnce()
		}
	}
}

// TestCompactContinuousImports checks that exclusions that are no longer needed are dropped, even if
// imports never pause.
func TestCompactContinuousImports(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "gone", "one")
	s.manyImports()
	if bytes := s.log.writer.pending.exclusionBytes; bytes > 2*compactInterval {
		t.Errorf("exclusionBytes = %d, want at most %d", bytes, 2*compactInterval)
	}
	s.log.erase("gone", 1)
	found, err := s.log.writer.exclusions()
	must(t, err)
	for _, id := range []string{"c4999", "c4950"} {
		if _, ok := found[exclusion{Tenant: strings.Repeat("t", 4000), ID: id, UID: "u"}]; !ok {
			t.Errorf("no exclusion of the import of %s", id)
		}
	}
	s.restart()
	s.wantEntries()
	must(t, s.log.Close())
}

// TestEraseDespiteImports checks that an erasure succeeds although imports have filled their share of the
// exclusions and the checkpoint cannot advance.
func TestEraseDespiteImports(t *testing.T) {
	s := newTestService(t, logDir(t))
	gone := strings.Repeat("gone", 50_000) // longer than the space that the imports may leave free
	s.add("acme", gone, "one")
	s.log.writer.pending.needsCatchUp = true
	s.manyImports()
	s.log.erase(gone, 1)
	s.restart()
	s.wantEntries()
	must(t, s.log.Close())
}

// TestImportsOfAnEarlierVersion checks that exclusions of an earlier version are retained for a while.
func TestImportsOfAnEarlierVersion(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.importAt("elsewhere", s.now.Add(50*time.Second))
	path := s.log.writer.checkpointPath()
	text, err := os.ReadFile(path)
	must(t, err)
	line, _, _ := strings.Cut(strings.TrimSpace(string(text[checkpointBytes:])), `,"until"`)
	must(t, os.WriteFile(path, append(text[:checkpointBytes:checkpointBytes], "\n"+line+"}\n"...), dayfile.FileMode))
	s.restart()
	s.wantEntries()
	s.log.writer.pending.compactAt = 0
	must(t, s.log.compact())
	s.restart()
	s.wantEntries()
	s.now = s.now.Add(time.Hour)
	must(t, s.log.writer.advanceIdle())
	if bytes := s.log.writer.pending.exclusionBytes; bytes != 0 {
		t.Errorf("exclusionBytes after an hour = %d, want 0", bytes)
	}
	must(t, s.log.Close())
}
