package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The server's log messages when the interaction log fails and when it works again.
const (
	logLost    = "interaction log lost entries; writing is retried automatically"
	logResumed = "interaction log resumed"
)

// minWarningInterval is the minimal time between two warnings. The guarantee is a minute; the time of a log
// entry is taken when the entry is written, so the difference can be a little less.
const minWarningInterval = 59 * time.Second

// TestInteractionsFull: the log is on a small file system of its own, which is full for a while.
func TestInteractionsFull(t *testing.T) {
	t.Parallel()
	const enough = 200
	dataDir, dir := smallLog(t)
	a := &ledger{s: startServer(t, dataDir, keepAllFlag)}
	before := a.append(t, enough)
	a.chat(t)
	if lost := a.wantComplete(t, dir); lost != 0 {
		t.Errorf("%d entries are lost before the disk is full, want none", lost)
	}

	makeRoom := fillUp(t, dir)
	full := a.append(t, enough)
	t.Logf("%d appends took %s, and %s while the disk of the log was full: %.2f times as long", enough, before, full,
		full.Seconds()/before.Seconds())
	a.s.await(t, logLost, "level=WARN")
	for range 3 {
		a.append(t, 1)
		a.chat(t)
		a.awaitLossCount(t, dir) // The log tries to write before it counts; it may warn after that.
	}
	a.wantWarningInterval(t)

	makeRoom()
	a.s.await(t, logResumed, "level=INFO") // It resumes without a new message.
	lost := a.wantComplete(t, dir)
	if lost < enough/2 {
		t.Errorf("the log reports %d lost entries, want at least %d", lost, enough/2)
	}
	a.append(t, enough)
	a.chat(t)
	if got := a.wantComplete(t, dir); got != lost {
		t.Errorf("the log reports %d lost entries, want %d as before the disk had space again", got, lost)
	}
	a.wantOwnEntriesHidden(t)
	stats, err := a.s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil || stats.GetLostInteractionTotal() != int64(lost) {
		t.Errorf("lost_interaction_total = %d, want %d; %v", stats.GetLostInteractionTotal(), lost, err)
	}
	a.s.terminate()
	a.s.wantStop(t)
	if warned := a.warnedLosses(t); warned != lost {
		t.Errorf("warnings report %d lost entries, want %d", warned, lost)
	}
}

// TestInteractionsFullKilled kills the server while the disk of the log is full. The next start adds
// the missing entries, or counts them as lost if the disk is still full.
func TestInteractionsFullKilled(t *testing.T) {
	t.Parallel()
	for name, roomFirst := range map[string]bool{"space before the next start": true, "space after it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dataDir, dir := smallLog(t)
			a := &ledger{s: startServer(t, dataDir, keepAllFlag)}
			a.append(t, 30)
			makeRoom := fillUp(t, dir)
			a.append(t, 50)
			a.awaitLossCount(t, dir)
			a.append(t, 10)
			missing := a.missing(t, dir)
			a.s.kill()
			if roomFirst {
				makeRoom()
				missing = 0
			}
			a.s = startServer(t, dataDir, keepAllFlag)
			if !roomFirst {
				a.append(t, 10)
				a.chat(t)
				missing = a.missing(t, dir)
				a.s.await(t, logLost)
				makeRoom()
				a.s.await(t, logResumed)
			}
			a.append(t, 10)
			if lost := a.wantComplete(t, dir); lost != missing {
				t.Errorf("the log reports %d lost entries, want %d", lost, missing)
			}
		})
	}
}

// ledger is a server and all messages that its only client sent, in order.
type ledger struct {
	s    *server
	sent []sentMessage
}

// append appends messages and returns the time that it took. Their entries are shorter than the entry
// that reports a loss, so that when they do not fit, that entry does not fit either.
func (a *ledger) append(t *testing.T, messages int) time.Duration {
	t.Helper()
	start := time.Now()
	for range messages {
		content := fmt.Sprint(len(a.sent))
		add(t, a.s, "a", &parleyv1.Message{Content: content})
		a.sent = append(a.sent, sentMessage{"a", "user", content})
	}
	return time.Since(start)
}

// chat completes a turn.
func (a *ledger) chat(t *testing.T) {
	t.Helper()
	content := fmt.Sprint(len(a.sent))
	if answer := ask(t, a.s, "b", content); answer != content {
		t.Errorf("answer = %q, want %q", answer, content)
	}
	a.sent = append(a.sent, sentMessage{"b", "user", content}, sentMessage{"b", "assistant", content})
}

// count reads the files of some directories, of which each continues the one before it. It returns
// the number of messages that are in the log or reported as lost, and the number of lost ones.
func (a *ledger) count(t *testing.T, dirs ...string) (next, lost int) {
	t.Helper()
	for _, dir := range dirs {
		files := interactionFiles{dir: dir, ends: make(map[string]int64)}
		for _, line := range files.next(t) {
			if line.Tenant == "*" {
				next, lost = next+line.Metadata.LostLines, lost+line.Metadata.LostLines
				continue
			}
			if got := (sentMessage{line.ConversationID, line.Role, line.Content}); next >= len(a.sent) || got != a.sent[next] {
				t.Fatalf("entry %d of the log = %v, want the message of that number", next, got)
			}
			next++
		}
		if files.broken > 0 {
			t.Errorf("%s has %d broken entries, want none", dir, files.broken)
		}
	}
	return next, lost
}

// wantComplete checks that each message is in the log in its order or reported as lost, and returns
// the number of lost ones.
func (a *ledger) wantComplete(t *testing.T, dirs ...string) (lost int) {
	t.Helper()
	next, lost := a.count(t, dirs...)
	if next != len(a.sent) {
		t.Fatalf("the log contains or reports as lost %d messages, want %d", next, len(a.sent))
	}
	return lost
}

// missing returns the number of messages that are neither in the log nor reported as lost.
func (a *ledger) missing(t *testing.T, dir string) int {
	t.Helper()
	next, _ := a.count(t, dir)
	return len(a.sent) - next
}

// awaitLossCount polls until the log has counted all lost entries. No event reports that.
func (a *ledger) awaitLossCount(t *testing.T, dir string) {
	t.Helper()
	waitForText(t, filepath.Join(dir, "checkpoint.json"), fmt.Sprintf(`"lost_lines":%d,`, a.missing(t, dir)))
}

// wantWarningInterval checks that there is a minute between two warnings.
func (a *ledger) wantWarningInterval(t *testing.T) {
	t.Helper()
	var last time.Time
	found, _ := a.s.log.Find(logLost)
	for _, line := range found {
		at, err := time.Parse(time.RFC3339, fmt.Sprint(line["time"]))
		if err != nil {
			t.Fatal(err)
		}
		if apart := at.Sub(last); apart < minWarningInterval {
			t.Errorf("two warnings are %s apart, want at least %s", apart, minWarningInterval)
		}
		last = at
	}
}

// warnedLosses returns the number of lost entries that all warnings report.
func (a *ledger) warnedLosses(t *testing.T) (lines int) {
	t.Helper()
	found, _ := a.s.log.Find(logLost)
	for _, line := range found {
		n, err := json.Number(fmt.Sprint(line["lost_lines"])).Int64()
		if err != nil {
			t.Fatalf("%v: %v", line, err)
		}
		lines += int(n)
	}
	return lines
}

// wantOwnEntriesHidden checks that callers do not receive the entries that the log writes about itself.
func (a *ledger) wantOwnEntriesHidden(t *testing.T) {
	t.Helper()
	request := &parleyv1.ListInteractionsRequest{PageSize: 1000}
	reply, err := parleyv1.NewInteractionLogServiceClient(a.s.conn).ListInteractions(t.Context(), request)
	if err != nil || len(reply.GetInteractions()) == 0 || reply.GetSkippedCount() > 0 {
		t.Errorf("ListInteractions = %d entries, %d skipped, %v; want some, none skipped", len(reply.GetInteractions()),
			reply.GetSkippedCount(), err)
	}
	for _, i := range reply.GetInteractions() {
		if id := i.GetConversationId(); id != "a" && id != "b" {
			t.Errorf("ListInteractions returned %v, want only conversations a and b", i)
		}
	}
}

// smallLog returns a data directory whose log is on a file system of 1 MiB.
func smallLog(t *testing.T) (dataDir, dir string) {
	t.Helper()
	dataDir = t.TempDir()
	dir = filepath.Join(dataDir, "interactions")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountSmall(t, dir, "1m")
	return dataDir, dir
}

// mountSmall mounts a file system of a size on a directory until the end of the test.
func mountSmall(t *testing.T, dir, size string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("SKIPPED: only root can mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fillUp fills the file system of a directory. The function that it returns frees the space.
func fillUp(t *testing.T, dir string) (makeRoom func()) {
	t.Helper()
	path := filepath.Join(dir, "large")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{64 << 10, 1} {
		for err == nil {
			_, err = file.WriteString(strings.Repeat("x", size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	file.Close()
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
