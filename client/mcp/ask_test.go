package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestAskTwice(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			progress, options := newProgressListener()
			session := tr.connect(t, options)
			result, err := session.CallTool(t.Context(), askParams(object{"question": "Add sugar"}, "p1"))
			if err != nil {
				t.Fatal(err)
			}
			first := checked(t, "ask_question", result)
			id := first["conversation_id"]
			want := object{
				"answer": "1 questions, the first: Add sugar", "state": "COMPLETED", "created": true, "agent": "memory",
				"conversation_id": id, "turn_id": first["turn_id"],
			}
			if diff := cmp.Diff(want, first); diff != "" || id == "" || first["turn_id"] == "" {
				t.Errorf("first answer (-want +got):\n%s", diff)
			}
			steps := progress.until(t, "characters so far: 1 questions")
			for i, step := range steps {
				if step.ProgressToken != "p1" || step.Progress != float64(i+1) {
					t.Errorf("progress %d = %+v, want token p1 and progress %d", i, step, i+1)
				}
			}
			if want := fmt.Sprintf("memory is answering in conversation %s", id); steps[0].Message != want {
				t.Errorf("first progress = %q, want %q", steps[0].Message, want)
			}

			second := call(t, session, "ask_question", object{"question": "Make it two", "conversation_id": id, "agent": nil})
			if second["answer"] != "2 questions, the first: Add sugar" || second["conversation_id"] != id ||
				second["created"] != false {
				t.Errorf("second answer = %v, want 2 questions in the same conversation", second)
			}
			if len(progress) > 0 {
				t.Errorf("progress without a token: %+v, want none", <-progress)
			}
		})
	}
}

func TestAnswerOfManyParts(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			progress, options := newProgressListener()
			session := tr.connect(t, options)
			result, err := session.CallTool(t.Context(), askParams(object{"question": "everything", "agent": "puppet"}, 7))
			if err != nil {
				t.Fatal(err)
			}
			got := checked(t, "ask_question", result)
			want := object{
				"answer": "One moment.\n\nIt is Redux.\n\nAnd I agree.", "state": "COMPLETED", "created": true, "agent": "other",
				"structured_data": []any{object{"type": "library_list", "value": []any{"Redux"}}},
				"conversation_id": got["conversation_id"], "turn_id": got["turn_id"],
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			var messages []string
			for _, step := range progress.until(t, "other continues the answer") {
				if !strings.Contains(step.Message, "characters so far") { // Their number depends on the time.
					messages = append(messages, step.Message)
				}
			}
			wantMessages := []string{
				fmt.Sprintf("puppet is answering in conversation %s", got["conversation_id"]),
				"puppet: looking it up", "puppet calls price", "puppet has the result of price", "puppet sends library_list",
				"other continues the answer",
			}
			if diff := cmp.Diff(wantMessages, messages); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInputRequired(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			session := tr.connect(t, nil)
			got := call(t, session, "ask_question", object{"question": "call", "agent": "puppet"})
			want := []any{
				object{"id": "c1", "name": "price", "arguments": "{}"}, object{"id": "c2", "name": "stock", "arguments": "{}"},
			}
			if diff := cmp.Diff(want, got["open_tool_calls"]); diff != "" || got["state"] != "INPUT_REQUIRED" ||
				got["answer"] != "" {
				t.Errorf("state %v, answer %q, open calls (-want +got):\n%s", got["state"], got["answer"], diff)
			}
			if got := call(t, session, "ask_question", object{"question": "silence", "agent": "puppet"}); got["state"] != "COMPLETED" || got["answer"] != "" {
				t.Errorf("answer without text = %v, want COMPLETED and no text", got)
			}
		})
	}
}

func TestFailingAgent(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			session := tr.connect(t, nil)
			id := "failing-" + strings.ReplaceAll(tr.name, " ", "-")
			failure, data := callError(t, session, "ask_question", object{
				"question": "And salt", "agent": "broken", "conversation_id": id,
			})
			if failure.Code != -32603 || !strings.HasPrefix(failure.Message, `agent "broken" failed: `) ||
				!strings.Contains(failure.Message, "out of ideas") ||
				!strings.HasSuffix(failure.Message,
					"(AGENT_FAILED); call get_history for conversation "+id+" to read what is stored") {
				t.Errorf("error %d: %s; want -32603 with the cause and a hint to get_history", failure.Code, failure.Message)
			}
			want := errorData{
				Reason: "AGENT_FAILED", ConversationID: id, TurnID: data.TurnID, State: "FAILED", Retryable: data.Retryable,
			}
			if diff := cmp.Diff(want, data); diff != "" || data.TurnID == "" {
				t.Errorf("error.data (-want +got):\n%s", diff)
			}
			history := call(t, session, "get_history", object{"conversation_id": id, "newest_first": true, "page_size": 1})
			if valueAt(history, "messages", 0, "content") != "half an ans" ||
				valueAt(history, "messages", 0, "status") != "MESSAGE_STATUS_INCOMPLETE" {
				t.Errorf("get_history = %v, want the partial answer", history)
			}

			// Another caller cancels the turn.
			progress, options := newProgressListener()
			another := tr.connect(t, options)
			var asked errorData
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := another.CallTool(t.Context(),
					askParams(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				if failure, ok := errors.AsType[*jsonrpc.Error](err); !ok || failure.Code != -32603 ||
					json.Unmarshal(failure.Data, &asked) != nil {
					t.Errorf("CallTool() = %v, want error -32603", err)
				}
			}()
			progress.until(t, "half a thou")
			turns, err := c.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.CancelTurn(t.Context(),
				&parleyv1.CancelTurnRequest{ConversationId: id, TurnId: turns.GetTurns()[0].GetId()}); err != nil {
				t.Fatal(err)
			}
			<-done
			if asked.State != "CANCELLED" || asked.Reason != "CANCELLED" {
				t.Errorf("error.data of a turn that another caller cancelled = %+v, want CANCELLED", asked)
			}
		})
	}
}

// TestConversationDeletedDuringATurn checks that the error is -32603 if a conversation is deleted during
// a turn, because the arguments were valid.
func TestConversationDeletedDuringATurn(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			progress, options := newProgressListener()
			session := tr.connect(t, options)
			id := "gone-" + strings.ReplaceAll(tr.name, " ", "-")
			asked := make(chan error, 1)
			go func() {
				_, err := session.CallTool(t.Context(),
					askParams(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				asked <- err
			}()
			progress.until(t, "half a thou")
			if _, err := c.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
				t.Fatal(err)
			}
			failure, ok := errors.AsType[*jsonrpc.Error](<-asked)
			if !ok || failure.Code != -32603 || failure.Message != fmt.Sprintf(
				"conversation %q was deleted before the turn ended; the answer is not stored (CONVERSATION_NOT_FOUND)", id) {
				t.Errorf("CallTool() = %+v, want error -32603 with CONVERSATION_NOT_FOUND", failure)
			}
		})
	}
}

func TestQueued(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			progress, options := newProgressListener()
			session := tr.connect(t, options)
			id := "queue-" + strings.ReplaceAll(tr.name, " ", "-")
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := session.CallTool(ctx, askParams(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				first <- err
			}()
			progress.until(t, "half a thou")
			go func() {
				_, err := session.CallTool(t.Context(),
					askParams(object{"question": "hello", "agent": "puppet", "conversation_id": id}, 2))
				second <- err
			}()
			progress.until(t, "queued: 1 ahead")
			if failure, data := callError(t, session, "clear_conversation", object{"conversation_id": id}); failure.Code != -32603 ||
				data.Reason != "CONVERSATION_BUSY" || !data.Retryable || !strings.HasPrefix(failure.Message, "turn ") ||
				!strings.Contains(failure.Message, " of this conversation is running; ") {
				t.Errorf("clear_conversation = error %d, %s, %+v; want -32603, CONVERSATION_BUSY, retryable", failure.Code,
					failure.Message, data)
			}
			cancel()
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("first call: %v, want context.Canceled", err)
			}
			if err := <-second; err != nil {
				t.Errorf("second call: %v", err)
			}
			progress.until(t, "hello")
		})
	}
}

func TestCancel(t *testing.T) {
	address, c := startParley(t)
	for _, tr := range transports(address, c) {
		t.Run(tr.name, func(t *testing.T) {
			progress, options := newProgressListener()
			session := tr.connect(t, options)
			id := "cancel-" + strings.ReplaceAll(tr.name, " ", "-")
			ctx, cancel := context.WithCancel(t.Context())
			asked := make(chan error, 1)
			go func() {
				_, err := session.CallTool(ctx, askParams(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				asked <- err
			}()
			progress.until(t, "half a thou")
			cancel()
			if err := <-asked; !errors.Is(err, context.Canceled) {
				t.Errorf("CallTool() = %v, want context.Canceled", err)
			}
			awaitCancelledTurn(t, c, id)
		})
	}
}
