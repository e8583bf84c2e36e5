package turn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Events that can happen to a turn.
const (
	readerLeaves        = "only reader leaves"
	callerDeadline      = "deadline of the caller"
	turnCancelled       = "CancelTurn of another client"
	turnInterrupted     = "an INTERRUPT of another client"
	serverStops         = "a stop of the server"
	conversationDeleted = "delete of the conversation"
)

// combination is a turn, its request, and an event that happens to it.
type combination struct {
	onBusy       parleyv1.OnBusy
	onDisconnect parleyv1.OnDisconnect
	event        string
	waiting      bool // the turn is queued when the event happens
}

// expectedEnd is the expected end of a turn.
type expectedEnd struct {
	state  string   // empty if the turn is unknown afterwards
	reason string   // reason of the turn's error
	err    error    // with which the stream ends
	stored []string // the stored messages of the turn
}

// want returns the expected end. Disconnecting, cancelling and interrupting are independent;
// on_busy only decides whether a turn waits, and where.
func (c combination) want() expectedEnd {
	continues := expectedEnd{state: "COMPLETED", stored: []string{"user: q", "assistant: half rest"}}
	if c.waiting {
		continues.stored[1] = "assistant: rest"
		switch {
		case c.onBusy != parleyv1.OnBusy_ON_BUSY_QUEUE && c.onBusy != parleyv1.OnBusy_ON_BUSY_INTERRUPT:
			return expectedEnd{err: &store.BusyError{}}
		case c.event == turnInterrupted && c.onBusy == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
			// The turn was first, so it stays first and is interrupted as soon as it has started.
			return expectedEnd{state: "INTERRUPTED", reason: "INTERRUPTED", stored: []string{"user: q"}}
		case c.event == turnInterrupted:
			return continues
		}
	}
	var cut expectedEnd
	switch c.event {
	case readerLeaves, callerDeadline:
		cut.err = context.Canceled
		if c.event == callerDeadline {
			cut.err = context.DeadlineExceeded
		}
		switch {
		case c.waiting:
			return cut
		case c.onDisconnect != parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL:
			continues.err = cut.err
			return continues
		}
		cut.state, cut.reason = "CANCELLED", "CANCELLED"
	case turnCancelled:
		cut = expectedEnd{state: "CANCELLED", reason: "CANCELLED"}
	case turnInterrupted:
		cut = expectedEnd{state: "INTERRUPTED", reason: "INTERRUPTED"}
	case serverStops:
		cut = expectedEnd{state: "INTERRUPTED", reason: "SHUTTING_DOWN"}
		if c.waiting {
			cut = expectedEnd{err: ErrShuttingDown}
		}
	case conversationDeleted:
		return expectedEnd{err: ErrConversationDeleted}
	}
	if !c.waiting { // A queued turn has not started, so nothing is stored.
		cut.stored = []string{"user: q", "assistant: half  …"}
	}
	return cut
}

func TestBusyDisconnectCancel(t *testing.T) {
	for busy := range parleyv1.OnBusy_name {
		for leaving := range parleyv1.OnDisconnect_name {
			for _, happens := range []string{
				readerLeaves, callerDeadline, turnCancelled, turnInterrupted, serverStops,
				conversationDeleted,
			} {
				for _, waiting := range []bool{false, true} {
					c := combination{parleyv1.OnBusy(busy), parleyv1.OnDisconnect(leaving), happens, waiting}
					t.Run(fmt.Sprintf("%v/%v/%s/waiting=%t", c.onBusy, c.onDisconnect, happens, waiting), func(t *testing.T) {
						synctest.Test(t, c.test)
					})
				}
			}
		}
	}
}

func (c combination) test(t *testing.T) {
	f, p := newControlled(t, nil)
	if c.waiting {
		// The first agent ignores cancellation, so that an interrupting turn waits too.
		f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "ahead", Metadata: ignoreCancel})
	}
	r := startReading(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		if c.event == callerDeadline {
			limited, end := context.WithTimeout(ctx, 10*time.Second)
			t.Cleanup(end)
			ctx = limited
		}
		return f.Chat(ctx, tenant, &parleyv1.ChatRequest{
			ConversationId: "c", Content: "q", OnBusy: c.onBusy,
			OnDisconnect: c.onDisconnect,
		}, nil)
	})
	p.lastRun().sendText("half ")
	c.trigger(t, f, r)
	synctest.Wait()
	for run := range p.allRuns() {
		run.sendText("rest")
		run.complete()
	}
	c.check(t, f, r)
}

// trigger makes the event happen to the turn of r.
func (c combination) trigger(t *testing.T, f *fixture, r *reader) {
	t.Helper()
	switch c.event {
	case readerLeaves:
		r.disconnect()
	case callerDeadline:
		<-time.After(10 * time.Second)
	case turnCancelled:
		go f.Cancel(t.Context(), tenant, "c", r.turnID()) //nolint:errcheck // the turn says it
	case turnInterrupted:
		f.startChat(t, &parleyv1.ChatRequest{
			ConversationId: "c", Content: "other",
			OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT,
		})
	case serverStops:
		ctx, now := context.WithCancel(t.Context())
		now()
		go f.Stop(ctx)
	case conversationDeleted:
		if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
			t.Fatal(err)
		}
	}
}

// history returns the stored messages of all turns, given those of the tested turn.
func (c combination) history(stored []string) []string {
	other := []string{}
	if c.event == turnInterrupted {
		other = []string{"user: other", "assistant: rest"}
	}
	if !c.waiting {
		return slices.Concat(stored, other)
	}
	ahead := []string{"user: ahead", "assistant: half rest"}
	queued := c.onBusy == parleyv1.OnBusy_ON_BUSY_QUEUE
	if c.onBusy == parleyv1.OnBusy_ON_BUSY_INTERRUPT || c.event == turnInterrupted || c.event == serverStops {
		ahead[1] += " …"
	}
	if queued {
		return slices.Concat(ahead, other, stored) // An interrupting turn goes before queued ones.
	}
	return slices.Concat(ahead, stored, other)
}

// check compares the end of the turn of r with the expected end.
func (c combination) check(t *testing.T, f *fixture, r *reader) {
	t.Helper()
	want := c.want()
	if busy := new(store.BusyError); errors.As(want.err, &busy) {
		if !errors.As(r.err, &busy) || len(r.events) != 0 {
			t.Errorf("Chat = %q, %v, want no events and BusyError", r.received(), r.err)
		}
	} else if !errors.Is(r.err, want.err) || !r.ended {
		t.Errorf("stream ended with %v, want %v", r.err, want.err)
	}
	if got := r.finished(); want.err == nil && !want.matches(got) {
		t.Errorf("stream ended with %v, want %s %q", got, want.state, want.reason)
	}
	switch got, err := f.Get(t.Context(), tenant, "c", r.turnID()); {
	case want.state == "" && err == nil:
		t.Errorf("Get = %v, want no turn", got)
	case want.state != "" && (err != nil || !want.matches(got)):
		t.Errorf("Get = %v, %v, want %s %q", got, err, want.state, want.reason)
	}
	if c.event != conversationDeleted {
		if diff := cmp.Diff(c.history(want.stored), f.stored(t)); diff != "" {
			t.Errorf("stored messages (-want +got):\n%s", diff)
		}
	} else if _, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c"}); !errors.Is(err,
		store.ErrNotFound) {
		t.Errorf("Read of the deleted conversation: error = %v, want ErrNotFound", err)
	}
	if n := f.Running(); n != 0 {
		t.Errorf("Running() = %d, want 0", n)
	}
}

// matches reports whether the turn has ended as expected.
func (e expectedEnd) matches(turn *parleyv1.Turn) bool {
	return stateName(turn.GetState()) == e.state && turn.GetError().GetReason() == e.reason && turn.GetFinishTime() != nil
}
