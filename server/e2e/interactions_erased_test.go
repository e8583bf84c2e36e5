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

// A server is killed so many times while one client erases and so many write. What is in the
// file of the day already makes an erasure take a while.
const (
	erasedKills   = 12
	erasedWriters = 16
	bygoneLines   = 15_000
)

// TestInteractionsKilledWhileErasing: nothing is lost but what is erased, which does not come
// back, and a file that was not finished is removed by the next start.
func TestInteractionsKilledWhileErasing(t *testing.T) {
	t.Parallel()
	k := newKilledLog(t)
	e := &erasing{killedLog: k}
	e.begin(t)
	crashes, acked, hit := 0, 0, 0
	for round := range erasedKills {
		s := startServer(t, k.dataDir, keepsAll)
		e.wantStarted(t, s, crashes)
		ready := func() {}
		if round%2 == 1 {
			ready = func() { e.awaitUnfinished(t) }
		}
		k.writeUntilKilled(t, s, erasedWriters, 1+rand.Int64N(mostLoggedAcks), ready, e.step(t, s))
		crashes++
		hit += len(e.unfinished(t))
		e.readAgain(t)
		acked += k.wantAcknowledged(t)
		if t.Failed() {
			t.Fatalf("after crash %d", crashes)
		}
	}
	e.wantStarted(t, startServer(t, k.dataDir, keepsAll), crashes)
	t.Logf("%d crashes, %d of them have left an unfinished file; %d messages acknowledged, %d conversations erased, %d torn lines",
		crashes, hit, acked, len(e.erased), k.files.broken)
	if hit == 0 {
		t.Error("no crash has come while a file was rewritten")
	}
}

// erasing is a log from which conversations are erased that were only begun for that.
type erasing struct {
	*killedLog

	path    string // of a file
	bygone  []byte // what it begins with
	begun   int
	current string // conversation that is being erased
	erased  []string
}

// begin writes the file of the day.
func (e *erasing) begin(t *testing.T) {
	t.Helper()
	var b bytes.Buffer
	now := time.Now().UTC()
	for i := range bygoneLines {
		fmt.Fprintf(&b, `{"timestamp":%q,"session_id":"bygone","tenant":"default","agent":"User","role":"user","content":"%s","metadata":{"turn_number":%d}}`+"\n",
			now.Format("2006-01-02T15:04:05.000000Z"), strings.Repeat("long ago ", 10), i+1)
	}
	e.path, e.bygone = filepath.Join(e.files.dir, now.Format(time.DateOnly)+".jsonl"), b.Bytes()
	if err := os.Mkdir(e.files.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(e.path, e.bygone, 0o600); err != nil {
		t.Fatal(err)
	}
}

// readAgain reads all files from their beginning, of which other lines may have gone.
func (e *erasing) readAgain(t *testing.T) {
	t.Helper()
	e.reset()
	text, err := os.ReadFile(e.path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, e.bygone) {
		t.Fatal("what was in the file before has changed")
	}
	e.files.ends[e.path] = int64(len(e.bygone))
	e.read(t)
}

// step returns what erases one conversation after the other: first the one that a crash has
// left.
func (e *erasing) step(t *testing.T, s *server) func() error {
	t.Helper()
	log := parleyv1.NewInteractionLogServiceClient(s.conn)
	return func() error {
		if e.current == "" {
			id := fmt.Sprint("erased", e.begun)
			e.begun++
			if err := e.append(t, s, id, func(...saying) {}); err != nil {
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

// wantStarted checks, after so many crashes, that nothing is left of what was erased, of an
// erasure that was not finished only what was there before, and that all else is there.
func (e *erasing) wantStarted(t *testing.T, s *server, crashes int) {
	t.Helper()
	if found := e.unfinished(t); len(found) > 0 {
		t.Errorf("the start has left %q", found)
	}
	e.readAgain(t)
	e.wantKept(t, s, crashes)
	for _, id := range e.erased {
		if found := e.sessions[id]; len(found) > 0 {
			t.Errorf("%s was erased, and has %d lines", id, len(found))
		}
	}
	if found := e.sessions[e.current]; len(found) > 0 {
		e.wantSame(t, e.current, history(t, s, e.current).GetMessages())
	}
}

// unfinished lists the files that are to take the place of others.
func (e *erasing) unfinished(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(e.files.dir, "*.unfinished"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// awaitUnfinished returns when there is such a file. There is no event for that.
func (e *erasing) awaitUnfinished(t *testing.T) {
	t.Helper()
	look, late := time.NewTicker(time.Millisecond), time.After(patience)
	defer look.Stop()
	for len(e.unfinished(t)) == 0 {
		select {
		case <-look.C:
		case <-late:
			t.Fatal("no file is rewritten")
		}
	}
}
