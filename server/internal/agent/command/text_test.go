package command

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// reads is a reader that returns one part for each Read.
type reads []string

func (r *reads) Read(b []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	n := copy(b, (*r)[0])
	if (*r)[0] = (*r)[0][n:]; (*r)[0] == "" {
		*r = (*r)[1:]
	}
	return n, nil
}

func textOf(t *testing.T, r io.Reader) (pieces []string) {
	t.Helper()
	for piece, err := range decodeText(r) {
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece.GetText())
	}
	return pieces
}

func TestDecodeText(t *testing.T) {
	tests := []struct {
		name        string
		reads, want []string
	}{
		{"nothing", nil, nil},
		{"a piece for each read", []string{"one ", "two\n", "\n three"}, []string{"one ", "two\n", "\n three"}},
		{"character in two reads", []string{"Z\xc3", "\xbccker"}, []string{"Z", "ücker"}},
		{"character in four reads", []string{"\xf0", "\x9f", "\x8d", "\xac!"}, []string{"🍬!"}},
		{"never completed", []string{"a\xe2\x82", "b"}, []string{"a", "\uFFFD\uFFFDb"}},
		{"end within a character", []string{"a\xe2\x82"}, []string{"a", "\uFFFD\uFFFD"}},
		{"invalid UTF-8", []string{"\xff\xfe", "\x80"}, []string{"\uFFFD\uFFFD", "\uFFFD"}},
		{"U+FFFD itself", []string{"\xef\xbf", "\xbd"}, []string{"\uFFFD"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := reads(test.reads)
			if diff := cmp.Diff(test.want, textOf(t, &r)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeTextReportsReadError(t *testing.T) {
	broken := errors.New("broken")
	var got string
	var last error
	for piece, err := range decodeText(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))) {
		got, last = got+piece.GetText(), err
	}
	if got != "half" || !errors.Is(last, broken) {
		t.Errorf("decodeText = %q, %v, want half and the error of the reader", got, last)
	}
}

// FuzzDecodeText: the concatenated pieces equal the text converted to runes, however it is split
// over reads.
func FuzzDecodeText(f *testing.F) {
	f.Add("Zücker 🍬", []byte{1, 2, 1})
	f.Add("\xe2\x82\xac\xe2\x82\xe2\xf0\x9f\x8d", []byte{2, 0, 3})
	f.Add("\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80", []byte{1})
	f.Fuzz(func(t *testing.T, text string, cuts []byte) {
		var r reads
		for rest := text; rest != ""; {
			n := len(rest)
			if len(cuts) > 0 {
				n, cuts = min(n, int(cuts[0])+1), cuts[1:]
			}
			r, rest = append(r, rest[:n]), rest[n:]
		}
		pieces := textOf(t, &r)
		for i, piece := range pieces {
			if piece == "" || !utf8.ValidString(piece) {
				t.Fatalf("piece %d = %q, want valid text", i, piece)
			}
		}
		if diff := cmp.Diff(string([]rune(text)), strings.Join(pieces, "")); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestTail(t *testing.T) {
	var long tail
	for range 3000 {
		_, _ = long.Write([]byte("日本"))
	}
	_, _ = long.Write([]byte(" the end\n"))
	got := long.text(nil)
	if !utf8.ValidString(got) || strings.ContainsRune(got, utf8.RuneError) || !strings.HasSuffix(got, "日本 the end") {
		t.Errorf("text() = %.20q … %q, want the end of the text", got, got[len(got)-20:])
	}
	if len(got) < tailBytes-20 || len(got) > tailBytes {
		t.Errorf("text() has %d bytes, want about tailBytes", len(got))
	}
	var short tail
	_, _ = short.Write([]byte("\n\x1b[31mred\x07\ttab\r\n line \xff\n\n"))
	if got, want := short.text(nil), "[31mred\ttab\n line \uFFFD"; got != want {
		t.Errorf("text() = %q, want %q", got, want)
	}
}
