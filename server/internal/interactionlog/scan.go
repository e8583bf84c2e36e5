package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync"

	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

const (
	// chunkBytes is the number of bytes of a file that are processed at a time. They fit in the
	// processor's cache.
	chunkBytes = 256 << 10
	// tailBytes is the number of bytes that are read after a chunk, for the end of its last line. A
	// line that is longer is read separately.
	tailBytes = 64 << 10
	// maxScanners is the maximum number of goroutines of a query. Each of them uses two chunks.
	maxScanners = 4
)

// rawLine is a line of a file.
type rawLine struct {
	// from and next are the offsets in the file where this line and the next one begin.
	from, next int64
	// text has no line break and no byte order mark, and no white space around it. It is valid until
	// the next line is read.
	text []byte
	// long is true if text is missing and must be read with readLine.
	long bool
	// open is true for a last line without a line break.
	open bool
}

// section is a part of a file to scan: the lines that begin from first to before end, in either
// direction, without those that the filter rejects.
type section struct {
	file       io.ReaderAt
	size       int64 // of the file
	first, end int64
	backward   bool
	// filter is called concurrently. If nil, all lines are selected.
	filter func(text []byte) bool
}

// chunk has the selected lines that begin in one chunk of a file. The bounds of chunks depend only on
// chunkBytes, so that each chunk can be read independently.
type chunk struct {
	buffer [1 + chunkBytes + tailBytes]byte // the first byte belongs to the previous chunk
	lines  []rawLine
	err    error
}

// read fills c with the lines of a chunk, given by its number in the file.
func (c *chunk) read(s *section, number int64) {
	c.lines, c.err = c.lines[:0], nil
	start := number * chunkBytes
	from := max(start-1, 0)
	n, err := s.file.ReadAt(c.buffer[:min(int64(len(c.buffer)), s.size-from)], from)
	size := s.size
	if errors.Is(err, io.EOF) {
		size = from + int64(n) // The file was truncated in the meantime.
	} else if err != nil {
		c.err = err
		return
	}
	data, at := c.buffer[:n], 0
	if start > 0 {
		at = 1 + bytes.IndexByte(data[:min(n, chunkBytes)], '\n')
		if at == 0 {
			return // All of it belongs to a line that begins in an earlier chunk.
		}
	}
	end := min(start+chunkBytes, s.end)
	for from+int64(at) < min(end, size) {
		line := rawLine{from: from + int64(at)}
		length := bytes.IndexByte(data[at:], '\n')
		switch {
		case length >= 0:
			line.text = data[at : at+length]
			at += length + 1
		case from+int64(n) == size:
			line.text, line.open = data[at:], true
			at = n
		default:
			line.long = true
			at = n // readLine finds the end.
		}
		line.next = from + int64(at)
		if line.from < s.first {
			continue
		}
		line.text = trim(line.text, line.from)
		if line.long || len(line.text) > 0 && (s.filter == nil || s.filter(line.text)) {
			c.lines = append(c.lines, line)
		}
	}
}

// trim removes white space around a line, and the byte order mark at the beginning of a file.
func trim(text []byte, from int64) []byte {
	if from == 0 {
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	}
	if n := len(text); n > 0 && text[0] == '{' && text[n-1] == '}' {
		return text
	}
	return bytes.Trim(text, " \t\r")
}

// errChanged reports that no line begins at an offset where one did.
var errChanged = errors.New("file changed while it was read")

// readLine reads the line that begins at an offset, into a buffer that it extends as needed. If the line
// is longer than MaxBytes, the result has no text and is long. Errors: errChanged.
func readLine(file io.ReaderAt, size, start int64, buffer *[]byte) (rawLine, error) {
	from := max(start-1, 0) // Includes the previous line break.
	line := rawLine{from: start, next: size}
	if start >= size {
		return line, errChanged
	}
	for length := int64(4 << 10); ; length *= 4 {
		length = min(length, 1+entry.MaxBytes+1, size-from)
		if int64(len(*buffer)) < length {
			*buffer = make([]byte, length)
		}
		n, err := file.ReadAt((*buffer)[:length], from)
		if errors.Is(err, io.EOF) {
			size = from + int64(n) // The file was truncated in the meantime.
		} else if err != nil {
			return line, err
		}
		if size <= start || from < start && (*buffer)[0] != '\n' {
			return line, errChanged
		}
		text := (*buffer)[start-from : n]
		end := bytes.IndexByte(text, '\n')
		switch {
		case end > entry.MaxBytes, end < 0 && len(text) > entry.MaxBytes:
			line.long = true
			return line, nil
		case end >= 0:
			text, line.next = text[:end], start+int64(end)+1
		case from+int64(n) == size:
			line.next, line.open = size, true
		default:
			continue
		}
		line.text = trim(text, start)
		return line, nil
	}
}

// scanShortLines yields the selected lines of a section, in its direction. If parallel, other goroutines
// read ahead until the loop ends. An error is the last value that it yields.
func (r *reader) scanShortLines(ctx context.Context, s *section, parallel bool) iter.Seq2[rawLine, error] {
	return func(yield func(rawLine, error) bool) {
		for c := range r.chunks(ctx, s, parallel) {
			for i := range c.lines {
				line := &c.lines[i]
				if s.backward {
					line = &c.lines[len(c.lines)-1-i]
				}
				if !yield(*line, nil) {
					return
				}
			}
			if c.err != nil {
				yield(rawLine{}, c.err)
				return
			}
		}
	}
}

// chunks yields the chunks of a section, in its direction. A chunk is valid until the next one.
func (r *reader) chunks(ctx context.Context, s *section, parallel bool) iter.Seq[*chunk] {
	s.end = min(s.end, s.size)
	if s.first >= s.end {
		return func(func(*chunk) bool) {}
	}
	first, last := s.first/chunkBytes, (s.end-1)/chunkBytes
	count := last - first + 1
	number := func(i int64) int64 {
		if s.backward {
			return last - i
		}
		return first + i
	}
	if scanners := min(int64(runtime.GOMAXPROCS(0)), maxScanners, count); parallel && scanners > 1 {
		return r.readAhead(ctx, s, scanners, count, number)
	}
	return func(yield func(*chunk) bool) {
		c := r.chunk()
		defer r.pool.Put(c)
		for i := range count {
			if c.err = ctx.Err(); c.err == nil {
				c.read(s, number(i))
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
func (r *reader) readAhead(
	ctx context.Context, s *section, scanners, count int64, number func(int64) int64,
) iter.Seq[*chunk] {
	return func(yield func(*chunk) bool) {
		var running sync.WaitGroup
		within, stop := context.WithCancel(ctx)
		lanes := make([]scanWorker, scanners)
		all := make([]*chunk, 0, 2*scanners)
		defer func() {
			stop()
			running.Wait()
			for _, c := range all {
				r.pool.Put(c)
			}
		}()
		for w := range scanners {
			l := scanWorker{ready: make(chan *chunk, 2), free: make(chan *chunk, 2)}
			for range cap(l.free) {
				c := r.chunk()
				all = append(all, c)
				l.free <- c
			}
			lanes[w] = l
			running.Go(func() {
				for i := w; i < count; i += scanners {
					select {
					case <-within.Done():
						return
					case c := <-l.free:
						c.read(s, number(i))
						l.ready <- c // This does not block: its capacity is that of l.free.
					}
				}
			})
		}
		for i := range count {
			l := lanes[i%scanners]
			select {
			case <-ctx.Done():
				yield(&chunk{err: ctx.Err()})
				return
			case c := <-l.ready:
				if !yield(c) {
					return
				}
				l.free <- c
			}
		}
	}
}

// chunk returns a chunk from the pool. The caller puts it back.
func (r *reader) chunk() *chunk {
	if c, ok := r.pool.Get().(*chunk); ok {
		return c
	}
	return new(chunk)
}
