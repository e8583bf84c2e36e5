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

// asks is a request to the scripted agent.
func asks(id, content string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
	return &parleyv1.ChatRequest{ConversationId: id, Content: content, OnBusy: busy}
}

// TestResumeTurn resumes from every index of a turn that has ended.
func TestResumeTurn(t *testing.T) {
	f, words := openScripted(t, nil)
	first := f.begin(t, t.Context(), asks("c1", "q", reject))
	words.say(t, "c1", "one ", "two ", "three", end)
	finished := first.drain(t)
	if got := finished.GetMessages()[0].GetContent(); got != "one two three" || first.text(t) != got {
		t.Errorf("stored %q, read %q", got, first.text(t))
	}
	for _, id := range []string{"", first.turnID} {
		for after := range len(first.events) + 1 {
			r, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: id, AfterIndex: int32(after)})
			if err != nil {
				t.Fatalf("behind %d: %v", after, err)
			}
			if len(r.events) > 0 {
				r.drain(t)
			}
			want := slices.Clone(first.events[after:])
			if after == 0 {
				if !r.events[0].GetStarted().GetReplayed() {
					t.Error("the started event is not marked as replayed")
				}
				want[0] = r.events[0]
			}
			if diff := cmp.Diff(want, r.events, protocmp.Transform()); len(want)+len(r.events) > 0 && diff != "" {
				t.Errorf("behind %d (-want +got):\n%s", after, diff)
			}
		}
	}
	_, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", AfterIndex: int32(len(first.events) + 1)})
	if got := wantError(t, err, codes.OutOfRange, "EVENTS_GONE"); got.metadata["oldest_index"] != "1" {
		t.Errorf("metadata %v", got.metadata)
	}
}

// TestTurnsByID: GetTurn, ListTurns and CancelTurn agree on each turn, whatever it does.
func TestTurnsByID(t *testing.T) {
	f, words := openScripted(t, nil)
	var streams []*stream
	for i, busy := range []parleyv1.OnBusy{reject, queue, queue} {
		streams = append(streams, f.begin(t, t.Context(), asks("c1", fmt.Sprint(i), busy)))
	}
	states := func(want ...string) {
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
				t.Errorf("%v, listed and by its id:\n%s", err, diff)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("newest first (-want +got):\n%s", diff)
		}
	}
	states("QUEUED", "QUEUED", "RUNNING")
	cancel := func(s *stream, want parleyv1.TurnState) {
		t.Helper()
		for range 2 {
			reply, err := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1", TurnId: s.turnID})
			if err != nil || reply.GetTurn().GetState() != want || reply.GetTurn().GetFinishTime() == nil {
				t.Errorf("cancelled: %v, %v", reply, err)
			}
		}
		if got := s.drain(t); got.GetTurn().GetState() != want {
			t.Errorf("the stream ended with %v", got)
		}
	}
	cancel(streams[1], parleyv1.TurnState_TURN_STATE_CANCELLED)
	states("QUEUED", "RUNNING")
	cancel(streams[0], parleyv1.TurnState_TURN_STATE_CANCELLED)
	words.say(t, "c1", "yes", end)
	streams[2].drain(t)
	cancel(streams[2], parleyv1.TurnState_TURN_STATE_COMPLETED)
	states("COMPLETED", "CANCELLED")
	if diff := cmp.Diff([]string{"user: 0", "user: 2", "assistant: yes"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// TestTurnNotFound: a conversation without the turn is told apart from none, with details.
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
		if r := got.resource; r.GetResourceType() != "parley.v1.Turn" || r.GetResourceName() != "t1" || r.GetOwner() != "c1" || r.GetDescription() != got.text {
			t.Errorf("%s: resource %v", name, r)
		}
		got = wantError(t, call("c2"), codes.NotFound, "CONVERSATION_NOT_FOUND")
		if r := got.resource; r.GetResourceType() != "parley.v1.Conversation" || r.GetResourceName() != "c2" {
			t.Errorf("%s: resource %v", name, r)
		}
	}
	_, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1"})
	wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
	reply, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	if err != nil || len(reply.GetTurns()) != 0 {
		t.Errorf("turns of a conversation without any: %v, %v", reply, err)
	}
}

// TestBadTurnRequests sends what the rules of the protos forbid.
func TestBadTurnRequests(t *testing.T) {
	f, _ := openScripted(t, nil)
	chat := func(r *parleyv1.ChatRequest) error {
		_, err := f.try(t.Context(), r)
		return err
	}
	resume := func(r *parleyv1.ResumeTurnRequest) error {
		_, err := f.resume(t.Context(), r)
		return err
	}
	_, get := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1"})
	_, cancel := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1"})
	_, list := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{})
	for name, test := range map[string]struct {
		err   error
		field string
	}{
		"index below 0":            {resume(&parleyv1.ResumeTurnRequest{ConversationId: "c1", AfterIndex: -1}), "after_index"},
		"resume nothing":           {resume(&parleyv1.ResumeTurnRequest{}), "conversation_id"},
		"get nothing":              {get, "turn_id"},
		"cancel nothing":           {cancel, "turn_id"},
		"list nothing":             {list, "conversation_id"},
		"unknown on_busy":          {chat(&parleyv1.ChatRequest{Content: "x", OnBusy: 4}), "on_busy"},
		"unknown on_disconnect":    {chat(&parleyv1.ChatRequest{Content: "x", OnDisconnect: 3}), "on_disconnect"},
		"content and pending":      {chat(&parleyv1.ChatRequest{ConversationId: "c1", Content: "x", AnswerPending: true}), "answer_pending"},
		"pending of which":         {chat(&parleyv1.ChatRequest{AnswerPending: true}), "conversation_id"},
		"neither words nor a wish": {chat(&parleyv1.ChatRequest{ConversationId: "c1"}), "content"},
	} {
		if got := wantError(t, test.err, codes.InvalidArgument, "INVALID_REQUEST"); !slices.Equal(got.fields, []string{test.field}) {
			t.Errorf("%s: named %q, want %q", name, got.fields, test.field)
		}
	}
	if n := f.changeCount(); n != 0 {
		t.Errorf("%d changes were written", n)
	}
}

// TestAnswerPending: after a failed turn the same question is answered again, once.
func TestAnswerPending(t *testing.T) {
	f, words := openScripted(t, nil)
	failed := f.begin(t, t.Context(), asks("c1", "q", reject))
	words.say(t, "c1", "half", fail)
	if got := failed.drain(t).GetTurn(); got.GetState() != parleyv1.TurnState_TURN_STATE_FAILED || !got.GetError().GetRetryable() {
		t.Errorf("ended %v", got)
	}
	again := f.begin(t, t.Context(), &parleyv1.ChatRequest{ConversationId: "c1", AnswerPending: true})
	words.say(t, "c1", "whole", end)
	if got := again.drain(t).GetTurn(); got.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED || got.GetInputSequence() != 1 {
		t.Errorf("ended %v", got)
	}
	if diff := cmp.Diff([]string{"user: q", "assistant: half …", "assistant: whole"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	written := f.changeCount()
	_, err := f.try(t.Context(), &parleyv1.ChatRequest{ConversationId: "c1", AnswerPending: true})
	wantError(t, err, codes.FailedPrecondition, "NOTHING_TO_ANSWER")
	_, err = f.try(t.Context(), &parleyv1.ChatRequest{ConversationId: "c2", AnswerPending: true})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if n := f.changeCount(); n != written {
		t.Errorf("%d changes were written", n-written)
	}
}
