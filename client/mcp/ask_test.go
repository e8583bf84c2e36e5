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
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			told, options := listen()
			session := d.connect(t, options)
			result, err := session.CallTool(t.Context(), asking(object{"question": "Add sugar"}, "p1"))
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
				t.Errorf("the first answer (-want +got):\n%s", diff)
			}
			progress := told.until(t, "characters so far: 1 questions")
			for i, step := range progress {
				if step.ProgressToken != "p1" || step.Progress != float64(i+1) {
					t.Errorf("progress %d is %+v", i, step)
				}
			}
			if want := fmt.Sprintf("memory is answering in conversation %s", id); progress[0].Message != want {
				t.Errorf("progress begins with %q, want %q", progress[0].Message, want)
			}

			second := call(t, session, "ask_question", object{"question": "Make it two", "conversation_id": id, "agent": nil})
			if second["answer"] != "2 questions, the first: Add sugar" || second["conversation_id"] != id || second["created"] != false {
				t.Errorf("the second answer is %v", second)
			}
			if len(told) > 0 {
				t.Errorf("progress that nobody asked for: %+v", <-told)
			}
		})
	}
}

func TestAnswerOfManyParts(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			told, options := listen()
			session := d.connect(t, options)
			result, err := session.CallTool(t.Context(), asking(object{"question": "everything", "agent": "puppet"}, 7))
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
			for _, step := range told.until(t, "other goes on") {
				if !strings.Contains(step.Message, "characters so far") { // How many there are is a matter of time.
					messages = append(messages, step.Message)
				}
			}
			wantMessages := []string{
				fmt.Sprintf("puppet is answering in conversation %s", got["conversation_id"]),
				"puppet: looking it up", "puppet calls price", "puppet has the result of price", "puppet gives library_list", "other goes on",
			}
			if diff := cmp.Diff(wantMessages, messages); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInputRequired(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			session := d.connect(t, nil)
			got := call(t, session, "ask_question", object{"question": "call", "agent": "puppet"})
			want := []any{object{"id": "c1", "name": "price", "arguments": "{}"}, object{"id": "c2", "name": "stock", "arguments": "{}"}}
			if diff := cmp.Diff(want, got["open_tool_calls"]); diff != "" || got["state"] != "INPUT_REQUIRED" || got["answer"] != "" {
				t.Errorf("state %v, answer %q, open calls (-want +got):\n%s", got["state"], got["answer"], diff)
			}
			if got := call(t, session, "ask_question", object{"question": "silence", "agent": "puppet"}); got["state"] != "COMPLETED" || got["answer"] != "" {
				t.Errorf("without a word: %v", got)
			}
		})
	}
}

func TestFailingAgent(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			session := d.connect(t, nil)
			id := "failing-" + strings.ReplaceAll(d.name, " ", "-")
			failure, data := refused(t, session, "ask_question", object{"question": "And salt", "agent": "broken", "conversation_id": id})
			if failure.Code != -32603 || !strings.HasPrefix(failure.Message, `agent "broken" failed: `) ||
				!strings.Contains(failure.Message, "out of ideas") || !strings.HasSuffix(failure.Message, "(AGENT_FAILED); get_history of conversation "+id+" has what is kept") {
				t.Errorf("error %d: %s", failure.Code, failure.Message)
			}
			want := errorData{Reason: "AGENT_FAILED", ConversationID: id, TurnID: data.TurnID, State: "FAILED", Retryable: data.Retryable}
			if diff := cmp.Diff(want, data); diff != "" || data.TurnID == "" {
				t.Errorf("error.data (-want +got):\n%s", diff)
			}
			history := call(t, session, "get_history", object{"conversation_id": id, "newest_first": true, "page_size": 1})
			if at(history, "messages", 0, "content") != "half an ans" || at(history, "messages", 0, "status") != "MESSAGE_STATUS_INCOMPLETE" {
				t.Errorf("history: %v", history)
			}

			// Somebody else cancels it.
			told, options := listen()
			another := d.connect(t, options)
			var asked errorData
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := another.CallTool(t.Context(), asking(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				if failure, ok := errors.AsType[*jsonrpc.Error](err); !ok || failure.Code != -32603 || json.Unmarshal(failure.Data, &asked) != nil {
					t.Errorf("error %v", err)
				}
			}()
			told.until(t, "half a thou")
			turns, err := c.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: turns.GetTurns()[0].GetId()}); err != nil {
				t.Fatal(err)
			}
			<-done
			if asked.State != "CANCELLED" || asked.Reason != "CANCELLED" {
				t.Errorf("cancelled by somebody else: %+v", asked)
			}
		})
	}
}

// What ends a turn that had begun is no fault of the arguments, whatever it is.
func TestConversationGoes(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			told, options := listen()
			session := d.connect(t, options)
			id := "gone-" + strings.ReplaceAll(d.name, " ", "-")
			asked := make(chan error, 1)
			go func() {
				_, err := session.CallTool(t.Context(), asking(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				asked <- err
			}()
			told.until(t, "half a thou")
			if _, err := c.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
				t.Fatal(err)
			}
			failure, ok := errors.AsType[*jsonrpc.Error](<-asked)
			if !ok || failure.Code != -32603 || failure.Message != fmt.Sprintf(
				"conversation %q was deleted before the turn had ended; the answer is not kept (CONVERSATION_NOT_FOUND)", id) {
				t.Errorf("error %+v", failure)
			}
		})
	}
}

func TestQueued(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			told, options := listen()
			session := d.connect(t, options)
			id := "queue-" + strings.ReplaceAll(d.name, " ", "-")
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := session.CallTool(ctx, asking(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				first <- err
			}()
			told.until(t, "half a thou")
			go func() {
				_, err := session.CallTool(t.Context(), asking(object{"question": "hello", "agent": "puppet", "conversation_id": id}, 2))
				second <- err
			}()
			told.until(t, "queued: 1 ahead")
			if failure, data := refused(t, session, "clear_conversation", object{"conversation_id": id}); failure.Code != -32603 ||
				data.Reason != "CONVERSATION_BUSY" || !data.Retryable || !strings.HasPrefix(failure.Message, "a question is being answered there, turn ") {
				t.Errorf("clear: error %d, %s, %+v", failure.Code, failure.Message, data)
			}
			cancel()
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("the first: %v", err)
			}
			if err := <-second; err != nil {
				t.Errorf("the second: %v", err)
			}
			told.until(t, "hello")
		})
	}
}

func TestCancel(t *testing.T) {
	address, c := startParley(t)
	for _, d := range doors(address, c) {
		t.Run(d.name, func(t *testing.T) {
			told, options := listen()
			session := d.connect(t, options)
			id := "cancel-" + strings.ReplaceAll(d.name, " ", "-")
			ctx, cancel := context.WithCancel(t.Context())
			asked := make(chan error, 1)
			go func() {
				_, err := session.CallTool(ctx, asking(object{"question": "think", "agent": "puppet", "conversation_id": id}, 1))
				asked <- err
			}()
			told.until(t, "half a thou")
			cancel()
			if err := <-asked; !errors.Is(err, context.Canceled) {
				t.Errorf("the call: %v", err)
			}
			endsCancelled(t, c, id)
		})
	}
}
