package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

// scanAll returns the lines of a section as "offset-next text". It reads long ones separately.
func scanAll(t rapid.TB, r *reader, s *section, parallel bool) []string {
	lines := []string{}
	var buffer []byte
	for line, err := range r.scanShortLines(context.Background(), s, parallel) {
		if err == nil && line.long {
			line, err = readLine(s.file, s.size, line.from, &buffer)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(line.text) > 0 || line.long {
			lines = append(lines, describe(line))
		}
	}
	return lines
}

func describe(line rawLine) string {
	text := string(line.text)
	if len(text) > 100 {
		text = text[:50] + "…" + text[len(text)-50:]
	}
	next := line.next
	if line.long {
		text, next = "too long", 0
	}
	return fmt.Sprintf("%d-%d open=%t %q", line.from, next, line.open, text)
}

// modelLines splits a file at line breaks.
func modelLines(file []byte, first, end int64, backward bool) []string {
	lines := []string{}
	for at := 0; at < len(file); {
		line := rawLine{from: int64(at)}
		if length := bytes.IndexByte(file[at:], '\n'); length < 0 {
			line.text, line.open, at = file[at:], true, len(file)
		} else {
			line.text, at = file[at:at+length], at+length+1
		}
		line.next = int64(at)
		if line.from == 0 {
			line.text = bytes.TrimPrefix(line.text, []byte("\ufeff"))
		}
		if line.long = len(line.text) > entry.MaxBytes; line.long {
			line.open = false
		}
		line.text = bytes.Trim(line.text, " \t\r")
		if len(line.text) > 0 && line.from >= first && line.from < end {
			lines = append(lines, describe(line))
		}
	}
	if backward {
		slices.Reverse(lines)
	}
	return lines
}

func checkScan(t rapid.TB, r *reader, file []byte, first, end int64) {
	for _, backward := range []bool{false, true} {
		want := modelLines(file, first, end, backward)
		for _, parallel := range []bool{false, true} {
			s := &section{file: bytes.NewReader(file), size: int64(len(file)), first: first, end: end, backward: backward}
			if diff := cmp.Diff(want, scanAll(t, r, s, parallel)); diff != "" {
				t.Fatalf("lines from %d to %d, backward %t, parallel %t: (-want +got):\n%s", first, end, backward, parallel, diff)
			}
		}
	}
}

// TestScan reads files whose lines end near the ends of chunks.
func TestScan(t *testing.T) {
	r := newTestReader(t).reader
	rapid.Check(t, func(t *rapid.T) {
		var file []byte
		if rapid.Bool().Draw(t, "mark") {
			file = []byte("\ufeff")
		}
		edges := rapid.SampledFrom([]int{0, 0, 1, 50, tailBytes, chunkBytes, chunkBytes + tailBytes, 2 * chunkBytes, 3*chunkBytes + 7})
		ends := rapid.SampledFrom([]string{"\n", "\n", "\r\n", "\n\n", " \n"})
		for range rapid.IntRange(0, 6).Draw(t, "lines") {
			length := max(0, edges.Draw(t, "length")+rapid.IntRange(-3, 3).Draw(t, "more"))
			letter := rapid.SampledFrom([]byte("abc ")).Draw(t, "letter")
			file = append(append(file, bytes.Repeat([]byte{letter}, length)...), ends.Draw(t, "end")...)
		}
		if rapid.Bool().Draw(t, "partial") {
			file = bytes.TrimRight(file, "\r\n")
		}
		place := rapid.Int64Range(0, int64(len(file))+3)
		first, end := int64(0), int64(math.MaxInt64)
		if rapid.Bool().Draw(t, "part") {
			first, end = place.Draw(t, "first"), place.Draw(t, "end")
		}
		checkScan(t, r, file, first, end)
	})
}

// TestScanAtTheEdges has lines that begin and files that end at every offset near the end of a chunk.
func TestScanAtTheEdges(t *testing.T) {
	r := newTestReader(t).reader
	for _, edge := range []int{chunkBytes, 2 * chunkBytes, 3 * chunkBytes, chunkBytes + tailBytes, 2*chunkBytes + tailBytes} {
		for length := edge - 4; length <= edge+4; length++ {
			line := strings.Repeat("x", length)
			for _, file := range []string{line, line + "\n", line + "\ny", line + "\n\ny\n"} {
				checkScan(t, r, []byte(file), 0, math.MaxInt64)
			}
		}
	}
}

func TestScanLongLines(t *testing.T) {
	r := newTestReader(t).reader
	for _, length := range []int{entry.MaxBytes - 1, entry.MaxBytes, entry.MaxBytes + 1, 2 * entry.MaxBytes} {
		long := strings.Repeat("x", length)
		for _, file := range []string{long, "a\n" + long, "a\n" + long + "\nb\n"} {
			checkScan(t, r, []byte(file), 0, math.MaxInt64)
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("\xef\xbb\xbfa\r\n\n b\nc"), uint32(0), int64(0), int64(9))
	f.Add([]byte("\n"), uint32(chunkBytes-1), int64(5), int64(chunkBytes))
	f.Fuzz(func(t *testing.T, file []byte, prefix uint32, first, end int64) {
		// The prefix moves the file to the end of a chunk.
		file = append(bytes.Repeat([]byte{'x'}, int(prefix%(2*chunkBytes))), file...)
		checkScan(t, newReader(t.TempDir(), nil, nil), file, max(first, 0), end)
	})
}

// truncatedFile is a file that is shorter than when it was opened.
type truncatedFile struct{ *bytes.Reader }

func TestScanTruncatedFile(t *testing.T) {
	r := newTestReader(t).reader
	file := []byte(strings.Repeat("0123456789\n", chunkBytes/5))
	for _, parallel := range []bool{false, true} {
		s := &section{file: truncatedFile{bytes.NewReader(file)}, size: 3 * int64(len(file)), end: math.MaxInt64, backward: true}
		if lines := scanAll(t, r, s, parallel); len(lines) != chunkBytes/5 {
			t.Errorf("parallel %t: %d lines, want %d", parallel, len(lines), chunkBytes/5)
		}
	}
	var buffer []byte
	for name, start := range map[string]int64{"after the end": int64(len(file)) + 5, "within a line": 5} {
		if line, err := readLine(truncatedFile{bytes.NewReader(file)}, 3*int64(len(file)), start, &buffer); !errors.Is(err, errChanged) {
			t.Errorf("%s: readLine = %+v, %v, want errChanged", name, line, err)
		}
	}
}

// failingReaderAt fails to read after an offset.
type failingReaderAt struct {
	*bytes.Reader

	limit int64
}

func (b failingReaderAt) ReadAt(p []byte, at int64) (int, error) {
	if at > b.limit {
		return 0, io.ErrUnexpectedEOF
	}
	return b.Reader.ReadAt(p, at)
}

func TestScanStopsAtFirstError(t *testing.T) {
	r := newTestReader(t).reader
	file := []byte(strings.Repeat("0123456789\n", chunkBytes))
	s := section{file: failingReaderAt{bytes.NewReader(file), 2 * chunkBytes}, size: int64(len(file)), end: math.MaxInt64}
	complete := s
	complete.file = bytes.NewReader(file)
	for _, parallel := range []bool{false, true} {
		if err := lastError(t.Context(), r, s, parallel, func() {}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("parallel %t: %v", parallel, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		err := lastError(ctx, r, complete, parallel, stop)
		stop()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("parallel %t: %v, want %v after the context has ended", parallel, err, context.Canceled)
		}
	}
}

// lastError scans to the end, calls a function at each line and returns the error.
func lastError(ctx context.Context, r *reader, s section, parallel bool, each func()) error {
	var failed error
	for _, err := range r.scanShortLines(ctx, &s, parallel) {
		if failed != nil {
			return errors.New("scan continues after an error")
		}
		failed = err
		each()
	}
	return failed
}
