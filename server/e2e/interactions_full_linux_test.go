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

// What the server says when the log fails, and when it no longer does.
const (
	logLost    = "interaction log lost entries; writing is retried automatically"
	logResumed = "interaction log resumed"
)

// warnApart is the least time between two warnings, a little less than the minute that is
// promised: the log takes the time of a line when it writes that.
const warnApart = 59 * time.Second

// TestInteractionsFull: the log has a small file system of its own, which is full for a while.
func TestInteractionsFull(t *testing.T) {
	t.Parallel()
	const enough = 200
	dataDir, dir := smallLog(t)
	a := &accounted{s: startServer(t, dataDir, keepsAll)}
	before := a.append(t, enough)
	a.chat(t)
	if lost := a.wantAccounted(t, dir); lost != 0 {
		t.Errorf("%d lines are lost ahead of time", lost)
	}

	makeRoom := fillUp(t, dir)
	full := a.append(t, enough)
	t.Logf("%d appends took %s, and %s while the disk of the log was full: %.2f times as long", enough, before, full, full.Seconds()/before.Seconds())
	a.s.await(t, logLost, "level=WARN")
	for range 3 {
		a.append(t, 1)
		a.chat(t)
		a.awaitCount(t, dir) // The log looks for room before it counts, and may warn after it has.
	}
	a.wantWarnedSeldom(t)

	makeRoom()
	a.s.await(t, logResumed, "level=INFO") // without another message
	lost := a.wantAccounted(t, dir)
	if lost < enough/2 {
		t.Errorf("the log tells of %d lines that are lost", lost)
	}
	a.append(t, enough)
	a.chat(t)
	if got := a.wantAccounted(t, dir); got != lost {
		t.Errorf("the log tells of %d lines that are lost, it was %d when there was room again", got, lost)
	}
	a.wantOwnLinesHidden(t)
	stats, err := a.s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil || stats.GetLostInteractionTotal() != int64(lost) {
		t.Errorf("GetStats tells of %d lines that are lost, want %d: %v", stats.GetLostInteractionTotal(), lost, err)
	}
	a.s.terminate()
	a.s.wantStop(t)
	if warned := a.warnedOf(t); warned != lost {
		t.Errorf("operators were warned of %d lines that are lost, want %d", warned, lost)
	}
}

// TestInteractionsFullKilled: a crash while the disk of the log is full. What the log lacked
// then comes with the next start, or is counted if there is still no room.
func TestInteractionsFullKilled(t *testing.T) {
	t.Parallel()
	for name, roomFirst := range map[string]bool{"room before the next start": true, "room after it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dataDir, dir := smallLog(t)
			a := &accounted{s: startServer(t, dataDir, keepsAll)}
			a.append(t, 30)
			makeRoom := fillUp(t, dir)
			a.append(t, 50)
			a.awaitCount(t, dir)
			a.append(t, 10)
			missing := a.missing(t, dir)
			a.s.kill()
			if roomFirst {
				makeRoom()
				missing = 0
			}
			a.s = startServer(t, dataDir, keepsAll)
			if !roomFirst {
				a.append(t, 10)
				a.chat(t)
				missing = a.missing(t, dir)
				a.s.await(t, logLost)
				makeRoom()
				a.s.await(t, logResumed)
			}
			a.append(t, 10)
			if lost := a.wantAccounted(t, dir); lost != missing {
				t.Errorf("the log tells of %d lines that are lost, want %d", lost, missing)
			}
		})
	}
}

// accounted is a server to which one client talks, and all that was said in that order.
type accounted struct {
	s    *server
	said []saying
}

// append appends so many messages, and returns how long that took. Their lines are shorter than
// the one by which the log tells of others: where those have no room this has none.
func (a *accounted) append(t *testing.T, messages int) time.Duration {
	t.Helper()
	start := time.Now()
	for range messages {
		content := fmt.Sprint(len(a.said))
		add(t, a.s, "a", &parleyv1.Message{Content: content})
		a.said = append(a.said, saying{"a", "user", content})
	}
	return time.Since(start)
}

// chat has a turn completed.
func (a *accounted) chat(t *testing.T) {
	t.Helper()
	content := fmt.Sprint(len(a.said))
	if answer := say(t, a.s, "b", content); answer != content {
		t.Errorf("the answer to %q is %q", content, answer)
	}
	a.said = append(a.said, saying{"b", "user", content}, saying{"b", "assistant", content})
}

// account goes through the files of some directories, of which each goes on where the one
// before ends. It returns how many messages they account for, and how many of those as lost.
func (a *accounted) account(t *testing.T, dirs ...string) (next, lost int) {
	t.Helper()
	for _, dir := range dirs {
		files := interactionFiles{dir: dir, ends: make(map[string]int64)}
		for _, line := range files.next(t) {
			if line.Tenant == "*" {
				next, lost = next+line.Metadata.LostLines, lost+line.Metadata.LostLines
				continue
			}
			if got := (saying{line.SessionID, line.Role, line.Content}); next >= len(a.said) || got != a.said[next] {
				t.Fatalf("where message %d should be the log has %v", next, got)
			}
			next++
		}
		if files.broken > 0 {
			t.Errorf("%s has %d broken lines", dir, files.broken)
		}
	}
	return next, lost
}

// wantAccounted checks that each message is in its place in the log, or among those that it
// says there are lost, and returns how many those are.
func (a *accounted) wantAccounted(t *testing.T, dirs ...string) (lost int) {
	t.Helper()
	next, lost := a.account(t, dirs...)
	if next != len(a.said) {
		t.Fatalf("the log accounts for %d messages of %d", next, len(a.said))
	}
	return lost
}

// missing is how many messages are neither in the log nor among those that it says are lost.
func (a *accounted) missing(t *testing.T, dir string) int {
	t.Helper()
	next, _ := a.account(t, dir)
	return len(a.said) - next
}

// awaitCount returns when the log has taken note of all that it lost. That has no event.
func (a *accounted) awaitCount(t *testing.T, dir string) {
	t.Helper()
	waitForText(t, filepath.Join(dir, "checkpoint.json"), fmt.Sprintf(`"lost_lines":%d,`, a.missing(t, dir)))
}

// wantWarnedSeldom checks that between two warnings there is a minute.
func (a *accounted) wantWarnedSeldom(t *testing.T) {
	t.Helper()
	var last time.Time
	found, _ := a.s.log.find(logLost)
	for _, line := range found {
		at, err := time.Parse(time.RFC3339, fmt.Sprint(line["time"]))
		if err != nil {
			t.Fatal(err)
		}
		if apart := at.Sub(last); apart < warnApart {
			t.Errorf("two warnings are %s apart", apart)
		}
		last = at
	}
}

// warnedOf is how many lines all warnings tell of.
func (a *accounted) warnedOf(t *testing.T) (lines int) {
	t.Helper()
	found, _ := a.s.log.find(logLost)
	for _, line := range found {
		n, err := json.Number(fmt.Sprint(line["lost_lines"])).Int64()
		if err != nil {
			t.Fatalf("%v: %v", line, err)
		}
		lines += int(n)
	}
	return lines
}

// wantOwnLinesHidden checks that no caller is given what the log says about itself.
func (a *accounted) wantOwnLinesHidden(t *testing.T) {
	t.Helper()
	request := &parleyv1.ListInteractionsRequest{PageSize: 1000}
	reply, err := parleyv1.NewInteractionLogServiceClient(a.s.conn).ListInteractions(t.Context(), request)
	if err != nil || len(reply.GetInteractions()) == 0 || reply.GetSkippedCount() > 0 {
		t.Errorf("listed are %d, %d were skipped, %v", len(reply.GetInteractions()), reply.GetSkippedCount(), err)
	}
	for _, i := range reply.GetInteractions() {
		if id := i.GetConversationId(); id != "a" && id != "b" {
			t.Errorf("listed is %v", i)
		}
	}
}

// smallLog is a data directory with a file system of 1 MiB for the log.
func smallLog(t *testing.T) (dataDir, dir string) {
	t.Helper()
	dataDir = t.TempDir()
	dir = filepath.Join(dataDir, "interactions")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("only root can mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dataDir, dir
}

// fillUp leaves no room in the file system of a directory, and returns what makes some.
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
