package agui

import (
	"fmt"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestIDsOfClients checks that a message is not taken for one of the conversation because its id begins like one: a
// client may name a result after its call, as this server does, and number its messages.
func TestIDsOfClients(t *testing.T) {
	f := newFixture(t, map[string][]*parleyv1.RespondResponse{
		"asks": {call("c0", "own", "{}"), result("c0", "x"), call("c1", "place", "{}")}, "here": {text("Thanks")},
		"again": {text("Yes")},
	})
	const first = "0191d2a4-7c00-7000-8000-000000000001"
	asked, err := show(f.run(t, "script", "t", "r1", user(first, "asks")))
	if err != nil {
		t.Fatal(err)
	}
	pending := fmt.Sprint(listOf(objectOf(asked.end, "outcome"), "pendingToolCallIds")[0])
	history := []string{user(first, "asks")}
	for _, m := range asked.messages {
		history = append(history, fmt.Sprintf(`{"id":%q,"role":%q,"toolCallId":"c","content":""}`, m.ID, m.Role))
	}
	tool := fmt.Sprintf(`{"id":%q,"role":"tool","toolCallId":%q,"content":"here"}`, pending+"-result", pending)
	p, err := show(f.run(t, "script", "t", "r2", append(history, tool)...))
	if err != nil || p.text() != "Thanks" {
		t.Errorf("the run with the result shows %q, %v; want Thanks", p.text(), err)
	}
	p, err = show(f.run(t, "script", "t", "r3", user(first+"-2", "again")))
	if err != nil || p.text() != "Yes" {
		t.Errorf("the run with the second message shows %q, %v; want Yes", p.text(), err)
	}
	// The page sends its history, which ends with a result that the agent's own run of a tool has added.
	if _, err := show(f.run(t, "script", "t", "r2", history...)); err != nil {
		t.Error(err)
	}
	if messages := f.stored(t); len(messages) != 8 {
		t.Errorf("%d messages are stored, want 8: %v", len(messages), messages)
	}
}
