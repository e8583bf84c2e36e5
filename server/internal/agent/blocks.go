package agent

import (
	"context"
	"iter"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Blocks returns an agent that answers as a does, but for structured data that a writes
// as text: a fenced block at the very end of an answer message,
//
//	```json type=library_list
//	{"libraries": ["preact", "solid"]}
//	```
//
// becomes a StructuredData piece, and leaves the text together with the blank lines ahead
// of it. Several blocks in a row count, the last 64 that have 1 MiB together, and 512 KiB as
// they are encoded; only white space may stand between and behind them. Numbers take several
// times their text's bytes as data: what is larger stays text, so that an answer that can be
// kept as text can be kept.
//
// The fences begin their lines. The type has 1 to 128 bytes and no white space; the value
// is one JSON value of finite numbers, without a key twice in an object and at most 16
// levels deep. What is otherwise, and every block when the answer fails, stays text, byte
// for byte.
//
// Text is passed on at once, save what may yet be such a block or the line breaks ahead of
// one. While a block is being written, a Progress piece every 10 s tells so. Other pieces
// pass by text that is held back, unless they end the answer message.
func Blocks(a Agent) Agent { return &blocks{a} }

type blocks struct{ Agent }

// Respond answers with the text less its blocks.
func (b *blocks) Respond(ctx context.Context, request *parleyv1.RespondRequest) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		var s blockScanner
		told := time.Now()
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
				case time.Since(told) >= ReassureEvery && s.writing() != "":
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
			told = time.Now()
		}
		s.end(yield)
	}
}

// end ends the answer message: what is held back becomes pieces. It returns false when the
// consumer has stopped. The next message may follow.
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
