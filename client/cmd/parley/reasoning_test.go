package main

import (
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestReasoning checks that reasoning goes to standard error, dimmed on a terminal. Without a terminal it is
// printed only with --reasoning.
func TestReasoning(t *testing.T) {
	reasoning := func(text string) *parleyv1.TurnEvent {
		return &parleyv1.TurnEvent{
			Event: &parleyv1.TurnEvent_ReasoningDelta{ReasoningDelta: &parleyv1.ReasoningDelta{Text: text}},
		}
	}
	events := []*parleyv1.TurnEvent{
		started("shop"), reasoning("Hm\x1b[1m "), reasoning(""), reasoning("so.\n"), reasoning("Yes"), delta("one "),
		reasoning("and"),
		{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{Text: "looking"}}},
		{Event: &parleyv1.TurnEvent_ToolCallDelta{ToolCallDelta: &parleyv1.ToolCallDelta{Id: "c", Name: "f"}}},
		delta("two"), reasoning("end"), finished(parleyv1.TurnState_TURN_STATE_COMPLETED),
	}
	f := fake{
		chat:   func(_ *parleyv1.ChatRequest, stream *turnStream) error { return send(stream, events...) },
		resume: func(_ *parleyv1.ResumeTurnRequest, stream *turnStream) error { return send(stream, events...) },
	}
	address := f.serve(t)
	const plain = "Hm\x1b[1m so.\nYes\nand\nlooking\nend\n"
	dimmed := func(text string) string { return string(dim) + text + endColour }
	for _, test := range []struct {
		name     string
		terminal bool
		noColour bool
		args     []string
		want     string
	}{
		{"no terminal", false, false, nil, "looking\n"},
		{"no terminal, --reasoning", false, false, []string{"--reasoning"}, plain},
		{
			"terminal", true, false, nil, dimmed("Hm\uFFFD[1m ") + dimmed("so.\n") + dimmed("Yes") + "\n" + dimmed("and") +
				"\nlooking\n" + dimmed("end") + "\n",
		},
		{"terminal, NO_COLOR", true, true, nil, strings.ReplaceAll(plain, "\x1b", "\uFFFD")},
		{"terminal, --reasoning=false", true, false, []string{"--reasoning=false"}, "looking\n"},
	} {
		for _, command := range [][]string{{"chat", "-c", "shop", "hello"}, {"resume", "shop"}} {
			var out, errs strings.Builder
			code := run(t.Context(), append(append([]string{"--address", address}, command...), test.args...), console{
				program: "parley", in: strings.NewReader(""), out: &out, err: &errs, errTerminal: test.terminal, now: time.Now,
				getenv: func(name string) string {
					if name == "NO_COLOR" && test.noColour {
						return "1"
					}
					return ""
				},
			})
			if out.String() != "one two\n" || errs.String() != test.want || code != 0 {
				t.Errorf("%s: %s: exit code %d, output %q, want %q; errors %q, want %q", test.name, command[0], code, out.String(),
					"one two\n", errs.String(), test.want)
			}
		}
	}
}

// TestReasoningOnOneScreen checks that reasoning and text do not share a line.
func TestReasoningOnOneScreen(t *testing.T) {
	var screen strings.Builder
	a := &app{
		console: console{
			out: &screen, err: &screen, outTerminal: true, errTerminal: true, getenv: func(string) string { return "1" },
		},
		reasoning: true,
	}
	var seen view
	for _, event := range []*parleyv1.TurnEvent{
		delta("one"),
		{Event: &parleyv1.TurnEvent_ReasoningDelta{ReasoningDelta: &parleyv1.ReasoningDelta{Text: "hm"}}},
		delta("two"),
	} {
		if err := a.show(event, &seen); err != nil {
			t.Fatal(err)
		}
	}
	if got := screen.String(); got != "one\nhm\ntwo" {
		t.Errorf("screen = %q, want a line each", got)
	}
}
