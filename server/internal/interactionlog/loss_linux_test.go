package interactionlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

// mountSmall returns a directory in a file system of 1 MiB.
func mountSmall(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("only root can mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk fills the file system of a directory. The result frees the space again.
func fillDisk(t *testing.T, dir string) (empty func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	for _, size := range []int{1 << 16, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte{'x'}, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	must(t, f.Close())
	return func() { must(t, os.Remove(path)) }
}

// checkAccounted checks that each of total numbered messages is in the log once and in order, or counted
// as lost, and that all lines are complete. It returns how many are lost.
func (w *testLog) checkAccounted(total int) (lost int) {
	w.tb.Helper()
	next := 0
	for _, line := range fileContents(w.tb, w.dir)[dayfile.DayOf(noon).FileName()] {
		n, err := strconv.Atoi(strings.Fields(line)[0])
		switch {
		case err != nil:
			w.tb.Errorf("line = %q, want an entry", line)
		case n < 0:
			next, lost = next-n, lost-n
		case n != next:
			w.tb.Fatalf("message %d, want %d", n, next)
		default:
			next++
		}
	}
	if next != total {
		w.tb.Errorf("log accounts for %d messages, want %d", next, total)
	}
	if int64(lost) != w.Lost() {
		w.tb.Errorf("Lost() = %d, the loss entries report %d", w.Lost(), lost)
	}
	return lost
}

// TestFullDisk fills a small file system. It checks that entries without space are counted as lost and
// that the log resumes when there is space.
func TestFullDisk(t *testing.T) {
	dir := mountSmall(t)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	total := 0
	commit := func(batches, size int) {
		for range batches {
			var texts []string
			for range size {
				texts = append(texts, fmt.Sprint(total, " ", strings.Repeat("x", total%701)))
				total++
			}
			w.commit(texts...)
		}
	}
	commit(10, 5)
	for round := range 8 {
		lost := w.Lost()
		empty := fillDisk(t, dir)
		commit(3, 1) // There may be space in the last page.
		commit(40, 7)
		if w.Lost() == lost {
			t.Fatal("no entry was lost")
		}
		info, err := os.Stat(w.today())
		must(t, err)
		if text, err := os.ReadFile(w.today()); err != nil || text[info.Size()-1] != '\n' {
			t.Errorf("the file does not end with a complete line: %v", err)
		}
		must(t, w.sync())
		empty()
		lost = w.Lost()
		if round%2 == 0 {
			w.writer.probe()
		}
		commit(5, 5)
		if w.Lost() != lost {
			t.Errorf("%d entries were lost although there was space", w.Lost()-lost)
		}
		if got := w.checkAccounted(total); int64(got) != lost {
			t.Errorf("loss entries report %d, want %d", got, lost)
		}
	}
	must(t, w.Close())
}

// TestPartialAppend appends when there is space for only a part.
func TestPartialAppend(t *testing.T) {
	const line = "{line}\n"
	dir := mountSmall(t)
	path := filepath.Join(dir, "2026-11-20.jsonl")
	page := os.Getpagesize()
	for _, test := range []struct {
		name     string
		space    int // bytes of space, after a partial line
		all      bool
		kept     int // of three entries
		appended string
	}{
		{"space for an entry and a half", 1 + len(line) + 3, false, len(line), "\n" + line},
		{"space for an entry, all or nothing", 1 + len(line) + 3, true, 0, ""},
		{"space for a line break", 1, false, 0, "\n"},
		{"space for half an entry", 4, false, 0, "\n"},
		{"no space", 0, false, 0, ""},
		{"space for all", 1 + 3*len(line), true, 3 * len(line), "\n" + line + line + line},
	} {
		partial := strings.Repeat("x", page-test.space)
		must(t, os.WriteFile(path, []byte(partial), dayfile.FileMode))
		empty := fillDisk(t, dir)
		f, err := dayfile.OpenAppender(dir, dayfile.DayOf(noon))
		must(t, err)
		kept, err := f.Append(int64(len(partial)), []byte("\n"+line+line+line), test.all)
		if kept != test.kept || (err == nil) != (kept == 3*len(line)) {
			t.Errorf("%s: append = %d, %v, want %d", test.name, kept, err, test.kept)
		}
		text, err := os.ReadFile(path)
		must(t, err, f.Close(), os.Remove(path))
		if f.End != int64(len(text)) {
			t.Errorf("%s: size = %d, want %d", test.name, f.End, len(text))
		}
		if appended := strings.TrimPrefix(string(text), partial); appended != test.appended {
			t.Errorf("%s: appended %q, want %q", test.name, appended, test.appended)
		}
		empty()
	}
}

// TestFullDiskAtStart opens a log without space for a file.
func TestFullDiskAtStart(t *testing.T) {
	dir := mountSmall(t)
	empty := fillDisk(t, dir)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	if !strings.Contains(w.output.take(), "no space left") {
		t.Error("the log output does not report the full disk")
	}
	w.commit("0", "1")
	empty()
	w.commit("2")
	if lost := w.checkAccounted(3); lost != 2 {
		t.Errorf("loss entries report %d, want 2", lost)
	}
	must(t, w.sync())
}

// TestMaintainAfterFullDisk checks that Maintain notices free space without a new message.
func TestMaintainAfterFullDisk(t *testing.T) {
	dir := mountSmall(t)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	startMaintain(t, w.Log)
	w.commit("0")
	empty := fillDisk(t, dir)
	for i := range 50 {
		w.commit(fmt.Sprint(i+1, strings.Repeat(" word", 100)))
	}
	empty()
	deadline := time.After(time.Minute)
	for saved := func() bool {
		w.writer.mu.Lock()
		defer w.writer.mu.Unlock()
		return w.writer.loss.missing == 0
	}; !saved(); {
		select {
		case <-deadline:
			t.Fatal("the log did not resume within a minute")
		case <-time.After(10 * time.Millisecond):
		}
	}
	w.checkAccounted(51)
}

// TestEraseFullDisk checks that Erase does not change a file if there is no space for the new one.
func TestEraseFullDisk(t *testing.T) {
	const name = "2026-11-20.jsonl"
	dir := mountSmall(t)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	content := strings.Repeat(matchingLines()[0]+otherLines()[0], 1000)
	w.putFile(name, content)
	empty := fillDisk(t, dir)
	if n, err := w.Erase(t.Context(), "acme", "gone"); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Erase = %d, %v, want no space", n, err)
	}
	if names := w.names(); w.readFile(name) != content || names != name+" "+checkpointName {
		t.Errorf("files = %s, or the content has changed", names)
	}
	empty()
	w.erase("gone", 1000)
	if w.readFile(name) != strings.Repeat(otherLines()[0], 1000) {
		t.Error("the file has not exactly the other entries")
	}
}

// TestRepairModes checks that the log restores the owner's permissions. It needs a user other than root,
// since root ignores permissions.
func TestRepairModes(t *testing.T) {
	const nobodyID = 65534
	if os.Getuid() != 0 {
		testRepairModes(t)
		return
	}
	t.Run("as another user", func(t *testing.T) {
		runtime.LockOSThread() // The thread ends with the goroutine, since its user id cannot be reset.
		dir := t.TempDir()
		for _, path := range []string{filepath.Dir(dir), dir} {
			must(t, os.Chown(path, nobodyID, nobodyID), os.Chmod(path, 0o755))
		}
		must(t, syscall.Setfsuid(nobodyID))
		testRepairModes(t)
	})
}

func testRepairModes(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "interactions")
	w := openTestLog(t, dir, Options{})
	w.commit("one")
	for i, take := range []func() error{
		func() error { return errors.Join(os.Chmod(w.today(), 0), w.writer.files[0].Close()) },
		func() error { return os.Chmod(w.dir, 0) },
		func() error { return errors.Join(os.Remove(w.today()), os.Chmod(w.dir, 0o500)) },
		func() error {
			return errors.Join(os.Chmod(w.today(), 0o400), os.Chmod(w.dir, 0), w.writer.files[0].Close())
		},
	} {
		if err := take(); err != nil {
			t.Error(err)
		}
		w.commit("more")
		if w.Lost() > 0 {
			t.Errorf("step %d: Lost() = %d, want 0: %v", i, w.Lost(), w.writer.loss.cause)
		}
		if d, f := modeOf(t, w.dir), modeOf(t, w.today()); d != dayfile.DirMode || f != dayfile.FileMode {
			t.Errorf("step %d: modes = %o and %o", i, d, f)
		}
	}
	if got := fileContents(t, w.dir)[dayfile.DayOf(noon).FileName()]; !slices.Equal(got, []string{"more", "more"}) {
		t.Errorf("file = %q", got)
	}
	must(t, w.sync(), w.Close())
}
