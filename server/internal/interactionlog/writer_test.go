package interactionlog

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// TestModesAndUmask checks the permissions of a new log under different umasks.
func TestModesAndUmask(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		dir := filepath.Join(t.TempDir(), "interactions")
		before := syscall.Umask(umask)
		w := openTestLog(t, dir, Options{})
		w.commit("question", "answer")
		w.commit()
		w.commit("more")
		syscall.Umask(before)
		w.wantEntries("question", "answer", "more")
		for path, want := range map[string]fs.FileMode{dir: 0o700, w.today(): 0o600, w.writer.checkpointPath(): 0o600} {
			if got := modeOf(t, path); got != want {
				t.Errorf("umask %o: mode of %s = %o, want %o", umask, path, got, want)
			}
		}
	}
}

// TestCommittedKinds checks that only messages become entries, and that the log skips an invalid message.
func TestCommittedKinds(t *testing.T) {
	w := newTestLog(t)
	broken := w.message(noon, "broken")
	broken.Message = entrytest.Framed([]byte{0x80})
	w.Committed([]store.Change{
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: "c1"},
		w.message(noon, "one"), broken, w.message(noon, "two"),
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: "c1"},
	})
	if w.Lost() != 1 {
		t.Errorf("Lost() = %d, want 1 for the invalid message", w.Lost())
	}
	w.commit("three")
	if got := fileContents(t, w.dir)[dayfile.DayOf(noon).FileName()]; !slices.Contains(got, "-1") || len(got) != 4 {
		t.Errorf("file = %q, want three messages and a loss entry", got)
	}
}

// TestMidnight checks that a batch goes to two files, and a late message to the file of its day.
func TestMidnight(t *testing.T) {
	w := newTestLog(t)
	midnight := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	w.Committed([]store.Change{
		w.message(midnight.Add(-1), "1"), w.message(midnight, "2"), w.message(midnight.Add(1), "3"),
	})
	w.Committed([]store.Change{w.message(midnight.Add(-1), "late")})
	next := midnight.AddDate(0, 0, 1)
	w.Committed([]store.Change{w.message(next, "4"), w.message(midnight, "later"), w.message(next, "5")})
	want := map[string][]string{
		"2026-11-20.jsonl": {"1", "late"},
		"2026-11-21.jsonl": {"2", "3", "later"},
		"2026-11-22.jsonl": {"4", "5"},
	}
	if diff := cmp.Diff(want, fileContents(t, w.dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(w.writer.files) > maxOpenFiles {
		t.Errorf("%d open files, want at most %d", len(w.writer.files), maxOpenFiles)
	}
}

// TestLargeBatch checks that a batch is written in parts and its buffer released.
func TestLargeBatch(t *testing.T) {
	w := newTestLog(t)
	text := strings.Repeat("word ", 1<<18)
	var texts []string
	for range 10 {
		texts = append(texts, text)
	}
	w.commit(texts...)
	w.commit("little")
	w.wantEntries(append(texts, "little")...)
	if cap(w.writer.buffer) > maxRetainedBuffer {
		t.Errorf("buffer of %d bytes is retained", cap(w.writer.buffer))
	}
}

// TestTornLine checks that a new entry begins on a new line after a partial line of a crash or an editor.
func TestTornLine(t *testing.T) {
	w := newTestLog(t)
	must(t, os.WriteFile(w.today(), []byte(`{"timestamp":"2026`), 0o600))
	w.commit("one")
	w.wantEntries(`!{"timestamp":"2026`, "one")
	w.commit("two")
	f, err := os.OpenFile(w.today(), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.WriteString("half")
	must(t, err, f.Close())
	w.commit("three", "four")
	w.wantEntries(`!{"timestamp":"2026`, "one", "two", "!half", "three", "four")

	// Editors omit the last line break, and write a new file or the same one.
	text, err := os.ReadFile(w.today())
	must(t, err)
	must(t, os.WriteFile(w.today(), text[:len(text)-1], 0o600))
	w.commit("five")
	must(t, os.WriteFile(w.path("new"), []byte("{}"), 0o644), os.Rename(w.path("new"), w.today()))
	w.commit("six")
	w.wantEntries("!{}", "six")
	if got := modeOf(t, w.today()); got != dayfile.FileMode {
		t.Errorf("mode of the new file = %o", got)
	}
	must(t, os.Truncate(w.today(), 0))
	w.commit("seven")
	w.wantEntries("seven")
	if w.Lost() != 0 {
		t.Errorf("Lost() = %d, want 0", w.Lost())
	}
}

// TestReplaced moves and removes files and the directory while they are written.
func TestReplaced(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, os.Rename(w.today(), w.today()+".1"))
	w.commit("two")
	w.wantEntries("two")
	must(t, os.Remove(w.today()))
	w.commit("three")
	w.wantEntries("three")
	must(t, os.RemoveAll(filepath.Dir(w.dir)))
	w.commit("four")
	w.wantEntries("four")
	must(t, w.sync())
	for path, want := range map[string]fs.FileMode{
		w.dir: dayfile.DirMode, w.today(): dayfile.FileMode, w.writer.checkpointPath(): dayfile.FileMode,
	} {
		if got := modeOf(t, path); got != want {
			t.Errorf("mode of %s = %o, want %o", path, got, want)
		}
	}
}

// TestModes checks that the permissions of other users are removed at the start and while the log is written.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "interactions")
	must(t, os.Mkdir(dir, 0o755), os.Chmod(dir, 0o755))
	for _, name := range []string{"2026-11-19.jsonl", "2026-11-20.jsonl", "notes.txt"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644), os.Chmod(filepath.Join(dir, name), 0o644))
	}
	w := openTestLog(t, dir, Options{})
	check := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if got := modeOf(t, w.path(name)); got != 0o600 {
				t.Errorf("mode of %s = %o, want 600", name, got)
			}
		}
	}
	check("2026-11-19.jsonl", "2026-11-20.jsonl")
	if got := modeOf(t, dir); got != 0o700 {
		t.Errorf("mode of the directory = %o, want 700", got)
	}
	if got := modeOf(t, w.path("notes.txt")); got != 0o644 {
		t.Errorf("mode of another file = %o, want 644", got)
	}
	w.commit("one")
	must(t, os.Chmod(w.today(), 0o666))
	w.commit("two")
	check("2026-11-20.jsonl")
	w.wantEntries("one", "two")
}

// TestRefused opens paths that are not directories.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755), os.WriteFile(filepath.Join(dir, "file"), nil, 0o644),
		os.Symlink("real", filepath.Join(dir, "link")), os.Symlink("nothing", filepath.Join(dir, "dangling")))
	for _, name := range []string{"file", "link", "dangling"} {
		path := filepath.Join(dir, name)
		l, err := Open(Options{Dir: path, Log: slog.New(slog.DiscardHandler)})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), path) {
			t.Errorf("Open(%s) = %v, %v, want ErrRefused", name, l, err)
		}
	}
	if got := modeOf(t, filepath.Join(dir, "real")); got != 0o755 {
		t.Errorf("mode of the link's target = %o, want 755", got)
	}
	w := newTestLog(t)
	if _, err := Open(Options{Dir: w.dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, ErrInUse) {
		t.Errorf("second Open: %v, want ErrInUse", err)
	}
}

// TestClosed checks that entries are lost after Close.
func TestClosed(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, w.Close(), w.Close())
	w.commit("two", "three")
	if w.Lost() != 2 {
		t.Errorf("Lost() = %d, want 2", w.Lost())
	}
	w.wantEntries("one")
}

// TestOpenFiles counts the file descriptors of a log over many days.
func TestOpenFiles(t *testing.T) {
	w := newTestLog(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("cannot count file descriptors: %v", err)
		}
		return len(entries)
	}
	w.commit("one")
	before := count()
	for range 100 {
		w.advance(24 * time.Hour)
		w.commit("one")
		must(t, os.Remove(w.today()))
		w.commit("two")
	}
	must(t, w.sync())
	if now := count(); now > before+maxOpenFiles {
		t.Errorf("%d open files, %d before", now, before)
	}
}

// TestRetry checks that a failed write is repeated in the file opened again.
func TestRetry(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, w.writer.files[0].Close())
	w.commit("two", "three")
	w.wantEntries("one", "two", "three")
	if w.Lost() != 0 {
		t.Errorf("Lost() = %d, want 0", w.Lost())
	}
}
