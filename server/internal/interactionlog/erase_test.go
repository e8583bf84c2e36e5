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
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
	"github.com/parleyhq/parley/store"
)

// erase erases a conversation and fails the test unless Erase returns want, the number of entries.
func (w *testLog) erase(conversation string, want int64) {
	w.tb.Helper()
	if got, err := w.Erase(context.Background(), "acme", conversation); got != want || err != nil {
		w.tb.Errorf("erased %d entries of %s, %v, want %d", got, conversation, err, want)
	}
}

// putFile writes a file of the directory and returns its state.
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

// names returns the names of the files in the directory.
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

// matchingLines returns entries of the conversation that is erased. otherLines returns other lines.
func matchingLines() []string {
	return []string{
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Content: "one"}.String(),
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Content: "the text is [redacted], the id is not"}.String(),
		`  {"content": "by\u0020hand", "role": "user", "session_id": "g\u006fne", "tenant": "acme", ` +
			`"timestamp": "2026-11-20T09:00:00+01:00"}` + "\r\n",
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Content: strings.Repeat("long ", 100_000)}.String(),
	}
}

func otherLines() []string {
	return []string{
		entrytest.Sample{Conversation: "kept", Tenant: "acme", Content: "about gone"}.String(),
		entrytest.Sample{Conversation: "gone", Tenant: "other", Content: "of another tenant"}.String(),
		entrytest.Sample{Conversation: "gone", Content: "of yet another tenant"}.String(),
		entrytest.Sample{Conversation: "gone2", Tenant: "acme", Content: strings.Repeat("long ", 100_000)}.String(),
		`{"timestamp":"2026-11-20T09:00:00Z","session_id":"gone","role":"user","content":"of the tenant default"}` + "\n",
		"\n", " \r\n", "no JSON\n", "\xff\xfe\n",
	}
}

// unreadableLines returns lines that seem to belong to the conversation but cannot be parsed.
func unreadableLines() []string {
	return []string{
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Content: "partial"}.String()[:80] + "\n",
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Role: "ghost", Content: "no such role"}.String(),
		entrytest.Sample{Conversation: "gone", Tenant: "acme", Content: strings.Repeat("x", entry.MaxBytes)}.String(),
	}
}

// TestErase checks that Erase removes the entries of a conversation from every file, changes no other
// byte, and logs lines that cannot be parsed.
func TestErase(t *testing.T) {
	w := newTestLog(t)
	kept := strings.Join(otherLines(), "")
	untouched := w.putFile("2026-11-17.jsonl", kept)
	w.putFile("2026-11-18.jsonl", "\ufeff"+kept+strings.Join(matchingLines(), kept)+strings.TrimSpace(otherLines()[0]))
	w.putFile("2026-11-19.jsonl", strings.Join(matchingLines(), ""))
	w.putFile("2026-11-20.jsonl", strings.Join(unreadableLines(), matchingLines()[0])+
		strings.TrimSpace(matchingLines()[1]))
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
			t.Errorf("%s: mode = %s", name, mode)
		}
	}
	if !os.SameFile(untouched, w.stat("2026-11-17.jsonl")) {
		t.Error("a file without such lines was rewritten")
	}
	const files = "2026-11-16.jsonl 2026-11-17.jsonl 2026-11-18.jsonl 2026-11-19.jsonl 2026-11-20.jsonl " +
		"checkpoint.json notes.jsonl"
	if got, want := w.names(), files; got != want {
		t.Errorf("files = %s, want %s", got, want)
	}
	output := w.output.take()
	if strings.Count(output, "level=WARN") != 1 ||
		!strings.Contains(output, "2026-11-20.jsonl lines=3 tenant=acme conversation_id=gone") {
		t.Errorf("log output = %q", output)
	}
	before := w.stat("2026-11-18.jsonl")
	w.erase("gone", 0)
	if !os.SameFile(before, w.stat("2026-11-18.jsonl")) {
		t.Error("erasing again rewrote the file")
	}
	w.erase("unknown", 0)
}

// TestEraseEscapedID checks that Erase finds an id that JSON escapes, also in a line that cannot be parsed.
func TestEraseEscapedID(t *testing.T) {
	w := newTestLog(t)
	const head = `{"timestamp":"2026-11-19T09:00:00.000000Z","session_id":"a\"b\\c/ü","tenant":"acme","agent":"User",`
	const kept = head + `"role":"user","content":"cut o` + "\n"
	w.putFile("2026-11-19.jsonl", head+`"role":"user","content":"x","metadata":{}}`+"\n"+kept)
	w.erase(`a"b\c/ü`, 1)
	if got := w.readFile("2026-11-19.jsonl"); got != kept {
		t.Errorf("file = %q, want %q", got, kept)
	}
	if output := w.output.take(); !strings.Contains(output, "2026-11-19.jsonl lines=1 ") {
		t.Errorf("log output = %q, want a line that mentions the id", output)
	}
}

// TestEraseRandom compares what is left of random files with the result of a simple filter.
func TestEraseRandom(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 7))
	pieces := append(append(matchingLines()[:3], otherLines()[:3]...), otherLines()[4:]...)
	long := entrytest.Sample{Conversation: "kept", Tenant: "acme", Content: strings.Repeat("y", 70_000)}
	pieces = append(pieces, long.String())
	for range 20 {
		w := newTestLog(t)
		want := map[string]string{}
		count := int64(0)
		for d := range 3 {
			var all, kept strings.Builder
			for range random.IntN(60) {
				piece := pieces[random.IntN(len(pieces))]
				all.WriteString(piece)
				l, err := entry.Parse([]byte(strings.TrimSpace(piece)))
				if err == nil && l.Tenant == "acme" && l.Interaction.ConversationId == "gone" {
					count++
				} else {
					kept.WriteString(piece)
				}
			}
			name := (dayfile.DayOf(noon) - dayfile.Day(d)).FileName()
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

// TestEraseInvalidatesIndex checks that a query does not use an index that was built before an Erase.
func TestEraseInvalidatesIndex(t *testing.T) {
	w := newTestLog(t)
	other := entrytest.Sample{
		At: "2026-11-18T09:00:00.000000Z", Conversation: "kept", Tenant: "acme", Content: strings.Repeat("x", 1000),
	}.String()
	w.putFile("2026-11-18.jsonl", strings.Repeat(matchingLines()[0]+other, 100))
	must(t, os.Chtimes(w.path("2026-11-18.jsonl"), noon, noon.Add(-time.Hour)))
	lines := func(conversation string) int {
		t.Helper()
		page, err := w.List(t.Context(), &List{Tenant: "acme", ConversationID: conversation, PageSize: 1000})
		must(t, err)
		return len(page.Interactions)
	}
	gone, kept := lines("gone"), lines("kept")
	if gone != 100 || kept != 100 || !strings.Contains(w.names(), ".2026-11-18.sessions") {
		t.Fatalf("%d and %d entries, files = %s, want 100, 100 and an index", gone, kept, w.names())
	}
	w.erase("gone", 100)
	if gone, kept := lines("gone"), lines("kept"); gone != 0 || kept != 100 {
		t.Errorf("%d and %d entries, want 0 and 100", gone, kept)
	}
}

// TestEraseWhileWriting checks that concurrent writers and two Erases lose and duplicate no entry, and
// that the order of each conversation stays.
func TestEraseWhileWriting(t *testing.T) {
	w := newTestLog(t)
	const writers, erasures = 4, 20
	change := func(conversation string, n int) store.Change {
		return entrytest.Appended(t, "acme", conversation, &parleyv1.Message{
			Role: parleyv1.Role_ROLE_USER, Content: fmt.Sprintf("%s %d", conversation, n),
		})
	}
	var writing, erasing sync.WaitGroup
	var batches [writers]int
	wanted := make(chan struct{}, 100) // one value for each batch
	for i := range writers {
		writing.Go(func() {
			id := fmt.Sprint("kept", i)
			for range wanted {
				n := batches[i]
				w.Committed([]store.Change{change(id, 2*n), change(fmt.Sprint("gone", n%2), n), change(id, 2*n+1)})
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
	for _, line := range fileContents(t, w.dir)[dayfile.DayOf(noon).FileName()] {
		id, _, _ := strings.Cut(line, " ")
		if line != fmt.Sprint(id, " ", next[id]) {
			t.Fatalf("entry %q, want number %d", line, next[id])
		}
		next[id]++
	}
	total := 0
	for i, n := range batches {
		total += n
		if got := next[fmt.Sprint("kept", i)]; got != 2*n {
			t.Errorf("%d entries of kept%d, want %d", got, i, 2*n)
		}
	}
	if all := erased[0] + erased[1]; all != int64(total) || w.Lost() != 0 || len(next) != writers {
		t.Errorf("erased %d entries, want %d; Lost() = %d; conversations %v", all, total, w.Lost(), next)
	}
}

// TestEraseCleansUp checks that no temporary file is left after an error or a crash.
func TestEraseCleansUp(t *testing.T) {
	w := newTestLog(t)
	content := strings.Repeat(matchingLines()[0]+otherLines()[0], 3)
	w.putFile("2026-11-20.jsonl", content)
	ctx, cancel := context.WithCancel(t.Context())
	unfinished := ".2026-11-20.jsonl.unfinished"
	canceling := &hookContext{Context: ctx, trigger: w.path(unfinished), hook: cancel}
	if _, err := w.Erase(canceling, "acme", "gone"); !errors.Is(err, context.Canceled) {
		t.Errorf("Erase: %v, want %v", err, context.Canceled)
	}
	if names := w.names(); w.readFile("2026-11-20.jsonl") != content || names != "2026-11-20.jsonl checkpoint.json" {
		t.Errorf("files = %s, or the content has changed", names)
	}
	w.erasing <- struct{}{} // Another Erase is running.
	if _, err := w.Erase(ctx, "acme", "gone"); !errors.Is(err, context.Canceled) {
		t.Errorf("Erase: %v, want %v", err, context.Canceled)
	}
	<-w.erasing

	w.putFile(unfinished, content[:20])
	w.putFile("notes.unfinished", "not ours")
	w.putFile(".2026-11-20.sessions.unfinished", "half")
	w.putFile(".2026-11-19.sessions", "of a file that was removed")
	w.crash()
	w = openTestLog(t, w.dir, Options{})
	if names := w.names(); names != "2026-11-20.jsonl checkpoint.json notes.unfinished" {
		t.Errorf("files after a crash = %s", names)
	}
	w.putFile(unfinished, content[:20])
	w.erase("gone", 3)
	must(t, w.Close())
	if _, err := w.Erase(t.Context(), "acme", "gone"); !errors.Is(err, errClosed) {
		t.Errorf("Erase after Close: %v, want errClosed", err)
	}
	if got := w.readFile("2026-11-20.jsonl"); got != strings.Repeat(otherLines()[0], 3) {
		t.Errorf("file = %s", got)
	}
}

// TestCatchUpAfterErase checks that CatchUp does not add erased entries, only later ones.
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

// TestEraseLarge erases from a file that is larger than what Erase copies under the lock.
func TestEraseLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 64 MiB")
	}
	w := newTestLog(t)
	line := []byte(entrytest.Sample{Conversation: "kept", Tenant: "acme", Content: strings.Repeat("word ", 200)}.String())
	content := bytes.Repeat(line, 64<<20/len(line))
	w.putFile("2026-11-20.jsonl", string(content)+matchingLines()[0]+string(line))
	w.erase("gone", 1)
	if got := w.readFile("2026-11-20.jsonl"); got != string(content)+string(line) {
		t.Errorf("%d bytes are left, want %d", len(got), len(content)+len(line))
	}
}
