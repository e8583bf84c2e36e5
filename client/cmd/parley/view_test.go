package main

import (
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// A line to paste would give the result to another call, if an id has an equals sign: nobody is
// shown one then.
func TestOpenCallsThatNoLineCanName(t *testing.T) {
	end := finished(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED)
	end.GetFinished().Messages = []*parleyv1.Message{{ToolCalls: []*parleyv1.ToolCall{{Id: "c1"}, {Id: "a=b\x1b[1m"}, {Id: "c=d"}}}}
	var told strings.Builder
	a := &app{console: console{program: "parley", out: &told, err: &told}}
	if err := a.show(end, &view{conversation: "shop"}); err != nil {
		t.Fatal(err)
	}
	want := `the agent waits for the results of its tool calls; --tool-result cannot name call "a=b\x1b[1m", since that has a "=": ` +
		"go on with tool_results of Chat\n"
	if told.String() != want {
		t.Errorf("got  %q\nwant %q", told.String(), want)
	}
}
