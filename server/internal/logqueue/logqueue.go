// Package logqueue writes log entries to standard error without ever blocking the caller. Start at [New].
package logqueue

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// maxQueuedBytes is the capacity of the queue: some thousand entries.
	maxQueuedBytes = 1 << 20
	// maxWriteBytes is the maximum size of one write to standard error. A reader that needs longer
	// than stuckLimit for it counts as stuck.
	maxWriteBytes = 16 << 10
	// stuckLimit is how long Close waits for a stuck reader.
	stuckLimit = time.Second
)

// Queue queues the log entries of the process. Its own goroutine writes them to out, so that no
// other goroutine waits for the reader. An entry that finds the queue full is dropped and counted.
// After the next successful write, an entry reports how many were dropped. The count is of lines:
// an entry of slog is always one line.
type Queue struct {
	out     *lineWriter
	changed *sync.Cond    // of mu: entries are queued, or the queue is closed
	ended   chan struct{} // closed when run returns

	mu         sync.Mutex
	queued     []byte       // entries
	dropped    int          // entries dropped since the last report
	total      int64        // entries dropped since the start
	closed     bool         // run returns when the queue is empty
	writeStart time.Time    // start of the write to out that has not returned; zero if there is none
	handler    slog.Handler // writes the report of dropped entries to out
}

// New returns a queue that writes to out. The caller must close it. The handler that reports dropped
// entries receives ctx, whose end has no effect.
func New(ctx context.Context, out io.Writer) *Queue {
	lines := &lineWriter{out: out}
	q := &Queue{out: lines, ended: make(chan struct{}), handler: slog.NewJSONHandler(lines, nil)}
	q.changed = sync.NewCond(&q.mu)
	go q.run(ctx)
	return q
}

// Write queues one entry, or drops it if the queue is full. It never blocks or fails.
func (q *Queue) Write(entry []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queued)+len(entry) > maxQueuedBytes {
		q.dropped += countLines(entry)
		q.total += int64(countLines(entry))
		return len(entry), nil
	}
	q.queued = append(q.queued, entry...)
	q.changed.Signal()
	return len(entry), nil
}

// run writes the entries to out until the queue is closed and empty.
func (q *Queue) run(ctx context.Context) {
	defer close(q.ended)
	var batch []byte
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.queued) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.queued) == 0 {
			return
		}
		batch, q.queued = q.queued, batch[:0]
		dropped, handler := q.dropped, q.handler
		q.dropped = 0
		q.mu.Unlock()
		lost := q.writeBatch(batch)
		if lost > 0 || dropped > 0 && q.report(ctx, handler, dropped) != nil {
			dropped += lost
		} else {
			dropped = 0
		}
		q.mu.Lock()
		q.dropped += dropped
		q.total += int64(lost)
		q.writeStart = time.Time{}
	}
}

// State returns the number of entries that were dropped since the start, and the size of the queued ones.
func (q *Queue) State() (dropped int64, queuedBytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total, len(q.queued)
}

// writeBatch writes entries to out. If out fails, it returns the number of entries not written.
func (q *Queue) writeBatch(batch []byte) (lost int) {
	for len(batch) > 0 {
		part := batch[:min(len(batch), maxWriteBytes)]
		if end := bytes.LastIndexByte(part, '\n'); end >= 0 {
			part = part[:end+1]
		}
		q.startWrite()
		n, err := q.out.Write(part)
		batch = batch[n:]
		if err != nil {
			return countLines(batch)
		}
	}
	return 0
}

// report writes to out how many entries were dropped.
func (q *Queue) report(ctx context.Context, handler slog.Handler, dropped int) error {
	// The report ignores the level of the log: the dropped entries had passed it.
	entry := slog.NewRecord(time.Now(), slog.LevelWarn, "log entries dropped", 0)
	entry.AddAttrs(slog.Int("count", dropped))
	q.startWrite()
	return handler.Handle(ctx, entry)
}

// startWrite records that a write to out starts.
func (q *Queue) startWrite() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writeStart = time.Now()
}

// Logger returns a logger that writes entries of at least the level to the queue. The format is "text"
// or "json". If empty, it is text if out is a terminal, and JSON otherwise. The queue then reports
// dropped entries in this format.
func (q *Queue) Logger(format string, level slog.Leveler) *slog.Logger {
	handler := func(w io.Writer) slog.Handler {
		o := &slog.HandlerOptions{Level: level}
		if format == "text" || format == "" && q.isTerminal() {
			return slog.NewTextHandler(w, o)
		}
		return slog.NewJSONHandler(w, o)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler = handler(q.out)
	return slog.New(handler(q))
}

// isTerminal reports whether out is a terminal.
func (q *Queue) isTerminal() bool {
	file, isFile := q.out.out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// Close returns when all queued entries are written, when one write has taken stuckLimit, or after
// limit. Entries that are not written before it returns are lost.
func (q *Queue) Close(limit time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.changed.Signal()
	q.mu.Unlock()
	deadline := time.Now().Add(limit)
	for {
		left := min(q.untilStuck(), time.Until(deadline))
		if left <= 0 {
			return
		}
		select {
		case <-q.ended:
			return
		case <-time.After(left):
		}
	}
}

// untilStuck returns how long the current write may still take before the reader counts as stuck.
func (q *Queue) untilStuck() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.writeStart.IsZero() {
		return stuckLimit
	}
	return stuckLimit - time.Since(q.writeStart)
}

// lineWriter writes lines to out. If a write fails within a line, for example because the disk is
// full, the next write starts a new line.
type lineWriter struct {
	out     io.Writer
	midLine bool // the last byte written to out is not the end of a line
	torn    bool // the rest of that line is lost
}

// Write writes p to out.
func (w *lineWriter) Write(p []byte) (n int, err error) {
	if w.torn {
		if _, err := w.out.Write([]byte("\n")); err != nil {
			return 0, err
		}
		w.midLine = false
	}
	n, err = w.out.Write(p)
	if n > 0 {
		w.midLine = p[n-1] != '\n'
	}
	w.torn = err != nil && w.midLine
	return n, err
}

func countLines(p []byte) int { return bytes.Count(p, []byte("\n")) }
