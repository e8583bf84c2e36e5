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

// TestAcknowledgedIsLogged: whoever hears that a message was accepted finds it in the file at
// once, and so does whoever hears of an answer.
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
			t.Errorf("%q is not there once: %v", content, err)
		}
	})

	h := hold(t, l.server, "held")
	question := "held 1 User: " + h.request.GetContent()
	wantLines(t, "when the turn has started", l.filed(t)[200:], question)
	h.release(t, "answer")
	wantLines(t, "when it has ended", l.filed(t)[200:], question, "held 2 hold: half an answer")
}

// TestLogRedact: what must not be kept is on no page of the log, and nobody finds it.
func TestLogRedact(t *testing.T) {
	t.Parallel()
	const card, key = "4111111111111111", "sk-abc123"
	dataDir := t.TempDir()
	flag := "--log-redact=[0-9]{16}\n(?i)sk-[a-z0-9]+"
	l := startLogged(t, dataDir, flag)
	words := "card " + card + ", key " + strings.ToUpper(key) + "."
	if answer := say(t, l.server, "c", words); answer != words {
		t.Errorf("the answer is %q", answer)
	}
	named := says("once more")
	named.Metadata = map[string]string{"user": "Ada " + card, "key": key}
	add(t, l.server, "c", named)

	want := []string{
		"c 1 User: card [redacted], key [redacted].", "c 2 echo: card [redacted], key [redacted].", "c 3 Ada [redacted]: once more",
	}
	wantLines(t, "in the file", l.filed(t), want...)
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "c"})
	wantLines(t, "the session", got, want...)
	for query, want := range map[string][]string{card: nil, key: nil, "D [Redacted], key": {want[1], want[0]}} {
		got, _ := l.search(t, &parleyv1.SearchInteractionsRequest{Query: query})
		wantLines(t, "search for "+query, got, want...)
	}
	l.kill()
	l = startLogged(t, dataDir, flag) // It looks for lines that are missing.
	wantLines(t, "after a crash", l.filed(t), want...)
	err := filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			if text := strings.ToLower(readText(t, path)); strings.Contains(text, card) || strings.Contains(text, key) {
				t.Errorf("%s holds what was to be redacted", path)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if kept := history(t, l.server, "c").GetMessages(); kept[0].GetContent() != words {
		t.Errorf("the conversation is\n%s", contents(kept))
	}
}

// TestLogRetentionDays: old files go, whatever else is there stays.
func TestLogRetentionDays(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := &loggedServer{dir: filepath.Join(dataDir, "interactions")}
	if err := os.Mkdir(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	begun := today()
	for _, ago := range []int{1, 3, 30, 3000} { // not 2: midnight may come meanwhile
		day := dayBefore(t, begun, ago)
		l.put(t, day, byHand(day, "c", 1, "words"))
	}
	others := []string{l.path(dayBefore(t, begun, 30)) + ".gz", filepath.Join(l.dir, "notes.txt")}
	for _, path := range others {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l = startLogged(t, dataDir)
	say(t, l.server, "c", "all are kept")
	l.terminate()
	l.wantStop(t)
	before := l.days(t)
	l = startLogged(t, dataDir, "--log-retention-days=2")
	for _, ago := range []int{3000, 30, 3} {
		l.await(t, "interaction log: file removed, see --log-retention-days", "file="+dayBefore(t, begun, ago)+".jsonl")
	}
	if days := l.days(t); len(before) < 5 || before[3] != dayBefore(t, begun, 1) || !slices.Equal(days, before[3:]) {
		t.Errorf("of %q there are %q left", before, days)
	}
	for _, path := range others {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestDeleteInteractions: what is erased is in no file, then and after a crash, when the log
// looks for lines that it lacks. All others are as they were, byte for byte.
func TestDeleteInteractions(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := startLogged(t, dataDir)
	say(t, l.server, "gone", "of yesterday")
	l.ageOneDay(t)
	old := dayBefore(t, today(), 30)
	rest := "no line at all\n" + byHand(old, "stays", 1, "of the one that is gone") + "\n"
	l.put(t, old, byHand(old, "gone", 1, "long ago"), rest, byHand(old, "gone", 2, "later"))
	say(t, l.server, "gone", "of today")
	say(t, l.server, "stays", "words")
	var want strings.Builder
	for line := range strings.Lines(l.text(t)) {
		if !strings.Contains(line, `"session_id":"gone"`) && !strings.Contains(line, `"session_id": "gone"`) {
			want.WriteString(line)
		}
	}

	for _, count := range []int64{6, 0} {
		reply, err := l.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "gone"})
		if err != nil || reply.GetDeletedCount() != count {
			t.Errorf("%v, %v; want %d lines erased", reply, err, count)
		}
	}
	check := func(when string) {
		t.Helper()
		wantLines(t, when, strings.SplitAfter(l.text(t), "\n"), strings.SplitAfter(want.String(), "\n")...)
		if got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "gone"}); len(got) > 0 {
			t.Errorf("%s: %q", when, got)
		}
		for _, day := range l.days(t) {
			wantMode(t, l.path(day), 0o600)
		}
	}
	check("when it is erased")
	if kept := contents(history(t, l.server, "gone").GetMessages()); !strings.Contains(kept, "USER of today\n") {
		t.Errorf("the conversation is\n%s", kept)
	}
	l.kill()
	l = startLogged(t, dataDir)
	check("after a crash")
	say(t, l.server, "gone", "new words")
	got, _ := l.list(t, &parleyv1.ListInteractionsRequest{ConversationId: "gone"})
	wantLines(t, "what is said afterwards", got, "gone 5 User: new words", "gone 6 echo: new words")
}

// TestNoInteractionLog: nothing is written, and the calls say how to have a log.
func TestNoInteractionLog(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--interaction-log=false", "--store=memory"} {
		t.Run(flag, func(t *testing.T) {
			t.Parallel()
			l := startLogged(t, t.TempDir(), flag)
			say(t, l.server, "c", "words")
			_, list := l.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{})
			_, search := l.SearchInteractions(t.Context(), &parleyv1.SearchInteractionsRequest{Query: "words"})
			_, erase := l.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: "c"})
			for _, err := range []error{list, search, erase} {
				wantError(t, err, codes.FailedPrecondition, "INTERACTION_LOG_OFF")
				if !strings.Contains(err.Error(), "start the server with --interaction-log") {
					t.Errorf("it says %v", err)
				}
			}
			if _, err := os.Lstat(l.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the directory of the log: %v, want none", err)
			}
		})
	}
}
