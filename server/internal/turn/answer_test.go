package turn

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestUsageAfterLastResult: usage and finish reason that an agent reports after its last tool
// result belong to the last message that it has written, but not if another agent reports them.
func TestUsageAfterLastResult(t *testing.T) {
	usage := func(model string) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: &parleyv1.Usage{Model: model}}}
	}
	reason := &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_FinishReason{FinishReason: "stop"}}
	tests := []struct {
		name   string
		pieces []*parleyv1.RespondResponse
		want   []string // model and finish reason of each message
	}{
		{
			"usage and reason",
			[]*parleyv1.RespondResponse{call("1"), result("1", ""), usage("m"), reason},
			[]string{"m stop", " "},
		},
		{
			"the last one counts",
			[]*parleyv1.RespondResponse{call("1"), usage("a"), reason, result("1", ""), usage("b")},
			[]string{"b stop", " "},
		},
		{"between two results", []*parleyv1.RespondResponse{
			call("1"), call("2"), result("1", ""), usage("m"),
			result("2", ""), reason,
		}, []string{"m stop", " ", " "}},
		{
			"followed by text",
			[]*parleyv1.RespondResponse{call("1"), result("1", ""), usage("m"), reason, text("so")},
			[]string{" ", " ", "m stop"},
		},
		{"no message", []*parleyv1.RespondResponse{usage("m"), reason}, nil},
		{"another agent's", []*parleyv1.RespondResponse{
			call("1"), result("1", ""), usage("m"), handoff("b"), usage("n"),
			reason,
		}, []string{"m ", " "}},
	}
	for _, test := range tests {
		f := newFixture(t, map[string]agent.Agent{"main": respondWith(test.pieces...)}, nil)
		var got []string
		for _, m := range readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetMessages() {
			got = append(got, m.GetUsage().GetModel()+" "+m.GetFinishReason())
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: reports of messages (-want +got):\n%s", test.name, diff)
		}
	}
}

// TestLimitErrors: the error of a turn names the limit that the answer has exceeded.
func TestLimitErrors(t *testing.T) {
	tests := []struct {
		name   string
		pieces func(i int) *parleyv1.RespondResponse
		want   string
	}{
		{
			"bytes", func(int) *parleyv1.RespondResponse { return text(strings.Repeat("x", 1<<10)) },
			"is larger than 1048576 bytes",
		},
		{"messages", func(i int) *parleyv1.RespondResponse {
			if i%2 == 0 {
				return text("x")
			}
			return handoff("b")
		}, "has more than 100 messages"},
		{"results", func(i int) *parleyv1.RespondResponse {
			if i%2 == 0 {
				return call("1")
			}
			return result("1", "")
		}, "has more than 100 messages"},
		{
			"calls", func(i int) *parleyv1.RespondResponse { return call(strconv.Itoa(i)) },
			"has more than 1000 values, calls and results",
		},
	}
	for _, test := range tests {
		var pieces []*parleyv1.RespondResponse
		for i := range 2 * maxAnswerValues {
			pieces = append(pieces, test.pieces(i))
		}
		f := newFixture(t, map[string]agent.Agent{"main": respondWith(pieces...)}, nil)
		got := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})).GetTurn().GetError()
		if want := "the answer of agent main " + test.want +
			"; the part within the limit is stored"; got.GetMessage() != want || got.GetReason() != "AGENT_OUTPUT_TOO_LARGE" {
			t.Errorf("%s: turn failed with %v, want %q", test.name, got, want)
		}
	}
}
