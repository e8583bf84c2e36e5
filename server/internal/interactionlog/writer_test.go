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
	"github.com/parleyhq/parley/store"
)

// TestFirstMessages begins a log. Umasks do not matter.
func TestModesAndUmask(t *testing.T) {
	for _, umask := range []int{0, 0o777} {
		before := syscall.Umask(umask)
		dir := filepath.Join(t.TempDir(), "interactions")
		w := openTestLog(t, dir, Options{})
		w.commit("question", "answer")
		w.commit()
		w.commit("more")
		syscall.Umask(before)
		w.wantEntries("question", "answer", "more")
		for path, want := range map[string]fs.FileMode{dir: 0o700, w.today(): 0o600, w.checkpointPath(): 0o600} {
			if got := modeOf(t, path); got != want {
				t.Errorf("umask %o: %s has mode %o, want %o", umask, path, got, want)
			}
		}
	}
}

// TestCommittedKinds has only messages become lines, and a message that is none stop nothing.
func TestCommittedKinds(t *testing.T) {
	w := newTestLog(t)
	broken := w.message(noon, "broken")
	broken.Message = framed([]byte{0x80})
	w.Committed([]store.Change{
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: "c1"},
		w.message(noon, "one"), broken, w.message(noon, "two"),
		{Kind: parleyv1.ChangeKind_CHANGE_KIND_DELETED, ConversationID: "c1"},
	})
	if w.Lost() != 1 {
		t.Errorf("%d lines are lost, want that of the message that is none", w.Lost())
	}
	w.commit("three")
	if got := fileContents(t, w.dir)[dayOf(noon).fileName()]; !slices.Contains(got, "-1") || len(got) != 4 {
		t.Errorf("the file says %q, want three messages and that one is missing", got)
	}
}

// TestMidnight has a batch lie in two files, and a late message in the one of its own day.
func TestMidnight(t *testing.T) {
	w := newTestLog(t)
	midnight := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	w.Committed([]store.Change{w.message(midnight.Add(-1), "1"), w.message(midnight, "2"), w.message(midnight.Add(1), "3")})
	w.Committed([]store.Change{w.message(midnight.Add(-1), "late")})
	w.Committed([]store.Change{w.message(midnight.AddDate(0, 0, 1), "4"), w.message(midnight, "later"), w.message(midnight.AddDate(0, 0, 1), "5")})
	want := map[string][]string{
		"2026-11-20.jsonl": {"1", "late"},
		"2026-11-21.jsonl": {"2", "3", "later"},
		"2026-11-22.jsonl": {"4", "5"},
	}
	if diff := cmp.Diff(want, fileContents(t, w.dir)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if len(w.files) > maxOpenFiles {
		t.Errorf("%d files are open, at most %d", len(w.files), maxOpenFiles)
	}
}

// TestLargeBatch has a batch written in parts and its memory given back.
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
	if cap(w.buffer) > maxRetainedBuffer {
		t.Errorf("%d bytes are kept", cap(w.buffer))
	}
}

// TestTornLine starts a new line behind one that a crash or an editor has left without its end.
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

	// An editor leaves out the last line break, and writes the file anew or over the old one.
	text, err := os.ReadFile(w.today())
	must(t, err)
	must(t, os.WriteFile(w.today(), text[:len(text)-1], 0o600))
	w.commit("five")
	must(t, os.WriteFile(w.path("new"), []byte("{}"), 0o644), os.Rename(w.path("new"), w.today()))
	w.commit("six")
	w.wantEntries("!{}", "six")
	if got := modeOf(t, w.today()); got != fileMode {
		t.Errorf("the new file has mode %o", got)
	}
	must(t, os.Truncate(w.today(), 0))
	w.commit("seven")
	w.wantEntries("seven")
	if w.Lost() != 0 {
		t.Errorf("%d lines are lost", w.Lost())
	}
}

// TestReplaced has files and the directory moved and removed while they are written.
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
	for path, want := range map[string]fs.FileMode{w.dir: dirMode, w.today(): fileMode, w.checkpointPath(): fileMode} {
		if got := modeOf(t, path); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

// TestModes takes from others the right to read what there was, and what somebody gives them
// meanwhile.
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
				t.Errorf("%s has mode %o", name, got)
			}
		}
	}
	check("2026-11-19.jsonl", "2026-11-20.jsonl")
	if got := modeOf(t, dir); got != 0o700 {
		t.Errorf("the directory has mode %o", got)
	}
	if got := modeOf(t, w.path("notes.txt")); got != 0o644 {
		t.Errorf("a file that is not of the log has mode %o", got)
	}
	w.commit("one")
	must(t, os.Chmod(w.today(), 0o666))
	w.commit("two")
	check("2026-11-20.jsonl")
	w.wantEntries("one", "two")
}

// TestRefused opens what is no directory of its own.
func TestRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "real"), 0o755), os.WriteFile(filepath.Join(dir, "file"), nil, 0o644),
		os.Symlink("real", filepath.Join(dir, "link")), os.Symlink("nothing", filepath.Join(dir, "dangling")))
	for _, name := range []string{"file", "link", "dangling"} {
		path := filepath.Join(dir, name)
		l, err := Open(Options{Dir: path, Log: slog.New(slog.DiscardHandler)})
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, %v, want ErrRefused", name, l, err)
		}
	}
	if got := modeOf(t, filepath.Join(dir, "real")); got != 0o755 {
		t.Errorf("what the link leads to has mode %o", got)
	}
	w := newTestLog(t)
	if _, err := Open(Options{Dir: w.dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v, want ErrInUse", err)
	}
}

// TestClosed has nothing written to a log that has ended.
func TestClosed(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, w.Close(), w.Close())
	w.commit("two", "three")
	if w.Lost() != 2 {
		t.Errorf("%d lines are lost, want 2", w.Lost())
	}
	w.wantEntries("one")
}

// TestOpenFiles counts the descriptors of a log over many days.
func TestOpenFiles(t *testing.T) {
	w := newTestLog(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skipf("descriptors cannot be counted: %v", err)
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
		t.Errorf("%d files are open, %d were", now, before)
	}
}

// TestRetry writes in a file opened anew what a file refuses.
func TestRetry(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, w.files[0].Close())
	w.commit("two", "three")
	w.wantEntries("one", "two", "three")
	if w.Lost() != 0 {
		t.Errorf("%d lines are lost", w.Lost())
	}
}
