package interactionlog

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// encoder encodes messages as entries. It reuses its memory from one entry to the next.
type encoder struct {
	redact  redactor
	message message
}

// appendEntry appends the entry of a MESSAGE_APPENDED change to b and returns the time of the entry.
// After an error it has appended nothing. An entry longer than maxLineBytes is an error.
func (e *encoder) appendEntry(b []byte, c *store.Change) (line []byte, at time.Time, err error) {
	m, begin := &e.message, len(b)
	if err := m.decode(c.Message.Body()); err != nil {
		return b, at, fmt.Errorf("message of conversation %q: %w", c.ConversationID, err)
	}
	e.redact.redactMessage(m)
	slices.SortStableFunc(m.metadata, func(x, y pair) int { return bytes.Compare(x.key, y.key) })
	at = time.Unix(m.seconds, m.nanos).UTC()
	if year := at.Year(); year < 1 || year > 9999 {
		at = c.Time.UTC() // timestampLayout cannot express other years.
	}

	b = append(b, timestampKey...)
	b = appendTimestamp(b, at)
	b = append(b, conversationKey...)
	b = appendText(b, []byte(c.ConversationID))
	b = append(b, tenantKey...)
	b = appendText(b, []byte(cmp.Or(c.Tenant, defaultTenant)))
	b = append(b, `","agent":"`...)
	b = m.appendAuthor(b)
	b = append(b, `","role":"`...)
	b = append(b, roleName(m.role)...)
	b = append(b, `","content":"`...)
	b = appendText(b, m.contentOrResult())
	b = append(b, `","metadata":{`...)
	b = append(m.appendMetadata(b), "}}"...)
	if len(b)-begin > maxEntryBytes {
		return b[:begin], at, fmt.Errorf("message of conversation %q: entry is %w", c.ConversationID, errTooLong)
	}
	return append(b, '\n'), at, nil
}

// appendAuthor appends the author of a message: for a user the name in the metadata or else "User",
// for other roles the agent, and for a tool's result without an agent the tool.
func (m *message) appendAuthor(b []byte) []byte {
	switch {
	case m.role == parleyv1.Role_ROLE_USER:
		for _, p := range slices.Backward(m.metadata) { // The last one wins.
			if string(p.key) == "user" && len(p.value) > 0 {
				return appendText(b, p.value)
			}
		}
		return append(b, "User"...)
	case m.role == parleyv1.Role_ROLE_TOOL && len(m.agent) == 0:
		return appendText(b, m.tool)
	}
	return appendText(b, m.agent)
}

// contentOrResult returns the text of a message, or the tool's result of a message without a text.
func (m *message) contentOrResult() []byte {
	if len(m.content) == 0 {
		return m.result
	}
	return m.content
}

// appendMetadata appends the members of an entry's metadata: first those that the server sets, then
// those of the message, sorted by key. It omits keys of the message that the server has set.
func (m *message) appendMetadata(b []byte) []byte {
	if len(m.model) > 0 {
		b = append(appendText(append(b, `"model":"`...), m.model), `",`...)
	}
	b = strconv.AppendInt(append(b, `"turn_number":`...), int64(m.sequence), 10)
	if m.exchange != 0 {
		b = strconv.AppendInt(append(b, `,"exchange":`...), int64(m.exchange), 10)
	}
	b = m.appendTokens(b)
	if len(m.turnID) > 0 {
		b = append(appendText(append(b, `,"turn_id":"`...), m.turnID), '"')
	}
	if name := statusName(m.status); name != "" {
		b = append(append(append(b, `,"status":"`...), name...), '"')
	}
	b = m.appendTypes(b)
	for i, p := range m.metadata {
		if m.hasField(p.key) || i+1 < len(m.metadata) && bytes.Equal(p.key, m.metadata[i+1].key) {
			continue
		}
		b = appendText(append(b, `,"`...), p.key)
		b = appendText(append(b, `":"`...), p.value)
		b = append(b, '"')
	}
	return b
}

// hasField reports whether the server sets a member of the metadata with this key.
func (m *message) hasField(key []byte) bool {
	switch string(key) {
	case "model":
		return len(m.model) > 0
	case "turn_number":
		return true
	case "exchange":
		return m.exchange != 0
	case "tokens":
		return m.tokens != [4]int32{}
	case "turn_id":
		return len(m.turnID) > 0
	case "status":
		return statusName(m.status) != ""
	case "structured_data_types":
		return slices.ContainsFunc(m.types, func(t []byte) bool { return len(t) > 0 })
	}
	return false
}

// tokenNames returns the keys of the counts in message.tokens.
func tokenNames() [4]string {
	return [4]string{"input", "output", "cached_input", "reasoning"}
}

func (m *message) appendTokens(b []byte) []byte {
	if m.tokens == [4]int32{} {
		return b
	}
	b = append(b, `,"tokens":{`...)
	begin := len(b)
	for i, name := range tokenNames() {
		if m.tokens[i] == 0 {
			continue
		}
		if len(b) > begin {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
		b = strconv.AppendInt(b, int64(m.tokens[i]), 10)
	}
	return append(b, '}')
}

// appendTypes appends the types of structured data without duplicates, in the order of the message.
func (m *message) appendTypes(b []byte) []byte {
	key := `,"structured_data_types":["`
	for i, t := range m.types {
		known := slices.ContainsFunc(m.types[:i], func(other []byte) bool { return bytes.Equal(t, other) })
		if len(t) == 0 || known {
			continue
		}
		b = append(appendText(append(b, key...), t), '"')
		key = `,"`
	}
	if key == `,"` {
		b = append(b, ']')
	}
	return b
}

func statusName(status parleyv1.MessageStatus) string {
	switch status {
	case parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE:
		return "complete"
	case parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE:
		return "incomplete"
	default:
		return ""
	}
}

// appendTimestamp appends a time in UTC in timestampLayout. The year must be from 0 to 9999. It is
// several times as fast as time.AppendFormat.
func appendTimestamp(b []byte, at time.Time) []byte {
	year, month, date := at.Date()
	hour, minute, second := at.Clock()
	b = appendDigits(b, year, 4, '-')
	b = appendDigits(b, int(month), 2, '-')
	b = appendDigits(b, date, 2, 'T')
	b = appendDigits(b, hour, 2, ':')
	b = appendDigits(b, minute, 2, ':')
	b = appendDigits(b, second, 2, '.')
	return appendDigits(b, at.Nanosecond()/1000, 6, 'Z')
}

// appendDigits appends a number, padded with zeros to so many digits, and the byte that follows it.
func appendDigits(b []byte, number, digits int, then byte) []byte {
	b = append(b, "000000"[:digits]...)
	for i := len(b) - 1; number > 0 && digits > 0; i-- {
		b[i] = byte('0' + number%10)
		number, digits = number/10, digits-1
	}
	return append(b, then)
}

// appendText appends a text as it stands between the quotes of a JSON string. It escapes only what
// JSON requires and replaces invalid UTF-8 by U+FFFD.
func appendText(b, text []byte) []byte {
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\ufffd"))
	}
	for {
		n := unescapedLength(text)
		b = append(b, text[:n]...)
		if n == len(text) {
			return b
		}
		b = appendEscaped(b, text[n])
		text = text[n+1:]
	}
}

func appendEscaped(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// unescapedLength returns the length of the longest prefix of a text that JSON does not escape. It
// checks eight bytes at a time. The highest bit of a byte of special is set if the byte is below 0x20,
// a quote or a backslash. The subtractions carry, so bits of later bytes may be set wrongly; only the
// first one counts.
func unescapedLength(text []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(text)-n >= 8; n += 8 {
		word := binary.LittleEndian.Uint64(text[n:])
		quote, backslash := word^(ones*'"'), word^(ones*'\\')
		special := ((word-ones*0x20)&^word | (quote-ones)&^quote | (backslash-ones)&^backslash) & high
		if special != 0 {
			return n + bits.TrailingZeros64(special)/8
		}
	}
	for ; n < len(text); n++ {
		if c := text[n]; c < 0x20 || c == '"' || c == '\\' {
			break
		}
	}
	return n
}
