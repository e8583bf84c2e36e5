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
)

// small is a directory in a file system of 1 MiB.
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

// fill leaves no room in a directory's file system, and returns how to make some again.
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

// accounted checks that of so many numbered messages each is in the log once and in order, or
// counted as lost, and that all lines are whole. It returns how many are lost.
func (w *testLog) checkAccounted(total int) (lost int) {
	w.tb.Helper()
	next := 0
	for _, say := range fileContents(w.tb, w.dir)[dayOf(noon).fileName()] {
		n, err := strconv.Atoi(strings.Fields(say)[0])
		switch {
		case err != nil:
			w.tb.Errorf("a line is %q", say)
		case n < 0:
			next, lost = next-n, lost-n
		case n != next:
			w.tb.Fatalf("message %d is where %d should be", n, next)
		default:
			next++
		}
	}
	if next != total {
		w.tb.Errorf("the log accounts for %d messages of %d", next, total)
	}
	if int64(lost) != w.Lost() {
		w.tb.Errorf("%d lines are lost, %d by the log", w.Lost(), lost)
	}
	return lost
}

// TestFullDisk fills a small file system: what has no room is lost, and counted, and the log
// goes on by itself when there is room.
func TestFullDisk(t *testing.T) {
	dir := mountSmall(t)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	total := 0
	say := func(batches, size int) {
		for range batches {
			var texts []string
			for range size {
				texts = append(texts, fmt.Sprint(total, " ", strings.Repeat("x", total%701)))
				total++
			}
			w.commit(texts...)
		}
	}
	say(10, 5)
	for round := range 8 {
		lost := w.Lost()
		empty := fillDisk(t, dir)
		say(3, 1) // Perhaps there is room in the last page.
		say(40, 7)
		if w.Lost() == lost {
			t.Fatal("nothing was lost")
		}
		info, err := os.Stat(w.today())
		must(t, err)
		if text, err := os.ReadFile(w.today()); err != nil || text[info.Size()-1] != '\n' {
			t.Errorf("the file does not end with a whole line: %v", err)
		}
		must(t, w.sync())
		empty()
		lost = w.Lost()
		if round%2 == 0 {
			w.probe()
		}
		say(5, 5)
		if w.Lost() != lost {
			t.Errorf("%d lines were lost although there was room", w.Lost()-lost)
		}
		if got := w.checkAccounted(total); int64(got) != lost {
			t.Errorf("the log tells of %d lines, want %d", got, lost)
		}
	}
	must(t, w.Close())
}

// TestLittleRoom has room for a part of what is to be written.
func TestPartialAppend(t *testing.T) {
	const line = "{line}\n"
	dir := mountSmall(t)
	path := filepath.Join(dir, "2026-11-20.jsonl")
	page := os.Getpagesize()
	for _, test := range []struct {
		name     string
		room     int // behind a torn line
		all      bool
		kept     int // of three lines
		appended string
	}{
		{"for a line and a half", 1 + len(line) + 3, false, len(line), "\n" + line},
		{"for all or nothing", 1 + len(line) + 3, true, 0, ""},
		{"for a line break", 1, false, 0, "\n"},
		{"for half a line", 4, false, 0, "\n"},
		{"for nothing", 0, false, 0, ""},
		{"for all", 1 + 3*len(line), true, 3 * len(line), "\n" + line + line + line},
	} {
		torn := strings.Repeat("x", page-test.room)
		must(t, os.WriteFile(path, []byte(torn), fileMode))
		empty := fillDisk(t, dir)
		f, err := openAppend(dir, dayOf(noon))
		must(t, err)
		kept, err := f.append(int64(len(torn)), []byte("\n"+line+line+line), test.all)
		if kept != test.kept || (err == nil) != (kept == 3*len(line)) {
			t.Errorf("room %s: kept %d bytes, %v, want %d", test.name, kept, err, test.kept)
		}
		text, err := os.ReadFile(path)
		must(t, err, f.Close(), os.Remove(path))
		if f.size != int64(len(text)) {
			t.Errorf("room %s: the entries end at %d, want %d", test.name, f.size, len(text))
		}
		if appended := strings.TrimPrefix(string(text), torn); appended != test.appended {
			t.Errorf("room %s: appended %q, want %q", test.name, appended, test.appended)
		}
		empty()
	}
}

// TestFullDiskAtTheStart has not even room for a file.
func TestFullDiskAtStart(t *testing.T) {
	dir := mountSmall(t)
	empty := fillDisk(t, dir)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	if !strings.Contains(w.output.take(), "no space left") {
		t.Error("operators are not told")
	}
	w.commit("0", "1")
	empty()
	w.commit("2")
	if lost := w.checkAccounted(3); lost != 2 {
		t.Errorf("the log tells of %d lines, want 2", lost)
	}
	must(t, w.sync())
}

// TestFullDiskForMaintain has nobody but Maintain find out that there is room.
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
		w.Log.mu.Lock()
		defer w.Log.mu.Unlock()
		return w.loss.missing == 0
	}; !saved(); {
		select {
		case <-deadline:
			t.Fatal("the log did not go on")
		case <-time.After(10 * time.Millisecond):
		}
	}
	w.checkAccounted(51)
}

// TestEraseFullDisk leaves a file as it is that there is no room to write anew.
func TestEraseFullDisk(t *testing.T) {
	const name = "2026-11-20.jsonl"
	dir := mountSmall(t)
	w := openTestLog(t, filepath.Join(dir, "interactions"), Options{})
	content := strings.Repeat(matchingLines()[0]+otherLines()[0], 1000)
	w.putFile(name, content)
	empty := fillDisk(t, dir)
	if n, err := w.Erase(t.Context(), "acme", "gone"); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d lines erased, error %v", n, err)
	}
	if names := w.names(); w.readFile(name) != content || names != name+" "+checkpointName {
		t.Errorf("files %s, or another content", names)
	}
	empty()
	w.erase("gone", 1000)
	if w.readFile(name) != strings.Repeat(otherLines()[0], 1000) {
		t.Error("something else is left")
	}
}

// TestMend gives the owner back what somebody took from it. It needs a user who is not root,
// whom no mode keeps out.
func TestRepairModes(t *testing.T) {
	const nobodyID = 65534
	if os.Getuid() != 0 {
		testRepairModes(t)
		return
	}
	t.Run("as nobody", func(t *testing.T) {
		runtime.LockOSThread() // For ever: the thread ends with the goroutine.
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
		func() error { return errors.Join(os.Chmod(w.today(), 0), w.files[0].Close()) },
		func() error { return os.Chmod(w.dir, 0) },
		func() error { return errors.Join(os.Remove(w.today()), os.Chmod(w.dir, 0o500)) },
		func() error { return errors.Join(os.Chmod(w.today(), 0o400), os.Chmod(w.dir, 0), w.files[0].Close()) },
	} {
		if err := take(); err != nil {
			t.Error(err)
		}
		w.commit("more")
		if w.Lost() > 0 {
			t.Errorf("step %d: %d lines are lost: %v", i, w.Lost(), w.loss.cause)
		}
		if d, f := modeOf(t, w.dir), modeOf(t, w.today()); d != dirMode || f != fileMode {
			t.Errorf("step %d: modes are %o and %o", i, d, f)
		}
	}
	if got := fileContents(t, w.dir)[dayOf(noon).fileName()]; !slices.Equal(got, []string{"more", "more"}) {
		t.Errorf("the file says %q", got)
	}
	must(t, w.sync(), w.Close())
}
