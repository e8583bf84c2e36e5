package interactionlog

import "bytes"

// filter selects the lines that a query must parse.
type filter struct {
	tenant, conversation string  // conversation "": all
	text                 *needle // nil: all
}

// mayMatch reports whether a line may be an entry that the query wants. It returns false only for lines
// that begin exactly as the encoder writes them. It may miss a line that was written by hand, begins so
// and repeats a key later.
func (f *filter) mayMatch(text []byte) bool {
	if !hasBraces(text) {
		return true // Parsing fails, and the line is counted.
	}
	if !f.text.mayMatch(text) {
		return false
	}
	h, ok := parseHead(text)
	if !ok {
		return true
	}
	if string(h.tenant) != f.tenant || f.conversation != "" && string(h.conversationID) != f.conversation {
		return false
	}
	if f.text == nil {
		return true
	}
	raw, ok := rawContent(text[h.size():])
	if !ok {
		return true
	}
	end := stringEnd(raw)
	return end < 0 || f.text.mayMatch(raw[:end])
}

// hasBraces reports whether a line begins and ends as a JSON object does.
func hasBraces(text []byte) bool {
	return len(text) > 1 && text[0] == '{' && text[len(text)-1] == '}'
}

// size returns the length of the head in its line.
func (h *entryHead) size() int {
	keys := len(timestampKey) + len(conversationKey) + len(tenantKey)
	return keys + len(h.timestamp) + len(h.conversationID) + len(h.tenant)
}

// rawContent returns the part of a line that begins with the text of the content, as it is in the file.
// rest is the line after its head. ok is false unless all before the content is as the encoder writes it.
func rawContent(rest []byte) (raw []byte, ok bool) {
	for i, key := range [...]string{`","agent":"`, `","role":"`, `","content":"`} {
		if i > 0 {
			end := stringEnd(rest)
			if end < 0 {
				return nil, false
			}
			rest = rest[end:]
		}
		if rest, ok = bytes.CutPrefix(rest, []byte(key)); !ok {
			return nil, false
		}
	}
	return rest, true
}

// stringEnd returns the offset of the quote that ends a JSON string whose text raw begins with, or -1 if
// there is none.
func stringEnd(raw []byte) int {
	for at := 0; ; at++ {
		i := bytes.IndexByte(raw[at:], '"')
		if i < 0 {
			return -1
		}
		at += i
		escapes := 0
		for escapes < at && raw[at-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}
