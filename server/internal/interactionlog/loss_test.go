package interactionlog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDayIsNotAFile puts something other than a regular file under the name of a day. It checks that
// entries are counted as lost until it is removed.
func TestDayIsNotAFile(t *testing.T) {
	for _, test := range []struct {
		name string
		make func(path string) error
		want string // in the log output
	}{
		{"link", func(path string) error { return os.Symlink("target", path) }, "is a link; remove it"},
		{"dangling link", func(path string) error { return os.Symlink("nothing", path) }, "is a link; remove it"},
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file; remove it"},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }, "not a regular file; remove it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "interactions")
			must(t, os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "target"), []byte("precious"), 0o644),
				test.make(filepath.Join(dir, "2026-11-20.jsonl")))
			w := openTestLog(t, dir, Options{})
			if output := w.output.take(); !strings.Contains(output, test.want) || !strings.Contains(output, w.today()) {
				t.Errorf("log output at the start = %q", output)
			}
			w.commit("one", "two")
			w.advance(time.Second)
			w.commit("three")
			w.writer.probe()
			if w.Lost() != 3 {
				t.Errorf("Lost() = %d, want 3", w.Lost())
			}
			w.writer.reportLoss(nil, false)
			if output := w.output.take(); !strings.Contains(output, test.want) || !strings.Contains(output, "lost_lines=3") {
				t.Errorf("log output = %q", output)
			}
			must(t, os.Remove(w.today()))
			w.commit("four")
			w.wantEntries("-3", "four")
			text, err := os.ReadFile(w.path("target"))
			must(t, err)
			if string(text) != "precious" || modeOf(t, w.path("target")) != 0o644 {
				t.Errorf("target of the link = %q, want it unchanged", text)
			}
			if _, err := os.Lstat(w.path("nothing")); err == nil {
				t.Error("a link was followed")
			}
			if w.Lost() != 3 {
				t.Errorf("Lost() = %d, want 3", w.Lost())
			}
		})
	}
}

// TestDayBecomesLink replaces the day's file by a link while it is written.
func TestDayBecomesLink(t *testing.T) {
	w := newTestLog(t)
	w.commit("one")
	must(t, os.Rename(w.today(), w.path("moved")), os.Symlink("moved", w.today()))
	w.commit("two")
	must(t, os.Remove(w.today()), os.Rename(w.path("moved"), w.today()))
	w.commit("three")
	w.wantEntries("one", "-1", "three")

	must(t, os.Rename(w.dir, w.dir+".real"), os.Symlink(w.dir+".real", w.dir))
	must(t, os.Remove(w.today())) // The open file is still the same one.
	w.commit("four")
	must(t, os.Remove(w.dir), os.Rename(w.dir+".real", w.dir))
	w.commit("five")
	w.wantEntries("-1", "five")
}

// TestLossEntry checks the bytes of a loss entry.
func TestLossEntry(t *testing.T) {
	w := newTestLog(t)
	must(t, os.Mkdir(w.today(), 0o700))
	w.commit("one", "two")
	w.advance(time.Minute)
	must(t, os.Remove(w.today()))
	w.commit("three")
	text, err := os.ReadFile(w.today())
	must(t, err)
	line, _, _ := strings.Cut(string(text), "\n")
	want := `{"timestamp":"2026-11-20T12:01:00.123456Z","session_id":"*","tenant":"*","agent":"parley","role":"system",` +
		`"content":"2 lines could not be written since 2026-11-20T12:00:00.123456Z",` +
		`"metadata":{"turn_number":0,"lost_lines":2,"lost_since":"2026-11-20T12:00:00.123456Z"}}`
	if diff := cmp.Diff(want, line); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	page, err := w.List(t.Context(), &List{Tenant: "acme", Date: "2026-11-20"})
	must(t, err)
	if len(page.Interactions) != 1 || page.Skipped != 0 {
		t.Errorf("List = %v, %d skipped, want only the tenant's entry", page.Interactions, page.Skipped)
	}
}

// TestProbe checks that a loss entry is written although no message follows.
func TestProbe(t *testing.T) {
	w := newTestLog(t)
	must(t, os.Mkdir(w.today(), 0o700))
	w.commit("one")
	w.writer.probe()
	must(t, os.Remove(w.today()))
	w.writer.probe()
	w.writer.probe()
	w.wantEntries("-1")
}

// TestReport checks when lost entries are logged.
func TestReport(t *testing.T) {
	w := newTestLog(t)
	wantLogged := func(want string) {
		t.Helper()
		w.writer.reportLoss(nil, false)
		var got []string
		for line := range strings.Lines(w.output.take()) {
			_, line, _ = strings.Cut(line, "level=")
			level, rest, _ := strings.Cut(line, " ")
			_, lost, _ := strings.Cut(rest, "lost_lines=")
			lost, _, _ = strings.Cut(lost, " ")
			got = append(got, level+lost)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("log output at %v = %q, want %q", w.clock(), got, want)
		}
	}
	fail := func(lines int) {
		w.writer.mu.Lock()
		defer w.writer.mu.Unlock()
		w.writer.recordLoss(lines, syscall.EIO)
	}
	wantLogged("")
	fail(1)
	wantLogged("WARN1")
	wantLogged("")
	fail(2)
	w.advance(59 * time.Second)
	wantLogged("")
	w.advance(time.Second)
	fail(1)
	wantLogged("WARN3")
	w.commit("again")
	wantLogged("INFO")
	wantLogged("")
	fail(5)
	w.commit("again")
	wantLogged("")
	w.advance(time.Minute)
	wantLogged("WARN5 INFO")
	w.advance(-time.Hour)
	fail(1)
	wantLogged("WARN1")
	fail(7)
	must(t, w.Close())
	if output := w.output.take(); !strings.Contains(output, "lost_lines=7") {
		t.Errorf("log output at the end = %q", output)
	}
}

// TestReportUnsynced checks how often a failed sync is logged.
func TestReportUnsynced(t *testing.T) {
	w := newTestLog(t)
	for i, want := range []int{1, 0, 1} {
		w.writer.reportLoss(syscall.EIO, false)
		if got := strings.Count(w.output.take(), "may not survive"); got != want {
			t.Errorf("report %d: %d warnings, want %d", i, got, want)
		}
		if i > 0 {
			w.advance(time.Minute)
		}
	}
}

// TestCheckSpace checks that entries are counted as lost while CheckSpace returns an error, although the disk has
// space, and that the log resumes after that.
func TestCheckSpace(t *testing.T) {
	var refusal error
	dir := filepath.Join(t.TempDir(), "interactions")
	w := openTestLog(t, dir, Options{CheckSpace: func(in string, size int) error {
		if in != dir || size <= 0 {
			t.Errorf("CheckSpace(%q, %d), want the directory %q and the size of entries", in, size, dir)
		}
		return refusal
	}})
	w.commit("0", "1")
	refusal = errors.New("no space to spare")
	w.commit("2", "3")
	if got := w.Lost(); got != 2 {
		t.Errorf("Lost() = %d, want 2", got)
	}
	refusal = nil
	w.commit("4")
	content, err := os.ReadFile(w.today())
	must(t, err)
	if text := string(content); strings.Count(text, "\n") != 4 || strings.Contains(text, `"2"`) {
		t.Errorf("file = %q, want the entries of 0, 1 and 4, and a loss entry", text)
	}
	must(t, w.Close())
}
