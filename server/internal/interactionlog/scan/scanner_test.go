package scan

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

// scanAll returns the lines of a section as "offset-next text".
func scanAll(t rapid.TB, r *Scanner, s *Section, parallel bool) []string {
	lines := []string{}
	for line, err := range r.Lines(context.Background(), s, parallel) {
		if err != nil {
			t.Fatal(err)
		}
		if len(line.Text) > 0 || line.Long {
			lines = append(lines, describe(line))
		}
	}
	return lines
}

func describe(line Line) string {
	text := string(line.Text)
	if len(text) > 100 {
		text = text[:50] + "…" + text[len(text)-50:]
	}
	next := line.Next
	if line.Long {
		text, next = "too long", 0
	}
	return fmt.Sprintf("%d-%d open=%t %q", line.From, next, line.Open, text)
}

// modelLines splits a file at line breaks.
func modelLines(file []byte, first, end int64, backward bool) []string {
	lines := []string{}
	for at := 0; at < len(file); {
		line := Line{From: int64(at)}
		if length := bytes.IndexByte(file[at:], '\n'); length < 0 {
			line.Text, line.Open, at = file[at:], true, len(file)
		} else {
			line.Text, at = file[at:at+length], at+length+1
		}
		line.Next = int64(at)
		if line.From == 0 {
			line.Text = bytes.TrimPrefix(line.Text, []byte("\ufeff"))
		}
		if line.Long = len(line.Text) > entry.MaxBytes; line.Long {
			line.Open = false
		}
		line.Text = bytes.Trim(line.Text, " \t\r")
		if len(line.Text) > 0 && line.From >= first && line.From < end {
			lines = append(lines, describe(line))
		}
	}
	if backward {
		slices.Reverse(lines)
	}
	return lines
}

func checkScan(t rapid.TB, r *Scanner, file []byte, first, end int64) {
	for _, backward := range []bool{false, true} {
		want := modelLines(file, first, end, backward)
		for _, parallel := range []bool{false, true} {
			s := &Section{File: bytes.NewReader(file), Size: int64(len(file)), First: first, End: end, Backward: backward}
			if diff := cmp.Diff(want, scanAll(t, r, s, parallel)); diff != "" {
				t.Fatalf("lines from %d to %d, backward %t, parallel %t (-want +got):\n%s", first, end, backward, parallel, diff)
			}
		}
	}
}

// TestScan reads files whose lines end near the ends of chunks.
func TestScan(t *testing.T) {
	r := new(Scanner)
	rapid.Check(t, func(t *rapid.T) {
		var file []byte
		if rapid.Bool().Draw(t, "mark") {
			file = []byte("\ufeff")
		}
		edges := rapid.SampledFrom([]int{
			0, 0, 1, 50,
			TailBytes, ChunkBytes, ChunkBytes + TailBytes, 2 * ChunkBytes, 3*ChunkBytes + 7,
		})
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
	r := new(Scanner)
	for _, edge := range []int{
		ChunkBytes, 2 * ChunkBytes, 3 * ChunkBytes, ChunkBytes + TailBytes, 2*ChunkBytes + TailBytes,
	} {
		for length := edge - 4; length <= edge+4; length++ {
			line := strings.Repeat("x", length)
			for _, file := range []string{line, line + "\n", line + "\ny", line + "\n\ny\n"} {
				checkScan(t, r, []byte(file), 0, math.MaxInt64)
			}
		}
	}
}

func TestScanLongLines(t *testing.T) {
	r := new(Scanner)
	for _, length := range []int{entry.MaxBytes - 1, entry.MaxBytes, entry.MaxBytes + 1, 2 * entry.MaxBytes} {
		long := strings.Repeat("x", length)
		for _, file := range []string{long, "a\n" + long, "a\n" + long + "\nb\n"} {
			checkScan(t, r, []byte(file), 0, math.MaxInt64)
		}
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte("\xef\xbb\xbfa\r\n\n b\nc"), uint32(0), int64(0), int64(9))
	f.Add([]byte("\n"), uint32(ChunkBytes-1), int64(5), int64(ChunkBytes))
	f.Fuzz(func(t *testing.T, file []byte, prefix uint32, first, end int64) {
		// The prefix moves the file to the end of a chunk.
		file = append(bytes.Repeat([]byte{'x'}, int(prefix%(2*ChunkBytes))), file...)
		checkScan(t, new(Scanner), file, max(first, 0), end)
	})
}

// truncatedFile is a file that is shorter than when it was opened.
type truncatedFile struct{ *bytes.Reader }

func TestScanTruncatedFile(t *testing.T) {
	r := new(Scanner)
	file := []byte(strings.Repeat("0123456789\n", ChunkBytes/5))
	for _, parallel := range []bool{false, true} {
		s := &Section{
			File: truncatedFile{bytes.NewReader(file)}, Size: 3 * int64(len(file)), End: math.MaxInt64, Backward: true,
		}
		if lines := scanAll(t, r, s, parallel); len(lines) != ChunkBytes/5 {
			t.Errorf("parallel %t: %d lines, want %d", parallel, len(lines), ChunkBytes/5)
		}
	}
	var buffer []byte
	for name, start := range map[string]int64{"after the end": int64(len(file)) + 5, "within a line": 5} {
		line, err := ReadLine(truncatedFile{bytes.NewReader(file)}, 3*int64(len(file)), start, &buffer)
		if !errors.Is(err, ErrChanged) {
			t.Errorf("%s: ReadLine = %+v, %v, want ErrChanged", name, line, err)
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
	r := new(Scanner)
	file := []byte(strings.Repeat("0123456789\n", ChunkBytes))
	s := Section{File: failingReaderAt{bytes.NewReader(file), 2 * ChunkBytes}, Size: int64(len(file)), End: math.MaxInt64}
	complete := s
	complete.File = bytes.NewReader(file)
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
func lastError(ctx context.Context, r *Scanner, s Section, parallel bool, each func()) error {
	var failed error
	for _, err := range r.Lines(ctx, &s, parallel) {
		if failed != nil {
			return errors.New("scan continues after an error")
		}
		failed = err
		each()
	}
	return failed
}
