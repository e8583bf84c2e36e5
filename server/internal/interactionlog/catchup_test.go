package interactionlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// testService is a store with a log that observes it. The store survives crashes of the log.
type testService struct {
	store.Store

	log *testLog
	dir string
	tb  testing.TB
	// detached is true if commits do not reach the log, as in a crash between commit and entry.
	detached bool
	// buffering is true if changes are collected in buffered instead of passed to the log.
	buffering bool
	buffered  []store.Change
	now       time.Time
	shared    bool // Options.Shared of the logs that are opened from now on
}

func newTestService(tb testing.TB, dir string) *testService {
	tb.Helper()
	s := &testService{tb: tb, dir: dir, now: noon}
	now := func() time.Time { return s.now }
	s.Store = memstore.New(store.Options{TTL: 1000 * time.Hour, Now: now, Observe: func(changes []store.Change) {
		switch {
		case s.buffering:
			s.buffered = append(s.buffered, changes...)
		case !s.detached:
			s.log.Committed(changes)
		}
	}})
	tb.Cleanup(func() { s.Close() })
	s.open()
	must(tb, s.catchUp())
	return s
}

// open opens the log again.
func (s *testService) open() {
	s.tb.Helper()
	w := &testLog{tb: s.tb, dir: s.dir, output: new(logOutput)}
	now := func() time.Time { return s.now }
	l, err := Open(Options{Dir: s.dir, Now: now, Shared: s.shared, Log: slog.New(slog.NewTextHandler(w.output, nil))})
	must(s.tb, err)
	w.Log, s.log = l, w
}

// restart crashes the log, opens it and catches up.
func (s *testService) restart() {
	s.tb.Helper()
	s.log.crash()
	s.open()
	must(s.tb, s.catchUp())
}

func (s *testService) catchUp() error {
	return s.log.CatchUp(context.Background(), s.Store)
}

// add appends messages in one batch, a millisecond after the previous ones.
func (s *testService) add(tenant, id string, texts ...string) {
	s.tb.Helper()
	s.now = s.now.Add(time.Millisecond)
	a := &store.Append{Tenant: tenant, ConversationID: id}
	for _, text := range texts {
		a.Messages = append(a.Messages, &parleyv1.Message{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: text})
	}
	if _, err := s.Append(context.Background(), a); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *testService) wantEntries(lines ...string) {
	s.tb.Helper()
	if got := fileContents(s.tb, s.dir)[dayfile.DayOf(noon).FileName()]; !slices.Equal(got, lines) {
		s.tb.Errorf("file = %q, want %q", got, lines)
	}
}

// truncate removes bytes from the end of the day's file, as a power cut does.
func (s *testService) truncate(bytes int) {
	s.tb.Helper()
	path := filepath.Join(s.dir, dayfile.DayOf(noon).FileName())
	info, err := os.Stat(path)
	must(s.tb, err)
	must(s.tb, os.Truncate(path, info.Size()-int64(bytes)))
}

func logDir(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "interactions")
}

// TestCatchUp checks that CatchUp adds what a crash has lost, once, and nothing else.
func TestCatchUp(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	must(t, s.log.sync())
	s.detached = true
	s.add("acme", "c1", "three")
	s.add("default", "c2", "four", "five")
	s.add("acme", "c1", "six")
	s.restart()
	s.wantEntries("one", "two", "three", "four", "five", "six")
	if output := s.log.output.take(); !strings.Contains(output, "count=4") {
		t.Errorf("log output = %q", output)
	}
	s.restart()
	s.detached = false
	s.add("acme", "c1", "seven")
	s.truncate(3)
	s.restart()
	s.add("acme", "c1", "eight")
	got := fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()]
	if len(got) != 9 || got[6][0] != '!' || got[7] != "seven" || got[8] != "eight" {
		t.Errorf("file = %q, want a partial line, then it and the next entry", got)
	}
	must(t, s.log.Close())
}

// TestCatchUpReplaced checks that CatchUp adds the messages of a replacement that a crash has lost, once, and that a
// removal has one entry.
func TestCatchUpReplaced(t *testing.T) {
	s := newTestService(t, logDir(t))
	replace := func(after int32, text string) {
		t.Helper()
		s.now = s.now.Add(time.Millisecond)
		_, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: "c1", ReplaceAfter: &after,
			Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: text}},
		})
		must(t, err)
	}
	s.add("acme", "c1", "one", "two", "three")
	replace(1, "four")
	const removal = "2 messages removed after message 1"
	s.wantEntries("one", "two", "three", removal, "four")
	s.restart()
	s.wantEntries("one", "two", "three", removal, "four")
	s.detached = true
	s.add("acme", "c1", "five")
	replace(4, "six")
	s.restart()
	s.wantEntries("one", "two", "three", removal, "four", "six") // The store has no trace of message five.
	must(t, s.log.Close())
}

// TestCatchUpTenants checks that CatchUp adds the entries of all tenants, also of more than fit into one page of
// tenants, but not of a tenant whose conversations were deleted.
func TestCatchUpTenants(t *testing.T) {
	const tenants = catchUpTenants + 10
	s := newTestService(t, logDir(t))
	s.add("logged", "c", "logged")
	s.detached = true
	want := []string{"logged"}
	for i := range tenants {
		want = append(want, fmt.Sprint("of ", i))
		s.add(fmt.Sprint("tenant", i), "c", want[i+1])
	}
	s.add("deleted", "c", "deleted")
	must(t, s.Delete(t.Context(), &store.Delete{Tenant: "deleted", ConversationID: "c"}))
	s.log.crash()
	s.open()
	must(t, s.catchUp())
	got := fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()]
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("CatchUp wrote %d entries, want %d: one for each tenant", len(got), len(want))
	}
	must(t, s.log.Close())
}

// TestCatchUpWithoutLineBreak checks that a last entry without only its line break is complete.
func TestCatchUpWithoutLineBreak(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.truncate(1)
	s.restart()
	s.add("acme", "c1", "two")
	s.wantEntries("one", "two")
	must(t, s.log.Close())
}

// TestCatchUpClean checks that CatchUp adds nothing to a log that was closed or is new.
func TestCatchUpClean(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	must(t, s.log.Close())
	s.detached = true
	s.add("acme", "c1", "not logged") // by a process without a log
	s.truncate(10)                    // by hand
	partial := fileContents(t, s.dir)
	s.open()
	must(t, s.catchUp())
	s.restart() // Entries that are not missing are not added later either.
	must(t, s.log.Close())
	if got := fileContents(t, s.dir); fmt.Sprint(got) != fmt.Sprint(partial) {
		t.Errorf("files = %q, want %q", got, partial)
	}
	must(t, os.RemoveAll(s.dir))
	s.open()
	must(t, s.catchUp())
	s.detached = false
	s.add("acme", "c1", "new")
	s.restart()
	s.wantEntries("new")
	must(t, s.log.Close())
}

// TestCatchUpShared checks that a log adds no entries for messages which another server may have committed, neither
// after a crash nor after the log was off.
func TestCatchUpShared(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.shared = true
	s.add("acme", "c1", "one")
	s.detached = true
	s.add("acme", "c1", "of another server")
	s.restart()
	if text := s.log.output.take(); !strings.Contains(text, "may lack the last entries before an unclean stop") {
		t.Errorf("log = %q, want a warning", text)
	}
	s.detached = false
	s.add("acme", "c1", "two")
	s.wantEntries("one", "two")
	must(t, s.log.Close())

	off := Options{Dir: s.dir, Shared: true, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return s.now }}
	must(t, TurnOff(t.Context(), off, s.Store))
	s.detached = true
	s.add("acme", "c1", "while off")
	s.open()
	must(t, s.catchUp())
	s.detached = false
	s.restart()
	s.add("acme", "c1", "three")
	s.wantEntries("one", "two", "three")
	must(t, s.log.Close())
}

// TestCatchUpRemoved checks that entries in files that were removed while the service ran are not added
// again, except those of the last second.
func TestCatchUpRemoved(t *testing.T) {
	s := newTestService(t, logDir(t))
	for i := range 10 {
		s.add("acme", "c1", fmt.Sprint(i))
	}
	must(t, s.log.sync())
	must(t, os.RemoveAll(s.dir))
	s.add("acme", "c1", "last")
	must(t, s.log.sync())
	s.restart()
	s.wantEntries("last")
	must(t, s.log.Close())
}

// TestCatchUpImported checks that CatchUp adds no entries for messages that were forked or imported.
func TestCatchUpImported(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c1", Newest: -1})
	must(t, err)
	_, err = s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "new"}})
	must(t, err)
	if s.log.writer.pending.exclusionBytes != 0 {
		t.Error("an empty conversation has an exclusion")
	}
	_, err = s.Create(t.Context(), &store.Create{
		Tenant: "acme", Messages: snapshot.Messages, Conversation: &parleyv1.Conversation{
			Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "c1", Sequence: 2},
		},
	})
	must(t, err)
	for _, id := range []string{"import", "detached"} {
		header := proto.CloneOf(snapshot.Conversation)
		header.Id, header.Uid = id, id
		s.detached = id == "detached"
		_, err = s.Import(t.Context(), &store.Import{Tenant: "acme", Conversation: header, Messages: snapshot.Messages})
		must(t, err)
	}
	s.detached = true
	s.add("acme", "fork", "three")
	s.add("acme", "import", "four")
	s.restart()
	// The log cannot know of an import that was committed in the instant of the crash.
	s.wantEntries("one", "two", "one", "two", "three", "four")

	s.detached = false
	s.add("acme", "c1", "five")
	if s.log.writer.pending.exclusionBytes == 0 {
		t.Error("the import has no exclusion")
	}
	s.now = s.now.Add(2 * maxImportAhead) // The maximum time of an imported message has passed.
	s.add("acme", "c1", "six")
	must(t, s.log.sync())
	info, err := os.Stat(s.log.writer.checkpointPath())
	must(t, err)
	if info.Size() != checkpointBytes || s.log.writer.pending.exclusionBytes != 0 {
		t.Errorf("checkpoint = %d bytes, want it without exclusions", info.Size())
	}
	must(t, s.log.Close())
}

// TestCatchUpClockSetBack has messages that are older than what was made durable before them.
func TestCatchUpClockSetBack(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	must(t, s.log.sync())
	s.now = s.now.Add(-time.Hour)
	s.add("acme", "c2", "two")
	s.detached = true
	s.add("acme", "c1", "three") // A message is never dated before the previous one.
	s.add("acme", "c2", "four")
	s.restart()
	got := fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()]
	if !slices.Equal(got, []string{"one", "two", "four", "three"}) {
		t.Errorf("file = %q", got)
	}
	must(t, s.log.Close())
}

// TestCatchUpAfterLoss checks that CatchUp adds what a failing log had lost when it was closed, if the
// store retains it.
func TestCatchUpAfterLoss(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	must(t, s.log.sync())
	path := filepath.Join(s.dir, dayfile.DayOf(noon).FileName())
	must(t, os.Rename(path, path+".away"), os.Mkdir(path, dayfile.DirMode))
	s.add("acme", "c1", "two", "three")
	s.add("acme", "gone", "four")
	must(t, s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "gone"}))
	must(t, s.log.Close())
	s.open()
	must(t, s.catchUp()) // The log still fails.
	must(t, s.log.Close(), os.Remove(path), os.Rename(path+".away", path))
	s.open()
	must(t, s.catchUp())
	s.add("acme", "c1", "five")
	s.wantEntries("one", "two", "three", "-1", "five")
	must(t, s.log.Close())
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || !c.Clean || c.Lost != 0 {
		t.Errorf("checkpoint = %+v, %v", c, err)
	}
}

// failingStore fails to read the second conversation.
type failingStore struct {
	store.Store
	err   error
	reads int
}

func (f *failingStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	f.reads++
	if f.reads == 2 {
		return nil, f.err
	}
	return f.Store.Read(ctx, r)
}

// TestCatchUpFails checks that the next start adds the rest, and that CatchUp skips conversations that
// are damaged or expired.
func TestCatchUpFails(t *testing.T) {
	for _, test := range []struct {
		err  error
		want []string
	}{
		{io.ErrUnexpectedEOF, []string{"one", "two", "three"}},
		{store.ErrCorrupt, []string{"one", "three"}},
		{store.ErrNotFound, []string{"one", "three"}},
	} {
		s := newTestService(t, logDir(t))
		s.detached = true
		s.add("acme", "c1", "one")
		s.add("acme", "c2", "two")
		s.add("acme", "c3", "three")
		s.log.crash()
		s.open()
		err := s.log.CatchUp(t.Context(), &failingStore{Store: s.Store, err: test.err})
		isFatal := errors.Is(test.err, io.ErrUnexpectedEOF)
		if isFatal != (err != nil) || isFatal && !errors.Is(err, test.err) {
			t.Errorf("%v: %v", test.err, err)
		}
		must(t, s.log.Close())
		s.open()
		must(t, s.catchUp())
		s.wantEntries(test.want...)
		must(t, s.log.Close())
	}
}

// TestCheckpointDamaged checks that a log with a damaged checkpoint adds nothing.
func TestCheckpointDamaged(t *testing.T) {
	for _, text := range []string{"", "{", "null", `{"clean":false}`, strings.Repeat("x", 1000)} {
		s := newTestService(t, logDir(t))
		s.detached = true
		s.add("acme", "c1", "one")
		s.log.crash()
		must(t, os.WriteFile(s.log.writer.checkpointPath(), []byte(text), 0o644))
		s.open()
		if output := s.log.output.take(); !strings.Contains(output, "checkpoint.json") {
			t.Errorf("checkpoint %q: log output = %q", text, output)
		}
		must(t, s.catchUp())
		s.detached = false
		s.add("acme", "c1", "two")
		s.restart()
		s.wantEntries("two")
		must(t, s.log.Close())
	}
}

// TestCatchUpKeepsOrder checks that no entry is added after a later one of its conversation.
func TestCatchUpKeepsOrder(t *testing.T) {
	s := newTestService(t, logDir(t))
	for _, m := range []struct {
		id, text string
		detached bool
	}{
		{"c1", "one", false},
		{"c1", "two", true},
		{"c2", "three", true},
		{"c1", "four", false},
		{"c3", "five", false},
		{"c1", "six", true},
	} {
		s.detached = m.detached
		s.add("acme", m.id, m.text)
	}
	s.restart()
	s.wantEntries("one", "four", "five", "three", "six")
	output := s.log.output.take()
	if !strings.Contains(output, "entries stay missing") || !strings.Contains(output, "count=1") {
		t.Errorf("log output = %q", output)
	}
	must(t, s.log.Close())
}

// TestCatchUpManyMessages adds more than one batch of messages.
func TestCatchUpManyMessages(t *testing.T) {
	s := newTestService(t, logDir(t))
	text := strings.Repeat("word ", 20_000)
	for i := range 100 {
		s.detached = i >= 10
		s.add("acme", fmt.Sprint("c", i%7), fmt.Sprint(i, " ", text))
	}
	s.restart()
	got := fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()]
	seen := map[string]bool{}
	for _, line := range got {
		n, _, _ := strings.Cut(line, " ")
		seen[n] = true
	}
	if len(got) != 100 || len(seen) != 100 {
		t.Errorf("%d entries of %d messages, want 100", len(got), len(seen))
	}
	must(t, s.log.Close())
}
