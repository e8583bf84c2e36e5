package mcp

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestProgressOfReasoning checks that reasoning is reported by its length, so that a client that waits for the
// answer does not give up, and at most every textEvery.
func TestProgressOfReasoning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := &progress{agent: "main", notify: func(message string) { got = append(got, message) }}
		report := func(text string) {
			p.report(&parleyv1.TurnEvent{
				Event: &parleyv1.TurnEvent_ReasoningDelta{ReasoningDelta: &parleyv1.ReasoningDelta{Text: text}},
			})
		}
		report("größer")
		report("als")
		time.Sleep(textEvery) //nolint:forbidigo // In a bubble.
		report("!")
		want := []string{"main is reasoning, 6 characters so far", "main is reasoning, 10 characters so far"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}
