package interactionlog

import "bytes"

// filter says which lines a query has to parse.
type filter struct {
	tenant, conversation string  // session "": any
	text                 *needle // nil: any
}

// wants reports whether a line may be one that the filter is for. That a line is not, it
// says only of those which begin as the encoder writes them; a line by hand that begins so and
// has a key a second time later may be missed.
func (f *filter) mayMatch(text []byte) bool {
	if !hasBraces(text) {
		return true // It will not parse, and be counted.
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

// looksWhole reports whether a line may be an object, by its ends.
func hasBraces(text []byte) bool {
	return len(text) > 1 && text[0] == '{' && text[len(text)-1] == '}'
}

// size is how many bytes of its line a head is.
func (h *entryHead) size() int {
	return len(timestampKey) + len(h.timestamp) + len(conversationKey) + len(h.conversationID) + len(tenantKey) + len(h.tenant)
}

// rawContent returns what begins with the content, as it is in the file, out of what follows
// the head of a line; false unless all in between is as the encoder writes it.
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

// stringEnd returns where the JSON string ends that a text begins in: at the first quote that
// is not escaped; -1 if there is none.
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
