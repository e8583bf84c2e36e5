package e2e

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The server is killed erasedKills times while one client erases conversations and erasedWriters
// clients write. The file of the day has initialEntries entries at first, so that an erasure takes a
// while.
const (
	erasedKills    = 12
	erasedWriters  = 16
	initialEntries = 15_000
)

// TestInteractionsKilledWhileErasing: only erased entries are missing, they do not come back, and the
// next start removes an unfinished file.
func TestInteractionsKilledWhileErasing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	k := newKilledLog(t)
	e := &erasing{killedLog: k}
	e.writeInitial(t)
	crashes, acked, hit := 0, 0, 0
	for round := range erasedKills {
		s := startServer(t, k.dataDir, keepAllFlag)
		e.wantAfterStart(t, s, crashes)
		ready := func() {}
		if round%2 == 1 {
			ready = func() { e.awaitUnfinished(t) }
		}
		k.writeUntilKilled(t, s, erasedWriters, 1+rand.Int64N(maxLoggedAcks), ready, e.eraseNext(t, s))
		crashes++
		hit += len(e.unfinished(t))
		e.rereadAll(t)
		acked += k.wantAcknowledged(t)
		if t.Failed() {
			t.Fatalf("failed after crash %d", crashes)
		}
	}
	e.wantAfterStart(t, startServer(t, k.dataDir, keepAllFlag), crashes)
	t.Logf("%d crashes, %d of them left an unfinished file; %d messages acknowledged, %d conversations erased, %d torn entries",
		crashes, hit, acked, len(e.erased), k.files.broken)
	if hit == 0 {
		t.Error("no crash happened while a file was rewritten")
	}
}

// erasing is a log and the conversations that are created only to be erased from it.
type erasing struct {
	*killedLog

	path    string   // path of the file of the day at the start
	initial []byte   // initial content of that file
	created int      // number of conversations created for erasure
	current string   // conversation that is being erased
	erased  []string // conversations whose erasure succeeded
}

// writeInitial writes the initial file of the day.
func (e *erasing) writeInitial(t *testing.T) {
	t.Helper()
	var b bytes.Buffer
	now := time.Now().UTC()
	for i := range initialEntries {
		fmt.Fprintf(&b, `{"timestamp":%q,"session_id":"bygone","tenant":"default","agent":"User","role":"user","content":"%s","metadata":{"turn_number":%d}}`+"\n",
			now.Format("2006-01-02T15:04:05.000000Z"), strings.Repeat("long ago ", 10), i+1)
	}
	e.path, e.initial = filepath.Join(e.files.dir, now.Format(time.DateOnly)+".jsonl"), b.Bytes()
	if err := os.Mkdir(e.files.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.path, e.initial, 0o600); err != nil {
		t.Fatal(err)
	}
}

// rereadAll reads all files from their beginning, since erasures may have rewritten them.
func (e *erasing) rereadAll(t *testing.T) {
	t.Helper()
	e.reset()
	text, err := os.ReadFile(e.path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, e.initial) {
		t.Fatalf("the initial entries of %s have changed", e.path)
	}
	e.files.ends[e.path] = int64(len(e.initial))
	e.read(t)
}

// eraseNext returns a function that appends to a new conversation and erases it. Its first call erases the
// conversation whose erasure the crash interrupted.
func (e *erasing) eraseNext(t *testing.T, s *server) func() error {
	t.Helper()
	log := parleyv1.NewInteractionLogServiceClient(s.conn)
	return func() error {
		if e.current == "" {
			id := fmt.Sprint("erased", e.created)
			e.created++
			if err := e.append(t, s, id, func(...sentMessage) {}); err != nil {
				return err
			}
			e.current = id
		}
		_, err := log.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: e.current})
		if err == nil {
			e.erased = append(e.erased, e.current)
			e.current = ""
		}
		return err
	}
}

// wantAfterStart checks the log after a start: no unfinished file and no erased entry is left, an
// interrupted erasure removed all entries or none, and all other entries are there.
func (e *erasing) wantAfterStart(t *testing.T, s *server, crashes int) {
	t.Helper()
	if found := e.unfinished(t); len(found) > 0 {
		t.Errorf("unfinished files after the start = %q, want none", found)
	}
	e.rereadAll(t)
	e.wantStored(t, s, crashes)
	for _, id := range e.erased {
		if found := e.byConversation[id]; len(found) > 0 {
			t.Errorf("conversation %s has %d entries after its erasure, want none", id, len(found))
		}
	}
	if found := e.byConversation[e.current]; len(found) > 0 {
		e.wantSame(t, e.current, history(t, s, e.current).GetMessages())
	}
}

// unfinished lists the files that will replace others when they are complete.
func (e *erasing) unfinished(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(e.files.dir, "*.unfinished"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// awaitUnfinished polls until there is an unfinished file. No event reports that.
func (e *erasing) awaitUnfinished(t *testing.T) {
	t.Helper()
	poll, late := time.NewTicker(time.Millisecond), time.After(timeout)
	defer poll.Stop()
	for len(e.unfinished(t)) == 0 {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("no unfinished file within %v", timeout)
		}
	}
}
