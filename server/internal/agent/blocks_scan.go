package agent

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	fence     = "```"
	fenceOpen = fence + "json type="

	// maxBlocks is what a message may hold.
	maxBlocks = 64
	// maxHeld bounds the text that is held back.
	maxHeld = 1 << 20
	// maxEncoded bounds the data of a message: half of what an answer may have by default.
	maxEncoded = 512 << 10
	// maxTypeBytes and maxDataLevels are what the API allows structured data to have.
	maxTypeBytes  = 128
	maxDataLevels = 16
)

// blockScanner finds the blocks at the end of a text that comes in pieces. It goes byte by
// byte, so that what it finds does not depend on the pieces. The zero value is ready; it
// begins anew after finish and stop.
//
// What it holds back is a run: white space from a line break on, a block, white space, a
// block and so on, and at last what may become the next block. A byte that makes this
// impossible shows that the whole run is followed by text, and so is text itself.
type blockScanner struct {
	state scanState
	held  []byte
	found []foundBlock // the whole blocks in held
	// Where in held that which may become the next block has the start of its type, of its
	// value, and of its current line; and its data once the value is whole.
	kind, value, line int
	data              *parleyv1.StructuredData

	out []byte // no longer held back
}

// foundBlock is a whole block.
type foundBlock struct {
	end     int // in held, behind its last line
	data    *parleyv1.StructuredData
	encoded int // bytes of data
}

// scanState is what the next byte belongs to.
type scanState int

const (
	inBlank scanState = iota // white space ahead of a block; the start of the text is such
	inText                   // a line of text; nothing is held
	inOpen                   // the fence that opens a block
	inType                   // the rest of that line
	inValue                  // the lines below
	inClose                  // behind the fence that closes the block
)

// add takes the next text and returns what need not be held back. Text is cut at ASCII
// bytes only.
func (s *blockScanner) add(text string) string {
	for i := range len(text) {
		s.step(text[i])
		if len(s.held) > maxHeld {
			s.makeRoom()
		}
	}
	out := string(s.out)
	s.out = s.out[:0]
	return out
}

// finish ends the text: it returns what is left of it, and the blocks.
func (s *blockScanner) finish() (text string, found []*parleyv1.StructuredData) {
	if s.state == inClose {
		s.take()
	}
	if s.state != inBlank || len(s.found) == 0 {
		return s.stop(), nil
	}
	for _, block := range s.found {
		found = append(found, block.data)
	}
	text = string(s.out) // of a block too many
	*s = blockScanner{}
	return text, found
}

// stop ends the text where there are to be no blocks, and returns what is left of it.
func (s *blockScanner) stop() string {
	text := string(s.out) + string(s.held) // out: of a block that was too large
	*s = blockScanner{}
	return text
}

// writing is the type of the block that is being written, "" when none is.
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

// stepType goes on with the line that opens a block.
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

// stepValue goes on with a value. A fence where a line begins is no part of JSON, so the
// first one closes the block, or it never will be one.
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

// stepClose goes on with the line that closes a block.
func (s *blockScanner) stepClose(b byte) {
	switch {
	case b == '\n':
		s.take()
		s.held = append(s.held, b)
	case isSpace(b):
		s.held = append(s.held, b)
	default:
		s.releaseAbove(b)
	}
}

// take makes a whole block of the one that has just been closed.
func (s *blockScanner) take() {
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

// release makes text of the first n bytes that are held, and goes on with the others and
// with b.
func (s *blockScanner) release(n int, b byte) {
	again := append(bytes.Clone(s.held[n:]), b)
	s.out = append(s.out, s.held[:n]...)
	s.state, s.held, s.found = inText, s.held[:0], nil
	for _, b := range again {
		s.step(b)
	}
}

// releaseAbove makes text of all that is above the current line, which may open a block
// itself: the line breaks between are held back, and b goes on with it.
func (s *blockScanner) releaseAbove(b byte) {
	s.release(len(bytes.TrimRight(s.held[:s.line], " \t\r\n")), b)
}

// releaseFirst makes text of the first whole block.
func (s *blockScanner) releaseFirst() {
	n := s.found[0].end
	s.out = append(s.out, s.held[:n]...)
	s.held, s.found = append(s.held[:0], s.held[n:]...), slices.Delete(s.found, 0, 1)
	for i := range s.found {
		s.found[i].end -= n
	}
	s.kind, s.value, s.line = s.kind-n, s.value-n, s.line-n
}

// makeRoom makes text of the first whole block, or of everything when there is none.
func (s *blockScanner) makeRoom() {
	if len(s.found) > 0 {
		s.releaseFirst()
		return
	}
	s.out = append(s.out, s.held...)
	s.state, s.held = inText, s.held[:0]
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\r' || b == '\n' }

// deeper reports whether more than so many lists and objects are inside each other.
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
