package history

import (
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// parse returns a history that is written in short. "u" is a user message, "s" a system message.
// "a12" is a message of an agent with the calls 1 and 2. "r1" and "o1" are results of call 1, by the
// client and by the agent itself. The turn of "a" and "o" is "t", or the letter after a slash, as in
// "a/x". A final "!" makes the message INCOMPLETE.
func parse(history string) []*parleyv1.Message {
	var messages []*parleyv1.Message
	for word := range strings.FieldsSeq(history) {
		word, incomplete := strings.CutSuffix(word, "!")
		word, turnID, hasTurn := strings.Cut(word, "/")
		if !hasTurn {
			turnID = "t"
		}
		m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Sequence: int32(len(messages) + 1)}
		switch word[0] {
		case 's':
			m.Role = parleyv1.Role_ROLE_SYSTEM
		case 'a':
			m.Role, m.TurnId = parleyv1.Role_ROLE_ASSISTANT, turnID
			for id := range strings.SplitSeq(word[1:], "") {
				m.ToolCalls = append(m.ToolCalls, &parleyv1.ToolCall{Id: id})
			}
		case 'r', 'o':
			m.Role, m.ToolResult = parleyv1.Role_ROLE_TOOL, &parleyv1.ToolResult{CallId: word[1:]}
			if word[0] == 'o' {
				m.TurnId = turnID
			}
		}
		if incomplete {
			m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
		}
		messages = append(messages, m)
	}
	return messages
}

func TestExchangeStart(t *testing.T) {
	tests := []struct {
		name    string
		history string // the last message is the input
		want    int
	}{
		{"a question", "u", 0},
		{"another question", "u a u", 2},
		{"a result", "u a1 r1", 0},
		{"a result after others", "u a u a1 r1", 2},
		{"results", "u a u a12 r1 r2", 2},
		{"a question with results", "u a u a12 r1 r2 u", 2},
		{"a question after an agent's results", "u a1 o1 u", 3},
		{"a result after an agent's", "u a u a12 o1 r2", 2},
		{"of an earlier exchange", "u a u a1 u a r1", 2},
		{"of two exchanges", "u a u a1 u a2 r2 r1 u", 2},
		{"an old result in between", "u a1 u r1 a2 r2", 0},
		{"a result of nothing", "u a u a r1", 2},
		{"the newest call of an id", "u a1 r1 u a1 r1", 3},
		{"both calls of an id", "u a1 u a1 r1 a r1", 2},
		{"an older call of the id", "u a1 u a1 u a2 r1 r2", 2},
		{"an exchange without its question", "a1 r1", 0},
		{"a call without its question", "a1 u a r1", 0},
		{"a result without a question", "r1", 0},
		{"after results of a call that is not stored", "o1 r2 a3 r3", 2},
		{"after a result of an earlier one, without a question", "o1 a2 u a r2", 1},
		{"a text of an agent without a question", "r1 a a2 r2", 1},
		{"nothing but results", "o1 r2 r3", 1},
	}
	for _, test := range tests {
		messages := parse(test.history)
		last := len(messages) - 1
		if got := ExchangeStart(messages[:last], messages[last]); got != test.want {
			t.Errorf("%s: ExchangeStart(%q) = %d, want %d", test.name, test.history, got, test.want)
		}
	}
}
