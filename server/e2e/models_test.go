package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// threeTurns is a conversation in which each turn needs the earlier ones.
var threeTurns = []struct {
	ask    string
	answer reply
}{
	{
		"create three products",
		reply{"Created Flour, Sugar and Salt.", `[{"name":"Flour"},{"name":"Sugar"},{"name":"Salt"}]`},
	},
	{
		"Sugar costs 50 cents",
		reply{"Sugar costs 50 cents.", `[{"name":"Flour"},{"cents":50,"name":"Sugar"},{"name":"Salt"}]`},
	},
	{
		"the second one is sold out",
		reply{"Sugar is sold out.", `[{"name":"Flour"},{"cents":50,"name":"Sugar","sold_out":true},{"name":"Salt"}]`},
	},
}

// TestEachKindReceivesTheConversation runs three turns with each kind of agent. Each agent receives
// all messages in its own form, and its data is stored as structured data.
func TestEachKindReceivesTheConversation(t *testing.T) {
	t.Parallel()
	var replies []reply
	for _, turn := range threeTurns {
		replies = append(replies, turn.answer)
	}
	all := kinds(t, replies...)
	s := startServer(t, t.TempDir(), kindsConfig(t, all))
	for _, k := range all {
		t.Run(k.name, func(t *testing.T) {
			var want []agentInput
			var messages []string
			for _, turn := range threeTurns {
				call := chat(t, s, &parleyv1.ChatRequest{ConversationId: k.name, Content: turn.ask, Agent: k.name})
				finished := call.finish(t)
				if state := finished.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED ||
					call.text != turn.answer.text {
					t.Fatalf("turn %q = %v with %q, want %q", turn.ask, finished.GetTurn(), call.text, turn.answer.text)
				}
				answer := finished.GetMessages()[0]
				if data := answer.GetStructuredData(); len(data) != 1 || data[0].GetType() != "product_list" ||
					encodeJSON(t, data[0].GetValue().AsInterface()) != turn.answer.products || answer.GetAgent() != k.name {
					t.Errorf("turn %q has the answer %v, want its product_list and agent", turn.ask, answer)
				}
				messages = append(messages, k.form("user", turn.ask, "")...)
				want = append(want, agentInput{messages: slices.Clone(messages)})
				messages = append(messages, k.form("assistant", turn.answer.text, turn.answer.products)...)
			}
			if d := cmp.Diff(want, k.given(t), cmp.AllowUnexported(agentInput{})); d != "" {
				t.Errorf("input of the agent (-want +got):\n%s", d)
			}
		})
	}
}

// TestEachKindReceivesItsWindow lets each kind of agent answer a conversation of 150 messages, once with
// all messages and once with the newest 5 exchanges.
func TestEachKindReceivesItsWindow(t *testing.T) {
	t.Parallel()
	const messageCount = 150
	all := kinds(t, reply{text: "all of it"}, reply{text: "five"})
	configured := slices.Clone(all)
	for _, k := range all {
		k.entry["system_prompt"] = "You keep a shop."
		five := maps.Clone(k.entry)
		five["window"] = map[string]any{"max_exchanges": 5}
		configured = append(configured, kind{name: k.name + "-5", entry: five})
	}
	s := startServer(t, t.TempDir(), kindsConfig(t, configured), "--max-messages=1000")
	for _, k := range all {
		t.Run(k.name, func(t *testing.T) {
			var messages []string
			for i := range messageCount {
				m := userMessage(fmt.Sprint("message ", i))
				role := "user"
				if i%2 == 1 {
					m, role = agentMessage("writer", m.GetContent()), "assistant"
				}
				add(t, s, k.name, m)
				messages = append(messages, k.form(role, m.GetContent(), "")...)
			}
			chat(t, s, &parleyv1.ChatRequest{ConversationId: k.name, Content: "all", Agent: k.name}).finish(t)
			messages = append(messages, k.form("user", "all", "")...)
			want := []agentInput{{"You keep a shop.", slices.Clone(messages)}}

			limited := chat(t, s, &parleyv1.ChatRequest{ConversationId: k.name, Content: "the rest", Agent: k.name + "-5"})
			limited.finish(t)
			messages = append(append(messages, k.form("assistant", "all of it", "")...), k.form("user", "the rest", "")...)
			want = append(want, agentInput{"You keep a shop.", messages[len(messages)-11:]})
			if limited.started.GetHistoryCount() != 10 || !strings.Contains(messages[len(messages)-11], "message 142") {
				t.Errorf("%d messages of history from %s on, want 10 from message 142 on", limited.started.GetHistoryCount(),
					messages[len(messages)-11])
			}
			if d := cmp.Diff(want, k.given(t), cmp.AllowUnexported(agentInput{})); d != "" {
				t.Errorf("input of the agent (-want +got):\n%s", d)
			}
		})
	}
}
