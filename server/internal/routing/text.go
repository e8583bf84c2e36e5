package routing

import (
	"bytes"
	"slices"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	textPrefix    = "Previous: "
	textSeparator = ", "
	// maxText is the maximum length of the text in Unicode characters, with the prefix.
	maxText = 500
	// maxClause is the maximum length in characters of a text with one clause, without the prefix.
	maxClause = maxText - len(textPrefix)
	// maxClauseBytes is the maximum length of such a clause in bytes.
	maxClauseBytes = maxClause * utf8.UTFMax
	// clauseWords is the number of words of an answer that form its clause if the answer has neither
	// a summary nor structured data.
	clauseWords = 8
)

// text collects one line that describes the assistant messages with a clause for each, the oldest
// first. It contains the newest clauses that fit into maxText characters. If the newest clause alone
// does not fit, it is truncated and ends with "…".
type text struct {
	line   []byte // without the prefix
	length int    // in characters
	full   bool
	clause []byte // buffer for the next clause
}

func newText() text {
	return text{line: make([]byte, 0, maxText), clause: make([]byte, 0, maxText/4)}
}

func (t *text) add(m *message) {
	if t.full || m.Role != parleyv1.Role_ROLE_ASSISTANT {
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
		t.clause = truncateClause(t.clause)
	default:
		return
	}
	t.line = slices.Insert(t.line, 0, t.clause...)
}

// String returns the line with its prefix, or "" if there is no clause.
func (t *text) String() string {
	if len(t.line) == 0 {
		return ""
	}
	return textPrefix + string(t.line)
}

// appendClause appends the clause of an assistant message to b. The clause is the first of these that
// is not empty: the summary, the distinct types of structured data in the order of the values, or the
// first words of the content. appendClause may stop early when the clause is too long for any text.
func appendClause(b []byte, m *message) []byte {
	start := len(b)
	if b = appendLine(b, m.Summary, 0); len(b) > start {
		return b
	}
	if b = appendLine(b, joinedTypes(m.StructuredData), 0); len(b) > start {
		return b
	}
	return appendLine(b, m.Content, clauseWords)
}

// joinedTypes returns the distinct types of structured data values, joined by "+".
func joinedTypes(values []store.Nested) []byte {
	var types [][]byte
	length := 0
	for _, value := range values {
		if length > maxClauseBytes {
			break
		}
		if !slices.ContainsFunc(types, func(t []byte) bool { return bytes.Equal(t, value.Name) }) {
			types = append(types, value.Name)
			length += len(value.Name)
		}
	}
	return bytes.Join(types, []byte("+"))
}

// appendLine appends the first words of s to b, separated by single spaces. If words is 0, it appends
// all words. It stops shortly after maxClauseBytes: a longer s takes no more time, and the result is
// still recognized as too long.
func appendLine(b, s []byte, words int) []byte {
	if line, ok := asciiLine(s, words); ok {
		return append(b, line...)
	}
	start := len(b)
	for word := range bytes.FieldsSeq(s) {
		if len(b) > start {
			b = append(b, ' ')
		}
		b = append(b, word[:min(len(word), maxClauseBytes+utf8.UTFMax)]...)
		words--
		if words == 0 || len(b)-start > maxClauseBytes {
			break
		}
	}
	return b
}

// asciiLine is the fast path of appendLine. It succeeds if the first words of s are ASCII and already
// separated by single spaces, which is the common case. It returns them as a slice of s.
func asciiLine(s []byte, words int) ([]byte, bool) {
	s = s[:min(len(s), maxClauseBytes)]
	afterSpace := true
	for i, c := range s {
		switch {
		case ' ' < c && c < utf8.RuneSelf:
			afterSpace = false
			continue
		case c != ' ' || afterSpace:
			return nil, false
		}
		afterSpace = true
		words--
		if words == 0 {
			return s[:i], true
		}
	}
	return s, !afterSpace
}

// truncateClause shortens a clause that is longer than maxClause characters to maxClause characters,
// of which the last is "…".
func truncateClause(clause []byte) []byte {
	prefix := clause[:0]
	for range maxClause - 1 {
		_, size := utf8.DecodeRune(clause[len(prefix):])
		prefix = clause[:len(prefix)+size]
	}
	return append(prefix, "…"...)
}
