package agent

import (
	"context"
	"iter"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Blocks returns an agent that answers like a, but converts structured data in the text. A fenced
// block at the end of an answer message,
//
//	```json type=library_list
//	{"libraries": ["preact", "solid"]}
//	```
//
// becomes a StructuredData piece. The block and the blank lines before it are removed from the
// text. If several blocks follow each other, separated only by white space, the last 64 are
// converted, as long as they have at most 1 MiB of text and 512 KiB of encoded data. Numbers need
// several times the bytes of their text when they are encoded. A larger block stays text, so that
// an answer that can be stored as text can be stored.
//
// The fences must be at the beginning of their lines. The type must have 1 to 128 bytes and no
// white space. The value must be one JSON value of finite numbers, without duplicate keys in an
// object and at most 16 levels deep. Any other block stays text, byte for byte, and so does each
// block of an answer that fails.
//
// Text is passed on at once, except text that may become such a block and the line breaks before
// it. While a block is written, a Progress piece is sent every 10 s. Other pieces are passed on
// before text that is held back, unless they end the answer message.
func Blocks(a Agent) Agent { return &blocks{a} }

type blocks struct{ Agent }

// Respond answers without the blocks in the text.
func (b *blocks) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		var s blockScanner
		lastPiece := time.Now()
		for piece, err := range b.Agent.Respond(ctx, request) {
			if err != nil {
				if text := s.stop(); text == "" || yield(textPiece(text), nil) {
					yield(nil, err)
				}
				return
			}
			switch p := piece.GetPiece().(type) {
			case *parleyv1.RespondResponse_Text:
				text := s.add(p.Text)
				switch {
				case text != "":
					piece = textPiece(text)
				case time.Since(lastPiece) >= ProgressInterval && s.writing() != "":
					piece = progress("Writing " + s.writing() + ".")
				default:
					continue
				}
			case *parleyv1.RespondResponse_ToolResult, *parleyv1.RespondResponse_NextAgent:
				if !s.end(yield) {
					return
				}
			}
			if !yield(piece, nil) {
				return
			}
			lastPiece = time.Now()
		}
		s.end(yield)
	}
}

// end ends the answer message and yields what is held back. It returns false if the consumer has
// stopped. The scanner is then ready for the next message.
func (s *blockScanner) end(yield func(*parleyv1.RespondResponse, error) bool) bool {
	text, found := s.finish()
	if text != "" && !yield(textPiece(text), nil) {
		return false
	}
	for _, data := range found {
		if !yield(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{StructuredData: data}}, nil) {
			return false
		}
	}
	return true
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}
