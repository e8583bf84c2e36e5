package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// maxQueuedLog is how many bytes of entries wait for standard error: some thousand entries.
	maxQueuedLog = 1 << 20
	// flushLimit is how long the end of the process waits for standard error.
	flushLimit = time.Second
)

// logQueue is what the process writes its log to. A goroutine of its own passes the entries
// on to out, so that no other goroutine waits for whoever reads them. An entry that finds
// the queue full is dropped and counted. When out takes entries again, an entry says how
// many are missing.
type logQueue struct {
	out   io.Writer
	more  *sync.Cond    // of mu: entries wait, or the queue is closed
	ended chan struct{} // closed when run has returned

	mu      sync.Mutex
	waiting []byte       // entries, one Write each
	count   int          // of them
	dropped int          // entries since the last one that said so
	closed  bool         // run returns when nothing waits
	writing time.Time    // when run passed to out what it still writes; zero: it writes nothing
	handler slog.Handler // writes to out that entries are missing
}

// newLogQueue returns a queue in front of out. Close must be called.
func newLogQueue(out io.Writer) *logQueue {
	q := &logQueue{out: out, ended: make(chan struct{}), handler: slog.NewJSONHandler(out, nil)}
	q.more = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// Write queues one entry, or drops it. It neither waits nor fails.
func (q *logQueue) Write(entry []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting)+len(entry) > maxQueuedLog {
		q.dropped++
		return len(entry), nil
	}
	q.waiting = append(q.waiting, entry...)
	q.count++
	q.more.Signal()
	return len(entry), nil
}

// run passes the entries on until the queue is closed and empty.
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
		count, dropped, handler := q.count, q.dropped, q.handler
		q.count, q.dropped = 0, 0
		q.writing = time.Now()
		q.mu.Unlock()
		missing := pass(q.out, handler, batch, count, dropped)
		q.mu.Lock()
		q.dropped += missing
		q.writing = time.Time{}
	}
}

// pass writes a batch of entries to out, and how many were dropped after them. It returns how
// many entries are missing that no entry has counted.
func pass(out io.Writer, handler slog.Handler, batch []byte, count, dropped int) (missing int) {
	if _, err := out.Write(batch); err != nil {
		return count + dropped
	}
	if dropped == 0 {
		return 0
	}
	// Whatever the level of the log is: the entries that are missing were wanted.
	entry := slog.NewRecord(time.Now(), slog.LevelWarn, "log entries dropped", 0)
	entry.AddAttrs(slog.Int("count", dropped))
	if handler.Handle(context.Background(), entry) != nil {
		return dropped
	}
	return 0
}

// reportWith has the handler, which writes to out, say how many entries are missing.
func (q *logQueue) reportWith(handler slog.Handler) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handler = handler
}

// isTerminal reports whether a person reads the log as it is written.
func (q *logQueue) isTerminal() bool {
	file, isFile := q.out.(*os.File)
	return isFile && term.IsTerminal(int(file.Fd()))
}

// close returns when the entries that wait have been written, or when out has taken nothing
// for flushLimit. What is written after it is lost.
func (q *logQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	left := flushLimit
	if !q.writing.IsZero() {
		left -= time.Since(q.writing)
	}
	q.mu.Unlock()
	select {
	case <-q.ended:
	case <-time.After(left):
	}
}
