package app

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// gatedLog is a log whose writes block until open is closed.
type gatedLog struct {
	open  chan struct{}
	lines []string
}

func (g *gatedLog) Write(line []byte) (int, error) {
	<-g.open
	g.lines = append(g.lines, string(line))
	return len(line), nil
}

// count returns how many lines contain text.
func (g *gatedLog) count(text string) int {
	n := 0
	for _, line := range g.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// newGatedLog returns a changeLog that warns above 10 bytes, and the log that it writes to.
func newGatedLog(level slog.Level) (*changeLog, *gatedLog) {
	g := &gatedLog{open: make(chan struct{})}
	return newChangeLog(slog.New(slog.NewTextHandler(g, &slog.HandlerOptions{Level: level})), level, 10), g
}

func noStats(context.Context) (store.Stats, error) { return store.Stats{}, nil }

func created() []store.Change {
	return []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: "c"}}
}

// TestChangeLogNeverBlocks checks that entries are dropped while the log is blocked, and that their
// number is logged afterwards.
func TestChangeLogNeverBlocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		go l.run(t.Context(), noStats)
		l.Committed(created())
		synctest.Wait() // The first entry has left the queue; its write blocks.
		for range maxQueuedEntries + 10 {
			l.Committed(created())
		}
		close(g.open)
		<-time.After(2 * reportInterval)
		synctest.Wait()
		if n := g.count("conversation created"); n != 1+maxQueuedEntries {
			t.Errorf("entries logged = %d, want %d", n, 1+maxQueuedEntries)
		}
		if g.count("changes not logged") != 1 || g.count("count=10") != 1 {
			t.Errorf("last line = %q, want one report of 10 dropped entries", g.lines[len(g.lines)-1])
		}
		if total := l.total.Load(); total != 10 {
			t.Errorf("%d entries dropped since the start, want 10", total)
		}
		l.Close()
	})
}

func TestChangeLogClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		go l.run(t.Context(), noStats)
		l.Committed(created())
		for range maxQueuedEntries + 10 {
			l.Committed(created())
		}
		start := time.Now()
		l.Close()
		if took := time.Since(start); took != changeLogDrainTime {
			t.Errorf("Close() with a blocked log took %v, want %v", took, changeLogDrainTime)
		}
		close(g.open)
		<-l.closed
		if n := g.count("conversation created"); n < maxQueuedEntries || g.count("changes not logged") != 1 {
			t.Errorf("entries logged = %d, last line %q; want %d or more and a report of dropped entries",
				n, g.lines[len(g.lines)-1], maxQueuedEntries)
		}

		l, g = newGatedLog(slog.LevelInfo)
		close(g.open)
		go l.run(t.Context(), noStats)
		for range 100 {
			l.Committed(created())
		}
		l.Close()
		if len(g.lines) != 100 {
			t.Errorf("entries logged when Close() returned = %d, want 100", len(g.lines))
		}
	})
}

// TestChangeLogLevels checks that changes below the level of the log are not queued.
func TestChangeLogLevels(t *testing.T) {
	t.Parallel()
	const (
		appended = parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED
		evicted  = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
	)
	changes := append(created(), store.Change{Kind: appended}, store.Change{Kind: appended, Trimmed: 1},
		store.Change{Kind: evicted})
	for level, want := range map[slog.Level]int{slog.LevelDebug: 4, slog.LevelInfo: 2, slog.LevelWarn: 1, slog.LevelError: 0} {
		l, _ := newGatedLog(level)
		l.Committed(changes)
		if len(l.queue) != want {
			t.Errorf("entries queued at level %v = %d, want %d", level, len(l.queue), want)
		}
	}
}

// TestChangeLogRate checks that many changes cause at most one report a second and one warning a
// minute.
func TestChangeLogRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		close(g.open)
		var bytes int64
		go l.run(t.Context(), func(context.Context) (store.Stats, error) {
			bytes += 100
			return store.Stats{Bytes: bytes}, nil
		})
		for range 1205 { // 120.5 seconds
			l.Committed(created())
			<-time.After(100 * time.Millisecond)
		}
		l.Close()
		if reports, warnings := g.count("conversations stored"), g.count("--memory-warning-bytes"); reports < 100 ||
			reports > 121 || warnings < 2 || warnings > 3 {
			t.Errorf("two minutes = %d reports and %d warnings, want 100 to 121 and 2 or 3", reports, warnings)
		}
	})
}
