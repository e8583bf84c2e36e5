package a2a

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestSendMessage: a message starts a task in a new context, and the next one in that context sees the first.
func TestSendMessage(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(text("Two "), text("libraries."))
		task := send(t, c, question("", "Find libraries"))
		if task.Status.State != a2a.TaskStateCompleted || !slices.Equal(artifacts(task), []string{"Two libraries."}) {
			t.Errorf("task = %v with %q, want COMPLETED with the answer", task.Status.State, artifacts(task))
		}
		if len(task.History) != 2 || texts(task.History[0].Parts) != "Find libraries" ||
			task.History[1].Role != a2a.MessageRoleAgent {
			t.Errorf("history = %v, want the question and the answer", task.History)
		}
		seen := make(chan int, 1)
		f.puppet.scripts <- func(_ context.Context, r *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool) error {
			seen <- len(r.GetMessages())
			say(text("The second one."))
			return nil
		}
		next := send(t, c, question(task.ContextID, "Which is smaller?"))
		if next.ContextID != task.ContextID || next.ID == task.ID || <-seen != 3 {
			t.Errorf("second task = %v, want another task of context %s whose agent has three messages", next, task.ContextID)
		}
		got, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: task.ID})
		if err != nil || !slices.Equal(artifacts(got), artifacts(task)) || got.History[0].ID != task.History[0].ID {
			t.Errorf("GetTask = %v, %v, want %v", got, err, task)
		}
	})
}

// TestMessagesAreIdempotent: a message that is sent again joins its task, and the agent runs once.
func TestMessagesAreIdempotent(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(text("once"))
		m := question("", "Do it")
		first, again := send(t, c, m), send(t, c, m)
		if first.ID != again.ID || first.ContextID != again.ContextID || !slices.Equal(artifacts(again), []string{"once"}) {
			t.Errorf("the repetition has task %v, want %v", again, first)
		}
	})
}

// TestStream: the events of a stream add up to the task that is stored.
func TestStream(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		data, err := structpb.NewValue([]any{"x", 1.5})
		if err != nil {
			t.Fatal(err)
		}
		f.puppet.scripts <- says(
			&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Progress{
				Progress: &parleyv1.TurnProgress{Text: "searching"},
			}},
			text("One "), text("two."),
			&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_StructuredData{
				StructuredData: &parleyv1.StructuredData{Type: "list", Value: data},
			}},
		)
		got := collect(t, c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "Go")}))
		stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: got.task.ID})
		if err != nil {
			t.Fatal(err)
		}
		if len(stored.Artifacts) != 1 || got.texts[stored.Artifacts[0].ID] != "One two." || got.closed != 1 ||
			texts(stored.Artifacts[0].Parts) != "One two." {
			t.Errorf("stream has artifacts %q, the task %v", got.texts, stored.Artifacts)
		}
		if part := stored.Artifacts[0].Parts[1]; part.Metadata[a2aparts.TypeKey] != "list" {
			t.Errorf("data part = %v, want type list", part)
		}
		if want := []a2a.TaskState{
			a2a.TaskStateWorking, a2a.TaskStateWorking, a2a.TaskStateCompleted,
		}; !slices.Equal(got.states, want) || !slices.Equal(got.notes, []string{"searching"}) {
			t.Errorf("states = %v with notes %q, want %v with a note", got.states, got.notes, want)
		}
	})
}

// TestTaskStates: the end of a turn is the state of its task, in the stream and afterwards.
func TestTaskStates(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- func(
			_ context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool,
		) error {
			say(text("half"))
			return &agent.Error{Message: "the model is away", Retryable: true}
		}
		got := collect(t, c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "Fail")}))
		stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: got.task.ID})
		if err != nil {
			t.Fatal(err)
		}
		for name, status := range map[string]a2a.TaskStatus{"stream": got.task.Status, "task": stored.Status} {
			if status.State != a2a.TaskStateFailed || status.Message.Metadata[a2aparts.ReasonKey] != "AGENT_FAILED" ||
				status.Message.Metadata[a2aparts.RetryableKey] != true {
				t.Errorf("%s: status = %v, want FAILED with the reason", name, status)
			}
		}
		if !slices.Equal(artifacts(stored), []string{"half"}) {
			t.Errorf("artifacts = %q, want what had arrived", artifacts(stored))
		}
	})
}

// TestCancelTask: a task that works is cancelled, what it had answered is kept, and a second cancel is refused.
func TestCancelTask(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- func(
			ctx context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool,
		) error {
			say(text("begun"))
			<-ctx.Done()
			return context.Cause(ctx)
		}
		var got *collected
		for event, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "Wait")}) {
			if err != nil {
				t.Fatal(err)
			}
			if got == nil {
				got = &collected{texts: make(map[a2a.ArtifactID]string)}
			}
			got.add(t, event)
			if _, ok := event.(*a2a.TaskArtifactUpdateEvent); !ok || got.closed > 0 {
				continue
			}
			task, err := c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: got.task.ID})
			if err != nil || task.Status.State != a2a.TaskStateCanceled || !slices.Equal(artifacts(task), []string{"begun"}) {
				t.Fatalf("CancelTask = %v, %v, want the cancelled task", task, err)
			}
		}
		if state := got.states[len(got.states)-1]; state != a2a.TaskStateCanceled {
			t.Errorf("the stream ended with %v, want CANCELED", state)
		}
		_, err := c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: got.task.ID})
		if !errors.Is(err, a2a.ErrTaskNotCancelable) {
			t.Errorf("second CancelTask = %v, want ErrTaskNotCancelable", err)
		}
	})
}

// TestReturnImmediately: with returnImmediately the reply does not wait for the answer, and the task continues.
func TestReturnImmediately(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		proceed := make(chan struct{})
		f.puppet.scripts <- func(
			_ context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool,
		) error {
			<-proceed
			say(text("late"))
			return nil
		}
		result, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: question("", "Later"), Config: &a2a.SendMessageConfig{ReturnImmediately: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		task, ok := result.(*a2a.Task)
		if !ok || task.Status.State != a2a.TaskStateWorking {
			t.Fatalf("SendMessage = %v, want a task that works", result)
		}
		close(proceed)
		got := &collected{texts: make(map[a2a.ArtifactID]string)}
		for event, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: task.ID}) {
			if errors.Is(err, a2a.ErrUnsupportedOperation) { // It has ended already.
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got.add(t, event)
		}
		stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: task.ID})
		if err != nil || !slices.Equal(artifacts(stored), []string{"late"}) {
			t.Errorf("GetTask = %v, %v, want the answer", stored, err)
		}
	})
}

// TestSubscribeMissesNothing: a client that lost its stream subscribes, and ends with the same text as the store.
func TestSubscribeMissesNothing(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		proceed := make(chan struct{})
		f.puppet.scripts <- func(
			_ context.Context, _ *parleyv1.RespondRequest, say func(*parleyv1.RespondResponse) bool,
		) error {
			say(text("first "))
			<-proceed
			say(text("second"))
			return nil
		}
		var task *a2a.Task
		for event, err := range c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "Go")}) {
			if err != nil {
				t.Fatal(err)
			}
			if begun, ok := event.(*a2a.Task); ok {
				task = begun
			}
			if _, ok := event.(*a2a.TaskArtifactUpdateEvent); ok {
				break // The client is gone.
			}
		}
		got, sent := &collected{texts: make(map[a2a.ArtifactID]string)}, false
		for event, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: task.ID}) {
			if err != nil {
				t.Fatal(err)
			}
			got.add(t, event)
			if len(got.texts) == 1 && !sent {
				close(proceed)
				sent = true
			}
		}
		stored, err := c.GetTask(t.Context(), &a2a.GetTaskRequest{ID: task.ID})
		if err != nil {
			t.Fatal(err)
		}
		if got.texts[stored.Artifacts[0].ID] != "first second" || !slices.Equal(artifacts(stored), []string{"first second"}) {
			t.Errorf("subscriber has %q, the store %q", got.texts, artifacts(stored))
		}
		for _, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: task.ID}) {
			if !errors.Is(err, a2a.ErrUnsupportedOperation) {
				t.Errorf("SubscribeToTask of an ended task = %v, want ErrUnsupportedOperation", err)
			}
		}
	})
}

// TestSubscribeWithGet: over HTTP+JSON, GET subscribes to a task, as the protocol has it, and so does POST, which the
// SDK sends.
func TestSubscribeWithGet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.puppet.scripts <- says(toolCallPiece("call", "{}"))
	task := send(t, f.client(t, "puppet", a2a.TransportProtocolHTTPJSON), question("", "Find x"))
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		code, header, body := f.request(t, method, "/a2a/puppet/tasks/"+string(task.ID)+":subscribe", "", "A2A-Version: 1.0")
		if code != http.StatusOK || header.Get("Content-Type") != "text/event-stream" ||
			!strings.Contains(body, string(a2a.TaskStateInputRequired)) {
			t.Errorf("%s = %d %v %s, want a stream that ends with the state", method, code, header, body)
		}
	}
}

// TestToolCalls: a tool call is INPUT_REQUIRED with the call; its result continues the same task.
func TestToolCalls(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(text("Let me look. "), toolCallPiece("call 1", `{"q":"x"}`))
		task := send(t, c, question("", "Find x"))
		if task.Status.State != a2a.TaskStateInputRequired || len(task.Status.Message.Parts) != 1 {
			t.Fatalf("status = %v, want INPUT_REQUIRED with one call", task.Status)
		}
		call := asMap(t, asMap(t, task.Status.Message.Parts[0].Data())["toolCall"])
		if call["id"] != "call 1" || call["name"] != "search" || call["arguments"] != `{"q":"x"}` {
			t.Errorf("call = %v", call)
		}
		elsewhere := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("found"))
		elsewhere.ContextID = "other"
		if _, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: elsewhere}); err == nil ||
			!strings.Contains(err.Error(), "contextId") {
			t.Errorf("message for another context = %v, want an error about contextId", err)
		}
		toEcho := a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("found"))
		for _, binding := range bindings() {
			_, err := f.client(t, "echo", binding).SendMessage(t.Context(), &a2a.SendMessageRequest{Message: toEcho})
			if err == nil || !strings.Contains(err.Error(), `the agent "puppet"`) {
				t.Errorf("message to another agent = %v, want an error that names the agent of the task", err)
			}
		}
		_, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: a2a.NewMessageForTask(a2a.MessageRoleUser, task, result("none")),
		})
		if err == nil || errors.Is(err, a2a.ErrServerError) || !strings.Contains(err.Error(), `"none"`) {
			t.Errorf("result of an unknown call = %v, want an error of the client", err)
		}
		for name, parts := range map[string][]*a2a.Part{
			"data part": {a2a.NewDataPart(map[string]any{"toolResult": map[string]any{
				"callId": "call 1", "content": map[string]any{"found": true},
			}})},
			"text": {a2a.NewTextPart("found")},
		} {
			f.puppet.scripts <- says(text("It is there. "), toolCallPiece("call 1", `{"q":"y"}`))
			before := len(task.Artifacts)
			next := send(t, c, a2a.NewMessageForTask(a2a.MessageRoleUser, task, parts...))
			if next.ID != task.ID || next.Status.State != a2a.TaskStateInputRequired || len(next.Artifacts) != before+1 {
				t.Fatalf("%s: task = %v with %q, want the same task with one artifact more", name, next, artifacts(next))
			}
			task = next
		}
		f.puppet.scripts <- says(text("Done."))
		got := collect(t, c.SendStreamingMessage(t.Context(), &a2a.SendMessageRequest{
			Message: a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("none")),
		}))
		if got.task.ID != task.ID || len(got.texts) != 1 || got.states[len(got.states)-1] != a2a.TaskStateCompleted {
			t.Errorf("stream = %v, want the rest of task %s", got, task.ID)
		}
		list, err := c.ListTasks(t.Context(), &a2a.ListTasksRequest{ContextID: task.ContextID})
		if err != nil || len(list.Tasks) != 1 || list.TotalSize != 1 ||
			list.Tasks[0].Status.State != a2a.TaskStateCompleted {
			t.Errorf("ListTasks = %v, %v, want one completed task", list, err)
		}
		for state, want := range map[a2a.TaskState]int{
			a2a.TaskStateCompleted: 1, a2a.TaskStateWorking: 0, a2a.TaskStateInputRequired: 0,
		} {
			list, err := c.ListTasks(t.Context(), &a2a.ListTasksRequest{Status: state})
			if err != nil || len(list.Tasks) != want || list.TotalSize != want || want > 0 && list.Tasks[0].ID != task.ID {
				t.Errorf("ListTasks of %s = %v, %v, want %d", state, list, err, want)
			}
		}
		_, err = c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("more")),
		})
		if !errors.Is(err, a2a.ErrUnsupportedOperation) {
			t.Errorf("message to an ended task = %v, want ErrUnsupportedOperation", err)
		}
	})
}

// TestCancelWaitingTask: a task that waits for input is cancelled, and takes no result any more.
func TestCancelWaitingTask(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		f.puppet.scripts <- says(toolCallPiece("call", "{}"))
		task := send(t, c, question("", "Find x"))
		got, err := c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: task.ID})
		if err != nil || got.Status.State != a2a.TaskStateCanceled {
			t.Fatalf("CancelTask = %v, %v, want CANCELED", got, err)
		}
		_, err = c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: a2a.NewMessageForTask(a2a.MessageRoleUser, task, a2a.NewTextPart("found")),
		})
		if !errors.Is(err, a2a.ErrUnsupportedOperation) {
			t.Errorf("message to the cancelled task = %v, want ErrUnsupportedOperation", err)
		}
		list, err := c.ListTasks(t.Context(), &a2a.ListTasksRequest{Status: a2a.TaskStateCanceled})
		if err != nil || len(list.Tasks) != 1 {
			t.Errorf("ListTasks = %v, %v, want the cancelled task", list, err)
		}
		_, err = c.CancelTask(t.Context(), &a2a.CancelTaskRequest{ID: task.ID})
		if !errors.Is(err, a2a.ErrTaskNotCancelable) {
			t.Errorf("second CancelTask = %v, want ErrTaskNotCancelable", err)
		}
	})
}

func asMap(t *testing.T, value any) map[string]any {
	t.Helper()
	m, ok := value.(map[string]any)
	if !ok {
		t.Fatalf("%v is not an object", value)
	}
	return m
}

// TestMessagesWait: a message in a context whose task is working is SUBMITTED, and is answered after that task.
func TestMessagesWait(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		proceed := make(chan struct{})
		release := sync.OnceFunc(func() { close(proceed) })
		t.Cleanup(release) // Also if the test fails.
		f.puppet.scripts <- func(context.Context, *parleyv1.RespondRequest, func(*parleyv1.RespondResponse) bool) error {
			<-proceed
			return nil
		}
		first, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{
			Message: question("", "first"), Config: &a2a.SendMessageConfig{ReturnImmediately: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		f.puppet.scripts <- says(text("second"))
		request := &a2a.SendMessageRequest{Message: question(first.TaskInfo().ContextID, "second")}
		got := &collected{texts: make(map[a2a.ArtifactID]string)}
		for event, err := range c.SendStreamingMessage(t.Context(), request) {
			if err != nil {
				t.Fatal(err)
			}
			got.add(t, event)
			if len(got.states) == 1 {
				release()
			}
		}
		if want := []a2a.TaskState{
			a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateCompleted,
		}; !slices.Equal(got.states, want) {
			t.Errorf("states = %v, want %v", got.states, want)
		}
	})
}

// TestListTasks: pages have all tasks once, the newest first, and the filters select.
func TestListTasks(t *testing.T) {
	t.Parallel()
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		var want []a2a.TaskID
		for range 5 {
			f.puppet.scripts <- says(text("answer"))
			want = append(want, send(t, c, question("", "Go")).ID)
		}
		if _, err := f.api.Chat(t.Context(), &parleyv1.ChatRequest{Content: "for echo", Agent: "echo"}); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(want)
		var got []a2a.TaskID
		none := 0
		request := &a2a.ListTasksRequest{PageSize: 2, HistoryLength: &none}
		for {
			page, err := c.ListTasks(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			total := len(got) + len(page.Tasks)
			if page.NextPageToken != "" {
				total++ // Another one follows.
			}
			if page.TotalSize != total || page.PageSize != 2 || len(page.Tasks) > 2 {
				t.Errorf("page = %+v, want 5 tasks in pages of 2", page)
			}
			for _, task := range page.Tasks {
				got = append(got, task.ID)
				if len(task.Artifacts)+len(task.History) > 0 {
					t.Errorf("task %s has artifacts or messages, which were not asked for", task.ID)
				}
			}
			if request.PageToken = page.NextPageToken; request.PageToken == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages have %v, want %v", got, want)
		}
		failed, err := c.ListTasks(t.Context(), &a2a.ListTasksRequest{Status: a2a.TaskStateFailed})
		if err != nil || len(failed.Tasks) != 0 {
			t.Errorf("failed tasks = %v, %v, want none", failed, err)
		}
		later := time.Now().Add(time.Hour)
		changed, err := c.ListTasks(t.Context(), &a2a.ListTasksRequest{StatusTimestampAfter: &later})
		if err != nil || len(changed.Tasks) != 0 {
			t.Errorf("tasks that changed in the future = %v, %v, want none", changed, err)
		}
	})
}
