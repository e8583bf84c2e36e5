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

// edit is what somebody does to the files between two searches, and what is to be found then.
type edit struct {
	name    string
	make    func() error
	session []string // of the conversation p, in order: turn number and content
	found   []string // of "goal", newest first: the same
}

// TestInteractionsFollowEdits: the files are the only truth, by whomever they were written.
func TestInteractionsFollowEdits(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir())
	begun := today()
	old, older := dayBefore(t, begun, 2), dayBefore(t, begun, 5)
	var others strings.Builder // So many that the day gets an index.
	for i := range 1000 {
		others.WriteString(byHand(old, fmt.Sprint("o", i%100), i/100+1, "words of others"))
	}
	l.put(t, old, byHand(old, "p", 1, "goal one"), others.String(), byHand(old, "p", 2, "goal two"), byHand(old, "p", 3, "goal three"))
	add(t, l.server, "p", says("goal now"), says("more"))
	replace := func(day, from, to string) error {
		return os.WriteFile(l.path(day), []byte(strings.Replace(readText(t, l.path(day)), from, to, 1)), 0o600)
	}
	var index fs.FileInfo
	var current string // the file that is written to
	rotate := func() error {
		days := l.days(t)
		current = l.path(days[len(days)-1])
		return os.Rename(current, current+".1")
	}

	for i, e := range []edit{
		{"none", func() error { return nil }, []string{"1 goal one", "2 goal two", "3 goal three", "1 goal now", "2 more"}, []string{"1 goal now", "3 goal three", "2 goal two", "1 goal one"}},
		{
			"a line added", func() error { return replace(old, others.String(), others.String()+byHand(old, "p", 9, "GOAL nine")) },
			[]string{"1 goal one", "9 GOAL nine", "2 goal two", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "2 goal two", "9 GOAL nine", "1 goal one"},
		},
		{
			"a line removed", func() error { return replace(old, byHand(old, "p", 1, "goal one"), "") },
			[]string{"9 GOAL nine", "2 goal two", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "2 goal two", "9 GOAL nine"},
		},
		{
			"a line changed, in as many bytes", func() error { return replace(old, "goal two", "trifle 2") },
			[]string{"9 GOAL nine", "2 trifle 2", "3 goal three", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "9 GOAL nine"},
		},
		{
			"a line given to another conversation", func() error {
				return replace(old, byHand(old, "p", 3, "goal three"), byHand(old, "q", 3, "goal three"))
			},
			[]string{"9 GOAL nine", "2 trifle 2", "1 goal now", "2 more"},
			[]string{"1 goal now", "3 goal three", "9 GOAL nine"},
		},
		{
			"a file added", func() error { return os.WriteFile(l.path(older), []byte(byHand(older, "p", 1, "old goal")), 0o644) },
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
			"more said", func() error { add(t, l.server, "p", says("next goal")); return nil },
			[]string{"1 old goal", "3 next goal"},
			[]string{"3 next goal", "1 old goal"},
		},
		{
			"what was rotated put back ahead", func() error {
				days := l.days(t)
				newest := l.path(days[len(days)-1])
				both := readText(t, current+".1") + readText(t, newest)
				return errors.Join(os.WriteFile(newest, []byte(strings.TrimSuffix(both, "\n")), 0o600), os.Remove(current+".1"))
			},
			[]string{"1 old goal", "1 goal now", "2 more", "3 next goal"},
			[]string{"3 next goal", "1 goal now", "1 old goal"},
		},
		{
			"more said behind a last line without its end", func() error { add(t, l.server, "p", says("last goal")); return nil },
			[]string{"1 old goal", "1 goal now", "2 more", "3 next goal", "4 last goal"},
			[]string{"4 last goal", "3 next goal", "1 goal now", "1 old goal"},
		},
	} {
		if err := e.make(); err != nil {
			t.Fatalf("%s: %v", e.name, err)
		}
		l.wantFound(t, &e)
		// Once more when the file, which was just written, may have an index again.
		at := time.Now().Add(time.Duration(i-100) * time.Minute)
		err := os.Chtimes(l.path(old), at, at)
		l.wantFound(t, &e)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		before := index
		if index, err = os.Stat(filepath.Join(l.dir, "."+old+".sessions")); err != nil || before != nil && os.SameFile(index, before) {
			t.Fatalf("after %s there is no new index: %v", e.name, err)
		}
	}
	l.terminate()
	l.wantStop(t)
	for _, line := range l.log.lines {
		if line["level"] == "WARN" {
			t.Errorf("edits are a reason to warn: %v", line)
		}
	}
}

// wantFound checks what there is of the conversation p, and of "goal".
func (l *loggedServer) wantFound(t *testing.T, e *edit) {
	t.Helper()
	plain := func(lines []string, skipped int) (all []string) {
		if skipped > 0 {
			t.Errorf("after %s: %d lines are skipped", e.name, skipped)
		}
		for _, line := range lines {
			_, line, _ = strings.Cut(line, " ") // without the conversation
			all = append(all, strings.Replace(line, " User:", "", 1))
		}
		return all
	}
	session := plain(l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "p"}))
	wantLines(t, "after "+e.name+", the session", session, e.session...)
	found := plain(l.search(t, &parleyv1.SearchInteractionsRequest{Query: "Goal"}))
	wantLines(t, "after "+e.name+", the search", found, e.found...)
}

// wantMode checks who may read a file: its owner.
func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != want {
		t.Errorf("%s is %v, want %v", path, info.Mode(), want)
	}
}

// TestInteractionModes: the log is for its owner only, whatever the umask lets through and
// whatever there was. Not parallel, since the umask is that of the process.
func TestInteractionModes(t *testing.T) {
	dataDir := filepath.Join(t.TempDir(), "data")
	dir := filepath.Join(dataDir, "interactions")
	before := syscall.Umask(0)
	day := dayBefore(t, today(), 2)
	open := filepath.Join(dir, day+".jsonl")
	err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(open, []byte(byHand(day, "a", 1, "old")), 0o644))
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
		say(t, l.server, "a", "words")
		for _, day := range l.days(t) {
			wantMode(t, l.path(day), 0o600)
			if err := os.Chmod(l.path(day), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		add(t, l.server, "a", says("more"))
		days := l.days(t)
		wantMode(t, l.path(days[len(days)-1]), 0o600)
		hidden, err := filepath.Glob(filepath.Join(l.dir, "checkpoint*"))
		if err != nil || len(hidden) == 0 {
			t.Fatalf("%q, %v", hidden, err)
		}
		for _, path := range hidden {
			wantMode(t, path, 0o600)
		}
	}
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "a"})
	wantLines(t, "the lines", got, "a 1 User: old", "a 1 User: words", "a 2 echo: words", "a 3 User: more")
}

// TestInteractionLinks: a link in the place of a file is not followed. Chats go on, and the
// log tells what it has lost.
func TestInteractionLinks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"before the start", "while it runs"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dataDir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
			dir := filepath.Join(dataDir, "interactions")
			const secret = "nothing for the log\n"
			then := time.Now().Add(-time.Hour).Truncate(time.Second)
			err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(target, []byte(secret), 0o644), os.Chmod(target, 0o644), os.Chtimes(target, then, then))
			if err != nil {
				t.Fatal(err)
			}
			// The next day's, too: it may begin meanwhile.
			begun := today()
			links := []string{filepath.Join(dir, begun+".jsonl"), filepath.Join(dir, dayBefore(t, begun, -1)+".jsonl")}
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
				say(t, l.server, "c", "an open file")
				link()
			}

			add(t, l.server, "c", says("lost words"))
			lost := l.await(t, "interaction log lost entries; writing is retried automatically", "level=WARN", "lost_lines=1")
			if why := fmt.Sprint(lost["error"]); !strings.Contains(why, "is a link; remove it") || !strings.Contains(why, dir) {
				t.Errorf("why: %s", why)
			}
			say(t, l.server, "c", "more lost words")
			for what, r := range map[string]*parleyv1.ListInteractionsRequest{"lately": {}, "the session": {ConversationId: "c"}} {
				if got, skipped := l.list(t, r); len(got) > 0 || skipped > 0 {
					t.Errorf("%s: %q and %d lines skipped", what, got, skipped)
				}
			}
			if got, skipped := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "o"}); len(got) > 0 || skipped > 0 {
				t.Errorf("found: %q and %d lines skipped", got, skipped)
			}
			if info, err := os.Stat(target); err != nil || readText(t, target) != secret || info.Mode() != 0o644 || !info.ModTime().Equal(then) {
				t.Errorf("the target is %v, %v: %q", info, err, readText(t, target))
			}

			for _, path := range links {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
			l.await(t, "interaction log resumed")
			say(t, l.server, "c", "kept words")
			got, _ := l.search(t, &parleyv1.SearchInteractionsRequest{Query: "words"})
			if len(got) != 2 || !strings.HasSuffix(got[0], " echo: kept words") || !strings.HasSuffix(got[1], " User: kept words") {
				t.Errorf("found afterwards: %q", got)
			}
			if told := l.filed(t)[0]; !strings.HasPrefix(told, "* 0 parley: 3 lines could not be written since ") {
				t.Errorf("the file begins with %q", told)
			}
			if kept := contents(history(t, l.server, "c").GetMessages()); !strings.Contains(kept, "USER lost words\nUSER more lost words\nASSISTANT more lost words\n") {
				t.Errorf("the conversation is\n%s", kept)
			}
		})
	}
}

// TestInteractionLinkedDirectory: a link where the directory should be stops the start.
func TestInteractionLinkedDirectory(t *testing.T) {
	t.Parallel()
	dataDir, elsewhere := t.TempDir(), t.TempDir()
	link := filepath.Join(dataDir, "interactions")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	code, said := failToStart(t, "--data-dir="+dataDir)
	if code != exitIO || !strings.Contains(said, link+" is a link; name the directory itself") || strings.Count(said, "\n") != 1 {
		t.Errorf("the start ends with %d:\n%s", code, said)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
		t.Errorf("in the directory of the link there are %v, %v", entries, err)
	}
}
