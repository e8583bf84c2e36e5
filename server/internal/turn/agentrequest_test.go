package turn

import (
	"context"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestOpenExchangeStart: a history is written in short. "u" is a user message. "a12" is a message
// of an agent with the calls 1 and 2. "r1" and "o1" are results of call 1, by the client and by the
// agent itself.
func TestOpenExchangeStart(t *testing.T) {
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
		var messages []*parleyv1.Message
		for word := range strings.FieldsSeq(test.history) {
			m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER}
			switch word[0] {
			case 'a':
				m = callMessage(strings.Split(word[1:], "")...)
			case 'r', 'o':
				m.Role, m.ToolResult = parleyv1.Role_ROLE_TOOL, &parleyv1.ToolResult{CallId: word[1:]}
				if word[0] == 'o' {
					m.TurnId = "own"
				}
			}
			messages = append(messages, m)
		}
		last := len(messages) - 1
		if got := openExchangeStart(messages[:last], messages[last]); got != test.want {
			t.Errorf("%s: openExchangeStart(%q) = %d, want %d", test.name, test.history, got, test.want)
		}
	}
}

// TestCacheStable: the request to the agent has cache_stable if the window in use has it.
func TestCacheStable(t *testing.T) {
	stable, bound := &parleyv1.ContextWindow{MaxExchanges: 3, CacheStable: true}, &parleyv1.ContextWindow{MaxExchanges: 3}
	tests := []struct {
		name           string
		agent, request *parleyv1.ContextWindow
		want           bool
	}{
		{"none", nil, nil, false},
		{"the agent's", stable, nil, true},
		{"the request's", nil, stable, true},
		{"the request's instead of the agent's", bound, stable, true},
		{"not the request's", stable, bound, false},
	}
	for _, test := range tests {
		var got *parleyv1.RespondRequest
		main := agentFunc(func(_ context.Context, r *parleyv1.RespondRequest, _ func(*parleyv1.RespondResponse, error) bool) {
			got = r
		})
		set, err := agent.NewSet("main", []agent.Entry{{Name: "main", Window: test.agent, Agent: main}})
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, map[string]agent.Agent{"main": main}, func(o *Options) { o.Agents = set })
		readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Window: test.request}))
		if got.GetCacheStable() != test.want {
			t.Errorf("%s: cache_stable = %t, want %t", test.name, got.GetCacheStable(), test.want)
		}
	}
}
