package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// edit changes the log's files between two searches and names the expected results.
type edit struct {
	name   string
	apply  func() error
	listed []string // entries of the conversation p in order, as turn number and content
	found  []string // entries found for "goal", newest first, in the same form
}

// TestInteractionsFollowEdits: searches return what the files contain, whatever program wrote them.
func TestInteractionsFollowEdits(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	start := today()
	old, older := dayBefore(t, start, 2), dayBefore(t, start, 5)
	var others strings.Builder // Enough entries for the day to get an index.
	for i := range 1000 {
		others.WriteString(handwrittenEntry(old, fmt.Sprint("o", i%100), i/100+1, "text of others"))
	}
	l.writeDay(t, old, handwrittenEntry(old, "p", 1, "goal one"), others.String(),
		handwrittenEntry(old, "p", 2, "goal two"), handwrittenEntry(old, "p", 3, "goal three"))
	add(t, l.server, "p", userMessage("goal now"), userMessage("more"))
	replace := func(day, from, to string) error {
		return os.WriteFile(l.path(day), []byte(strings.Replace(readText(t, l.path(day)), from, to, 1)), 0o600)
	}
	var index fs.FileInfo
	var current string // the file that the server writes
	rotate := func() error {
		days := l.days(t)
		current = l.path(days[len(days)-1])
		return os.Rename(current, current+".1")
	}

	for i, e := range []edit{
		{
			"none", func() error { return nil },
			[]string{"1 goal one", "2 goal two", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "2 goal two", "1 goal one"},
		},
		{
			"an entry added", func() error {
				return replace(old, others.String(), others.String()+handwrittenEntry(old, "p", 9, "GOAL nine"))
			},
			[]string{"1 goal one", "9 GOAL nine", "2 goal two", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "2 goal two", "9 GOAL nine", "1 goal one"},
		},
		{
			"an entry removed", func() error { return replace(old, handwrittenEntry(old, "p", 1, "goal one"), "") },
			[]string{"9 GOAL nine", "2 goal two", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "2 goal two", "9 GOAL nine"},
		},
		{
			"an entry changed without a change of its size", func() error { return replace(old, "goal two", "trifle 2") },
			[]string{"9 GOAL nine", "2 trifle 2", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "9 GOAL nine"},
		},
		{
			"an entry moved to another conversation", func() error {
				return replace(old, handwrittenEntry(old, "p", 3, "goal three"), handwrittenEntry(old, "q", 3, "goal three"))
			},
			[]string{"9 GOAL nine", "2 trifle 2", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "9 GOAL nine"},
		},
		{
			"a file added", func() error {
				return os.WriteFile(l.path(older), []byte(handwrittenEntry(older, "p", 1, "old goal")), 0o644)
			},
			[]string{"1 old goal", "9 GOAL nine", "2 trifle 2", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "9 GOAL nine", "1 old goal"},
		},
		{
			"a file removed", func() error { return os.Remove(l.path(old)) },
			[]string{"1 old goal", "1 goal now", "2 more"},
			[]string{"1 goal now", "1 old goal"},
		},
		{"the current file rotated", rotate, []string{"1 old goal"}, []string{"1 old goal"}},
		{
			"a message appended", func() error { add(t, l.server, "p", userMessage("next goal")); return nil },
			[]string{"1 old goal", "3 next goal"},
			[]string{"3 next goal", "1 old goal"},
		},
		{
			"the rotated file put back at the beginning", func() error {
				days := l.days(t)
				newest := l.path(days[len(days)-1])
				both := readText(t, current+".1") + readText(t, newest)
				return errors.Join(os.WriteFile(newest, []byte(strings.TrimSuffix(both, "\n")), 0o600), os.Remove(current+".1"))
			},
			[]string{"1 old goal", "1 goal now", "2 more", "3 next goal"},
			[]string{"3 next goal", "1 goal now", "1 old goal"},
		},
		{
			"a message appended after a last line without a line break", func() error {
				add(t, l.server, "p", userMessage("last goal"))
				return nil
			},
			[]string{"1 old goal", "1 goal now", "2 more", "3 next goal", "4 last goal"},
			[]string{"4 last goal", "3 next goal", "1 goal now", "1 old goal"},
		},
	} {
		if err := e.apply(); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		l.wantFound(t, &e)
		// Check again with an old modification time: the server indexes only files that were not just written.
		at := time.Now().Add(time.Duration(i-100) * time.Minute)
		err := os.Chtimes(l.path(old), at, at)
		l.wantFound(t, &e)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		before := index
		if index, err = os.Stat(filepath.Join(l.dir, "."+old+".sessions")); err != nil ||
			before != nil && os.SameFile(index, before) {
			t.Fatalf("after %s: no new index of the day, %v", e.name, err)
		}
	}
	l.terminate()
	l.wantStop(t)
	for _, line := range l.log.Entries() {
		if line["level"] == "WARN" {
			t.Errorf("warning after edits: %v, want none", line)
		}
	}
}

// wantFound checks the list of the conversation p and the search for "goal".
func (l *loggedServer) wantFound(t *testing.T, e *edit) {
	t.Helper()
	plain := func(lines []string, skipped int) (all []string) {
		if skipped > 0 {
			t.Errorf("after %s: %d entries skipped, want none", e.name, skipped)
		}
		for _, line := range lines {
			_, line, _ = strings.Cut(line, " ") // cuts off the conversation's id
			all = append(all, strings.Replace(line, " User:", "", 1))
		}
		return all
	}
	listed := plain(l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "p"}))
	wantEntries(t, "after "+e.name+", the conversation", listed, e.listed...)
	found := plain(l.search(t, &parleyv1.SearchInteractionsRequest{Query: "Goal"}))
	wantEntries(t, "after "+e.name+", the search", found, e.found...)
}

// wantMode checks the mode of a file.
func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != want {
		t.Errorf("mode of %s = %v, want %v", path, info.Mode(), want)
	}
}

// TestInteractionModes: only the owner can read the log, whatever the umask and the earlier modes
// are. The test is not parallel, because the umask belongs to the process.
func TestInteractionModes(t *testing.T) {
	dataDir := filepath.Join(t.TempDir(), "data")
	dir := filepath.Join(dataDir, "interactions")
	before := syscall.Umask(0)
	day := dayBefore(t, today(), 2)
	open := filepath.Join(dir, day+".jsonl")
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(open, []byte(handwrittenEntry(day, "a", 1, "old")), 0o644))
	wantMode(t, dir, fs.ModeDir|0o755)
	wantMode(t, open, 0o644)
	l := startLogged(t, dataDir)
	fresh := startLogged(t, filepath.Join(t.TempDir(), "data"))
	syscall.Umask(before)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*loggedServer{l, fresh} {
		wantMode(t, l.dir, fs.ModeDir|0o700)
		ask(t, l.server, "a", "text")
		for _, day := range l.days(t) {
			wantMode(t, l.path(day), 0o600)
			if err := os.Chmod(l.path(day), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		add(t, l.server, "a", userMessage("more"))
		days := l.days(t)
		wantMode(t, l.path(days[len(days)-1]), 0o600)
		hidden, err := filepath.Glob(filepath.Join(l.dir, "checkpoint*"))
		if err != nil || len(hidden) == 0 {
			t.Fatalf("checkpoint files = %q, %v; want some", hidden, err)
		}
		for _, path := range hidden {
			wantMode(t, path, 0o600)
		}
	}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "a"})
	wantEntries(t, "ListInteractions", got, "a 1 User: old", "a 1 User: text", "a 2 echo: text", "a 3 User: more")
}

// TestInteractionLinks: the server does not follow a symbolic link in the place of a log file. Chats
// succeed, and the log reports the lost entries.
func TestInteractionLinks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"before the start", "while the server runs"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dataDir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
			dir := filepath.Join(dataDir, "interactions")
			const secret = "not a log\n"
			then := time.Now().Add(-time.Hour).Truncate(time.Second)
			err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(target, []byte(secret), 0o644), os.Chmod(target, 0o644),
				os.Chtimes(target, then, then))
			if err != nil {
				t.Fatal(err)
			}
			// The link of the next day is needed if midnight passes during the test.
			start := today()
			links := []string{filepath.Join(dir, start+".jsonl"), filepath.Join(dir, dayBefore(t, start, -1)+".jsonl")}
			link := func() {
				for _, path := range links {
					if err := errors.Join(os.RemoveAll(path), os.Symlink(target, path)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if name == "before the start" {
				link()
			}
			l := startLogged(t, dataDir)
			if name != "before the start" {
				ask(t, l.server, "c", "an open file")
				link()
			}

			add(t, l.server, "c", userMessage("lost text"))
			lost := l.await(t, "interaction log lost entries; writing is retried automatically", "level=WARN", "lost_lines=1")
			if why := fmt.Sprint(lost["error"]); !strings.Contains(why, "is a link; remove it") || !strings.Contains(why, dir) {
				t.Errorf("error of the warning = %s, want the link's path and to remove it", why)
			}
			ask(t, l.server, "c", "more lost text")
			for name, r := range map[string]*parleyv1.ListInteractionsRequest{"latest entries": {}, "the conversation": {ConversationId: "c"}} {
				if got, skipped := l.list(t, r); len(got) > 0 || skipped > 0 {
					t.Errorf("ListInteractions of %s = %q with %d skipped, want none", name, got, skipped)
				}
			}
			if got, skipped := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "o"}); len(got) > 0 || skipped > 0 {
				t.Errorf("SearchInteractions = %q with %d skipped, want none", got, skipped)
			}
			if info, err := os.Stat(target); err != nil || readText(t, target) != secret || info.Mode() != 0o644 ||
				!info.ModTime().Equal(then) {
				t.Errorf("the target of the link = %v, %v: %q; want it unchanged", info, err, readText(t, target))
			}

			for _, path := range links {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			l.await(t, "interaction log resumed")
			ask(t, l.server, "c", "stored text")
			got, _ := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "text"})
			if len(got) != 2 || !strings.HasSuffix(got[0], " echo: stored text") ||
				!strings.HasSuffix(got[1], " User: stored text") {
				t.Errorf("SearchInteractions after the links were removed = %q, want the question and its answer", got)
			}
			if first := l.entries(t)[0]; !strings.HasPrefix(first, "* 0 parley: 3 lines could not be written since ") {
				t.Errorf("first entry of the file = %q, want the number of lost entries", first)
			}
			if stored := contents(history(t, l.server, "c").GetMessages()); !strings.Contains(stored,
				"USER lost text\nUSER more lost text\nASSISTANT more lost text\n") {
				t.Errorf("history = \n%s, want the messages that the log lost", stored)
			}
		})
	}
}

// TestInteractionLinkedDirectory: the server does not start if the log's directory is a symbolic link.
func TestInteractionLinkedDirectory(t *testing.T) {
	t.Parallel()
	dataDir, elsewhere := t.TempDir(), t.TempDir()
	link := filepath.Join(dataDir, "interactions")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	code, output := failToStart(t, "--data-dir="+dataDir)
	if code != exitIO || !strings.Contains(output, link+" is a link; name the directory itself") ||
		strings.Count(output, "\n") != 1 {
		t.Errorf("parleyd ended with %d, want %d and one line about the link:\n%s", code, exitIO, output)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
		t.Errorf("files in the target of the link = %v, %v; want none", entries, err)
	}
}
