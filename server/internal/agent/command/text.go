package command

import (
	"errors"
	"io"
	"iter"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// readSize is the most that one piece of plain text holds; half of what a pipe does.
const readSize = 32 << 10

// decodeText makes a piece of every read. A rune whose bytes come in several reads is
// held back until it is whole; each byte that belongs to no rune becomes U+FFFD. So the
// pieces together are the same text however the reads fell.
func decodeText(r io.Reader) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		buffer, held := make([]byte, readSize), 0
		for {
			n, err := r.Read(buffer[held:])
			n += held
			whole := n
			if err == nil {
				whole -= unfinished(buffer[:n])
			}
			if whole > 0 && !yield(textPiece(mended(buffer[:whole])), nil) {
				return
			}
			held = copy(buffer, buffer[whole:n])
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// unfinished is how many bytes at the end of b begin a rune that more bytes may
// complete.
func unfinished(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// mended is b with U+FFFD for every byte that is not part of a rune. Runs of such
// bytes must not be merged, as strings.ToValidUTF8 does: a run may be split over reads.
func mended(b []byte) string {
	return strings.Map(func(r rune) rune { return r }, string(b))
}

// clipped is at most the first n bytes of s, cut at a rune.
func clipped(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}
