package routing

import (
	"bytes"
	"slices"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	textPrefix    = "Previous: "
	textSeparator = ", "
	// maxText bounds the text, prefix included, in Unicode characters.
	maxText = 500
	// maxClause is what is left for a clause that stands alone, and maxClauseBytes what
	// that takes at most.
	maxClause      = maxText - len(textPrefix)
	maxClauseBytes = maxClause * utf8.UTFMax
	// clauseWords is how much of an answer stands for it when nothing better does.
	clauseWords = 8
)

// text is one line that tells what the assistant messages did, oldest first: as many of the
// newest clauses as fit into maxText characters. A newest clause that does not fit alone is
// cut and ends with "…".
type text struct {
	line   []byte // without the prefix
	length int    // in characters
	full   bool
	clause []byte // memory for the next one
}

func newText() text {
	return text{line: make([]byte, 0, maxText), clause: make([]byte, 0, maxText/4)}
}

func (t *text) add(m *message) {
	if t.full || m.role != parleyv1.Role_ROLE_ASSISTANT {
		return
	}
	t.clause = appendClause(t.clause[:0], m)
	if len(t.clause) == 0 {
		return
	}
	first := len(t.line) == 0
	if !first {
		t.clause = append(t.clause, textSeparator...)
	}
	t.length += utf8.RuneCount(t.clause)
	t.full = t.length > maxClause
	switch {
	case !t.full:
	case first:
		t.clause = ellipsis(t.clause)
	default:
		return
	}
	t.line = slices.Insert(t.line, 0, t.clause...)
}

// String returns the line; without a clause it is empty.
func (t *text) String() string {
	if len(t.line) == 0 {
		return ""
	}
	return textPrefix + string(t.line)
}

// appendClause says what an assistant message did: its summary, else its types of
// structured data in the order of their first values, each once, else its first words. It
// adds nothing when the message has none of them, and may end early where the clause is
// too long for any text.
func appendClause(b []byte, m *message) []byte {
	begin := len(b)
	if b = appendLine(b, m.summary, 0); len(b) > begin {
		return b
	}
	if b = appendLine(b, joinedTypes(m.data), 0); len(b) > begin {
		return b
	}
	return appendLine(b, m.content, clauseWords)
}

func joinedTypes(values []part) []byte {
	var types [][]byte
	length := 0
	for _, value := range values {
		if length > maxClauseBytes {
			break
		}
		if !slices.ContainsFunc(types, func(t []byte) bool { return bytes.Equal(t, value.name) }) {
			types = append(types, value.name)
			length += len(value.name)
		}
	}
	return bytes.Join(types, []byte("+"))
}

// appendLine appends the first words of s, 0 for all, parted by single blanks. It stops
// soon after maxClauseBytes, so that a long s costs no more and still shows as too long.
func appendLine(b, s []byte, words int) []byte {
	if line, ok := plainLine(s, words); ok {
		return append(b, line...)
	}
	begin := len(b)
	for word := range bytes.FieldsSeq(s) {
		if len(b) > begin {
			b = append(b, ' ')
		}
		b = append(b, word[:min(len(word), maxClauseBytes+utf8.UTFMax)]...)
		words--
		if words == 0 || len(b)-begin > maxClauseBytes {
			break
		}
	}
	return b
}

// plainLine returns the words that appendLine is to append, if they stand in s just so and
// in ASCII, as most do.
func plainLine(s []byte, words int) ([]byte, bool) {
	s = s[:min(len(s), maxClauseBytes)]
	blank := true
	for i, c := range s {
		switch {
		case ' ' < c && c < utf8.RuneSelf:
			blank = false
			continue
		case c != ' ' || blank:
			return nil, false
		}
		blank = true
		words--
		if words == 0 {
			return s[:i], true
		}
	}
	return s, !blank
}

// ellipsis cuts a clause that is longer than maxClause.
func ellipsis(clause []byte) []byte {
	kept := clause[:0]
	for range maxClause - 1 {
		_, size := utf8.DecodeRune(clause[len(kept):])
		kept = clause[:len(kept)+size]
	}
	return append(kept, "…"...)
}
