package interactionlog

import (
	"bytes"
	"regexp"
)

const (
	// redacted replaces the text that an expression matches.
	redacted = "[redacted]"
	// redactedMark stands for redacted until all expressions were applied, so that no expression
	// matches in the replacement and lengthens the text again. The byte occurs in no UTF-8 text.
	redactedMark = "\xff"
	// maxRedactedBytes is the maximum length of a message. A text that redaction makes longer is
	// redacted as a whole, since no reply could contain it.
	maxRedactedBytes = 3 << 20
)

// redactor takes from messages what must not reach the disk.
type redactor []*regexp.Regexp

// message redacts what its writer chose: the text, the names of agent, tool and model, the
// types of structured data, and its metadata, keys and values, each for itself. What the server
// set stays: by its ids a line is found.
func (r redactor) redactMessage(m *message) {
	if len(r) == 0 {
		return
	}
	for _, text := range []*[]byte{&m.content, &m.result, &m.agent, &m.tool, &m.model} {
		*text = r.redact(*text)
	}
	for i := range m.types {
		m.types[i] = r.redact(m.types[i])
	}
	for i, p := range m.metadata {
		m.metadata[i] = pair{r.redact(p.key), r.redact(p.value)}
	}
}

// text is the text with redacted for every match, one expression after the other. A match of
// nothing is none.
func (r redactor) redact(text []byte) []byte {
	matched := false
	for _, expression := range r {
		if len(text) == 0 || !expression.Match(text) {
			continue
		}
		text = expression.ReplaceAllFunc(text, func(match []byte) []byte {
			if len(match) == 0 {
				return nil
			}
			matched = true
			return []byte(redactedMark)
		})
	}
	if !matched {
		return text
	}
	marks := bytes.Count(text, []byte(redactedMark))
	if len(text)+marks*(len(redacted)-len(redactedMark)) > maxRedactedBytes {
		return []byte(redacted)
	}
	return bytes.ReplaceAll(text, []byte(redactedMark), []byte(redacted))
}
