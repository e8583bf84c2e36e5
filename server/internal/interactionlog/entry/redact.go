package entry

import (
	"bytes"
	"regexp"

	"github.com/parleyhq/parley/store"
)

const (
	// redacted replaces a text that an expression matches.
	redacted = "[redacted]"
	// redactedMark stands for redacted until all expressions were applied, so that no expression
	// matches in the replacement and lengthens the text. The byte does not occur in UTF-8.
	redactedMark = "\xff"
	// maxRedactedBytes is the maximum size of a text after redaction. A longer one is replaced
	// completely, since no reply could contain it.
	maxRedactedBytes = store.MaxMessageBytes
)

// redactor removes text from messages before they are written.
type redactor []*regexp.Regexp

// redactMessage redacts what the author of a message has chosen: the text, the names of agent, tool and
// model, the types of structured data and of the native form, and the keys and values of the metadata,
// each one separately. It does not change what the server has set, since operators find entries by
// their ids.
func (r redactor) redactMessage(m *message) {
	if len(r) == 0 {
		return
	}
	for _, text := range []*[]byte{
		&m.Content, &m.result.Content, &m.Agent, &m.result.Name, &m.usage.Model, &m.native.Type,
	} {
		*text = r.redact(*text)
	}
	for i := range m.types {
		m.types[i] = r.redact(m.types[i])
	}
	for i, p := range m.metadata {
		m.metadata[i] = pair{r.redact(p.key), r.redact(p.value)}
	}
}

// redact returns the text with every match replaced, one expression after the other. It ignores empty
// matches.
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
