package rpc

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The promises of the README as far as they are about turns, as clients see them.

// Promise 3: a retry is told of the turn that the first call began, whatever has become of
// it, and no agent is asked again.
func TestIdempotentTurns(t *testing.T) {
	f, words := openScripted(t, nil)
	request := func(id string, busy parleyv1.OnBusy) *parleyv1.ChatRequest {
		r := asks("c1", id, busy)
		r.RequestId = id
		return r
	}
	completes, waits, interrupts := request("completes", reject), request("waits", queue), request("interrupts", interrupt)
	first := f.begin(t, t.Context(), completes)
	waiting := f.begin(t, t.Context(), waits)
	retries := []*stream{f.begin(t, t.Context(), completes), f.begin(t, t.Context(), waits)}
	words.say(t, "c1", "a", end)
	first.drain(t)
	words.say(t, "c1", "b")
	over := f.begin(t, t.Context(), interrupts)
	// The agent of the turn that is cut off might take the word for its own.
	over.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	words.say(t, "c1", "c", end)
	streams := []*stream{first, waiting, over}
	for _, s := range append(retries, streams[1:]...) {
		s.drain(t)
	}
	for i, r := range []*parleyv1.ChatRequest{completes, waits, interrupts} {
		again := f.begin(t, t.Context(), r)
		again.drain(t)
		retries = append(retries, again)
		changed := request(r.GetRequestId(), r.GetOnBusy())
		changed.Content = "other"
		_, err := f.try(t.Context(), changed)
		wantError(t, err, codes.AlreadyExists, "REQUEST_ID_REUSED")
		if got, want := again.text(t), []string{"a", "b", "c"}[i]; got != want || again.turnID != streams[i].turnID {
			t.Errorf("%s, again: %q of turn %s, want %q of %s", r.GetRequestId(), got, again.turnID, want, streams[i].turnID)
		}
	}
	for i, s := range retries {
		at := slices.IndexFunc(s.events, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
		if at < 0 || !s.events[at].GetStarted().GetReplayed() {
			t.Errorf("retry %d is not told that it is one", i)
		}
	}
	want := []string{"user: completes", "assistant: a", "user: waits", "assistant: b …", "user: interrupts", "assistant: c"}
	if diff := cmp.Diff(want, f.contents(t, "c1")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// Promise 4: one turn runs at a time, and others write in between, not into an exchange's
// batches; if_version of a turn that waits is that of its beginning.
func TestOrderedTurns(t *testing.T) {
	f, words := openScripted(t, nil)
	var streams []*stream
	var want []string
	for i := range 17 {
		request := asks("c1", fmt.Sprint(i), queue)
		switch i {
		case 5: // Each turn changes the version twice, and the append below once.
			request.IfVersion = new(int32(1 + 2*5))
		case 6:
			request.IfVersion = new(int32(1))
		}
		streams = append(streams, f.begin(t, t.Context(), request))
		if position := streams[i].events[0].GetQueued().GetPosition(); int(position) != i {
			t.Errorf("turn %d is told that it is at %d", i, position)
		}
		_, err := f.try(t.Context(), asks("c1", "x", reject))
		if got := wantError(t, err, codes.Aborted, "CONVERSATION_BUSY"); got.metadata["active_turn_id"] != streams[0].turnID || got.retry == 0 {
			t.Errorf("metadata %v, retry after %v", got.metadata, got.retry)
		}
	}
	f.append(t, "c1", &parleyv1.Message{Role: parleyv1.Role_ROLE_SYSTEM, Content: "beside"})
	for i, s := range streams {
		if i == 6 {
			continue
		}
		words.say(t, "c1", fmt.Sprint("answer ", i), end)
		if got := s.drain(t).GetTurn().GetState(); got != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Errorf("turn %d ended %v", i, got)
		}
		want = append(want, fmt.Sprint("user: ", i), fmt.Sprint("assistant: answer ", i))
		if i == 0 {
			want = slices.Insert(want, 1, "system: beside")
		}
	}
	for {
		if err := streams[6].next(); err != nil {
			if got := wantError(t, err, codes.Aborted, "VERSION_MISMATCH"); got.metadata["current_version"] != "13" {
				t.Errorf("metadata %v", got.metadata)
			}
			break
		}
	}
	if diff := cmp.Diff(want[len(want)-20:], f.contents(t, "c1")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range loaded.GetMessages() {
		if int(m.GetSequence()) != len(want)-20+i+1 {
			t.Errorf("message %d has sequence %d", i, m.GetSequence())
		}
	}
}

// Promise 5: what waits has written nothing; once it has started its words are there, and
// once it has finished its answer is.
func TestUserFirst(t *testing.T) {
	f, words := openScripted(t, nil)
	first := f.begin(t, t.Context(), asks("c1", "first", reject))
	waits := f.begin(t, t.Context(), asks("c1", "second", queue))
	if diff := cmp.Diff([]string{"user: first"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("while one waits (-want +got):\n%s", diff)
	}
	resumed, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: waits.turnID})
	if err != nil {
		t.Fatal(err)
	}
	words.say(t, "c1", "a", end)
	first.drain(t)
	for _, s := range []*stream{waits, resumed} {
		s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
		if diff := cmp.Diff([]string{"user: first", "assistant: a", "user: second"}, f.contents(t, "c1")); diff != "" {
			t.Errorf("once it has started (-want +got):\n%s", diff)
		}
	}
	words.say(t, "c1", "b", end)
	for _, s := range []*stream{waits, resumed} {
		s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetFinished() != nil })
		if diff := cmp.Diff([]string{"user: first", "assistant: a", "user: second", "assistant: b"}, f.contents(t, "c1")); diff != "" {
			t.Errorf("once it has finished (-want +got):\n%s", diff)
		}
	}
}

// Promise 6: whatever cuts an answer off, what had arrived is kept and marked, and the turn
// says why; where nothing had, there is no answer.
func TestPartialAnswersAreKept(t *testing.T) {
	f, words := openScripted(t, nil)
	cuts := map[string]struct {
		cut    func(s *stream, id string)
		state  parleyv1.TurnState
		reason string
	}{
		"CancelTurn": {func(s *stream, id string) {
			if _, err := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: s.turnID}); err != nil {
				t.Error(err)
			}
		}, parleyv1.TurnState_TURN_STATE_CANCELLED, "CANCELLED"},
		"INTERRUPT": {func(_ *stream, id string) {
			next := f.begin(t, t.Context(), asks(id, "next", interrupt))
			// The agent of the turn that is cut off might take the word for its own.
			next.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
			words.say(t, id, end)
			next.drain(t)
		}, parleyv1.TurnState_TURN_STATE_INTERRUPTED, "INTERRUPTED"},
		"failure": {func(_ *stream, id string) { words.say(t, id, fail) }, parleyv1.TurnState_TURN_STATE_FAILED, "AGENT_FAILED"},
	}
	for name, test := range cuts {
		for _, said := range []string{"half", ""} {
			id, want := name+said, []string{"user: q"}
			s := f.begin(t, t.Context(), asks(id, "q", reject))
			if said != "" {
				words.say(t, id, said)
				s.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetTextDelta() != nil })
				want = append(want, "assistant: half …")
			}
			test.cut(s, id)
			if got := s.drain(t).GetTurn(); got.GetState() != test.state || got.GetError().GetReason() != test.reason {
				t.Errorf("%s: the turn ended %v", id, got)
			}
			if name == "INTERRUPT" {
				want = append(want, "user: next")
			}
			if diff := cmp.Diff(want, f.contents(t, id)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", id, diff)
			}
		}
	}
}

// Promise 7: a broken stream, CancelTurn and INTERRUPT are three things. From the first one
// ResumeTurn goes on, at any index, without gap or double.
func TestLeavingIsNotCancelling(t *testing.T) {
	f, words := openScripted(t, nil)
	first := f.begin(t, t.Context(), asks("c1", "q", reject))
	const pieces = 8
	whole := ""
	for k := range pieces {
		// The reader of the piece before leaves, and another one goes on from there.
		first.leave()
		r, err := f.resumed(t, first, func() { words.say(t, "c1", fmt.Sprint(k, " ")) })
		if err != nil {
			t.Fatal(err)
		}
		first, whole = r, whole+fmt.Sprint(k, " ")
		if got := first.text(t); got != whole {
			t.Fatalf("behind %d pieces: read %q, want %q", k, got, whole)
		}
	}
	if turn, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: first.turnID}); turn.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_RUNNING {
		t.Errorf("left %d times, the turn is %v, %v", pieces, turn, err)
	}
	words.say(t, "c1", end)
	if got := first.drain(t).GetMessages(); len(got) != 1 || got[0].GetContent() != whole {
		t.Errorf("stored %v, want %q", got, whole)
	}
	// What was asked to stop with its last reader does, and a second reader keeps it alive.
	cancels := asks("c1", "q", reject)
	cancels.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
	s := f.begin(t, t.Context(), cancels)
	other, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	s.leave()
	words.say(t, "c1", "goes on")
	other.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetTextDelta() != nil })
	other.leave()
	last := f.begin(t, t.Context(), asks("c1", "next", queue)) // It begins when the other has ended.
	if last.events[0].GetStarted() == nil {
		last.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	}
	turn, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	if turn.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("left by all, the turn is %v, %v", turn, err)
	}
}

// resumed goes on where a stream was left; what happens meanwhile happens before that.
func (f *fixture) resumed(t *testing.T, s *stream, meanwhile func()) (*stream, error) {
	t.Helper()
	meanwhile()
	after := s.events[len(s.events)-1].GetIndex()
	r, err := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: s.turnID, AfterIndex: after})
	if err == nil {
		r.events = slices.Concat(s.events, r.events)
	}
	return r, err
}

// Promise 9: while a turn runs its conversation does not expire, and its ttl counts from the
// answer; then its turns are gone with it.
func TestExpiryOfTurns(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1_000_000, 0)
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	advance := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
	f, words := openScripted(t, func(s *setup) { s.Now, s.stored.Now = clock, clock })
	f.create(t, &parleyv1.Conversation{Id: "c1", Retention: &parleyv1.Retention{Ttl: durationpb.New(time.Second)}})
	s := f.begin(t, t.Context(), asks("c1", "q", reject))
	waits := f.begin(t, t.Context(), asks("c1", "r", queue))
	advance(time.Hour)
	if _, err := f.store.Sweep(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	words.say(t, "c1", "a", end)
	s.drain(t)
	waits.until(t, func(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil })
	advance(time.Hour)
	words.say(t, "c1", "b", end)
	waits.drain(t)
	advance(999 * time.Millisecond)
	if diff := cmp.Diff([]string{"user: q", "assistant: a", "user: r", "assistant: b"}, f.contents(t, "c1")); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	advance(time.Millisecond)
	_, resume := f.resume(t.Context(), &parleyv1.ResumeTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	_, get := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	_, list := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	_, cancel := f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c1", TurnId: s.turnID})
	for _, err := range []error{resume, get, list, cancel} {
		wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	}
}

// Promise 10: what has a running turn is not evicted, nor is anything else when all have one.
func TestCapacityOfTurns(t *testing.T) {
	f, words := openScripted(t, func(s *setup) { s.stored.MaxConversations = 2 })
	runs := f.begin(t, t.Context(), asks("old", "q", reject))
	waits := f.begin(t, t.Context(), asks("old", "q", queue))
	f.append(t, "b", user("1"))
	f.append(t, "c", user("1"))
	other := f.begin(t, t.Context(), asks("c", "q", reject))
	_, err := f.try(t.Context(), asks("d", "q", reject))
	if got := wantError(t, err, codes.ResourceExhausted, "STORE_FULL"); got.retry == 0 {
		t.Error("the client is not told when to try again")
	}
	words.say(t, "c", end)
	other.drain(t)
	words.say(t, "old", "a", end)
	runs.drain(t)
	words.say(t, "old", "b", end)
	waits.drain(t)
	// Now the oldest has none.
	s := f.begin(t, t.Context(), asks("d", "q", reject))
	_, err = f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "old", TurnId: runs.turnID})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	words.say(t, "d", end)
	s.drain(t)
}

// Promise 12: so many turns run and wait, and no more; the others are told when to try again.
func TestTurnsAreBounded(t *testing.T) {
	f, words := openScripted(t, nil)
	refused := func(r *parleyv1.ChatRequest, reason string) {
		t.Helper()
		_, err := f.try(t.Context(), r)
		if got := wantError(t, err, codes.ResourceExhausted, reason); got.retry == 0 {
			t.Errorf("%s does not say when to try again", reason)
		}
	}
	for i := range 16 { // As many as the fixture lets run.
		f.begin(t, t.Context(), asks(fmt.Sprint("c", i), "q", reject))
	}
	for _, busy := range []parleyv1.OnBusy{reject, queue, interrupt} {
		refused(asks("c16", "q", busy), "TOO_MANY_TURNS")
	}
	for range 16 {
		f.begin(t, t.Context(), asks("c0", "q", queue))
	}
	refused(asks("c0", "q", queue), "QUEUE_FULL")
	for range 40 {
		words.say(t, "c1", end)
		f.begin(t, t.Context(), asks("c1", "q", queue))
	}
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: "c1"})
	if err != nil || len(list.GetTurns()) != 32 {
		t.Errorf("%d turns are listed, %v", len(list.GetTurns()), err)
	}
}
