package rpc

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

const (
	reject    = parleyv1.OnBusy_ON_BUSY_REJECT
	queue     = parleyv1.OnBusy_ON_BUSY_QUEUE
	interrupt = parleyv1.OnBusy_ON_BUSY_INTERRUPT
)

// chatRequest returns a request to the scripted agent.
func chatRequest(id, content string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
	return &parleyv1.ChatRequest{ConversationId: id, Content: content, OnBusy: busy}
}

// TestResumeTurn resumes an ended turn after each of its indexes. Its texts are merged, since all of them wait.
func TestResumeTurn(t *testing.T) {
	f, script := openScripted(t, nil)
	first := f.startChat(t, t.Context(), chatRequest("c1", "q", reject))
	for _, piece := range []string{"one ", "two ", "three"} { // Its reader keeps up.
		script.send(t, "c1", piece)
		first.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetTextDelta().GetText() == piece })
	}
	script.send(t, "c1", end)
	finished := first.wait(t)
	if got := finished.GetMessages()[0].GetContent(); got != "one two three" || first.text(t) != got {
		t.Errorf("stored answer = %q, streamed answer = %q, want %q", got, first.text(t), "one two three")
	}
	for _, id := range []string{"", first.turnID} {
		for after := range len(first.events) + 1 {
			r, err := f.resume(
				t.Context(),
				&parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: id, AfterIndex: int32(after)},
			)
			if err != nil {
				t.Fatalf("ResumeTurn after %d = %v", after, err)
			}
			if len(r.events) > 0 {
				r.wait(t)
			}
			want := mergeTexts(first.events[after:])
			if after == 0 {
				if !r.events[0].GetStarted().GetReplayed() {
					t.Error("replayed = false in the started event")
				}
				want[0] = r.events[0]
			}
			if diff := cmp.Diff(want, r.events, protocmp.Transform()); len(want)+len(r.events) > 0 && diff != "" {
				t.Errorf("events after %d (-want +got):\n%s", after, diff)
			}
		}
	}
	_, err := f.resume(
		t.Context(),
		&parleyv1.ResumeTurnRequest{ConversationId: "c1", AfterIndex: int32(len(first.events) + 1)},
	)
	if got := wantError(t, err, codes.OutOfRange, "EVENTS_GONE"); got.metadata["oldest_index"] != "1" {
		t.Errorf("metadata = %v, want oldest_index 1", got.metadata)
	}
}

// TestTurnsByID checks that GetTurn, ListTurns and CancelTurn return the same state of each turn.
func TestTurnsByID(t *testing.T) {
	f, script := openScripted(t, nil)
	var streams []*stream
	for i, busy := range []parleyv1.OnBusy{reject, queue, queue} {
		streams = append(streams, f.startChat(t, t.Context(), chatRequest("c1", fmt.Sprint(i), busy)))
	}
	wantStates := func(want ...string) {
		t.Helper()
		list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, turn := range list.GetTurns() {
			got = append(got, turn.GetState().String()[len("TURN_STATE_"):])
			reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: turn.GetId()})
			if diff := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || diff != "" {
				t.Errorf("turn, error %v (-ListTurns +GetTurn):\n%s", err, diff)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
	}
	wantStates("QUEUED", "QUEUED", "RUNNING")
	cancel := func(s *stream, want parleyv1.TurnState) {
		t.Helper()
		for range 2 {
			reply, err := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1", TurnId: s.turnID})
			if err != nil || reply.GetTurn().GetState() != want || reply.GetTurn().GetFinishTime() == nil {
				t.Errorf("CancelTurn = %v, %v, want %v", reply, err, want)
			}
		}
		if got := s.wait(t); got.GetTurn().GetState() != want {
			t.Errorf("finished event = %v, want %v", got, want)
		}
	}
	cancel(streams[1], parleyv1.TurnState_TURN_STATE_CANCELLED)
	wantStates("QUEUED", "RUNNING")
	cancel(streams[0], parleyv1.TurnState_TURN_STATE_CANCELLED)
	script.send(t, "c1", "yes", end)
	streams[2].wait(t)
	cancel(streams[2], parleyv1.TurnState_TURN_STATE_COMPLETED)
	wantStates("COMPLETED", "CANCELLED")
	if diff := cmp.Diff([]string{"user: 0", "user: 2", "assistant: yes"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestTurnNotFound checks that the errors for a missing turn and a missing conversation differ.
func TestTurnNotFound(t *testing.T) {
	f, _ := openScripted(t, nil)
	f.append(t, "c1", user("1"))
	for name, call := range map[string]func(id string) error{
		"ResumeTurn": func(id string) error {
			_, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: id, TurnId: "t1"})
			return err
		},
		"GetTurn": func(id string) error {
			_, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: "t1"})
			return err
		},
		"CancelTurn": func(id string) error {
			_, err := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: "t1"})
			return err
		},
	} {
		got := wantError(t, call("c1"), codes.NotFound, "TURN_NOT_FOUND")
		if r := got.resource; r.GetResourceType() != "parley.v1.Turn" || r.GetResourceName() != "t1" ||
			r.GetOwner() != "c1" ||
			r.GetDescription() != got.text {
			t.Errorf("%s: resource = %v, want the turn", name, r)
		}
		got = wantError(t, call("c2"), codes.NotFound, "CONVERSATION_NOT_FOUND")
		if r := got.resource; r.GetResourceType() != "parley.v1.Conversation" || r.GetResourceName() != "c2" {
			t.Errorf("%s: resource = %v, want the conversation", name, r)
		}
	}
	_, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1"})
	wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
	reply, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	if err != nil || len(reply.GetTurns()) != 0 {
		t.Errorf("ListTurns of a conversation without turns = %v, %v", reply, err)
	}
}

// TestInvalidTurnRequests sends requests that break rules in the protos.
func TestInvalidTurnRequests(t *testing.T) {
	f, _ := openScripted(t, nil)
	chat := func(r *parleyv1.ChatRequest) error {
		_, err := f.tryChat(t.Context(), r)
		return err
	}
	resume := func(r *parleyv1.ResumeTurnRequest) error {
		_, err := f.resume(t.Context(), r)
		return err
	}
	_, get := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1"})
	_, cancel := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1"})
	list := func(r *parleyv1.ListTurnsRequest) error {
		_, err := f.ListTurns(t.Context(), r)
		return err
	}
	for name, test := range map[string]struct {
		err   error
		field string
	}{
		"negative index": {
			resume(&parleyv1.ResumeTurnRequest{ConversationId: "c1", AfterIndex: -1}), "after_index",
		},
		"resume without id":    {resume(&parleyv1.ResumeTurnRequest{}), "conversation_id"},
		"get without id":       {get, "turn_id"},
		"cancel without id":    {cancel, "turn_id"},
		"list of a bad id":     {list(&parleyv1.ListTurnsRequest{ConversationId: " c"}), "conversation_id"},
		"page of 1001 turns":   {list(&parleyv1.ListTurnsRequest{PageSize: 1001}), "page_size"},
		"negative page":        {list(&parleyv1.ListTurnsRequest{PageSize: -1}), "page_size"},
		"list without a state": {list(&parleyv1.ListTurnsRequest{States: make([]parleyv1.TurnState, 1)}), "states[0]"},
		"list of state 99":     {list(&parleyv1.ListTurnsRequest{States: []parleyv1.TurnState{99}}), "states[0]"},
		"list of 17 states": {list(&parleyv1.ListTurnsRequest{
			States: slices.Repeat([]parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_RUNNING}, 17),
		}), "states"},
		"token of another list": {list(&parleyv1.ListTurnsRequest{PageToken: "AQAAAAA"}), "page_token"},
		"unknown on_busy":       {chat(&parleyv1.ChatRequest{Content: "x", OnBusy: 4}), "on_busy"},
		"unknown on_disconnect": {chat(&parleyv1.ChatRequest{Content: "x", OnDisconnect: 3}), "on_disconnect"},
		"content and answer_pending": {
			chat(&parleyv1.ChatRequest{ConversationId: "c1", Content: "x", AnswerPending: true}), "answer_pending",
		},
		"answer_pending without id": {chat(&parleyv1.ChatRequest{AnswerPending: true}), "conversation_id"},
		"no content":                {chat(&parleyv1.ChatRequest{ConversationId: "c1"}), "content"},
	} {
		if got := wantError(t, test.err, codes.InvalidArgument, "INVALID_REQUEST"); !slices.Equal(
			got.fields,
			[]string{test.field},
		) {
			t.Errorf("%s: fields = %q, want %q", name, got.fields, test.field)
		}
	}
	if n := f.changeCount(); n != 0 {
		t.Errorf("got %d changes, want 0", n)
	}
}

// TestAnswerPending answers a message again after a failed turn. It works only once.
func TestAnswerPending(t *testing.T) {
	f, script := openScripted(t, nil)
	failed := f.startChat(t, t.Context(), chatRequest("c1", "q", reject))
	script.send(t, "c1", "half", fail)
	if got := failed.wait(t).GetTurn(); got.GetState() != parleyv1.TurnState_TURN_STATE_FAILED ||
		!got.GetError().GetRetryable() {
		t.Errorf("turn = %v, want FAILED and retryable", got)
	}
	again := f.startChat(t, t.Context(), &parleyv1.ChatRequest{ConversationId: "c1", AnswerPending: true})
	script.send(t, "c1", "complete", end)
	if got := again.wait(t).GetTurn(); got.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED ||
		got.GetInputSequence() != 1 {
		t.Errorf("turn = %v, want COMPLETED with input_sequence 1", got)
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: half …", "assistant: complete"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	written := f.changeCount()
	_, err := f.tryChat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c1", AnswerPending: true})
	wantError(t, err, codes.FailedPrecondition, "NOTHING_TO_ANSWER")
	_, err = f.tryChat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c2", AnswerPending: true})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if n := f.changeCount(); n != written {
		t.Errorf("got %d changes, want 0", n-written)
	}
}
