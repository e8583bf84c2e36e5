package interactionlog

import "regexp"

// redacted stands where something matched.
const redacted = "[redacted]"

// redactor takes from messages what must not reach the disk.
type redactor []*regexp.Regexp

// message redacts what its writer chose: the text, the names of agent, tool and model, the
// types of structured data, and its metadata, keys and values, each for itself. What the server
// set stays: by its ids a line is found.
func (r redactor) message(m *message) {
	if len(r) == 0 {
		return
	}
	for _, text := range []*[]byte{&m.content, &m.result, &m.agent, &m.tool, &m.model} {
		*text = r.text(*text)
	}
	for i := range m.types {
		m.types[i] = r.text(m.types[i])
	}
	for i, p := range m.metadata {
		m.metadata[i] = pair{r.text(p.key), r.text(p.value)}
	}
}

// text is the text with redacted for every match, one expression after the other. A match of
// nothing is none.
func (r redactor) text(text []byte) []byte {
	for _, expression := range r {
		if len(text) == 0 || !expression.Match(text) {
			continue
		}
		text = expression.ReplaceAllFunc(text, func(match []byte) []byte {
			if len(match) == 0 {
				return nil
			}
			return []byte(redacted)
		})
	}
	return text
}
