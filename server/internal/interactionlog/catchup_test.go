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
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// service is a store that a log observes. The store outlives the crashes of the log.
type service struct {
	store.Store

	log *writingLog
	dir string
	tb  testing.TB
	// deaf: the process dies between the commit and the line.
	deaf bool
	// holds: changes are held back, to come as one batch.
	holds bool
	held  []store.Change
	now   time.Time
}

func newService(tb testing.TB, dir string) *service {
	tb.Helper()
	s := &service{tb: tb, dir: dir, now: noon}
	s.Store = memstore.New(store.Options{TTL: 1000 * time.Hour, Now: func() time.Time { return s.now }, Observe: func(changes []store.Change) {
		switch {
		case s.holds:
			s.held = append(s.held, changes...)
		case !s.deaf:
			s.log.Committed(changes)
		}
	}})
	tb.Cleanup(func() { s.Close() })
	s.open()
	do(tb, s.catchUp())
	return s
}

// open opens the log anew.
func (s *service) open() {
	s.tb.Helper()
	w := &writingLog{tb: s.tb, dir: s.dir, said: new(said)}
	l, err := Open(Options{Dir: s.dir, Now: func() time.Time { return s.now }, Log: slog.New(slog.NewTextHandler(w.said, nil))})
	do(s.tb, err)
	w.Log, s.log = l, w
}

// restart has the log crash and catch up.
func (s *service) restart() {
	s.tb.Helper()
	s.log.crash()
	s.open()
	do(s.tb, s.catchUp())
}

func (s *service) catchUp() error {
	return s.log.CatchUp(context.Background(), s.Store, "acme", "default", "nobody")
}

// add appends messages, a millisecond later than those before, as one batch.
func (s *service) add(tenant, id string, texts ...string) {
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

func (s *service) wants(lines ...string) {
	s.tb.Helper()
	if got := saidBy(s.tb, s.dir)[dayOf(noon).fileName()]; !slices.Equal(got, lines) {
		s.tb.Errorf("the file says %q, want %q", got, lines)
	}
}

// cut takes from the end of the day's file, as a power cut does.
func (s *service) cut(bytes int) {
	s.tb.Helper()
	path := filepath.Join(s.dir, dayOf(noon).fileName())
	info, err := os.Stat(path)
	do(s.tb, err)
	do(s.tb, os.Truncate(path, info.Size()-int64(bytes)))
}

func logDir(tb testing.TB) string {
	tb.Helper()
	return filepath.Join(tb.TempDir(), "interactions")
}

// TestCatchUp adds what a crash has taken, once, and nothing else.
func TestCatchUp(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	do(t, s.log.sync())
	s.deaf = true
	s.add("acme", "c1", "three")
	s.add("default", "c2", "four", "five")
	s.add("acme", "c1", "six")
	s.restart()
	s.wants("one", "two", "three", "four", "five", "six")
	if said := s.log.said.take(); !strings.Contains(said, "count=4") {
		t.Errorf("operators read %q", said)
	}
	s.restart()
	s.deaf = false
	s.add("acme", "c1", "seven")
	s.cut(3)
	s.restart()
	s.add("acme", "c1", "eight")
	got := saidBy(t, s.dir)[dayOf(noon).fileName()]
	if len(got) != 9 || got[6][0] != '!' || got[7] != "seven" || got[8] != "eight" {
		t.Errorf("the file says %q, want a torn line, then it and the next", got)
	}
	do(t, s.log.Close())
}

// TestCatchUpWithoutLineBreak takes a last line for whole that lacks nothing else.
func TestCatchUpWithoutLineBreak(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.cut(1)
	s.restart()
	s.add("acme", "c1", "two")
	s.wants("one", "two")
	do(t, s.log.Close())
}

// TestCatchUpClean leaves a log alone that was closed, whatever it lacks, or that is new.
func TestCatchUpClean(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	do(t, s.log.Close())
	s.deaf = true
	s.add("acme", "c1", "not logged") // By a service without a log.
	s.cut(10)                         // By hand.
	torn := saidBy(t, s.dir)
	s.open()
	do(t, s.catchUp())
	s.restart() // What is not missing does not come back later.
	do(t, s.log.Close())
	if got := saidBy(t, s.dir); fmt.Sprint(got) != fmt.Sprint(torn) {
		t.Errorf("the files say %q, said %q", got, torn)
	}
	do(t, os.RemoveAll(s.dir))
	s.open()
	do(t, s.catchUp())
	s.deaf = false
	s.add("acme", "c1", "new")
	s.restart()
	s.wants("new")
	do(t, s.log.Close())
}

// TestCatchUpRemoved has the files removed while the service runs: what they held does not come
// back but for the last second.
func TestCatchUpRemoved(t *testing.T) {
	s := newService(t, logDir(t))
	for i := range 10 {
		s.add("acme", "c1", fmt.Sprint(i))
	}
	do(t, s.log.sync())
	do(t, os.RemoveAll(s.dir))
	s.add("acme", "c1", "last")
	do(t, s.log.sync())
	s.restart()
	s.wants("last")
	do(t, s.log.Close())
}

// TestCatchUpElsewhere writes no lines for what was forked or imported.
func TestCatchUpElsewhere(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one", "two")
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c1", Newest: -1})
	do(t, err)
	_, err = s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "new"}})
	do(t, err)
	if s.log.pending.importsBytes != 0 {
		t.Error("what is no import is remembered as one")
	}
	_, err = s.Create(t.Context(), &store.Create{
		Tenant: "acme", Messages: snapshot.Messages, Conversation: &parleyv1.Conversation{
			Id: "fork", ForkedFrom: &parleyv1.ForkOrigin{ConversationId: "c1", Sequence: 2},
		},
	})
	do(t, err)
	for _, id := range []string{"import", "deaf"} {
		header := proto.CloneOf(snapshot.Conversation)
		header.Id, header.Uid = id, id
		s.deaf = id == "deaf"
		_, err = s.Import(t.Context(), &store.Import{Tenant: "acme", Conversation: header, Messages: snapshot.Messages})
		do(t, err)
	}
	s.deaf = true
	s.add("acme", "fork", "three")
	s.add("acme", "import", "four")
	s.restart()
	// Nobody can know of an import that was committed in the instant of the crash.
	s.wants("one", "two", "one", "two", "three", "four")

	s.deaf = false
	s.add("acme", "c1", "five")
	if s.log.pending.importsBytes == 0 {
		t.Error("the import is forgotten")
	}
	s.now = s.now.Add(2 * importedAhead) // Messages of the import may be dated up to then.
	s.add("acme", "c1", "six")
	do(t, s.log.sync())
	info, err := os.Stat(s.log.checkpointPath())
	do(t, err)
	if info.Size() != checkpointBytes || s.log.pending.importsBytes != 0 {
		t.Errorf("the import is still remembered: %d bytes", info.Size())
	}
	do(t, s.log.Close())
}

// TestCatchUpClockSetBack has messages that are older than what was made durable before them.
func TestCatchUpClockSetBack(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one")
	do(t, s.log.sync())
	s.now = s.now.Add(-time.Hour)
	s.add("acme", "c2", "two")
	s.deaf = true
	s.add("acme", "c1", "three") // Has the time of the one before.
	s.add("acme", "c2", "four")
	s.restart()
	if got := saidBy(t, s.dir)[dayOf(noon).fileName()]; !slices.Equal(got, []string{"one", "two", "four", "three"}) {
		t.Errorf("the file says %q", got)
	}
	do(t, s.log.Close())
}

// TestCatchUpLost recovers what a failing log had lost when it was closed, as far as it is kept.
func TestCatchUpLost(t *testing.T) {
	s := newService(t, logDir(t))
	s.add("acme", "c1", "one")
	do(t, s.log.sync())
	path := filepath.Join(s.dir, dayOf(noon).fileName())
	do(t, os.Rename(path, path+".away"), os.Mkdir(path, dirMode))
	s.add("acme", "c1", "two", "three")
	s.add("acme", "gone", "four")
	do(t, s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "gone"}))
	do(t, s.log.Close())
	s.open()
	do(t, s.catchUp()) // It still fails.
	do(t, s.log.Close(), os.Remove(path), os.Rename(path+".away", path))
	s.open()
	do(t, s.catchUp())
	s.add("acme", "c1", "five")
	s.wants("one", "two", "three", "-1", "five")
	do(t, s.log.Close())
	if c, _, err := readCheckpoint(s.log.checkpointPath()); err != nil || !c.Clean || c.Lost != 0 {
		t.Errorf("the checkpoint is %+v, %v", c, err)
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

// TestCatchUpFails does the rest at the next start, and passes over what is damaged or gone.
func TestCatchUpFails(t *testing.T) {
	for _, test := range []struct {
		err  error
		want []string
	}{
		{io.ErrUnexpectedEOF, []string{"one", "two", "three"}},
		{store.ErrCorrupt, []string{"one", "three"}},
		{store.ErrNotFound, []string{"one", "three"}},
	} {
		s := newService(t, logDir(t))
		s.deaf = true
		s.add("acme", "c1", "one")
		s.add("acme", "c2", "two")
		s.add("acme", "c3", "three")
		s.log.crash()
		s.open()
		err := s.log.CatchUp(t.Context(), &failingStore{Store: s.Store, err: test.err}, "acme")
		if isFatal := errors.Is(test.err, io.ErrUnexpectedEOF); isFatal != (err != nil) || isFatal && !errors.Is(err, test.err) {
			t.Errorf("%v: %v", test.err, err)
		}
		do(t, s.log.Close())
		s.open()
		do(t, s.catchUp())
		s.wants(test.want...)
		do(t, s.log.Close())
	}
}

// TestCheckpointDamaged begins anew where nobody knows what the log lacks.
func TestCheckpointDamaged(t *testing.T) {
	for _, text := range []string{"", "{", "null", `{"clean":false}`, strings.Repeat("x", 1000)} {
		s := newService(t, logDir(t))
		s.deaf = true
		s.add("acme", "c1", "one")
		s.log.crash()
		do(t, os.WriteFile(s.log.checkpointPath(), []byte(text), 0o644))
		s.open()
		if said := s.log.said.take(); !strings.Contains(said, "checkpoint.json") {
			t.Errorf("%q: operators read %q", text, said)
		}
		do(t, s.catchUp())
		s.deaf = false
		s.add("acme", "c1", "two")
		s.restart()
		s.wants("two")
		do(t, s.log.Close())
	}
}

// TestCatchUpKeepsOrder adds nothing behind a later message of its conversation.
func TestCatchUpKeepsOrder(t *testing.T) {
	s := newService(t, logDir(t))
	for _, m := range []struct {
		id, text string
		deaf     bool
	}{
		{"c1", "one", false}, {"c1", "two", true}, {"c2", "three", true}, {"c1", "four", false}, {"c3", "five", false}, {"c1", "six", true},
	} {
		s.deaf = m.deaf
		s.add("acme", m.id, m.text)
	}
	s.restart()
	s.wants("one", "four", "five", "three", "six")
	if said := s.log.said.take(); !strings.Contains(said, "entries stay missing") || !strings.Contains(said, "count=1") {
		t.Errorf("operators read %q", said)
	}
	do(t, s.log.Close())
}

// TestCatchUpMany goes through more than is looked for at a time.
func TestCatchUpMany(t *testing.T) {
	s := newService(t, logDir(t))
	text := strings.Repeat("word ", 20_000)
	for i := range 100 {
		s.deaf = i >= 10
		s.add("acme", fmt.Sprint("c", i%7), fmt.Sprint(i, " ", text))
	}
	s.restart()
	got := saidBy(t, s.dir)[dayOf(noon).fileName()]
	seen := map[string]bool{}
	for _, line := range got {
		n, _, _ := strings.Cut(line, " ")
		seen[n] = true
	}
	if len(got) != 100 || len(seen) != 100 {
		t.Errorf("there are %d lines of %d messages, want 100", len(got), len(seen))
	}
	do(t, s.log.Close())
}
