package rpc

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// These tests check the guarantees of the README about turns through the API.

// TestIdempotentTurns checks guarantee 3: a retry returns the turn that the first call started, whatever
// the state of the turn, and calls no agent.
func TestIdempotentTurns(t *testing.T) {
	f, script := openScripted(t, nil)
	request := func(id string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
		r := chatRequest("c1", id, busy)
		r.RequestId = id
		return r
	}
	completes, queues, interrupts := request(
		"completes",
		reject,
	), request(
		"queues",
		queue,
	), request(
		"interrupts",
		interrupt,
	)
	first := f.startChat(t, t.Context(), completes)
	queued := f.startChat(t, t.Context(), queues)
	retries := []*stream{f.startChat(t, t.Context(), completes), f.startChat(t, t.Context(), queues)}
	script.send(t, "c1", "a", end)
	first.wait(t)
	script.send(t, "c1", "b")
	interrupting := f.startChat(t, t.Context(), interrupts)
	// Until the new turn has started, the agent of the interrupted turn could receive the next text.
	interrupting.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	script.send(t, "c1", "c", end)
	streams := []*stream{first, queued, interrupting}
	for _, s := range append(retries, streams[1:]...) {
		s.wait(t)
	}
	for i, r := range []*parleyv1.ChatRequest{completes, queues, interrupts} {
		again := f.startChat(t, t.Context(), r)
		again.wait(t)
		retries = append(retries, again)
		changed := request(r.GetRequestId(), r.GetOnBusy())
		changed.Content = "other"
		_, err := f.tryChat(t.Context(), changed)
		wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
		if got, want := again.text(t), []string{"a", "b", "c"}[i]; got != want || again.turnID != streams[i].turnID {
			t.Errorf(
				"retry of %s = %q of turn %s, want %q of %s",
				r.GetRequestId(),
				got,
				again.turnID,
				want,
				streams[i].turnID,
			)
		}
	}
	for i, s := range retries {
		at := slices.IndexFunc(s.events, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
		if at < 0 || !s.events[at].GetStarted().GetReplayed() {
			t.Errorf("retry %d: replayed = false, want true", i)
		}
	}
	want := []string{
		"user: completes",
		"assistant: a",
		"user: queues",
		"assistant: b …",
		"user: interrupts",
		"assistant: c",
	}
	if diff := cmp.Diff(want, f.contents(t, "c1")); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestOrderedTurns checks guarantee 4: one turn runs at a time, and appends of other callers do not split
// a batch of messages. The if_version of a queued turn is checked when the turn starts.
func TestOrderedTurns(t *testing.T) {
	f, script := openScripted(t, nil)
	var streams []*stream
	var want []string
	for i := range 17 {
		request := chatRequest("c1", fmt.Sprint(i), queue)
		switch i {
		case 5: // Each turn changes the version twice, and the append below once.
			request.IfVersion = new(int32(1 + 2*5))
		case 6:
			request.IfVersion = new(int32(1))
		}
		streams = append(streams, f.startChat(t, t.Context(), request))
		if position := streams[i].events[0].GetQueued().GetPosition(); int(position) != i {
			t.Errorf("position of turn %d in the queue = %d", i, position)
		}
		_, err := f.tryChat(t.Context(), chatRequest("c1", "x", reject))
		if got := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); got.metadata["active_turn_id"] != streams[0].turnID ||
			got.retry == 0 {
			t.Errorf("metadata = %v, retry after %v, want the first turn and RetryInfo", got.metadata, got.retry)
		}
	}
	f.append(t, "c1", &parleyv1.Message{Role: parleyv1.Role_ROLE_SYSTEM, Content: "appended"})
	for i, s := range streams {
		if i == 6 {
			continue
		}
		script.send(t, "c1", fmt.Sprint("answer ", i), end)
		if got := s.wait(t).GetTurn().GetState(); got != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Errorf("state of turn %d = %v, want COMPLETED", i, got)
		}
		want = append(want, fmt.Sprint("user: ", i), fmt.Sprint("assistant: answer ", i))
		if i == 0 {
			want = slices.Insert(want, 1, "system: appended")
		}
	}
	for {
		if err := streams[6].next(); err != nil {
			if got := wantError(t, err, codes.Aborted, "VERSION_MISMATCH"); got.metadata["current_version"] != "13" {
				t.Errorf("metadata = %v, want current_version 13", got.metadata)
			}
			break
		}
	}
	if diff := cmp.Diff(want[len(want)-20:], f.contents(t, "c1")); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range loaded.GetMessages() {
		if int(m.GetSequence()) != len(want)-20+i+1 {
			t.Errorf("sequence of message %d = %d, want %d", i, m.GetSequence(), len(want)-20+i+1)
		}
	}
}

// TestStartedEvent checks guarantee 5: a queued turn has written nothing. The user's message is stored
// before the started event, and the answer before the finished event.
func TestStartedEvent(t *testing.T) {
	f, script := openScripted(t, nil)
	first := f.startChat(t, t.Context(), chatRequest("c1", "first", reject))
	queued := f.startChat(t, t.Context(), chatRequest("c1", "second", queue))
	if diff := cmp.Diff([]string{"user: first"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("messages while a turn is queued (-want +got):\n%s", diff)
	}
	resumed, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: queued.turnID})
	if err != nil {
		t.Fatal(err)
	}
	script.send(t, "c1", "a", end)
	first.wait(t)
	for _, s := range []*stream{queued, resumed} {
		s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
		if diff := cmp.Diff([]string{"user: first", "assistant: a", "user: second"}, f.contents(t, "c1")); diff != "" {
			t.Errorf("messages after the started event (-want +got):\n%s", diff)
		}
	}
	script.send(t, "c1", "b", end)
	for _, s := range []*stream{queued, resumed} {
		s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetFinished() != nil })
		if diff := cmp.Diff([]string{"user: first", "assistant: a", "user: second", "assistant: b"}, f.contents(t, "c1")); diff != "" {
			t.Errorf("messages after the finished event (-want +got):\n%s", diff)
		}
	}
}

// TestPartialAnswers checks guarantee 6: when a turn ends early, the part of the answer that has arrived is
// stored as incomplete, and the turn has the reason. If no part has arrived, there is no answer.
func TestPartialAnswers(t *testing.T) {
	f, script := openScripted(t, nil)
	tests := map[string]struct {
		end    func(s *stream, id string)
		state  parleyv1.TurnState
		reason string
	}{
		"CancelTurn": {func(s *stream, id string) {
			if _, err := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: s.turnID}); err != nil {
				t.Error(err)
			}
		}, parleyv1.TurnState_TURN_STATE_CANCELLED, "CANCELLED"},
		"INTERRUPT": {func(_ *stream, id string) {
			next := f.startChat(t, t.Context(), chatRequest(id, "next", interrupt))
			// Until the new turn has started, the agent of the interrupted turn could receive the next text.
			next.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
			script.send(t, id, end)
			next.wait(t)
		}, parleyv1.TurnState_TURN_STATE_INTERRUPTED, "INTERRUPTED"},
		"failure": {
			func(_ *stream, id string) { script.send(t, id, fail) },
			parleyv1.TurnState_TURN_STATE_FAILED,
			"AGENT_FAILED",
		},
	}
	for name, test := range tests {
		for _, part := range []string{"half", ""} {
			id, want := name+part, []string{"user: q"}
			s := f.startChat(t, t.Context(), chatRequest(id, "q", reject))
			if part != "" {
				script.send(t, id, part)
				s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetTextDelta() != nil })
				want = append(want, "assistant: half …")
			}
			test.end(s, id)
			if got := s.wait(t).GetTurn(); got.GetState() != test.state || got.GetError().GetReason() != test.reason {
				t.Errorf("%s: turn = %v, want %v with reason %s", id, got, test.state, test.reason)
			}
			if name == "INTERRUPT" {
				want = append(want, "user: next")
			}
			if diff := cmp.Diff(want, f.contents(t, id)); diff != "" {
				t.Errorf("%s: messages (-want +got):\n%s", id, diff)
			}
		}
	}
}

// TestDisconnect checks guarantee 7: a turn continues when its stream breaks, unlike after CancelTurn or
// INTERRUPT. ResumeTurn continues the stream after any index, without gaps or duplicates.
func TestDisconnect(t *testing.T) {
	f, script := openScripted(t, nil)
	first := f.startChat(t, t.Context(), chatRequest("c1", "q", reject))
	const pieces = 8
	answer := ""
	for k := range pieces {
		// The client disconnects after each piece, and another client continues from there.
		first.disconnect()
		script.send(t, "c1", fmt.Sprint(k, " "))
		r, err := f.resumeAfter(t, first)
		if err != nil {
			t.Fatal(err)
		}
		first, answer = r, answer+fmt.Sprint(k, " ")
		if got := first.text(t); got != answer {
			t.Fatalf("text after %d pieces = %q, want %q", k, got, answer)
		}
	}
	if turn, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: first.turnID}); turn.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_RUNNING {
		t.Errorf("GetTurn after %d disconnects = %v, %v, want RUNNING", pieces, turn, err)
	}
	script.send(t, "c1", end)
	if got := first.wait(t).GetMessages(); len(got) != 1 || got[0].GetContent() != answer {
		t.Errorf("answer = %v, want %q", got, answer)
	}
	// A turn with ON_DISCONNECT_CANCEL is cancelled when its last reader disconnects.
	cancels := chatRequest("c1", "q", reject)
	cancels.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
	s := f.startChat(t, t.Context(), cancels)
	other, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	s.disconnect()
	script.send(t, "c1", "continues")
	other.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetTextDelta() != nil })
	other.disconnect()
	last := f.startChat(t, t.Context(), chatRequest("c1", "next", queue)) // Starts when the cancelled turn has ended.
	if last.events[0].GetStarted() == nil {
		last.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	}
	turn, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	if turn.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("GetTurn after the last disconnect = %v, %v, want CANCELLED", turn, err)
	}
}

// resumeAfter resumes the turn of a stream after the stream's last event. The returned stream has the
// events of both.
func (f *fixture) resumeAfter(t *testing.T, s *stream) (*stream, error) {
	t.Helper()
	after := s.events[len(s.events)-1].GetIndex()
	r, err := f.resume(
		t.Context(),
		&parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: s.turnID, AfterIndex: after},
	)
	if err == nil {
		r.events = slices.Concat(s.events, r.events)
	}
	return r, err
}

// TestExpiryOfTurns checks guarantee 9: a conversation with a running turn does not expire, and its ttl
// starts at the answer. Its turns expire with it.
func TestExpiryOfTurns(t *testing.T) {
	clock := newManualClock()
	f, script := openScripted(t, onClock(clock))
	f.create(t, &parleyv1.Conversation{Id: "c1", Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}})
	s := f.startChat(t, t.Context(), chatRequest("c1", "q", reject))
	queued := f.startChat(t, t.Context(), chatRequest("c1", "r", queue))
	clock.advance(time.Hour)
	if _, err := f.store.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	script.send(t, "c1", "a", end)
	s.wait(t)
	queued.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	clock.advance(time.Hour)
	script.send(t, "c1", "b", end)
	queued.wait(t)
	clock.advance(999 * time.Millisecond)
	if diff := cmp.Diff([]string{"user: q", "assistant: a", "user: r", "assistant: b"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	clock.advance(time.Millisecond)
	_, resume := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	_, get := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	_, list := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	_, cancel := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	for _, err := range []error{resume, get, list, cancel} {
		wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	}
}

// TestCapacityOfTurns checks guarantee 10: a conversation with a running turn is not evicted. If all have
// one, the create fails.
func TestCapacityOfTurns(t *testing.T) {
	f, script := openScripted(t, func(s *setup) { s.storeOptions.MaxConversations = 2 })
	running := f.startChat(t, t.Context(), chatRequest("old", "q", reject))
	queued := f.startChat(t, t.Context(), chatRequest("old", "q", queue))
	f.append(t, "b", user("1"))
	f.append(t, "c", user("1"))
	other := f.startChat(t, t.Context(), chatRequest("c", "q", reject))
	_, err := f.tryChat(t.Context(), chatRequest("d", "q", reject))
	if got := wantError(t, err, codes.ResourceExhausted, "STORE_FULL"); got.retry == 0 {
		t.Error("the error has no RetryInfo")
	}
	script.send(t, "c", end)
	other.wait(t)
	script.send(t, "old", "a", end)
	running.wait(t)
	script.send(t, "old", "b", end)
	queued.wait(t)
	// Now the oldest conversation has no turn.
	s := f.startChat(t, t.Context(), chatRequest("d", "q", reject))
	_, err = f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "old", TurnId: running.turnID})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	script.send(t, "d", end)
	s.wait(t)
}

// TestMaxTurns checks guarantee 12: the numbers of running and queued turns are limited. Further calls fail
// with RetryInfo.
func TestMaxTurns(t *testing.T) {
	f, script := openScripted(t, nil)
	wantLimit := func(r *parleyv1.ChatRequest, reason string) {
		t.Helper()
		_, err := f.tryChat(t.Context(), r)
		if got := wantError(t, err, codes.ResourceExhausted, reason); got.retry == 0 {
			t.Errorf("the error %s has no RetryInfo", reason)
		}
	}
	for i := range 16 { // MaxTurns of the fixture.
		f.startChat(t, t.Context(), chatRequest(fmt.Sprint("c", i), "q", reject))
	}
	for _, busy := range []parleyv1.OnBusy{reject, queue, interrupt} {
		wantLimit(chatRequest("c16", "q", busy), "TOO_MANY_TURNS")
	}
	for range 16 {
		f.startChat(t, t.Context(), chatRequest("c0", "q", queue))
	}
	wantLimit(chatRequest("c0", "q", queue), "QUEUE_FULL")
	for range 40 {
		script.send(t, "c1", end)
		f.startChat(t, t.Context(), chatRequest("c1", "q", queue))
	}
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	if err != nil || len(list.GetTurns()) != 32 {
		t.Errorf("ListTurns = %d turns, %v, want 32", len(list.GetTurns()), err)
	}
}
