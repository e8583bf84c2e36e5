package anthropic_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// deltasOf returns the deltas of tool calls, and the calls, of the answer that the provider sends.
func deltasOf(t *testing.T, reply providertest.Reply) (deltas []*parleyv1.RespondResponse) {
	t.Helper()
	a := newAgent(t, agent.Model{BaseURL: anthropictest.New(t, reply).URL})
	for piece, err := range a.Respond(t.Context(), newRequest("Hi.")) {
		if err != nil {
			t.Fatal(err)
		}
		if piece.GetToolCallDelta() != nil || piece.GetToolCall() != nil {
			deltas = append(deltas, piece)
		}
	}
	return deltas
}

// TestCallDeltas: the parts of a call are passed on as they come, and then the call.
func TestCallDeltas(t *testing.T) {
	t.Parallel()
	got := deltasOf(t, anthropictest.Calls(
		anthropictest.Call{ID: "toolu_1", Name: "look_up", Arguments: `{"a":"Zücker"}`},
		anthropictest.Call{ID: "toolu_2", Name: "list"},
	))
	want := []*parleyv1.RespondResponse{
		agent.CallDelta("toolu_1", "look_up", ""), agent.CallDelta("toolu_1", "look_up", `{"a":`),
		agent.CallDelta("toolu_1", "look_up", `"Zück`), agent.CallDelta("toolu_1", "look_up", `er"}`),
		call("toolu_1", "look_up", `{"a":"Zücker"}`),
		agent.CallDelta("toolu_2", "list", ""), call("toolu_2", "list", "{}"),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestCallDeltasOfSplitCharacters: a part never ends inside a character, even if the provider splits one.
func TestCallDeltasOfSplitCharacters(t *testing.T) {
	t.Parallel()
	begin := event("content_block_start", object{
		"index": 0, "content_block": object{"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": object{}},
	})
	part := func(inside string) string {
		return "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":" +
			`{"type":"input_json_delta","partial_json":"` + inside + "\"}}\n\n"
	}
	got := deltasOf(t, providertest.Parts(anthropictest.Message{}.Start(), begin, part(`[\"`+"\xe2\x82"),
		part("\xac"+`\ud83d`), part(`\ude00\"]`), event("content_block_stop", object{"index": 0}), event("message_stop", nil)))
	want := []*parleyv1.RespondResponse{
		agent.CallDelta("toolu_1", "look_up", ""), agent.CallDelta("toolu_1", "look_up", `["`),
		agent.CallDelta("toolu_1", "look_up", "€"), agent.CallDelta("toolu_1", "look_up", `😀"]`),
		call("toolu_1", "look_up", `["€😀"]`),
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
