package agui

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// part of a message that is open at a position.
const (
	nothingOpen   = '-'
	textOpen      = 't'
	reasoningOpen = 'r' // The message of a reasoning.
	spanOpen      = 's' // REASONING_START was sent, and its message is not open.
)

// position says which events of a turn a client has. It is in the id of each event, so a client resumes exactly there,
// also if the server merges or splits texts differently the next time.
type position struct {
	turnID      string
	index       int32 // Of the last event of the turn that was sent completely. 0 if RUN_STARTED was sent.
	textPending bool  // Text before that event may not have been sent; see [gateway.EventIDs].

	number          int  // Of the current message of the answer, from 0.
	text, reasoning int  // Bytes of its text and of its reasoning that were sent.
	hasContent      bool // It is more than calls that are not complete.
	open            rune
	cutOff          bool       // A call that is not part of the answer was sent.
	calls           []openCall // that were begun and have no result
}

// openCall is a call of a tool of which TOOL_CALL_START was sent.
type openCall struct {
	id     string
	number int  // of its message
	bytes  int  // of its arguments that were sent
	ended  bool // TOOL_CALL_END was sent.
}

// String returns the id of an event.
func (p *position) String() string {
	var b strings.Builder
	b.WriteString(p.turnID)
	b.WriteByte('/')
	b.WriteString(strconv.Itoa(int(p.index)))
	if p.textPending {
		b.WriteByte('~')
	}
	for _, n := range []int{p.number, p.text, p.reasoning} {
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(n))
	}
	b.WriteByte('/')
	b.WriteRune(p.open)
	if p.hasContent {
		b.WriteByte('+')
	}
	if p.cutOff {
		b.WriteByte('!')
	}
	for _, call := range p.calls {
		b.WriteByte('/')
		b.WriteString(strconv.Itoa(call.number))
		b.WriteByte(',')
		b.WriteString(strconv.Itoa(call.bytes))
		if call.ended {
			b.WriteByte('.')
		}
		b.WriteByte('=')
		b.WriteString(url.PathEscape(call.id))
	}
	return b.String()
}

// parsePosition returns the position in the id of an event. ok is false if id is malformed.
func parsePosition(id string) (p position, ok bool) {
	fields := strings.Split(id, "/")
	if len(fields) < 6 {
		return position{}, false
	}
	p.turnID = fields[0]
	p.index, p.textPending, ok = gateway.ParseEventID(fields[1])
	for i, to := range []*int{&p.number, &p.text, &p.reasoning} {
		var isNumber bool
		*to, isNumber = parseCount(fields[2+i])
		ok = ok && isNumber
	}
	state, cutOff := strings.CutSuffix(fields[5], "!")
	state, hasContent := strings.CutSuffix(state, "+")
	if !ok || p.turnID == "" || len(state) != 1 ||
		!slices.Contains([]rune{nothingOpen, textOpen, reasoningOpen, spanOpen}, rune(state[0])) {
		return position{}, false
	}
	p.open, p.hasContent, p.cutOff = rune(state[0]), hasContent, cutOff
	for _, field := range fields[6:] {
		counts, escaped, _ := strings.Cut(field, "=")
		numberText, bytesText, _ := strings.Cut(counts, ",")
		bytesText, ended := strings.CutSuffix(bytesText, ".")
		number, isNumber := parseCount(numberText)
		bytes, isCount := parseCount(bytesText)
		id, err := url.PathUnescape(escaped)
		if !isNumber || !isCount || err != nil {
			return position{}, false
		}
		p.calls = append(p.calls, openCall{id, number, bytes, ended})
	}
	return p, true
}

func parseCount(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil
}
