package entry

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Encoder encodes messages as entries. It reuses its memory from one entry to the next. Create it with
// [NewEncoder].
type Encoder struct {
	redact  redactor
	message message
}

// NewEncoder returns an encoder that replaces the matches of expressions by "[redacted]".
func NewEncoder(redact []*regexp.Regexp) *Encoder { return &Encoder{redact: redact} }

// Logged reports whether changes of a kind have entries: MESSAGE_APPENDED and CLEARED.
func Logged(kind parleyv1.ChangeKind) bool {
	return kind == parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || kind == parleyv1.ChangeKind_CHANGE_KIND_CLEARED
}

// Append appends the entry of a change of a [Logged] kind to b and returns the time of the entry.
// After an error it has appended nothing. An entry longer than MaxBytes is an error.
func (e *Encoder) Append(b []byte, c *store.Change) (line []byte, at time.Time, err error) {
	if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_CLEARED {
		line, at = appendRemoval(b, c)
		return line, at, nil
	}
	m, begin := &e.message, len(b)
	if err = m.read(c.Message); err == nil {
		at, err = m.Time()
	}
	if err != nil {
		return b, time.Time{}, fmt.Errorf("message of conversation %q: %w", c.ConversationID, err)
	}
	e.redact.redactMessage(m)
	slices.SortStableFunc(m.metadata, func(x, y pair) int { return bytes.Compare(x.key, y.key) })
	at = at.UTC()
	if year := at.Year(); year < 1 || year > 9999 {
		at = c.Time.UTC() // TimestampLayout cannot express other years.
	}

	b = append(b, timestampKey...)
	b = AppendTimestamp(b, at)
	b = append(b, conversationKey...)
	b = appendText(b, []byte(c.ConversationID))
	b = append(b, tenantKey...)
	b = appendText(b, []byte(cmp.Or(c.Tenant, DefaultTenant)))
	b = append(b, agentKey...)
	b = m.appendAuthor(b)
	b = append(b, roleKey...)
	b = append(b, roleName(m.Role)...)
	b = append(b, contentKey...)
	b = appendText(b, m.contentOrResult())
	b = append(b, `","metadata":{`...)
	b = append(m.appendMetadata(b), "}}"...)
	if len(b)-begin > MaxBytes {
		return b[:begin], at, fmt.Errorf("message of conversation %q: entry is %w", c.ConversationID, ErrTooLong)
	}
	return append(b, '\n'), at, nil
}

// appendAuthor appends the author of a message: for a user the name in the metadata or else "User",
// for other roles the agent, and for a tool's result without an agent the tool.
func (m *message) appendAuthor(b []byte) []byte {
	switch {
	case m.Role == parleyv1.Role_ROLE_USER:
		for _, p := range slices.Backward(m.metadata) { // The last one wins.
			if string(p.key) == "user" && len(p.value) > 0 {
				return appendText(b, p.value)
			}
		}
		return append(b, "User"...)
	case m.Role == parleyv1.Role_ROLE_TOOL && len(m.Agent) == 0:
		return appendText(b, m.result.Name)
	}
	return appendText(b, m.Agent)
}

// contentOrResult returns the text of a message, or the tool's result of a message without a text.
func (m *message) contentOrResult() []byte {
	if len(m.Content) == 0 {
		return m.result.Content
	}
	return m.Content
}

// appendMetadata appends the members of an entry's metadata: first those that the server sets, then
// those of the message, sorted by key. It omits keys of the message that the server has set.
func (m *message) appendMetadata(b []byte) []byte {
	if len(m.usage.Model) > 0 {
		b = append(appendText(append(b, `"model":"`...), m.usage.Model), `",`...)
	}
	b = strconv.AppendInt(append(b, `"turn_number":`...), int64(m.Sequence), 10)
	if m.Exchange != 0 {
		b = strconv.AppendInt(append(b, `,"exchange":`...), int64(m.Exchange), 10)
	}
	b = m.appendTokens(b)
	if len(m.TurnID) > 0 {
		b = append(appendText(append(b, `,"turn_id":"`...), m.TurnID), '"')
	}
	if name := statusName(m.Status); name != "" {
		b = append(append(append(b, `,"status":"`...), name...), '"')
	}
	b = m.appendNative(m.appendTypes(b))
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
		return len(m.usage.Model) > 0
	case "turn_number":
		return true
	case "exchange":
		return m.Exchange != 0
	case "tokens":
		return m.tokens() != [4]int32{}
	case "turn_id":
		return len(m.TurnID) > 0
	case "status":
		return statusName(m.Status) != ""
	case "native":
		return len(m.native.Type) > 0
	case "structured_data_types":
		return slices.ContainsFunc(m.types, func(t []byte) bool { return len(t) > 0 })
	}
	return false
}

// tokenNames returns the keys of the counts of tokens, in the order of tokens.
func tokenNames() [4]string {
	return [4]string{"input", "output", "cached_input", "reasoning"}
}

func (m *message) tokens() [4]int32 {
	u := &m.usage
	return [4]int32{u.InputTokens, u.OutputTokens, u.CachedInputTokens, u.ReasoningTokens}
}

func (m *message) appendTokens(b []byte) []byte {
	tokens := m.tokens()
	if tokens == [4]int32{} {
		return b
	}
	b = append(b, `,"tokens":{`...)
	begin := len(b)
	for i, name := range tokenNames() {
		if tokens[i] == 0 {
			continue
		}
		if len(b) > begin {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
		b = strconv.AppendInt(b, int64(tokens[i]), 10)
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

// appendNative appends the type and the size of the native form. Its value is only for the author of the message.
func (m *message) appendNative(b []byte) []byte {
	if len(m.native.Type) == 0 {
		return b
	}
	b = appendText(append(b, `,"native":{"type":"`...), m.native.Type)
	b = strconv.AppendInt(append(b, `","bytes":`...), int64(len(m.native.Value)), 10)
	return append(b, '}')
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
