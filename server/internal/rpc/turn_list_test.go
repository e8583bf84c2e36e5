package rpc

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ask runs a turn of the conversation c to its end and returns its id.
func (f *fixture) ask(t *testing.T, content string) string {
	t.Helper()
	s := f.startChat(t, t.Context(), chatRequest("c", content, reject))
	s.wait(t)
	return s.turnID
}

// turnPages returns the turns of a list, over all pages.
func (f *fixture) turnPages(t *testing.T, r *parleyv1.ListTurnsRequest) []*parleyv1.Turn {
	t.Helper()
	var turns []*parleyv1.Turn
	for {
		page, err := f.ListTurns(t.Context(), r)
		if err != nil {
			t.Fatalf("ListTurns(%v): %v", r, err)
		}
		if turns = append(turns, page.GetTurns()...); page.GetNextPageToken() == "" {
			return turns
		}
		r.PageToken = page.GetNextPageToken()
	}
}

func idsOf(turns []*parleyv1.Turn) []string {
	var ids []string
	for _, turn := range turns {
		ids = append(ids, turn.GetId())
	}
	return ids
}

// TestKeptTurns: a conversation keeps the number of turns in max_turns of its retention, and fewer after it is lowered.
// Each of them is listed, found by its id alone, and replayed from its start. A request of an earlier client, which
// only names the conversation, returns the newest 32.
func TestKeptTurns(t *testing.T) {
	f := open(t, func(s *setup) { s.storeOptions.MaxMessages = 1000 })
	f.create(t, &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxTurns: 100}})
	var ids []string
	for i := range 120 {
		ids = append(ids, f.ask(t, fmt.Sprint("question ", i)))
	}
	slices.Reverse(ids)
	got := idsOf(f.turnPages(t, &parleyv1.ListTurnsRequest{ConversationId: "c", PageSize: 7}))
	if len(got) < 100 || len(got) > 115 || !slices.Equal(got, ids[:len(got)]) {
		t.Errorf("ListTurns = %d turns, want the newest 100 to 115 in order", len(got))
	}
	if tenant := idsOf(f.turnPages(t, &parleyv1.ListTurnsRequest{})); !slices.Equal(tenant, got) {
		t.Errorf("ListTurns of the tenant = %d turns, want the same %d", len(tenant), len(got))
	}
	old, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c"})
	if err != nil || !slices.Equal(idsOf(old.GetTurns()), ids[:32]) {
		t.Errorf("ListTurns with the conversation only = %d turns, %v, want the newest 32", len(old.GetTurns()), err)
	}
	for _, i := range []int{0, 40, 99} {
		question := fmt.Sprint("question ", 119-i)
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: ids[i]})
		if turn := reply.GetTurn(); err != nil || turn.GetId() != ids[i] || turn.GetConversationId() != "c" {
			t.Errorf("GetTurn of turn %d = %v, %v", i, reply, err)
		}
		s, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: ids[i]})
		if err != nil {
			t.Fatalf("ResumeTurn of turn %d: %v", i, err)
		}
		s.wait(t)
		if s.text(t) != question || s.events[0].GetStarted().GetUserMessage().GetContent() != question {
			t.Errorf("ResumeTurn of turn %d = %v, want %q", i, s.events, question)
		}
	}
	f.setMaxTurns(t, 99, "retention")
	f.setMaxTurns(t, 98)
	f.setMaxTurns(t, 0, "retention.max_turns")
	f.ask(t, "the limit is lower")
	if got := f.turnPages(t, &parleyv1.ListTurnsRequest{ConversationId: "c"}); len(got) != 32 {
		t.Errorf("ListTurns after max_turns was cleared = %d turns, want 32", len(got))
	}
	_, err = f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: ids[99]})
	if got := wantError(t, err, codes.NotFound, "TURN_NOT_FOUND"); got.resource.GetResourceName() != ids[99] {
		t.Errorf("resource = %v, want turn %q", got.resource, ids[99])
	}
}

// TestRetryAfterManyTurns: a Chat that repeats the request_id of an old turn replays this turn if it is kept.
// Otherwise it fails and starts no turn.
func TestRetryAfterManyTurns(t *testing.T) {
	for name, test := range map[string]struct {
		maxTurns int32
		gone     bool
	}{"kept": {maxTurns: 100}, "dropped": {gone: true}} {
		t.Run(name, func(t *testing.T) {
			f := open(t, func(s *setup) { s.storeOptions.MaxMessages = 1000 })
			f.create(t, &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxTurns: test.maxTurns}})
			request := chatRequest("c", "question", reject)
			request.RequestId = "r"
			first := f.startChat(t, t.Context(), request)
			first.wait(t)
			for range 60 { // The server keeps 32 turns of a conversation in memory and 48 in its value.
				f.ask(t, "more")
			}
			if test.gone {
				_, err := f.chat(t, request)
				got := wantError(t, err, codes.OutOfRange, "EVENTS_GONE")
				if want := "the turn is no longer stored; its answer may be in the history"; got.text != want {
					t.Errorf("Chat = %q, want %q", got.text, want)
				}
			} else {
				retry := f.startChat(t, t.Context(), request)
				retry.wait(t)
				if !retry.events[0].GetStarted().GetReplayed() || retry.turnID != first.turnID ||
					retry.text(t) != first.text(t) {
					t.Errorf("Chat = %v, want the events of turn %s", retry.events, first.turnID)
				}
			}
			turns := f.turnPages(t, &parleyv1.ListTurnsRequest{ConversationId: "c", PageSize: 100})
			if turns[0].GetRequestId() == "r" {
				t.Error("Chat started a turn, want none")
			}
		})
	}
}

// setMaxTurns sets max_turns of the conversation c with an update mask.
func (f *fixture) setMaxTurns(t *testing.T, n int32, mask ...string) {
	t.Helper()
	reply, err := f.UpdateConversation(t.Context(), &parleyv1.UpdateConversationRequest{
		Conversation: &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxTurns: n}},
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: mask},
	})
	if got := reply.GetConversation().GetRetention().GetMaxTurns(); err != nil || got != n {
		t.Errorf("UpdateConversation: max_turns = %d, %v, want %d", got, err, n)
	}
}

// TestReplayWithoutDroppedMessages: the messages that a conversation has dropped are left out when an older turn is
// resumed. Its state stays.
func TestReplayWithoutDroppedMessages(t *testing.T) {
	f := open(t, nil)
	f.create(t, &parleyv1.Conversation{Id: "c", Retention: &parleyv1.Retention{MaxTurns: 100, MaxMessages: 90}})
	first := f.ask(t, "first")
	for range 44 {
		f.ask(t, "more")
	}
	wantEvents := func(want ...string) {
		t.Helper()
		s, err := f.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: first})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for {
			reply, err := s.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			e := reply.GetEvent()
			text := e.GetStarted().GetUserMessage().GetContent() + e.GetTextDelta().GetText() +
				e.GetFinished().GetTurn().GetId()
			got = append(got, fmt.Sprintf("%d %s", e.GetIndex(), text))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	}
	wantEvents("1 first", "2 first", "3 "+first)
	f.append(t, "c", user("drops the question"))
	wantEvents("1 ", "2 first", "3 "+first)
	f.append(t, "c", user("drops the answer"))
	wantEvents("1 ", "3 "+first)
	_, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: first, AfterIndex: 1})
	wantError(t, err, codes.OutOfRange, "EVENTS_GONE")
}

// TestListTurnsOfTenant: the list of a tenant contains the turns of all its conversations in each state, also those
// that wait. A turn has the same state in both lists and in GetTurn with its id alone.
func TestListTurnsOfTenant(t *testing.T) {
	f, script := openScripted(t, nil)
	done := f.startChat(t, t.Context(), chatRequest("a", "q", reject))
	script.send(t, "a", end)
	done.wait(t)
	failed := f.startChat(t, t.Context(), chatRequest("b", "q", reject))
	script.send(t, "b", fail)
	failed.wait(t)
	running := f.startChat(t, t.Context(), chatRequest("b", "q", reject))
	queued := f.startChat(t, t.Context(), chatRequest("b", "q", queue))
	other := f.startChat(t, t.Context(), chatRequest("c", "q", reject))
	all := []string{other.turnID, queued.turnID, running.turnID, failed.turnID, done.turnID}
	states := map[string][]parleyv1.TurnState{
		"all":     nil,
		"queued":  {parleyv1.TurnState_TURN_STATE_QUEUED},
		"running": {parleyv1.TurnState_TURN_STATE_RUNNING},
		"ended":   {parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_FAILED},
	}
	for name, want := range map[string][]string{
		"all": all, "queued": all[1:2], "running": {all[0], all[2]}, "ended": all[3:],
	} {
		for size := range int32(4) {
			got := f.turnPages(t, &parleyv1.ListTurnsRequest{States: states[name], PageSize: size})
			if diff := cmp.Diff(want, idsOf(got)); diff != "" {
				t.Errorf("%s turns in pages of %d (-want +got):\n%s", name, size, diff)
			}
			for _, turn := range got {
				reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: turn.GetId()})
				if diff := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || diff != "" {
					t.Errorf("turn, error %v (-ListTurns +GetTurn):\n%s", err, diff)
				}
			}
		}
	}
	of := f.turnPages(t, &parleyv1.ListTurnsRequest{ConversationId: "b", PageSize: 1})
	if diff := cmp.Diff([]string{queued.turnID, running.turnID, failed.turnID}, idsOf(of)); diff != "" {
		t.Errorf("turns of b (-want +got):\n%s", diff)
	}
	f.wantTokensOfOneList(t)
	for id, hint := range map[string]string{
		"none":                                 "",
		"0b9ffa8e-6a4e-4f0c-9d0e-1f6f0e3a6b01": "; set conversation_id to find a turn of an earlier version of the server",
	} {
		_, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: id})
		got := wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
		text := fmt.Sprintf("turn %q does not exist; it was never started or is no longer kept, ", id) +
			"or its conversation has ended" + hint
		if got.text != text || got.resource.GetResourceName() != id || got.resource.GetOwner() != "" {
			t.Errorf("GetTurn(%s) = %q, %v, want %q", id, got.text, got.resource, text)
		}
	}
	for _, s := range []*stream{running, queued, other} {
		s.disconnect()
	}
}

// wantTokensOfOneList checks that a page token is only valid for the list that returned it.
func (f *fixture) wantTokensOfOneList(t *testing.T) {
	t.Helper()
	completed := []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_COMPLETED, parleyv1.TurnState_TURN_STATE_RUNNING}
	lists := []*parleyv1.ListTurnsRequest{
		{PageSize: 1},
		{PageSize: 1, ConversationId: "b"},
		{PageSize: 1, ConversationId: "b", States: completed},
		{PageSize: 1, States: completed},
	}
	for i, list := range lists {
		page, err := f.ListTurns(t.Context(), list)
		if err != nil || page.GetNextPageToken() == "" {
			t.Fatalf("ListTurns(%v) = %v, %v, want a token", list, page, err)
		}
		for j, other := range lists {
			_, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{
				ConversationId: other.GetConversationId(), States: other.GetStates(), PageSize: 5,
				PageToken: page.GetNextPageToken(),
			})
			if i == j && err != nil {
				t.Errorf("next page of %v: %v", list, err)
			} else if i != j {
				wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
			}
		}
	}
}
