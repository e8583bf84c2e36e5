package turn

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// TestCancelConcurrently: any number of clients can cancel a turn, more than once. All receive the
// turn as it ended, whether it was running or queued.
func TestCancelConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		runs := chatRequest("q", 0)
		runs.Metadata = ignoreCancel
		readers := []*reader{f.startChat(t, runs), f.startChat(t, chatRequest("waits", onBusyQueue))}
		p.lastRun().sendText("half")
		type answer struct {
			turn *parleyv1.Turn
			err  error
		}
		for _, r := range slices.Backward(readers) {
			id := r.turnID()
			answers := make(chan answer)
			for range 20 {
				go func() {
					turn, err := f.Cancel(t.Context(), tenant, "c", id)
					answers <- answer{turn, err}
				}()
			}
			synctest.Wait()
			if r == readers[0] {
				p.lastRun().complete() // The agent stops only now.
			}
			for range 20 {
				a := <-answers
				synctest.Wait()
				if diff := cmp.Diff(r.finished(), a.turn, protocmp.Transform()); diff != "" || a.err != nil {
					t.Fatalf("Cancel: error %v, turn (-want +got):\n%s", a.err, diff)
				}
			}
			if retry := f.mustCancel(t, r.turnID()); stateName(retry.GetState()) != "CANCELLED" {
				t.Errorf("second Cancel = %v, want CANCELLED", retry)
			}
		}
		if diff := cmp.Diff([]string{"user: q", "assistant: half …"}, f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	})
}

// TestCancelAfterTheEndAndWithDeadline: a turn that has ended is not changed by CancelTurn, and
// CancelTurn returns when its context ends.
func TestCancelAfterTheEndAndWithDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		r := f.startChat(t, chatRequest("q", 0))
		p.lastRun().complete()
		for range 2 {
			if turn := f.mustCancel(t, r.turnID()); stateName(turn.GetState()) != "COMPLETED" {
				t.Errorf("Cancel after the end = %v, want COMPLETED", turn)
			}
			f.releaseAll()
		}
		slow := chatRequest("slow", 0)
		slow.Metadata = ignoreCancel
		r = f.startChat(t, slow)
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := f.Cancel(ctx, tenant, "c", r.turnID()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Cancel with a deadline: error = %v, want DeadlineExceeded", err)
		}
		p.lastRun().complete()
		if got := r.finished(); stateName(got.GetState()) != "CANCELLED" {
			t.Errorf("turn ended %v, want CANCELLED", got)
		}
		for _, id := range []string{"", "nothing"} {
			if _, err := f.Cancel(t.Context(), tenant, "c", id); !errors.As(err, new(*NotFoundError)) {
				t.Errorf("Cancel(%q): error = %v, want NotFoundError", id, err)
			}
			if _, err := f.Cancel(t.Context(), tenant, "d", r.turnID()); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Cancel in another conversation: error = %v, want ErrNotFound", err)
			}
		}
	})
}

// TestCancelQueuedBeforeConversationExists: a turn that was cancelled while it waited for the first
// turn of its conversation stays retained, even if another request does not find the conversation
// yet.
func TestCancelQueuedBeforeConversationExists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		f, p := newControlled(t, func(o *Options) { o.Store = gatedStore{o.Store, gate} })
		f.startChat(t, chatRequest("first", 0))
		request := chatRequest("q", onBusyQueue)
		request.RequestId = "r"
		queued := f.startChat(t, request)
		f.cancelTurn(key{tenant, "c"}, queued.turnID())
		synctest.Wait()
		f.startChat(t, chatRequest("other", onBusyQueue))
		close(gate)
		synctest.Wait()
		if turn := f.mustCancel(t, queued.turnID()); stateName(turn.GetState()) != "CANCELLED" {
			t.Errorf("second Cancel = %v, want CANCELLED", turn)
		}
		if retry := f.startChat(t, request); retry.turnID() != queued.turnID() || retry.err != nil {
			t.Errorf("retry = %q, %v, want the cancelled turn", retry.received(), retry.err)
		}
		p.lastRun().complete()
	})
}

// TestDisconnectBetweenEvents: a reader may leave between two events as well as while it waits for
// one.
func TestDisconnectBetweenEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		for _, leaving := range []parleyv1.OnDisconnect{
			parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE,
			parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL,
		} {
			request := chatRequest("q", 0)
			request.OnDisconnect = leaving
			for _, err := range f.Chat(t.Context(), tenant, request, nil) {
				if err != nil {
					t.Error(err)
				}
				break
			}
			synctest.Wait()
			if ran := p.lastRun().complete(); ran != (leaving == parleyv1.OnDisconnect_ON_DISCONNECT_CONTINUE) {
				t.Errorf("%v: agent still active = %t", leaving, ran)
			}
		}
	})
}

// TestFirstRequestDecidesOnDisconnect: the on_disconnect of the first caller counts. CANCEL takes
// effect when the last reader leaves, whether it came by Chat or by ResumeTurn.
func TestFirstRequestDecidesOnDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		for _, stays := range []bool{true, false} {
			first := &parleyv1.ChatRequest{
				ConversationId: "c", Content: "q", RequestId: "cancels",
				OnDisconnect: parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL,
			}
			second := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "cancels"}
			if stays {
				first, second = second, first
				first.RequestId, second.RequestId = "stays", "stays"
			}
			reader1 := f.startChat(t, first)
			readers := []*reader{reader1, f.startChat(t, second), f.startResume(t, reader1.turnID(), 0)}
			for i, r := range readers {
				if turn, err := f.Get(t.Context(), tenant, "c", reader1.turnID()); stateName(turn.GetState()) != "RUNNING" {
					t.Errorf("with %d readers: Get = %v, %v, want RUNNING", len(readers)-i, turn, err)
				}
				r.disconnect()
			}
			if ran := p.lastRun().complete(); ran != stays {
				t.Errorf("agent still active without readers = %t, want %t", ran, stays)
			}
		}
	})
}

// TestTurnIsUnreachableThroughOtherConversations: a turn is found only in its own conversation, not
// in one of another tenant, with another id, or with the same id after a delete.
func TestTurnIsUnreachableThroughOtherConversations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		ended := f.startChat(t, chatRequest("q", 0))
		p.lastRun().complete()
		slow := chatRequest("slow", 0)
		slow.Metadata = ignoreCancel
		runs, queued := f.startChat(t, slow), f.startChat(t, chatRequest("waits", onBusyQueue))
		withdrawn := f.startChat(t, chatRequest("withdrawn", onBusyQueue))
		f.mustCancel(t, withdrawn.turnID())
		elsewhere := func(tenant, id string, r *reader) {
			t.Helper()
			ctx, end := context.WithTimeout(t.Context(), time.Second)
			defer end()
			if _, err := readAll(f.Resume(ctx, tenant, id, r.turnID(), 0)); !isMissingTurn(err) {
				t.Errorf("Resume in %s of %s: error = %v, want none found", id, tenant, err)
			}
			if got, err := f.Get(ctx, tenant, id, r.turnID()); !isMissingTurn(err) {
				t.Errorf("Get in %s of %s = %v, %v, want none found", id, tenant, got, err)
			}
			if got, err := f.Cancel(ctx, tenant, id, r.turnID()); !isMissingTurn(err) {
				t.Errorf("Cancel in %s of %s = %v, %v, want none found", id, tenant, got, err)
			}
		}
		for _, at := range []key{{tenant, "d"}, {"other", "c"}} {
			message := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "q"}
			if _, err := f.store.Append(t.Context(), &store.Append{
				Tenant: at.tenant, ConversationID: at.id,
				Messages: []*parleyv1.Message{message},
			}); err != nil {
				t.Fatal(err)
			}
			for _, r := range []*reader{ended, runs, queued, withdrawn} {
				elsewhere(at.tenant, at.id, r)
			}
		}
		if runs.ended || queued.ended {
			t.Errorf("turns ended with %v and %v, want both active", runs.err, queued.err)
		}
		if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
			t.Fatal(err)
		}
		next := f.startChat(t, chatRequest("next", 0)) // The agent of the running turn has not stopped yet.
		for _, r := range []*reader{ended, queued, withdrawn} {
			elsewhere(tenant, "c", r)
		}
		if r := f.startResume(t, runs.turnID(), 0); !isMissingTurn(r.err) {
			t.Errorf("Resume after the delete = %q, %v, want none found", r.received(), r.err)
		}
		if f.Running() != 2 || next.ended {
			t.Errorf("Running() = %d, want 2; next stream ended with %v", f.Running(), next.err)
		}
		p.runs[1].complete()
		if !errors.Is(runs.err, ErrConversationDeleted) || f.Running() != 1 {
			t.Errorf("running turn ended with %v; Running() = %d, want 1", runs.err, f.Running())
		}
	})
}

// TestReplayWithoutStoredIndexes: a turn of an earlier version has no event indexes in the store.
// It can be replayed from the start, but not resumed within.
func TestReplayWithoutStoredIndexes(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith()}, nil)
	answer := []*parleyv1.Message{
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "look", ToolCalls: []*parleyv1.ToolCall{{Id: "1", Name: "find"}}},
		{Role: parleyv1.Role_ROLE_TOOL, ToolResult: &parleyv1.ToolResult{CallId: "1", Content: "found"}},
		{Role: parleyv1.Role_ROLE_ASSISTANT, Content: "there"},
	}
	for _, a := range []*store.Append{
		{
			Begin:    &parleyv1.Turn{Id: "old", Agent: "main"},
			Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "q"}},
		},
		{End: &parleyv1.Turn{Id: "old", State: parleyv1.TurnState_TURN_STATE_COMPLETED}, Messages: answer},
	} {
		a.Tenant, a.ConversationID = tenant, "c"
		if _, err := f.store.Append(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	resume := func(after int32) ([]*parleyv1.TurnEvent, error) {
		return readAll(f.Resume(t.Context(), tenant, "c", "old", after))
	}
	all, err := resume(0)
	if err == nil {
		err = checkAnswer(all, answer)
	}
	if err != nil || len(all) != 7 || all[6].GetIndex() != 7 {
		t.Fatalf("Resume(0) = %q, %v, want all 7 events", describeAll(all), err)
	}
	for after := int32(1); after <= 8; after++ {
		got, err := resume(after)
		switch {
		case after == 1 && (err != nil || diffEvents(all[1:], got) != ""):
			t.Errorf("Resume(1) = %q, %v, want the events after started", describeAll(got), err)
		case after == 7 && (err != nil || got != nil):
			t.Errorf("Resume(7) = %q, %v, want no events", describeAll(got), err)
		case after != 1 && after != 7 && !errors.As(err, new(*EventsGoneError)):
			t.Errorf("Resume(%d) = %q, %v, want EventsGoneError", after, describeAll(got), err)
		}
	}
	// Remove all messages of the turn from the history.
	f.trimHistory(t, "c", 0)
	if all, err = resume(0); err != nil || len(all) != 2 || all[0].GetStarted().GetUserMessage() != nil ||
		all[1].GetFinished().GetMessages() != nil {
		t.Errorf("Resume(0) without messages = %q, %v, want started and finished", describeAll(all), err)
	}
}
