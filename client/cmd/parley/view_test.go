package main

import (
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestToolResultHintWithEqualsSign checks that toolResultHint prints no command if an id contains "=",
// because the command would pass the result to another call.
func TestToolResultHintWithEqualsSign(t *testing.T) {
	end := finished(parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED)
	end.GetFinished().Messages = []*parleyv1.Message{
		{ToolCalls: []*parleyv1.ToolCall{{Id: "c1"}, {Id: "a=b\x1b[1m"}, {Id: "c=d"}}},
	}
	var output strings.Builder
	a := &app{console: console{program: "parley", out: &output, err: &output}}
	if err := a.show(end, &view{conversation: "shop"}); err != nil {
		t.Fatal(err)
	}
	want := `the agent waits for the results of its tool calls; --tool-result cannot name call "a=b\x1b[1m", because it contains "=": ` +
		"use tool_results of Chat\n"
	if output.String() != want {
		t.Errorf("output = %q\nwant     %q", output.String(), want)
	}
}

func TestShowRecords(t *testing.T) {
	tests := []struct {
		record *parleyv1.TurnRecord
		want   string
	}{
		{&parleyv1.TurnRecord{Key: "k"}, "the answer writes record k"},
		{&parleyv1.TurnRecord{Key: "k", Deleted: true, TenantScope: true}, "the answer deletes record k of the tenant"},
	}
	for _, test := range tests {
		event := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Record{Record: test.record}}
		if got := describeEvent(event, &view{}); got != test.want {
			t.Errorf("describeEvent(%v) = %q, want %q", test.record, got, test.want)
		}
	}
}
