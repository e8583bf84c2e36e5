package a2a

import (
	"slices"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
)

// TestRepeatedMessagesOfContinuedTasks: a message that is sent again gets all events of its task since that message,
// though the turn of that message ended with a tool call. Other messages had the results, and continued the task.
func TestRepeatedMessagesOfContinuedTasks(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		first := question("", "Find it")
		f.puppet.scripts <- says(text("Searching."), toolCallPiece("call", "{}"))
		task := send(t, c, first)
		second := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("here"))
		f.puppet.scripts <- says(text("Found."), toolCallPiece("more", "{}"))
		send(t, c, second)
		third := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("there"))
		f.puppet.scripts <- says(text("Done."))
		send(t, c, third)
		for _, test := range []struct {
			message *a2a.Message
			want    []string
		}{
			{first, []string{"Done.", "Found.", "Searching."}}, {second, []string{"Done.", "Found."}}, {third, []string{"Done."}},
		} {
			again := send(t, c, test.message)
			if again.ID != task.ID || again.Status.State != a2a.TaskStateCompleted || len(again.Artifacts) != 3 {
				t.Errorf("SendMessage again = %+v, want the completed task %s", again, task.ID)
			}
			got := collect(t, c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: test.message}))
			var answers []string
			for _, answer := range got.texts {
				answers = append(answers, answer)
			}
			slices.Sort(answers)
			want := []a2a.TaskState{a2a.TaskStateWorking, a2a.TaskStateCompleted}
			if got.task.ID != task.ID || !slices.Equal(got.states, want) || !slices.Equal(answers, test.want) ||
				got.closed != len(answers) {
				t.Errorf("stream of the message again: %s has the states %v, answers %q, %d closed; want %s, %v, %q",
					got.task.ID, got.states, answers, got.closed, task.ID, want, test.want)
			}
		}
	})
}

// TestRepeatedMessageOfCancelledTask: the stream of a message that is sent again ends with the state of its task, which
// was cancelled while it waited for input.
func TestRepeatedMessageOfCancelledTask(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		m := question("", "Find it")
		f.puppet.scripts <- says(toolCallPiece("call", "{}"))
		task := send(t, c, m)
		if _, err := c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: task.ID}); err != nil {
			t.Fatal(err)
		}
		got := collect(t, c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: m}))
		if last := got.states[len(got.states)-1]; last != a2a.TaskStateCanceled {
			t.Errorf("states of the message again = %v, want %s at the end", got.states, a2a.TaskStateCanceled)
		}
	})
}
