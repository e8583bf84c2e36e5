// Package scan reads the lines of a file of the interaction log, in either direction and on several processors. It
// owns the handling of lines that are too long or incomplete, and of files that change while they are read. Start at
// [Scanner].
package scan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync"
)

// maxScanners is the maximum number of goroutines of a query. Each of them uses two chunks.
const maxScanners = 4

// Section is a part of a file to scan: the lines that begin from First to before End, in either
// direction, without those that Filter rejects.
type Section struct {
	File       io.ReaderAt
	Size       int64 // of the file
	First, End int64
	Backward   bool
	// Filter is called concurrently. If nil, all lines are selected.
	Filter func(text []byte) bool
}

// Scanner scans files. It reuses the memory of chunks. The zero value is ready for use. It is safe for concurrent
// use.
type Scanner struct {
	pool sync.Pool // of *chunk
}

// Lines yields the selected lines of a section, in its direction. If parallel, other goroutines read ahead until
// the loop ends. Lines that are still marked as long are longer than entry.MaxBytes. An error is the last value
// that it yields.
func (s *Scanner) Lines(ctx context.Context, section *Section, parallel bool) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		var buffer []byte
		for raw, err := range s.shortLines(ctx, section, parallel) {
			if err == nil && raw.Long {
				raw, err = ReadLine(section.File, section.Size, raw.From, &buffer)
				rejected := err == nil && !raw.Long && section.Filter != nil && !section.Filter(raw.Text)
				if rejected || errors.Is(err, ErrChanged) {
					continue
				}
			}
			if !yield(raw, err) || err != nil {
				return
			}
		}
	}
}

// shortLines is Lines without the text of lines that do not end in their chunk or its tail.
func (s *Scanner) shortLines(ctx context.Context, section *Section, parallel bool) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		for c := range s.chunks(ctx, section, parallel) {
			for i := range c.lines {
				line := &c.lines[i]
				if section.Backward {
					line = &c.lines[len(c.lines)-1-i]
				}
				if !yield(*line, nil) {
					return
				}
			}
			if c.err != nil {
				yield(Line{}, c.err)
				return
			}
		}
	}
}

// chunks yields the chunks of a section, in its direction. A chunk is valid until the next one.
func (s *Scanner) chunks(ctx context.Context, section *Section, parallel bool) iter.Seq[*chunk] {
	section.End = min(section.End, section.Size)
	if section.First >= section.End {
		return func(func(*chunk) bool) {}
	}
	first, last := section.First/ChunkBytes, (section.End-1)/ChunkBytes
	count := last - first + 1
	number := func(i int64) int64 {
		if section.Backward {
			return last - i
		}
		return first + i
	}
	if scanners := min(int64(runtime.GOMAXPROCS(0)), maxScanners, count); parallel && scanners > 1 {
		return s.readAhead(ctx, section, scanners, count, number)
	}
	return func(yield func(*chunk) bool) {
		c := s.chunk()
		defer s.pool.Put(c)
		for i := range count {
			if c.err = ctx.Err(); c.err == nil {
				c.read(section, number(i))
			} else {
				c.lines = nil
			}
			if !yield(c) || c.err != nil {
				return
			}
		}
	}
}

// scanWorker is a goroutine that reads every n-th chunk, of n workers.
type scanWorker struct{ ready, free chan *chunk }

// readAhead yields chunks that goroutines read. Each goroutine reads at most two chunks ahead.
func (s *Scanner) readAhead(
	ctx context.Context, section *Section, scanners, count int64, number func(int64) int64,
) iter.Seq[*chunk] {
	return func(yield func(*chunk) bool) {
		var running sync.WaitGroup
		within, stop := context.WithCancel(ctx)
		workers := make([]scanWorker, scanners)
		all := make([]*chunk, 0, 2*scanners)
		defer func() {
			stop()
			running.Wait()
			for _, c := range all {
				s.pool.Put(c)
			}
		}()
		for w := range scanners {
			worker := scanWorker{ready: make(chan *chunk, 2), free: make(chan *chunk, 2)}
			for range cap(worker.free) {
				c := s.chunk()
				all = append(all, c)
				worker.free <- c
			}
			workers[w] = worker
			running.Go(func() {
				for i := w; i < count; i += scanners {
					select {
					case <-within.Done():
						return
					case c := <-worker.free:
						c.read(section, number(i))
						worker.ready <- c // This does not block: its capacity is that of worker.free.
					}
				}
			})
		}
		for i := range count {
			worker := workers[i%scanners]
			select {
			case <-ctx.Done():
				yield(&chunk{err: ctx.Err()})
				return
			case c := <-worker.ready:
				if !yield(c) {
					return
				}
				worker.free <- c
			}
		}
	}
}

// CountBreaks returns the number of line breaks in a file between two offsets. It returns io.EOF if the file is
// shorter.
func (s *Scanner) CountBreaks(ctx context.Context, file io.ReaderAt, from, to int64) (count int, err error) {
	c := s.chunk()
	defer s.pool.Put(c)
	for from < to {
		n, err := file.ReadAt(c.buffer[:min(int64(len(c.buffer)), to-from)], from)
		if err != nil {
			return 0, err
		}
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		count, from = count+bytes.Count(c.buffer[:n], []byte{'\n'}), from+int64(n)
	}
	return count, nil
}

// chunk returns a chunk from the pool. The caller puts it back.
func (s *Scanner) chunk() *chunk {
	if c, ok := s.pool.Get().(*chunk); ok {
		return c
	}
	return new(chunk)
}
