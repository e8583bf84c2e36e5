package agent

import (
	"bytes"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

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
func (b *blocks) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
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

// splitBlocks returns the text of an answer without the blocks at its end, and the blocks.
func splitBlocks(text string) (rest string, found []*parleyv1.StructuredData) {
	var s blockScanner
	rest = s.add(text)
	last, found := s.finish()
	return rest + last, found
}

func textPiece(text string) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}
}

const (
	fence     = "```"
	fenceOpen = fence + "json type="

	// maxBlocks is the maximum number of blocks in a message.
	maxBlocks = 64
	// maxHeld is the maximum size of the text that is held back.
	maxHeld = 1 << 20
	// maxEncoded is the maximum size of the encoded data of a message: half of the default limit of
	// an answer.
	maxEncoded = 512 << 10
	// maxTypeBytes and maxDataLevels are the limits of the API for structured data.
	maxTypeBytes  = 128
	maxDataLevels = 16
)

// blockScanner finds the blocks at the end of a text that arrives in pieces. It processes single
// bytes, so the result does not depend on the pieces. The zero value is ready for use; after finish
// and stop it can be used again.
//
// The text that is held back consists of white space from a line break on, a block, white space, a
// block and so on, and finally what may become the next block. If the next byte is not possible
// there, the complete run is text.
type blockScanner struct {
	state scanState
	held  []byte
	found []foundBlock // Complete blocks in held.
	// Positions in held of the possible next block: the start of its type, of its value and of its current
	// line. data is set when the value is complete.
	kind, value, line int
	data              *parleyv1.StructuredData

	out []byte // Text to return, which is no longer held back.
}

// foundBlock is a complete block.
type foundBlock struct {
	end     int // Position in held after its last line.
	data    *parleyv1.StructuredData
	encoded int // Encoded size of data in bytes.
}

// scanState is the part of the text that the next byte belongs to.
type scanState int

const (
	inBlank scanState = iota // White space before a block, or the start of the text.
	inText                   // A line of text; held is empty.
	inOpen                   // The opening fence of a block.
	inType                   // The rest of that line.
	inValue                  // The lines of the value.
	inClose                  // The rest of the line with the closing fence.
)

// add processes the next text and returns the text that need not be held back. The result is split
// only at ASCII bytes.
func (s *blockScanner) add(text string) string {
	for i := range len(text) {
		s.step(text[i])
		if len(s.held) > maxHeld {
			s.reduceHeld()
		}
	}
	out := string(s.out)
	s.out = s.out[:0]
	return out
}

// finish ends the text and returns the rest of it, and the blocks.
func (s *blockScanner) finish() (text string, found []*parleyv1.StructuredData) {
	if s.state == inClose {
		s.completeBlock()
	}
	if s.state != inBlank || len(s.found) == 0 {
		return s.stop(), nil
	}
	for _, block := range s.found {
		found = append(found, block.data)
	}
	text = string(s.out) // Text of a block that exceeded maxBlocks.
	*s = blockScanner{}
	return text, found
}

// stop ends the text without blocks and returns the rest of it.
func (s *blockScanner) stop() string {
	text := string(s.out) + string(s.held) // out may contain a block that was too large.
	*s = blockScanner{}
	return text
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

// writing returns the type of the block that is being written, or "" if there is none.
func (s *blockScanner) writing() string {
	if s.state != inValue {
		return ""
	}
	return s.typeName()
}

func (s *blockScanner) step(b byte) {
	switch s.state {
	case inText:
		if b != '\n' && b != '\r' {
			s.out = append(s.out, b)
			return
		}
		s.state, s.held = inBlank, append(s.held, b)
	case inBlank:
		lineStart := len(s.held) == 0 || s.held[len(s.held)-1] == '\n'
		switch {
		case isSpace(b):
			s.held = append(s.held, b)
		case b == fence[0] && lineStart:
			s.state, s.line, s.kind = inOpen, len(s.held), len(s.held)+len(fenceOpen)
			s.held = append(s.held, b)
		default:
			s.release(len(s.held), b)
		}
	case inOpen:
		if b != fenceOpen[len(s.held)-s.line] {
			s.release(len(s.held), b)
			return
		}
		if s.held = append(s.held, b); len(s.held) == s.kind {
			s.state = inType
		}
	case inType:
		s.stepType(b)
	case inValue:
		s.stepValue(b)
	case inClose:
		s.stepClose(b)
	}
}

// stepType processes a byte of the line that opens a block.
func (s *blockScanner) stepType(b byte) {
	name := s.held[s.kind:]
	ended := len(name) > 0 && isSpace(name[len(name)-1])
	switch {
	case b == '\n' && len(name) > 0:
		s.held = append(s.held, b)
		s.state, s.value, s.line = inValue, len(s.held), len(s.held)
	case isSpace(b) && len(name) > 0,
		!isSpace(b) && b != fence[0] && !ended && len(name) < maxTypeBytes:
		s.held = append(s.held, b)
	default:
		s.release(len(s.held), b)
	}
}

// stepValue processes a byte of a value. A fence at the beginning of a line is not valid in JSON,
// so the first one must close the block.
func (s *blockScanner) stepValue(b byte) {
	switch {
	case b == '\n':
		s.held = append(s.held, b)
		s.line = len(s.held)
	case b == fence[0] && string(s.held[s.line:]) == fence[1:]:
		value := new(structpb.Value)
		if err := value.UnmarshalJSON(s.held[s.value:s.line]); err != nil || deeper(value, maxDataLevels) {
			s.releaseAbove(b)
			return
		}
		s.state, s.data = inClose, &parleyv1.StructuredData{Type: s.typeName(), Value: value}
		s.held = append(s.held, b)
	default:
		s.held = append(s.held, b)
	}
}

// stepClose processes a byte of the line that closes a block.
func (s *blockScanner) stepClose(b byte) {
	switch {
	case b == '\n':
		s.completeBlock()
		s.held = append(s.held, b)
	case isSpace(b):
		s.held = append(s.held, b)
	default:
		s.releaseAbove(b)
	}
}

// completeBlock adds the block that has just been closed.
func (s *blockScanner) completeBlock() {
	s.state, s.found = inBlank, append(s.found, foundBlock{len(s.held), s.data, proto.Size(s.data)})
	encoded := 0
	for _, block := range s.found {
		encoded += block.encoded
	}
	for len(s.found) > maxBlocks || encoded > maxEncoded {
		encoded -= s.found[0].encoded
		s.releaseFirst()
	}
}

func (s *blockScanner) typeName() string {
	name, _, _ := strings.Cut(string(s.held[s.kind:s.value]), "\n")
	return strings.TrimRight(name, " \t\r")
}

// release turns the first n held bytes into text, and processes the other held bytes and b again.
func (s *blockScanner) release(n int, b byte) {
	rest := append(bytes.Clone(s.held[n:]), b)
	s.out = append(s.out, s.held[:n]...)
	s.state, s.held, s.found = inText, s.held[:0], nil
	for _, b := range rest {
		s.step(b)
	}
}

// releaseAbove turns everything before the current line into text. The current line may open a
// block itself: the line breaks before it stay held, and b continues the line.
func (s *blockScanner) releaseAbove(b byte) {
	s.release(len(bytes.TrimRight(s.held[:s.line], " \t\r\n")), b)
}

// releaseFirst turns the first complete block into text.
func (s *blockScanner) releaseFirst() {
	n := s.found[0].end
	s.out = append(s.out, s.held[:n]...)
	s.held, s.found = append(s.held[:0], s.held[n:]...), slices.Delete(s.found, 0, 1)
	for i := range s.found {
		s.found[i].end -= n
	}
	s.kind, s.value, s.line = s.kind-n, s.value-n, s.line-n
}

// reduceHeld turns the first complete block into text, or everything if there is none.
func (s *blockScanner) reduceHeld() {
	if len(s.found) > 0 {
		s.releaseFirst()
		return
	}
	s.out = append(s.out, s.held...)
	s.state, s.held = inText, s.held[:0]
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }

// deeper reports whether lists and objects are nested more than levels deep.
func deeper(value *structpb.Value, levels int) bool {
	var inner []*structpb.Value
	switch kind := value.GetKind().(type) {
	case *structpb.Value_StructValue:
		for _, v := range kind.StructValue.GetFields() {
			inner = append(inner, v)
		}
	case *structpb.Value_ListValue:
		inner = kind.ListValue.GetValues()
	default:
		return false
	}
	if levels == 0 {
		return true
	}
	for _, v := range inner {
		if deeper(v, levels-1) {
			return true
		}
	}
	return false
}
