package a2a

import (
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// TestFiles: files of an answer are file parts, in the stream and in the task.
func TestFiles(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		want := a2a.ContentParts{
			{Content: a2a.URL("https://files.example/a.png"), Filename: "a.png", MediaType: "image/png"},
			{Content: a2a.Raw("abc"), Filename: "b.txt", MediaType: "text/plain"},
		}
		var pieces []*parleyv1.RespondResponse
		for _, part := range want {
			value, err := structpb.NewValue(a2aparts.File(part))
			if err != nil {
				t.Fatal(err)
			}
			pieces = append(pieces, &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
				StructuredData: &parleyv1.StructuredData{Type: a2aparts.TypeFile, Value: value},
			}})
		}
		f.puppet.scripts <- says(pieces...)
		var streamed a2a.ContentParts
		var id a2a.TaskID
		for event, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "Go")}) {
			if err != nil {
				t.Fatal(err)
			}
			id = event.TaskInfo().TaskID
			if e, ok := event.(*a2a.TaskArtifactUpdateEvent); ok && !e.LastChunk {
				streamed = append(streamed, e.Artifact.Parts...)
			}
		}
		if diff := cmp.Diff(want, streamed); diff != "" {
			t.Errorf("parts of the stream (-want +got):\n%s", diff)
		}
		stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: id})
		if err != nil || len(stored.Artifacts) != 1 {
			t.Fatalf("GetTask = %v, %v, want one artifact", stored, err)
		}
		if diff := cmp.Diff(want, stored.Artifacts[0].Parts); diff != "" {
			t.Errorf("parts of the task (-want +got):\n%s", diff)
		}
	})
}

// TestHistoryOfTextResults: a text that was the result of a tool call is the same message in the history.
func TestHistoryOfTextResults(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(toolCallPiece("call", "{}"))
		task := send(t, c, question("", "Find it"))
		answer := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("here"))
		f.puppet.scripts <- says(text("Found."))
		task = send(t, c, answer)
		if len(task.History) != 4 {
			t.Fatalf("history = %v, want four messages", task.History)
		}
		if diff := cmp.Diff(answer, task.History[2]); diff != "" {
			t.Errorf("message in the history (-want +got):\n%s", diff)
		}
	})
}
