package anthropic

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestProgressWhileThinking: while the model thinks and does not report it, Progress pieces are sent at
// intervals.
func TestProgressWhileThinking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a := &answer{lastPiece: start}
		var got []string
		add := func(data string) {
			var e event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			pieces, err := a.add(&e)
			if err != nil {
				t.Fatal(err)
			}
			for _, piece := range pieces {
				got = append(got, time.Since(start).String()+" "+piece.GetProgress().GetText()+piece.GetText())
			}
		}
		for range 25 { // One event a second.
			time.Sleep(time.Second) //nolint:forbidigo // In a bubble.
			add(`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":""}}`)
		}
		add(`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"42"}}`)
		want := []string{"10s the model is still working", "20s the model is still working", "25s 42"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
