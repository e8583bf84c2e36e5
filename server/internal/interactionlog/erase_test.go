package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// erase erases, and fails the test unless so many lines go.
func (w *testLog) erase(session string, want int64) {
	w.tb.Helper()
	if got, err := w.Erase(context.Background(), "acme", session); got != want || err != nil {
		w.tb.Errorf("%d lines of %s erased, error %v; want %d", got, session, err, want)
	}
}

// put writes a file of the directory, and returns what it is.
func (w *testLog) putFile(name, content string) fs.FileInfo {
	w.tb.Helper()
	must(w.tb, os.WriteFile(w.path(name), []byte(content), 0o600))
	return w.stat(name)
}

func (w *testLog) stat(name string) fs.FileInfo {
	w.tb.Helper()
	info, err := os.Lstat(w.path(name))
	must(w.tb, err)
	return info
}

func (w *testLog) readFile(name string) string {
	w.tb.Helper()
	content, err := os.ReadFile(w.path(name))
	must(w.tb, err)
	return string(content)
}

// names are those of the files in the directory.
func (w *testLog) names() string {
	w.tb.Helper()
	entries, err := os.ReadDir(w.dir)
	must(w.tb, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

// ours and theirs are lines of the conversation that is erased, and others.
func matchingLines() []string {
	return []string{
		sample{conversation: "gone", tenant: "acme", content: "one"}.String(),
		sample{conversation: "gone", tenant: "acme", content: "the text is [redacted], the id is not"}.String(),
		`  {"content": "by\u0020hand", "role": "user", "session_id": "g\u006fne", "tenant": "acme", "timestamp": "2026-11-20T09:00:00+01:00"}` + "\r\n",
		sample{conversation: "gone", tenant: "acme", content: strings.Repeat("long ", 100_000)}.String(),
	}
}

func otherLines() []string {
	return []string{
		sample{conversation: "kept", tenant: "acme", content: "about gone"}.String(),
		sample{conversation: "gone", tenant: "other", content: "of another tenant"}.String(),
		sample{conversation: "gone", content: "of yet another tenant"}.String(),
		sample{conversation: "gone2", tenant: "acme", content: strings.Repeat("long ", 100_000)}.String(),
		`{"timestamp":"2026-11-20T09:00:00Z","session_id":"gone","role":"user","content":"of the tenant default"}` + "\n",
		"\n", " \r\n", "no JSON\n", "\xff\xfe\n",
	}
}

// unreadableLines are lines that seem to be of the conversation, and cannot be read.
func unreadableLines() []string {
	return []string{
		sample{conversation: "gone", tenant: "acme", content: "torn"}.String()[:80] + "\n",
		sample{conversation: "gone", tenant: "acme", role: "ghost", content: "no such role"}.String(),
		sample{conversation: "gone", tenant: "acme", content: strings.Repeat("x", maxEntryBytes)}.String(),
	}
}

// TestErase takes what is of the conversation out of every file, and changes nothing else by
// a byte. What cannot be read stays, and operators are told.
func TestErase(t *testing.T) {
	w := newTestLog(t)
	kept := strings.Join(otherLines(), "")
	untouched := w.putFile("2026-11-17.jsonl", kept)
	w.putFile("2026-11-18.jsonl", "\ufeff"+kept+strings.Join(matchingLines(), kept)+strings.TrimSpace(otherLines()[0]))
	w.putFile("2026-11-19.jsonl", strings.Join(matchingLines(), ""))
	w.putFile("2026-11-20.jsonl", strings.Join(unreadableLines(), matchingLines()[0])+strings.TrimSpace(matchingLines()[1]))
	w.putFile("notes.jsonl", matchingLines()[0])
	must(t, os.Symlink(w.path("notes.jsonl"), w.path("2026-11-16.jsonl")))
	must(t, os.Chmod(w.path("2026-11-19.jsonl"), 0o644))
	w.erase("gone", 4+4+3)

	want := map[string]string{
		"2026-11-17.jsonl": kept,
		"2026-11-18.jsonl": "\ufeff" + kept + strings.Repeat(kept, 3) + strings.TrimSpace(otherLines()[0]),
		"2026-11-19.jsonl": "",
		"2026-11-20.jsonl": strings.Join(unreadableLines(), ""),
		"notes.jsonl":      matchingLines()[0],
	}
	for name, want := range want {
		if got := w.readFile(name); got != want {
			t.Errorf("%s has %d bytes, want %d: %.200q", name, len(got), len(want), got)
		}
		if mode := w.stat(name).Mode(); mode != 0o600 {
			t.Errorf("%s: mode %s", name, mode)
		}
	}
	if !os.SameFile(untouched, w.stat("2026-11-17.jsonl")) {
		t.Error("a file without such lines was rewritten")
	}
	if got, want := w.names(), "2026-11-16.jsonl 2026-11-17.jsonl 2026-11-18.jsonl 2026-11-19.jsonl 2026-11-20.jsonl checkpoint.json notes.jsonl"; got != want {
		t.Errorf("files %s, want %s", got, want)
	}
	said := w.output.take()
	if strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "2026-11-20.jsonl lines=3 tenant=acme conversation_id=gone") {
		t.Errorf("operators read %q", said)
	}
	before := w.stat("2026-11-18.jsonl")
	w.erase("gone", 0)
	if !os.SameFile(before, w.stat("2026-11-18.jsonl")) {
		t.Error("to erase again rewrites")
	}
	w.erase("nobody", 0)
}

// TestEraseRandom compares what is left of random files with what a plain filter leaves.
func TestEraseRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 7))
	pieces := append(append(matchingLines()[:3], otherLines()[:3]...), otherLines()[4:]...)
	pieces = append(pieces, sample{conversation: "kept", tenant: "acme", content: strings.Repeat("y", 70_000)}.String())
	for range 20 {
		w := newTestLog(t)
		want := map[string]string{}
		count := int64(0)
		for d := range 3 {
			var all, kept strings.Builder
			for range random.IntN(60) {
				piece := pieces[random.IntN(len(pieces))]
				all.WriteString(piece)
				if l, err := parseEntry([]byte(strings.TrimSpace(piece))); err == nil && l.tenant == "acme" && l.interaction.ConversationId == "gone" {
					count++
				} else {
					kept.WriteString(piece)
				}
			}
			name := (dayOf(noon) - day(d)).fileName()
			w.putFile(name, all.String())
			want[name] = kept.String()
		}
		w.erase("gone", count)
		for name, want := range want {
			if diff := cmp.Diff(want, w.readFile(name)); diff != "" {
				t.Fatalf("%s (-want +got):\n%.1000s", name, diff)
			}
		}
	}
}

// TestEraseAmongQueries: an index that was made before is of no use, and a query finds all
// that is left.
func TestEraseInvalidatesIndex(t *testing.T) {
	w := newTestLog(t)
	other := sample{at: "2026-11-18T09:00:00.000000Z", conversation: "kept", tenant: "acme", content: strings.Repeat("x", 1000)}.String()
	w.putFile("2026-11-18.jsonl", strings.Repeat(matchingLines()[0]+other, 100))
	must(t, os.Chtimes(w.path("2026-11-18.jsonl"), noon, noon.Add(-time.Hour)))
	lines := func(session string) int {
		t.Helper()
		page, err := w.List(t.Context(), &List{Tenant: "acme", ConversationID: session, PageSize: 1000})
		must(t, err)
		return len(page.Interactions)
	}
	if gone, kept := lines("gone"), lines("kept"); gone != 100 || kept != 100 || !strings.Contains(w.names(), ".2026-11-18.sessions") {
		t.Fatalf("%d and %d lines, files %s", gone, kept, w.names())
	}
	w.erase("gone", 100)
	if gone, kept := lines("gone"), lines("kept"); gone != 0 || kept != 100 {
		t.Errorf("%d and %d lines", gone, kept)
	}
}

// TestEraseWhileWriting: writers and two Erases at once lose and double nothing, and keep the
// order of each conversation.
func TestEraseWhileWriting(t *testing.T) {
	w := newTestLog(t)
	const writers, erasures = 4, 20
	said := func(session string, n int) store.Change {
		return appended(t, "acme", session, &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprintf("%s %d", session, n)})
	}
	var writing, erasing sync.WaitGroup
	var batches [writers]int
	wanted := make(chan struct{}, 100) // a value for each batch
	for i := range writers {
		writing.Go(func() {
			id := fmt.Sprint("kept", i)
			for range wanted {
				n := batches[i]
				w.Committed([]store.Change{said(id, 2*n), said(fmt.Sprint("gone", n%2), n), said(id, 2*n+1)})
				batches[i]++
			}
		})
	}
	var erased [2]int64
	erase := func(i int) {
		n, err := w.Erase(t.Context(), "acme", fmt.Sprint("gone", i))
		if erased[i] += n; err != nil {
			t.Error(err)
		}
	}
	for i := range erased {
		erasing.Go(func() {
			for range erasures {
				for range cap(wanted) {
					wanted <- struct{}{}
				}
				erase(i)
			}
		})
	}
	erasing.Wait()
	close(wanted)
	writing.Wait()
	erase(0)
	erase(1)

	next := map[string]int{}
	for _, line := range fileContents(t, w.dir)[dayOf(noon).fileName()] {
		id, _, _ := strings.Cut(line, " ")
		if line != fmt.Sprint(id, " ", next[id]) {
			t.Fatalf("line %q, want number %d", line, next[id])
		}
		next[id]++
	}
	total := 0
	for i, n := range batches {
		total += n
		if got := next[fmt.Sprint("kept", i)]; got != 2*n {
			t.Errorf("%d lines of kept%d, want %d", got, i, 2*n)
		}
	}
	if all := erased[0] + erased[1]; all != int64(total) || w.Lost() != 0 || len(next) != writers {
		t.Errorf("%d lines erased, want %d; %d lost; conversations %v", all, total, w.Lost(), next)
	}
}

// TestEraseEnds leaves no trace when it cannot go on, and none after a crash.
func TestEraseCleansUp(t *testing.T) {
	w := newTestLog(t)
	content := strings.Repeat(matchingLines()[0]+otherLines()[0], 3)
	w.putFile("2026-11-20.jsonl", content)
	ctx, cancel := context.WithCancel(t.Context())
	unfinished := ".2026-11-20.jsonl" + temporarySuffix
	if _, err := w.Erase(&hookContext{Context: ctx, trigger: w.path(unfinished), hook: cancel}, "acme", "gone"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if names := w.names(); w.readFile("2026-11-20.jsonl") != content || names != "2026-11-20.jsonl checkpoint.json" {
		t.Errorf("files %s, or another content", names)
	}
	w.erasing <- struct{}{} // Another one is under way.
	if _, err := w.Erase(ctx, "acme", "gone"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	<-w.erasing

	w.putFile(unfinished, content[:20])
	w.putFile("notes"+temporarySuffix, "not ours")
	w.putFile(".2026-11-20.sessions"+temporarySuffix, "half")
	w.putFile(".2026-11-19.sessions", "of a file that somebody has removed")
	w.crash()
	w = openTestLog(t, w.dir, Options{})
	if names := w.names(); names != "2026-11-20.jsonl checkpoint.json notes.unfinished" {
		t.Errorf("files %s after a crash", names)
	}
	w.putFile(unfinished, content[:20])
	w.erase("gone", 3)
	must(t, w.Close())
	if _, err := w.Erase(t.Context(), "acme", "gone"); !errors.Is(err, errClosed) {
		t.Errorf("error %v after Close", err)
	}
	if got := w.readFile("2026-11-20.jsonl"); got != strings.Repeat(otherLines()[0], 3) {
		t.Errorf("the file says %s", got)
	}
}

// TestErasedStaysErased: catching up after a crash does not add what was erased, only what was
// said since.
func TestCatchUpAfterErase(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.add("default", "c1", "of another tenant")
	s.add("acme", "c1", "two")
	s.log.erase("c1", 2)
	s.wantEntries("of another tenant")
	s.detached = true
	s.add("acme", "c1", "three")
	s.restart()
	s.wantEntries("of another tenant", "three")
	s.restart()
	s.wantEntries("of another tenant", "three")
	s.detached = false
	must(t, os.Remove(filepath.Join(s.dir, checkpointName)))
	s.log.erase("c1", 1)
	s.restart()
	s.wantEntries("of another tenant")
}

// TestEraseLarge: how much memory it takes does not depend on the file, and the lock is held for
// the end of it only.
func TestEraseLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 64 MiB")
	}
	w := newTestLog(t)
	line := []byte(sample{conversation: "kept", tenant: "acme", content: strings.Repeat("word ", 200)}.String())
	content := bytes.Repeat(line, 64<<20/len(line))
	w.putFile("2026-11-20.jsonl", string(content)+matchingLines()[0]+string(line))
	w.erase("gone", 1)
	if got := w.readFile("2026-11-20.jsonl"); got != string(content)+string(line) {
		t.Errorf("%d bytes are left, want %d", len(got), len(content)+len(line))
	}
}
