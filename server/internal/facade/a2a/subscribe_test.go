package a2a

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/google/go-cmp/cmp"
)

// TestSubscribeToWaitingTask: the stream of a task that waits for input has the task as it is, and ends.
func TestSubscribeToWaitingTask(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(text("Let me look."), toolCallPiece("call", "{}"))
		want := send(t, c, question("", "Find it"))
		var got []a2a.Event
		for event, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: want.ID}) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, event)
		}
		if diff := cmp.Diff([]a2a.Event{want}, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
