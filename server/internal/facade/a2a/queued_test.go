package a2a

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

// start sends a message and leaves its stream when its task has begun.
func start(t *testing.T, c *a2aclient.Client, m *a2a.Message) {
	t.Helper()
	for _, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: m}) {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
}

// TestQueuedOutlivesItsClient checks that a message that waits for another one of its context is answered, although its
// client waits no longer: it asked for an immediate reply, or left its stream.
func TestQueuedOutlivesItsClient(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		for name, submit := range map[string]func(*a2a.SendMessageRequest) (a2a.TaskInfoProvider, a2a.TaskState){
			"immediate reply": func(r *a2a.SendMessageRequest) (a2a.TaskInfoProvider, a2a.TaskState) {
				r.Config = &a2a.SendMessageConfig{ReturnImmediately: true}
				result, err := c.SendMessage(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				task, _ := result.(*a2a.Task)
				return task, task.Status.State
			},
			"stream": func(r *a2a.SendMessageRequest) (a2a.TaskInfoProvider, a2a.TaskState) {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				for event, err := range c.SendStreamingMessage(ctx, r) {
					if err != nil {
						t.Fatal(err)
					}
					task, _ := event.(*a2a.Task)
					return task, task.Status.State
				}
				t.Fatal("the stream has no events")
				return nil, ""
			},
		} {
			proceed, started := make(chan struct{}), make(chan struct{})
			f.puppet.scripts <- func(
				context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse) bool,
			) error {
				close(started)
				<-proceed
				return nil
			}
			f.puppet.scripts <- says(text("later"))
			start(t, c, question(name, "First"))
			<-started
			info, state := submit(&a2a.SendMessageRequest{Message: question(name, "Second")})
			if state != a2a.TaskStateSubmitted {
				t.Errorf("%s: the task is %s, want %s", name, state, a2a.TaskStateSubmitted)
			}
			close(proceed)
			for _, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: info.TaskInfo().TaskID}) {
				if err != nil && !errors.Is(err, a2a.ErrUnsupportedOperation) { // It has ended already.
					t.Fatalf("%s: SubscribeToTask: %v", name, err)
				}
			}
			stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: info.TaskInfo().TaskID})
			if err != nil || !slices.Equal(artifacts(stored), []string{"later"}) {
				t.Errorf("%s: GetTask = %v, %v, want the answer", name, stored, err)
			}
		}
	})
}

// TestRefusedNotificationEndsItsStream checks that a task is read no longer when its target refuses a notification
// before the task has ended.
func TestRefusedNotificationEndsItsStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client(t, "puppet", a2a.TransportProtocolJSONRPC)
	to := newTarget(t, func(int) int { return http.StatusNotFound })
	proceed := make(chan struct{})
	f.puppet.scripts <- func(
		context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse) bool,
	) error {
		<-proceed
		return nil
	}
	refused := make(chan struct{})
	f.puppet.scripts <- func(
		_ context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool,
	) error {
		<-refused
		for range 10 {
			say(text("later"))
			say(toolCallPiece("call", "{}")) // It ends a text, so that the events are not merged.
		}
		return nil
	}
	start(t, c, question("busy", "First"))
	second, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
		Message: question("busy", "Second"),
		Config:  &a2a.SendMessageConfig{ReturnImmediately: true, PushConfig: &a2a.PushConfig{URL: to.URL}},
	})
	if err != nil {
		t.Fatal(err)
	}
	close(proceed)
	to.next(t)
	close(refused)
	for _, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: second.TaskInfo().TaskID}) {
		if err != nil && !errors.Is(err, a2a.ErrUnsupportedOperation) { // It has ended already.
			t.Errorf("SubscribeToTask: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), rpctest.Timeout)
	defer cancel()
	f.direct.Stop(ctx)
	if ctx.Err() != nil {
		t.Error("a stream has no reader and did not end")
	}
}
