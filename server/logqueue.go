package main

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
	// maxQueuedLog is the maximum of bytes that wait for standard error: some thousand entries.
	maxQueuedLog = 1 << 20
	// maxLogPiece is how many bytes one write passes on. A reader that takes fewer within
	// flushLimit counts as stuck.
	maxLogPiece = 16 << 10
	// flushLimit is how long the end of the process waits for a reader that takes nothing,
	// flushTotal for one that is slow. A stop has that much time left when running turns have
	// used their grace and streams their lastWords.
	flushLimit = time.Second
	flushTotal = stopMargin - lastWords - closing
)

// logQueue is what the process writes its log to. A goroutine of its own passes the entries
// on to out, so that no other goroutine waits for the reader. An entry that finds
// the queue full is dropped and counted. When out takes entries again, an entry says how
// many are missing. Lines are counted: an entry of slog is always one.
type logQueue struct {
	out   *lineWriter
	more  *sync.Cond    // of mu: entries wait, or the queue is closed
	ended chan struct{} // closed when run has returned

	mu      sync.Mutex
	waiting []byte       // entries
	dropped int          // entries since the last one that said so
	closed  bool         // run returns when nothing waits
	writing time.Time    // when the write to out began that has not returned; zero: there is none
	handler slog.Handler // writes to out that entries are missing
}

// newLogQueue returns a queue in front of out. Close must be called.
func newLogQueue(out io.Writer) *logQueue {
	lines := &lineWriter{out: out}
	q := &logQueue{out: lines, ended: make(chan struct{}), handler: slog.NewJSONHandler(lines, nil)}
	q.more = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// Write queues one entry or drops it. It neither waits nor fails.
func (q *logQueue) Write(entry []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting)+len(entry) > maxQueuedLog {
		q.dropped += countLines(entry)
		return len(entry), nil
	}
	q.waiting = append(q.waiting, entry...)
	q.more.Signal()
	return len(entry), nil
}

// run writes the entries to out until the queue is closed and empty.
func (q *logQueue) run() {
	defer close(q.ended)
	var batch []byte
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.waiting) == 0 && !q.closed {
			q.more.Wait()
		}
		if len(q.waiting) == 0 {
			return
		}
		batch, q.waiting = q.waiting, batch[:0]
		missing, handler := q.dropped, q.handler
		q.dropped = 0
		q.mu.Unlock()
		if lost := q.pass(batch); lost > 0 || missing > 0 && q.report(handler, missing) != nil {
			missing += lost
		} else {
			missing = 0
		}
		q.mu.Lock()
		q.dropped += missing
		q.writing = time.Time{}
	}
}

// pass writes entries to out. It returns how many of them out did not take, because it failed.
func (q *logQueue) pass(batch []byte) (lost int) {
	for len(batch) > 0 {
		piece := batch[:min(len(batch), maxLogPiece)]
		if end := bytes.LastIndexByte(piece, '\n'); end >= 0 {
			piece = piece[:end+1]
		}
		q.beginWrite()
		n, err := q.out.Write(piece)
		batch = batch[n:]
		if err != nil {
			return countLines(batch)
		}
	}
	return 0
}

// report writes to out that entries are missing.
func (q *logQueue) report(handler slog.Handler, missing int) error {
	// Whatever the level of the log is: the entries that are missing were wanted.
	entry := slog.NewRecord(time.Now(), slog.LevelWarn, "log entries dropped", 0)
	entry.AddAttrs(slog.Int("count", missing))
	q.beginWrite()
	return handler.Handle(context.Background(), entry)
}

// beginWrite notes that a write to out begins.
func (q *logQueue) beginWrite() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = time.Now()
}

// reportWith has the handler, which writes to out, say how many entries are missing.
func (q *logQueue) reportWith(handler slog.Handler) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler = handler
}

// isTerminal reports whether out is a terminal.
func (q *logQueue) isTerminal() bool {
	file, isFile := q.out.out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// close returns when the entries that wait have been written, when a write of maxLogPiece has
// taken flushLimit, or after flushTotal. What is not written then is lost.
func (q *logQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	latest := time.Now().Add(flushTotal)
	for {
		left := min(q.untilStuck(), time.Until(latest))
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

// untilStuck returns when out will have taken nothing for flushLimit.
func (q *logQueue) untilStuck() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.writing.IsZero() {
		return flushLimit
	}
	return flushLimit - time.Since(q.writing)
}

// lineWriter writes lines to out. After a write that failed within a line, as on a full disk,
// the next write begins a new line.
type lineWriter struct {
	out    io.Writer
	within bool // the last byte that out took is not the end of a line
	torn   bool // the rest of that line is lost
}

// Write writes p.
func (w *lineWriter) Write(p []byte) (n int, err error) {
	if w.torn {
		if _, err := w.out.Write([]byte("\n")); err != nil {
			return 0, err
		}
		w.within = false
	}
	n, err = w.out.Write(p)
	if n > 0 {
		w.within = p[n-1] != '\n'
	}
	w.torn = err != nil && w.within
	return n, err
}

func countLines(p []byte) int { return bytes.Count(p, []byte("\n")) }
