package a2a

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// TestAnswer: over each binding, the artifacts of a task become text and structured data, and the message that the
// remote agent receives has all content of the user's message.
func TestAnswer(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{
				func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
					yield(sdk.NewSubmittedTask(on, on.Message))
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateWorking, agentMessage(textPart("Looking."))))
					first := sdk.NewArtifactEvent(on, textPart("Hel"))
					yield(first)
					yield(sdk.NewArtifactUpdateEvent(on, first.Artifact.ID, textPart("lo")))
					data := sdk.NewDataPart(map[string]any{"n": 1.5})
					data.SetMeta(a2aparts.TypeKey, "numbers")
					file := sdk.NewFileURLPart("https://files.example/a.png", "image/png")
					file.Filename = "a.png"
					yield(sdk.NewArtifactEvent(on, textPart("World"), data, file, sdk.NewRawPart([]byte("abc")),
						sdk.NewDataPart(map[string]any{"x": "y"})))
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, agentMessage(textPart("Done."))))
					return nil
				},
			}})
			c := newConversation(open(t, s))
			question := userMessage("What?")
			question.StructuredData = []*parleyv1.StructuredData{{Type: "list", Value: structpb.NewStringValue("v")}}
			question.Attachments = []*parleyv1.Attachment{
				{Uri: "https://files.example/b.pdf", MediaType: "application/pdf", Filename: "b.pdf"},
			}
			got := c.ask(t.Context(), question)
			if got.err != nil || got.text != "Hello\n\nWorld\n\nDone." {
				t.Fatalf("answer = %q, %+v, want the text of all artifacts", got.text, got.err)
			}
			if streaming && !strings.Contains(strings.Join(got.progress, "|"), "Looking.") {
				t.Errorf("progress = %q, want the status", got.progress)
			}
			var data []string
			for _, d := range got.data {
				value, err := json.Marshal(d.GetValue().AsInterface())
				if err != nil {
					t.Fatal(err)
				}
				data = append(data, d.GetType()+" "+string(value))
			}
			if diff := cmp.Diff([]string{
				`numbers {"n":1.5}`,
				`a2a.file {"filename":"a.png","mediaType":"image/png","url":"https://files.example/a.png"}`,
				`a2a.file {"raw":"YWJj"}`, `a2a.data {"x":"y"}`,
			}, data); diff != "" {
				t.Errorf("data (-want +got):\n%s", diff)
			}
			received := s.messages()[0]
			encoded, err := json.Marshal(received.Parts)
			if err != nil {
				t.Fatal(err)
			}
			want := `[{"text":"What?"},{"data":{"value":"v"},"mediaType":"application/json","metadata":{"parley.type":"list"}},` +
				`{"url":"https://files.example/b.pdf","filename":"b.pdf","mediaType":"application/pdf"}]`
			if string(encoded) != want || received.ID != "turn-1" || received.Role != sdk.MessageRoleUser {
				t.Errorf("message %s of %s = %s, want turn-1 of the user: %s", received.ID, received.Role, encoded, want)
			}
			for _, key := range s.keys {
				if key != "Bearer "+testKey {
					t.Errorf("authorization = %q, want the key", key)
				}
			}
		})
	}
}

// TestMessageAnswer: a remote agent may answer with a message and without a task.
func TestMessageAnswer(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{
				func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
					of := sdk.TaskInfo{ContextID: on.ContextID}
					yield(sdk.NewMessageForTask(sdk.MessageRoleAgent, of, textPart("one"), textPart("two")))
					return nil
				},
			}})
			c := newConversation(open(t, s))
			if got := c.ask(t.Context(), userMessage("hi")); got.err != nil || got.text != "one\ntwo" {
				t.Errorf("answer = %q, %v, want the parts of the message", got.text, got.err)
			}
			var kept state
			if err := json.Unmarshal(c.record.GetValue(), &kept); err != nil || kept.ContextID == "" || kept.TaskID != "" {
				t.Errorf("record = %s, %v, want the context", c.record.GetValue(), err)
			}
		})
	}
}

// TestRepeatedText: text that the remote agent sends again at the end of a task, or as a replacement of an artifact with
// the same beginning, is not repeated. Another text is a new paragraph.
func TestRepeatedText(t *testing.T) {
	for _, binding := range bindings {
		s := serve(t, binding, &service{streaming: true, scripts: []execute{
			func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
				yield(sdk.NewSubmittedTask(on, on.Message))
				event := sdk.NewArtifactEvent(on, textPart("one "))
				for _, text := range []string{"one ", "one two"} {
					yield(replaced(event, text))
				}
				yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, agentMessage(textPart("one two"))))
				return nil
			},
			func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
				yield(sdk.NewSubmittedTask(on, on.Message))
				event := sdk.NewArtifactEvent(on, textPart("draft"))
				yield(event)
				yield(replaced(event, "final"))
				yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, nil))
				return nil
			},
		}})
		c := newConversation(open(t, s))
		for _, want := range []string{"one two", "draft\n\nfinal"} {
			if got := c.ask(t.Context(), userMessage("q")); got.err != nil || got.text != want {
				t.Errorf("%s: answer = %q, %v, want %q", binding, got.text, got.err, want)
			}
		}
	}
}

// replaced returns an event that replaces an artifact.
func replaced(event *sdk.TaskArtifactUpdateEvent, text string) *sdk.TaskArtifactUpdateEvent {
	next := *event
	next.Artifact = &sdk.Artifact{ID: event.Artifact.ID, Parts: sdk.ContentParts{textPart(text)}}
	return &next
}

// completed answers with a text.
func completed(text string) execute {
	return func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
		yield(sdk.NewSubmittedTask(on, on.Message))
		yield(sdk.NewArtifactEvent(on, textPart(text)))
		yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, nil))
		return nil
	}
}

// TestContextIsKept: all turns of a conversation are in one context, each in a task of its own. A copy of the
// conversation, and one that has lost its history, start a new context.
func TestContextIsKept(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			var contexts []string
			answer := func(ctx context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
				contexts = append(contexts, on.ContextID)
				return completed("ok")(ctx, on, yield)
			}
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{answer, answer, answer, answer}})
			c := newConversation(open(t, s))
			ask := func() {
				t.Helper()
				if got := c.ask(t.Context(), userMessage("hi")); got.err != nil || got.text != "ok" {
					t.Fatalf("answer = %q, %v, want ok", got.text, got.err)
				}
			}
			ask()
			ask()
			c.uid = "uid-2"
			ask()
			c.messages = nil
			ask()
			if contexts[0] == "" || contexts[1] != contexts[0] || contexts[2] == contexts[0] || contexts[3] == contexts[2] {
				t.Errorf("contexts = %q, want the first two to be the same", contexts)
			}
			if c.record.GetKey() != "a2a/helper" {
				t.Errorf("key of the record = %q, want a2a/helper", c.record.GetKey())
			}
		})
	}
}

// waitForTool asks for a tool call, with the arguments as an object.
func waitForTool(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
	call := sdk.NewDataPart(map[string]any{"toolCall": map[string]any{
		"id": "k1", "name": "look_up", "arguments": map[string]any{"product": "sugar"},
	}})
	call.SetMeta("parley.type", "tool_call")
	yield(sdk.NewSubmittedTask(on, on.Message))
	yield(sdk.NewArtifactEvent(on, textPart("Let me see.")))
	yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateInputRequired, agentMessage(call)))
	return nil
}

// TestToolCalls: a task that waits for tools ends the turn with their calls, and the next turn sends the results to the
// same task. What the task has sent before is not repeated.
func TestToolCalls(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{
				waitForTool,
				func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
					yield(sdk.NewArtifactEvent(on, textPart("50 cents.")))
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, nil))
					return nil
				},
			}})
			c := newConversation(open(t, s))
			got := c.ask(t.Context(), userMessage("price?"))
			if got.err != nil || got.text != "Let me see." || len(got.calls) != 1 {
				t.Fatalf("answer = %+v, want a call", got)
			}
			call := got.calls[0]
			if call.GetId() != "k1" || call.GetName() != "look_up" || call.GetArguments() != `{"product":"sugar"}` {
				t.Errorf("call = %v, want look_up with sugar", call)
			}
			got = c.ask(t.Context(), resultMessage("k1", "0.50"))
			if got.err != nil || got.text != "50 cents." || len(got.calls) != 0 {
				t.Fatalf("answer after the result = %+v, want 50 cents", got)
			}
			first, second := s.messages()[0], s.messages()[1]
			encoded, err := json.Marshal(second.Parts)
			if err != nil {
				t.Fatal(err)
			}
			want := `[{"data":{"toolResult":{"callId":"k1","content":"0.50","isError":false,"name":"look_up"}},` +
				`"mediaType":"application/json","metadata":{"parley.type":"tool_result"}}]`
			if string(encoded) != want || second.TaskID == "" || second.ID == first.ID {
				t.Errorf("message to task %q = %s, want %s", second.TaskID, encoded, want)
			}
			if strings.Contains(string(c.record.GetValue()), "taskId") {
				t.Errorf("record = %s, want no task", c.record.GetValue())
			}
		})
	}
}

// TestInputRequired: a task that asks the user ends the turn with its text. The next message of the user goes to the
// same task, and a further one to a new task.
func TestInputRequired(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{
				func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
					yield(sdk.NewSubmittedTask(on, on.Message))
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateInputRequired, agentMessage(textPart("Which size?"))))
					return nil
				},
				func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateWorking, nil))
					yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateCompleted, agentMessage(textPart("Ordered."))))
					return nil
				},
				completed("Hello."),
			}})
			c := newConversation(open(t, s))
			for i, want := range []string{"Which size?", "Ordered.", "Hello."} {
				if got := c.ask(t.Context(), userMessage("m")); got.err != nil || got.text != want || len(got.calls) > 0 {
					t.Fatalf("answer %d = %+v, want %q", i+1, got, want)
				}
			}
			m := s.messages()
			if m[0].TaskID != "" || m[1].TaskID == "" || m[2].TaskID != "" || m[2].ContextID == "" {
				t.Errorf("tasks of the messages = %q, %q, %q, want only the second in a task", m[0].TaskID, m[1].TaskID,
					m[2].TaskID)
			}
		})
	}
}

// TestWaitingTaskIsGone: if a task that waited for input has ended in the meantime, a text begins a new task in the
// same context, and the result of a tool fails with a clear error.
func TestWaitingTaskIsGone(t *testing.T) {
	for name, of := range variants() {
		t.Run(name, func(t *testing.T) {
			binding, streaming := of.binding, of.streaming
			s := serve(t, binding, &service{streaming: streaming, scripts: []execute{waitForTool, completed("New.")}})
			c := newConversation(open(t, s))
			if got := c.ask(t.Context(), userMessage("q")); got.err != nil {
				t.Fatal(got.err)
			}
			var kept state
			if err := json.Unmarshal(c.record.GetValue(), &kept); err != nil {
				t.Fatal(err)
			}
			remote, err := c.agent.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// The server refuses this while it still ends the call that began to wait.
			for err = sdk.ErrTaskNotCancelable; err != nil && t.Context().Err() == nil; {
				_, err = remote.client.CancelTask(t.Context(), &sdk.CancelTaskRequest{ID: sdk.TaskID(kept.TaskID)})
			}
			failure := failureOf(t, c.ask(t.Context(), resultMessage("k1", "v")))
			want := "the task that waited for this tool result has ended; send a message of the user"
			if failure.Message != want {
				t.Errorf("error = %q, want %q", failure.Message, want)
			}
			if got := c.ask(t.Context(), userMessage("again")); got.err != nil || got.text != "New." {
				t.Fatalf("answer = %+v, want that of a new task", got)
			}
			if last := s.messages()[1]; last.TaskID != "" || last.ContextID != kept.ContextID {
				t.Errorf("message to task %q in context %q, want no task in %q", last.TaskID, last.ContextID, kept.ContextID)
			}
		})
	}
}
