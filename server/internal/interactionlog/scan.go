package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"runtime"
	"sync"
)

const (
	// chunkBytes is how much of a file is taken at a time: it stays in the processor's
	// cache from the read to the last look at it.
	chunkBytes = 256 << 10
	// tailBytes are read behind a chunk for the end of its last line. A line that is longer
	// is read alone.
	tailBytes = 64 << 10
	// maxLineBytes is the maximum length of an entry without its line break. The encoder writes no
	// longer entry, and readers skip one. A message has at most 3 MiB, and JSON escapes a byte as
	// at most six. The remaining bytes are for the keys and for redacted metadata.
	maxLineBytes = 20 << 20
	// maxScanners bounds the goroutines of a query, each of which holds two chunks.
	maxScanners = 4
)

// rawLine is a line of a file.
type rawLine struct {
	// from and next are where it and the line after it start in the file.
	from, next int64
	// text is without line break, byte order mark and white space around. It is good until
	// the next line is asked for.
	text []byte
	// long: the text is missing, and to be read with readLine.
	long bool
	// open: the last line, which has no line break yet.
	open bool
}

// stretch is a part of a file to scan: the lines that start at first or behind it and ahead
// of end, from either end, of which those are wanted that the filter does not refuse.
type section struct {
	file       io.ReaderAt
	size       int64 // of the file
	first, end int64
	backward   bool
	// wants is called by many goroutines. Nil: all lines.
	filter func(text []byte) bool
}

// chunk is the wanted lines that start in one piece of a file. Where pieces begin and end
// depends on nothing but chunkBytes, so that each can be read without the others.
type chunk struct {
	buffer [1 + chunkBytes + tailBytes]byte // the first is of the piece before
	lines  []rawLine
	err    error
}

// read fills the chunk with the lines of a piece, given by its number in the file.
func (c *chunk) read(s *section, number int64) {
	c.lines, c.err = c.lines[:0], nil
	start := number * chunkBytes
	from := max(start-1, 0)
	n, err := s.file.ReadAt(c.buffer[:min(int64(len(c.buffer)), s.size-from)], from)
	size := s.size
	if errors.Is(err, io.EOF) {
		size = from + int64(n) // It was cut off meanwhile.
	} else if err != nil {
		c.err = err
		return
	}
	data, at := c.buffer[:n], 0
	if start > 0 {
		at = 1 + bytes.IndexByte(data[:min(n, chunkBytes)], '\n')
		if at == 0 {
			return // All of it belongs to a line that starts in a piece before.
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
			at = n // Whoever reads it finds its end.
		}
		line.next = from + int64(at)
		if line.from < s.first {
			continue
		}
		if line.text = trim(line.text, line.from); line.long || len(line.text) > 0 && (s.filter == nil || s.filter(line.text)) {
			c.lines = append(c.lines, line)
		}
	}
}

// trim cuts off what is not the line's: white space, and a byte order mark where a file
// starts.
func trim(text []byte, from int64) []byte {
	if from == 0 {
		text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	}
	if n := len(text); n > 0 && text[0] == '{' && text[n-1] == '}' {
		return text
	}
	return bytes.Trim(text, " \t\r")
}

// errMoved says that no line starts where one did.
var errChanged = errors.New("file changed while it was read")

// readLine reads the line that starts at an offset, into a buffer that grows with it up to
// maxLineBytes. Of a line that is longer it returns no text, and long. Errors: errMoved.
func readLine(file io.ReaderAt, size, start int64, buffer *[]byte) (rawLine, error) {
	from := max(start-1, 0) // with the line break ahead of it
	line := rawLine{from: start, next: size}
	if start >= size {
		return line, errChanged
	}
	for length := int64(4 << 10); ; length *= 4 {
		length = min(length, 1+maxLineBytes+1, size-from)
		if int64(len(*buffer)) < length {
			*buffer = make([]byte, length)
		}
		n, err := file.ReadAt((*buffer)[:length], from)
		if errors.Is(err, io.EOF) {
			size = from + int64(n) // It was cut off meanwhile.
		} else if err != nil {
			return line, err
		}
		if size <= start || from < start && (*buffer)[0] != '\n' {
			return line, errChanged
		}
		text := (*buffer)[start-from : n]
		end := bytes.IndexByte(text, '\n')
		switch {
		case end > maxLineBytes, end < 0 && len(text) > maxLineBytes:
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

// scan yields the wanted lines of a stretch, in its direction. With parallel, other
// goroutines look ahead, which ends with the loop. An error is the last that is yielded.
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

// chunks yields those of a stretch, in its direction; each is good until the next.
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

// lane is a goroutine's share of the chunks: every so many.
type scanWorker struct{ ready, free chan *chunk }

// readAhead yields chunks that goroutines read, two each at most ahead of the loop.
func (r *reader) readAhead(ctx context.Context, s *section, scanners, count int64, number func(int64) int64) iter.Seq[*chunk] {
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
						l.ready <- c // There is room for both.
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

// chunk returns one to be used, which then goes back to the pool.
func (r *reader) chunk() *chunk {
	if c, ok := r.pool.Get().(*chunk); ok {
		return c
	}
	return new(chunk)
}
