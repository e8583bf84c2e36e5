package routing

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	textPrefix    = "Previous: "
	textSeparator = ", "
	// maxText bounds the text, prefix included, in Unicode characters.
	maxText = 500
	// maxClause is what is left for a clause that stands alone.
	maxClause = maxText - len(textPrefix)
	// clauseWords is how much of an answer stands for it when nothing better does.
	clauseWords = 8
)

// text returns one line that tells what the assistant messages did, oldest first: as many
// of the newest clauses as fit into maxText characters. A newest clause that does not fit
// alone is cut and ends with "…". Without a clause the text is empty.
func text(messages []*parleyv1.Message) string {
	var clauses [][]byte // newest first, all in buffer
	buffer := make([]byte, 0, maxText)
	room := maxClause
	for _, m := range slices.Backward(messages) {
		if m.GetRole() != parleyv1.Role_ROLE_ASSISTANT {
			continue
		}
		begin := len(buffer)
		buffer = appendClause(buffer, m)
		c := buffer[begin:]
		if len(c) == 0 {
			continue
		}
		if len(clauses) > 0 {
			room -= len(textSeparator)
		}
		if room -= utf8.RuneCount(c); room < 0 {
			if len(clauses) == 0 {
				clauses = append(clauses, ellipsis(c))
			}
			break
		}
		clauses = append(clauses, c)
	}
	if len(clauses) == 0 {
		return ""
	}
	slices.Reverse(clauses)
	return textPrefix + string(bytes.Join(clauses, []byte(textSeparator)))
}

// appendClause says what an assistant message did: its summary, else its types of
// structured data in the order of their first values, each once, else its first words. It
// adds nothing when the message has none of them, and may end early where the clause is
// too long for any text.
func appendClause(b []byte, m *parleyv1.Message) []byte {
	begin := len(b)
	if b = appendLine(b, m.GetSummary(), 0); len(b) > begin {
		return b
	}
	if b = appendLine(b, joinedTypes(m.GetStructuredData()), 0); len(b) > begin {
		return b
	}
	return appendLine(b, m.GetContent(), clauseWords)
}

func joinedTypes(values []*parleyv1.StructuredData) string {
	var types []string
	length := 0
	for _, data := range values {
		if length > maxClause*utf8.UTFMax {
			break
		}
		if !slices.Contains(types, data.GetType()) {
			types = append(types, data.GetType())
			length += len(data.GetType())
		}
	}
	return strings.Join(types, "+")
}

// appendLine appends the first words of s, 0 for all, parted by single blanks. It stops
// soon after maxClause characters, so that a long s costs no more and still shows as too
// long.
func appendLine(b []byte, s string, words int) []byte {
	length, blank := 0, false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			blank = length > 0
			continue
		case length > maxClause, blank && words == 1:
			return b
		case blank:
			b = append(b, ' ')
			length++
			blank = false
			words--
		}
		b = utf8.AppendRune(b, r)
		length++
	}
	return b
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
