package scan

import (
	"bytes"
	"errors"
	"io"
)

const (
	// ChunkBytes is the number of bytes of a file that are processed at a time. They fit in the
	// processor's cache.
	ChunkBytes = 256 << 10
	// TailBytes is the number of bytes that are read after a chunk, for the end of its last line. A
	// line that is longer is read separately.
	TailBytes = 64 << 10
)

// chunk has the selected lines that begin in one chunk of a file. The bounds of chunks depend only on
// ChunkBytes, so that each chunk can be read independently.
type chunk struct {
	buffer [1 + ChunkBytes + TailBytes]byte // the first byte belongs to the previous chunk
	lines  []Line
	err    error
}

// read fills c with the lines of a chunk, given by its number in the file.
func (c *chunk) read(s *Section, number int64) {
	c.lines, c.err = c.lines[:0], nil
	start := number * ChunkBytes
	from := max(start-1, 0)
	n, err := s.File.ReadAt(c.buffer[:min(int64(len(c.buffer)), s.Size-from)], from)
	size := s.Size
	if errors.Is(err, io.EOF) {
		size = from + int64(n) // The file was truncated in the meantime.
	} else if err != nil {
		c.err = err
		return
	}
	data, at := c.buffer[:n], 0
	if start > 0 {
		at = 1 + bytes.IndexByte(data[:min(n, ChunkBytes)], '\n')
		if at == 0 {
			return // All of it belongs to a line that begins in an earlier chunk.
		}
	}
	end := min(start+ChunkBytes, s.End)
	for from+int64(at) < min(end, size) {
		line := Line{From: from + int64(at)}
		length := bytes.IndexByte(data[at:], '\n')
		switch {
		case length >= 0:
			line.Text = data[at : at+length]
			at += length + 1
		case from+int64(n) == size:
			line.Text, line.Open = data[at:], true
			at = n
		default:
			line.Long = true
			at = n // ReadLine finds the end.
		}
		line.Next = from + int64(at)
		if line.From < s.First {
			continue
		}
		line.Text = trim(line.Text, line.From)
		if line.Long || len(line.Text) > 0 && (s.Filter == nil || s.Filter(line.Text)) {
			c.lines = append(c.lines, line)
		}
	}
}
