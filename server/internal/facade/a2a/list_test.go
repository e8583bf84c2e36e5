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

// changingConn changes turns before the second list of the tenant's turns.
type changingConn struct {
	grpc.ClientConnInterface

	lists  int
	change func()
}

// Invoke makes a call.
func (c *changingConn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	if r, ok := args.(*parleyv1.ListTurnsRequest); ok && r.GetConversationId() == "" {
		c.lists++
		if c.lists == 2 {
			c.change()
		}
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, options...)
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
		total := len(got) + len(page.Tasks)
		if page.NextPageToken != "" {
			total++ // Another one follows.
		}
		if page.TotalSize != total {
			t.Errorf("page has the total size %d after %d tasks, want %d", page.TotalSize, len(got)+len(page.Tasks), total)
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

// TestPagesOfChangingTasks: the pages of large tasks miss none that has not changed, if other tasks end or begin while
// the server reads the first page.
func TestPagesOfChangingTasks(t *testing.T) {
	t.Parallel()
	const tasks, size = 5, 3 // Two tasks fit on a page.
	for name, test := range map[string]struct {
		end   []int // the newest is 0
		begin int
	}{
		"nothing changes":                {},
		"one on the page ends":           {end: []int{0}},
		"the other on the page ends":     {end: []int{1}},
		"both on the page end":           {end: []int{0, 1}},
		"all of the page of turns end":   {end: []int{0, 1, 2}},
		"more begin than the page has":   {begin: 3},
		"some end and as many begin":     {end: []int{0, 1}, begin: 2},
		"one ends and others do, too":    {end: []int{0, 2, 3}},
		"all of them end and one begins": {end: []int{0, 1, 2, 3, 4}, begin: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			c := f.client(t, "puppet", a2a.TransportProtocolGRPC)
			begin := func() *a2a.Task {
				f.puppet.scripts <- says(text(strings.Repeat("x", 700<<10)), toolCallPiece("call", "{}"))
				f.puppet.scripts <- waits
				result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
					Message: a2a.NewMessageForTask(a2a.MessageRoleUser, send(t, c, question("", "Go")), a2a.NewTextPart("here")),
					Config:  &a2a.SendMessageConfig{ReturnImmediately: true},
				})
				task, ok := result.(*a2a.Task)
				if err != nil || !ok {
					t.Fatalf("SendMessage = %v, %v, want a task", result, err)
				}
				return task
			}
			var working []*a2a.Task
			for range tasks {
				working = append(working, begin())
			}
			slices.Reverse(working)
			conn := &changingConn{ClientConnInterface: f.conn, change: func() {
				for _, i := range test.end {
					if _, err := c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: working[i].ID}); err != nil {
						t.Error(err)
					}
				}
				for range test.begin {
					begin()
				}
			}}
			lister := Options{Conn: conn}.tasks()
			lister.agent = "puppet"
			found := make(map[a2a.TaskID]bool)
			request := &a2a.ListTasksRequest{PageSize: size, Status: a2a.TaskStateWorking, IncludeArtifacts: true}
			for pages := 1; ; pages++ {
				page, err := lister.ListTasks(t.Context(), request)
				if err != nil {
					t.Fatal(err)
				}
				for _, task := range page.Tasks {
					found[task.ID] = true
				}
				if request.PageToken = page.NextPageToken; request.PageToken == "" {
					break
				}
				if pages > 2*tasks {
					t.Fatalf("%d pages of %d tasks have another one", pages, tasks)
				}
			}
			for i, task := range working {
				if !found[task.ID] && !slices.Contains(test.end, i) {
					t.Errorf("no page has the task %d", i)
				}
			}
		})
	}
}

// waits is a script that yields nothing until its turn is cancelled.
func waits(ctx context.Context, _ *parleyv1.RespondRequest, _ func(*parleyv1.RespondResponse) bool) error {
	<-ctx.Done()
	return context.Cause(ctx)
}
