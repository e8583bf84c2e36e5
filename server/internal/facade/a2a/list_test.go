package a2a

import (
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
)

// TestPagesOfLargeTasks: a page of large tasks ends early, so that it fits in a message of gRPC, and the next pages have
// the rest.
func TestPagesOfLargeTasks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client(t, "puppet", a2a.TransportProtocolGRPC)
	answer := strings.Repeat("x", 700<<10)
	var want, got []a2a.TaskID
	for range 6 {
		f.puppet.scripts <- says(text(answer))
		want = append(want, send(t, c, question("", "Go")).ID)
	}
	slices.Reverse(want)
	request := &a2a.ListTasksRequest{IncludeArtifacts: true}
	for {
		page, err := c.ListTasks(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Tasks) == 0 || len(page.Tasks) > 3 || page.TotalSize != len(want) {
			t.Fatalf("page has %d tasks of %d, want 1 to 3 of %d", len(page.Tasks), page.TotalSize, len(want))
		}
		for _, task := range page.Tasks {
			got = append(got, task.ID)
			if !slices.Equal(artifacts(task), []string{answer}) {
				t.Errorf("task %s has %d artifacts, want the answer", task.ID, len(task.Artifacts))
			}
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages have %v, want %v", got, want)
	}
}
