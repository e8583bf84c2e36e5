package entry

import (
	"bytes"
)

// The keys of an entry, each with what separates it from the value before.
const (
	timestampKey    = `{"timestamp":"`
	conversationKey = `","session_id":"`
	tenantKey       = `","tenant":"`
	agentKey        = `","agent":"`
	roleKey         = `","role":"`
	contentKey      = `","content":"`
)

// HasBraces reports whether a line begins and ends as a JSON object does.
func HasBraces(text []byte) bool {
	return len(text) > 1 && text[0] == '{' && text[len(text)-1] == '}'
}

// Head is the beginning of an entry as the encoder writes it. It is enough to skip most lines
// without parsing them.
type Head struct {
	Timestamp      []byte // in TimestampLayout
	ConversationID []byte
	Tenant         []byte
}

// ParseHead parses the head of a line. ok is false if the line does not begin exactly as the encoder
// writes it, for example because it was written by hand or because JSON escapes an id. ParseHead does
// not check that the rest of the line is complete.
func ParseHead(b []byte) (Head, bool) {
	var h Head
	rest, ok := bytes.CutPrefix(b, []byte(timestampKey))
	if !ok || len(rest) < len(TimestampLayout) {
		return h, false
	}
	h.Timestamp, rest = rest[:len(TimestampLayout)], rest[len(TimestampLayout):]
	if !isTimestamp(h.Timestamp) {
		return h, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(conversationKey)); !ok {
		return h, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return h, false
	}
	h.ConversationID, rest = rest[:end], rest[end:]
	if rest, ok = bytes.CutPrefix(rest, []byte(tenantKey)); !ok {
		return h, false
	}
	if end = bytes.IndexByte(rest, '"'); end < 0 {
		return h, false
	}
	h.Tenant = rest[:end]
	return h, end > 0 && bytes.IndexByte(h.ConversationID, '\\') < 0 && bytes.IndexByte(h.Tenant, '\\') < 0
}

// isTimestamp reports whether b has the length and the separators of TimestampLayout.
func isTimestamp(b []byte) bool {
	for i, c := range b {
		switch want := TimestampLayout[i]; {
		case want >= '0' && want <= '9':
			if c < '0' || c > '9' {
				return false
			}
		case c != want:
			return false
		}
	}
	return len(b) == len(TimestampLayout)
}

// Timestamp returns the timestamp of an entry that the encoder has written.
func Timestamp(entry []byte) []byte { return entry[len(timestampKey):][:len(TimestampLayout)] }

// size returns the length of the head in its line.
func (h *Head) size() int {
	keys := len(timestampKey) + len(conversationKey) + len(tenantKey)
	return keys + len(h.Timestamp) + len(h.ConversationID) + len(h.Tenant)
}

// RawContent returns the content of the line with this head, as it is between the quotes in the file. ok is
// false unless all before the content is as the encoder writes it.
func (h *Head) RawContent(line []byte) (raw []byte, ok bool) {
	rest := line[h.size():]
	for i, key := range [...]string{agentKey, roleKey, contentKey} {
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
	end := stringEnd(rest)
	if end < 0 {
		return nil, false
	}
	return rest[:end], true
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
