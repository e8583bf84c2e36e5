package main

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

// gatedLog is a log that takes no line before open is closed.
type gatedLog struct {
	open  chan struct{}
	lines []string
}

func (g *gatedLog) Write(line []byte) (int, error) {
	<-g.open
	g.lines = append(g.lines, string(line))
	return len(line), nil
}

// count is how many lines have these words.
func (g *gatedLog) count(words string) int {
	n := 0
	for _, line := range g.lines {
		if strings.Contains(line, words) {
			n++
		}
	}
	return n
}

// newGatedLog returns a changeLog that warns of more than 10 bytes, and what it writes to.
func newGatedLog(level slog.Level) (*changeLog, *gatedLog) {
	g := &gatedLog{open: make(chan struct{})}
	return newChangeLog(slog.New(slog.NewTextHandler(g, &slog.HandlerOptions{Level: level})), level, 10), g
}

func noStats(context.Context) (store.Stats, error) { return store.Stats{}, nil }

func created() []store.Change {
	return []store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_CREATED, ConversationID: "c"}}
}

// TestChangeLogNeverWaits: a log that takes no lines costs lines, and then says how many.
func TestChangeLogNeverWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		go l.write(t.Context(), noStats)
		l.Committed(created())
		synctest.Wait() // It is being written.
		for range maxLines + 10 {
			l.Committed(created())
		}
		close(g.open)
		<-time.After(2 * countsEvery)
		synctest.Wait()
		if n := g.count("conversation created"); n != 1+maxLines {
			t.Errorf("%d lines, want %d", n, 1+maxLines)
		}
		if g.count("changes are missing") != 1 || g.count("count=10") != 1 {
			t.Errorf("not told once that 10 are missing: %s", g.lines[len(g.lines)-1])
		}
		l.Close()
	})
}

func TestChangeLogClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		go l.write(t.Context(), noStats)
		l.Committed(created())
		for range maxLines + 10 {
			l.Committed(created())
		}
		begun := time.Now()
		l.Close()
		if took := time.Since(begun); took != lastLines {
			t.Errorf("with a log that takes no lines it takes %v", took)
		}
		close(g.open)
		<-l.closed
		if n := g.count("conversation created"); n < maxLines || g.count("changes are missing") != 1 {
			t.Errorf("%d lines, the last is %s", n, g.lines[len(g.lines)-1])
		}

		l, g = newGatedLog(slog.LevelInfo)
		close(g.open)
		go l.write(t.Context(), noStats)
		for range 100 {
			l.Committed(created())
		}
		l.Close()
		if len(g.lines) != 100 {
			t.Errorf("%d lines are written before the end, want 100", len(g.lines))
		}
	})
}

// TestChangeLogLevels: lines that nobody wants take no room.
func TestChangeLogLevels(t *testing.T) {
	t.Parallel()
	const (
		appended = parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED
		evicted  = parleyv1.ChangeKind_CHANGE_KIND_EVICTED
	)
	changes := append(created(), store.Change{Kind: appended}, store.Change{Kind: appended, Trimmed: 1}, store.Change{Kind: evicted})
	for level, want := range map[slog.Level]int{slog.LevelDebug: 4, slog.LevelInfo: 3, slog.LevelWarn: 1, slog.LevelError: 0} {
		l, _ := newGatedLog(level)
		l.Committed(changes)
		if len(l.lines) != want {
			t.Errorf("%v: %d lines are queued, want %d", level, len(l.lines), want)
		}
	}
}

// TestChangeLogPace: however many changes there are, reports come once a second, and
// warnings once a minute.
func TestChangeLogPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, g := newGatedLog(slog.LevelInfo)
		close(g.open)
		var bytes int64
		go l.write(t.Context(), func(context.Context) (store.Stats, error) {
			bytes += 100
			return store.Stats{Bytes: bytes}, nil
		})
		for range 1205 { // 120.5 seconds
			l.Committed(created())
			<-time.After(100 * time.Millisecond)
		}
		l.Close()
		if kept, warned := g.count("conversations kept"), g.count("much memory"); kept < 100 || kept > 121 || warned < 2 || warned > 3 {
			t.Errorf("%d reports and %d warnings in two minutes", kept, warned)
		}
	})
}
