package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestAcknowledgedIsLogged: when a client receives the acknowledgement of a message or an answer, the
// log's file contains it.
func TestAcknowledgedIsLogged(t *testing.T) {
	t.Parallel()
	l := startLogged(t, t.TempDir(), agents(t, testAgents))
	inParallel(200, func(i int) {
		id, content := fmt.Sprint("c", i%3), fmt.Sprintf("message %d.", i)
		_, err := l.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: id, Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
		})
		text, fault := l.read()
		if err := errors.Join(err, fault); err != nil || strings.Count(text, `"content":"`+content+`"`) != 1 {
			t.Errorf("%q is not in the log exactly once: %v", content, err)
		}
	})

	h := hold(t, l.server, "held")
	question := "held 1 User: " + h.request.GetContent()
	wantEntries(t, "log after the start of the turn", l.entries(t)[200:], question)
	h.release(t, "answer")
	wantEntries(t, "log after the end of the turn", l.entries(t)[200:], question, "held 2 hold: half an answer")
}

// TestLogRedact: redacted text is in no file of the log and cannot be found by a search.
func TestLogRedact(t *testing.T) {
	t.Parallel()
	const card, key = "4111111111111111", "sk-abc123"
	dataDir := t.TempDir()
	flag := "--log-redact=[0-9]{16}\n(?i)sk-[a-z0-9]+"
	l := startLogged(t, dataDir, flag)
	text := "card " + card + ", key " + strings.ToUpper(key) + "."
	if answer := ask(t, l.server, "c", text); answer != text {
		t.Errorf("answer = %q, want %q", answer, text)
	}
	named := userMessage("again")
	named.Metadata = map[string]string{"user": "Ada " + card, "key": key}
	add(t, l.server, "c", named)

	want := []string{
		"c 1 User: card [redacted], key [redacted].", "c 2 echo: card [redacted], key [redacted].",
		"c 3 Ada [redacted]: again",
	}
	wantEntries(t, "log", l.entries(t), want...)
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "c"})
	wantEntries(t, "ListInteractions", got, want...)
	for query, want := range map[string][]string{card: nil, key: nil, "D [Redacted], key": {want[1], want[0]}} {
		got, _ := l.search(t, &parleyv1.SearchInteractionsRequest{Query: query})
		wantEntries(t, "search for "+query, got, want...)
	}
	l.kill()
	l = startLogged(t, dataDir, flag) // After a kill, the start adds missing entries to the log.
	wantEntries(t, "log after a crash", l.entries(t), want...)
	err := filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			if text := strings.ToLower(readText(t, path)); strings.Contains(text, card) || strings.Contains(text, key) {
				t.Errorf("%s contains text that must be redacted", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if stored := history(t, l.server, "c").GetMessages(); stored[0].GetContent() != text {
		t.Errorf("history =\n%s, want the text without redaction", contents(stored))
	}
}

// TestLogRetentionDays: old log files are removed, and all other files stay.
func TestLogRetentionDays(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := &loggedServer{dir: filepath.Join(dataDir, "interactions")}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start := today()
	for _, ago := range []int{1, 3, 30, 3000} { // not 2, since midnight may pass during the test
		day := dayBefore(t, start, ago)
		l.writeDay(t, day, handwrittenEntry(day, "c", 1, "text"))
	}
	others := []string{l.path(dayBefore(t, start, 30)) + ".gz", filepath.Join(l.dir, "notes.txt")}
	for _, path := range others {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l = startLogged(t, dataDir)
	ask(t, l.server, "c", "no file is removed")
	l.terminate()
	l.wantStop(t)
	before := l.days(t)
	l = startLogged(t, dataDir, "--log-retention-days=2")
	for _, ago := range []int{3000, 30, 3} {
		l.await(t, "interaction log: file removed, see --log-retention-days", "file="+dayBefore(t, start, ago)+".jsonl")
	}
	if days := l.days(t); len(before) < 5 || before[3] != dayBefore(t, start, 1) || !slices.Equal(days, before[3:]) {
		t.Errorf("log files of days %q left of %q, want the last 2 days", days, before)
	}
	for _, path := range others {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestDeleteInteractions: an erased entry is in no file, neither at once nor after a crash, when the
// start adds missing entries. All other entries are unchanged, byte for byte.
func TestDeleteInteractions(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := startLogged(t, dataDir)
	ask(t, l.server, "gone", "of yesterday")
	l.ageOneDay(t)
	old := dayBefore(t, today(), 30)
	rest := "not an entry\n" + handwrittenEntry(old, "stays", 1, "of the one that is gone") + "\n"
	l.writeDay(t, old, handwrittenEntry(old, "gone", 1, "long ago"), rest, handwrittenEntry(old, "gone", 2, "later"))
	ask(t, l.server, "gone", "of today")
	ask(t, l.server, "stays", "text")
	var want strings.Builder
	for line := range strings.Lines(l.text(t)) {
		if !strings.Contains(line, `"session_id":"gone"`) && !strings.Contains(line, `"session_id": "gone"`) {
			want.WriteString(line)
		}
	}

	for _, count := range []int64{6, 0} {
		reply, err := l.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "gone"})
		if err != nil || reply.GetDeletedCount() != count {
			t.Errorf("DeleteInteractions = %v, %v; want %d erased", reply, err, count)
		}
	}
	check := func(when string) {
		t.Helper()
		wantEntries(t, when, strings.SplitAfter(l.text(t), "\n"), strings.SplitAfter(want.String(), "\n")...)
		if got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "gone"}); len(got) > 0 {
			t.Errorf("%s: ListInteractions = %q, want none", when, got)
		}
		for _, day := range l.days(t) {
			wantMode(t, l.path(day), 0o600)
		}
	}
	check("after the erasure")
	if stored := contents(history(t, l.server, "gone").GetMessages()); !strings.Contains(stored, "USER of today\n") {
		t.Errorf("history =\n%s, want it unchanged", stored)
	}
	l.kill()
	l = startLogged(t, dataDir)
	check("after a crash")
	ask(t, l.server, "gone", "new text")
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "gone"})
	wantEntries(t, "ListInteractions after a new message", got, "gone 5 User: new text", "gone 6 echo: new text")
}

// TestNoInteractionLog: no file is written, and the calls return an error that names the flag.
func TestNoInteractionLog(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--interaction-log=false", "--store=memory"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			l := startLogged(t, t.TempDir(), flag)
			ask(t, l.server, "c", "text")
			_, list := l.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
			_, search := l.SearchInteractions(t.Context(), &parleyv1.SearchInteractionsRequest{Query: "text"})
			_, erase := l.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
			for _, err := range []error{list, search, erase} {
				wantError(t, err, codes.FailedPrecondition, "INTERACTION_LOG_OFF")
				if !strings.Contains(err.Error(), "start the server with --interaction-log") {
					t.Errorf("error = %v, want it to contain \"start the server with --interaction-log\"", err)
				}
			}
			if _, err := os.Lstat(l.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Lstat(%s) = %v, want it absent", l.dir, err)
			}
		})
	}
}
