package scan

import (
	"bytes"
	"errors"
	"io"

	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

// Line is a line of a file.
type Line struct {
	// From and Next are the offsets in the file where this line and the next one begin.
	From, Next int64
	// Text has no line break and no byte order mark, and no white space around it. It is valid until
	// the next line is read.
	Text []byte
	// Long is true if the line is longer than entry.MaxBytes. Text is missing then. In a chunk it is also true for
	// shorter lines that must be read with ReadLine.
	Long bool
	// Open is true for a last line without a line break.
	Open bool
}

// Parse parses the line. Errors: entry.ErrTooLong, entry.ErrInvalid.
func (l Line) Parse() (*entry.Entry, error) {
	if l.Long {
		return nil, entry.ErrTooLong
	}
	return entry.Parse(l.Text)
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

// ErrChanged reports that no line begins at an offset where one did.
var ErrChanged = errors.New("file changed while it was read")

// ReadLine reads the line that begins at an offset, into a buffer that it extends as needed. If the line
// is longer than entry.MaxBytes, the result has no text and is long. Errors: ErrChanged.
func ReadLine(file io.ReaderAt, size, start int64, buffer *[]byte) (Line, error) {
	from := max(start-1, 0) // Includes the previous line break.
	line := Line{From: start, Next: size}
	if start >= size {
		return line, ErrChanged
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
			return line, ErrChanged
		}
		text := (*buffer)[start-from : n]
		end := bytes.IndexByte(text, '\n')
		switch {
		case end > entry.MaxBytes, end < 0 && len(text) > entry.MaxBytes:
			line.Long = true
			return line, nil
		case end >= 0:
			text, line.Next = text[:end], start+int64(end)+1
		case from+int64(n) == size:
			line.Next, line.Open = size, true
		default:
			continue
		}
		line.Text = trim(text, start)
		return line, nil
	}
}
