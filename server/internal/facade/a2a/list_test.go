package a2a

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/google/uuid"
	"google.golang.org/grpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// countingConn counts what calls read.
type countingConn struct {
	grpc.ClientConnInterface

	calls, turns, messages int
}

// Invoke makes a call.
func (c *countingConn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	err := c.ClientConnInterface.Invoke(ctx, method, args, reply, options...)
	c.calls++
	switch r := reply.(type) {
	case *parleyv1.ListTurnsResponse:
		c.turns += len(r.GetTurns())
	case *parleyv1.ListMessagesResponse:
		c.messages += len(r.GetMessages())
	}
	return err
}

// storeTurn stores a turn of echo without an agent.
func (f *fixture) storeTurn(t *testing.T, conversation string) {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	message := func(role parleyv1.Role) []*parleyv1.Message {
		return []*parleyv1.Message{{Id: uuid.NewString(), Role: role, Content: "hello", TurnId: id}}
	}
	_, err := f.store.Append(t.Context(), &store.Append{
		Tenant: auth.DefaultTenant, ConversationID: conversation, Messages: message(parleyv1.Role_ROLE_USER),
		Begin: &parleyv1.Turn{Id: id, Agent: "echo"},
	})
	if err == nil {
		_, err = f.store.Append(t.Context(), &store.Append{
			Tenant: auth.DefaultTenant, ConversationID: conversation, Messages: message(parleyv1.Role_ROLE_ASSISTANT),
			End: &parleyv1.Turn{Id: id, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestListOfManyTurns: a page reads a bounded number of turns and messages, whatever the tenant has, and the pages have
// each task once.
func TestListOfManyTurns(t *testing.T) {
	t.Parallel()
	const conversations, turns, size = 320, 32, 50 // A conversation keeps 32 turns.
	f := newFixture(t)
	for i := range conversations {
		for range turns {
			f.storeTurn(t, fmt.Sprint("many:", i))
		}
	}
	for _, test := range []struct {
		agent string
		state a2a.TaskState
		want  int
	}{
		{"echo", a2a.TaskStateUnspecified, conversations * turns},
		{"echo", a2a.TaskStateCanceled, 0},
		{"echo", a2a.TaskStateRejected, 0},
		{"puppet", a2a.TaskStateUnspecified, 0},
	} {
		found := make(map[a2a.TaskID]bool)
		request := &a2a.ListTasksRequest{PageSize: size, Status: test.state}
		for {
			conn := &countingConn{ClientConnInterface: f.conn}
			tasks := Options{Conn: conn}.tasks()
			tasks.agent = test.agent
			page, err := tasks.ListTasks(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if conn.turns > maxListCalls*size || conn.messages > 2*size || conn.calls > maxListCalls+size {
				t.Fatalf("a page of %d tasks reads %+v, want at most %d turns", len(page.Tasks), conn, maxListCalls*size)
			}
			for _, task := range page.Tasks {
				found[task.ID] = true
			}
			if request.PageToken = page.NextPageToken; request.PageToken == "" {
				if page.TotalSize != test.want {
					t.Errorf("%+v: the last page has the total size %d", test, page.TotalSize)
				}
				break
			}
		}
		if len(found) != test.want {
			t.Errorf("%+v: pages have %d tasks", test, len(found))
		}
	}
}

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
		if len(page.Tasks) == 0 || len(page.Tasks) > 3 {
			t.Fatalf("page has %d tasks, want 1 to 3", len(page.Tasks))
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
