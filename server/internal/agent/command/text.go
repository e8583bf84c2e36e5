package command

import (
	"errors"
	"io"
	"iter"
	"strings"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// readSize is the maximum size of a piece of plain text: half of the default capacity of a pipe.
const readSize = 32 << 10

// decodeText makes a piece of each read. A character that is split over several reads is held back
// until it is complete. Each invalid byte becomes U+FFFD. The concatenated pieces therefore do not
// depend on how the output was read.
func decodeText(r io.Reader) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		buffer, held := make([]byte, readSize), 0
		for {
			n, err := r.Read(buffer[held:])
			n += held
			complete := n
			if err == nil {
				complete -= unfinished(buffer[:n])
			}
			if complete > 0 && !yield(textPiece(toValidUTF8(buffer[:complete])), nil) {
				return
			}
			held = copy(buffer, buffer[complete:n])
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

// unfinished returns the number of bytes at the end of b that begin a character.
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

// toValidUTF8 replaces each invalid byte by U+FFFD. strings.ToValidUTF8 would replace a run of
// invalid bytes by one U+FFFD, but a run may be split over reads.
func toValidUTF8(b []byte) string {
	return strings.Map(func(r rune) rune { return r }, string(b))
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}
