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

// What may happen to a turn.
const (
	left        = "its only reader leaves"
	deadline    = "its caller's deadline"
	cancelled   = "CancelTurn of another client"
	interrupted = "an INTERRUPT of another client"
	stop        = "a stop of the server"
	deleted     = "the end of its conversation"
)

// combination is a turn, what it asked for, and what happens to it.
type combination struct {
	busy    parleyv1.OnBusy
	leaving parleyv1.OnDisconnect
	happens string
	waiting bool // when it happens
}

// end is what becomes of a turn.
type end struct {
	state  string   // in which it ends; empty: nobody knows it
	reason string   // of its error
	err    error    // that the stream ends with
	kept   []string // of what it asked and was told
}

// want is the rule: leaving, cancelling and interrupting are three things, and on_busy has a
// say in no more than whether a turn waits, and where.
func (c combination) want() end {
	goesOn := end{state: "COMPLETED", kept: []string{"user: q", "assistant: half whole"}}
	if c.waiting {
		goesOn.kept[1] = "assistant: whole"
		switch {
		case c.busy != parleyv1.OnBusy_ON_BUSY_QUEUE && c.busy != parleyv1.OnBusy_ON_BUSY_INTERRUPT:
			return end{err: &store.BusyError{}}
		case c.happens == interrupted && c.busy == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
			// It was the first, so it stays ahead and is cut off as soon as it has begun.
			return end{state: "INTERRUPTED", reason: "INTERRUPTED", kept: []string{"user: q"}}
		case c.happens == interrupted:
			return goesOn
		}
	}
	var cut end
	switch c.happens {
	case left, deadline:
		cut.err = context.Canceled
		if c.happens == deadline {
			cut.err = context.DeadlineExceeded
		}
		switch {
		case c.waiting:
			return cut
		case c.leaving != parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL:
			goesOn.err = cut.err
			return goesOn
		}
		cut.state, cut.reason = "CANCELLED", "CANCELLED"
	case cancelled:
		cut = end{state: "CANCELLED", reason: "CANCELLED"}
	case interrupted:
		cut = end{state: "INTERRUPTED", reason: "INTERRUPTED"}
	case stop:
		cut = end{state: "INTERRUPTED", reason: "SHUTTING_DOWN"}
		if c.waiting {
			cut = end{err: ErrShuttingDown}
		}
	case deleted:
		return end{err: ErrConversationGone}
	}
	if !c.waiting { // Else nothing is stored: it has not begun.
		cut.kept = []string{"user: q", "assistant: half  …"}
	}
	return cut
}

func TestBusyLeavingCancelling(t *testing.T) {
	for busy := range parleyv1.OnBusy_name {
		for leaving := range parleyv1.OnDisconnect_name {
			for _, happens := range []string{left, deadline, cancelled, interrupted, stop, deleted} {
				for _, waiting := range []bool{false, true} {
					c := combination{parleyv1.OnBusy(busy), parleyv1.OnDisconnect(leaving), happens, waiting}
					t.Run(fmt.Sprintf("%v/%v/%s/waiting=%t", c.busy, c.leaving, happens, waiting), func(t *testing.T) {
						synctest.Test(t, c.test)
					})
				}
			}
		}
	}
}

func (c combination) test(t *testing.T) {
	f, p := newPuppet(t, nil)
	if c.waiting {
		// Stubborn, so that what interrupts has to wait, too.
		f.begin(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "ahead", Metadata: stubborn})
	}
	r := read(t.Context(), func(ctx context.Context) iter.Seq2[*parleyv1.TurnEvent, error] {
		if c.happens == deadline {
			limited, end := context.WithTimeout(ctx, 10*time.Second)
			t.Cleanup(end)
			ctx = limited
		}
		return f.Chat(ctx, tenant, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", OnBusy: c.busy, OnDisconnect: c.leaving}, nil)
	})
	p.last().say("half ")
	c.happen(t, f, r)
	synctest.Wait()
	for one := range p.all() {
		one.say("whole")
		one.end()
	}
	c.check(t, f, r)
}

// happen lets happen what is to happen to the turn of r.
func (c combination) happen(t *testing.T, f *fixture, r *reader) {
	t.Helper()
	switch c.happens {
	case left:
		r.leave()
	case deadline:
		<-time.After(10 * time.Second)
	case cancelled:
		go f.Cancel(t.Context(), tenant, "c", r.turnID()) //nolint:errcheck // the turn says it
	case interrupted:
		f.begin(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "other", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT})
	case stop:
		ctx, now := context.WithCancel(t.Context())
		now()
		go f.Stop(ctx)
	case deleted:
		if err := f.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
			t.Fatal(err)
		}
	}
}

// history is what is kept of all turns, given what is kept of the one in question.
func (c combination) history(kept []string) []string {
	other := []string{}
	if c.happens == interrupted {
		other = []string{"user: other", "assistant: whole"}
	}
	if !c.waiting {
		return slices.Concat(kept, other)
	}
	ahead := []string{"user: ahead", "assistant: half whole"}
	waits := c.busy == parleyv1.OnBusy_ON_BUSY_QUEUE
	if c.busy == parleyv1.OnBusy_ON_BUSY_INTERRUPT || c.happens == interrupted || c.happens == stop {
		ahead[1] += " …"
	}
	if waits {
		return slices.Concat(ahead, other, kept) // What interrupts goes ahead of what queues.
	}
	return slices.Concat(ahead, kept, other)
}

// check compares what became of the turn of r with what the rule says.
func (c combination) check(t *testing.T, f *fixture, r *reader) {
	t.Helper()
	want := c.want()
	if busy := new(store.BusyError); errors.As(want.err, &busy) {
		if !errors.As(r.err, &busy) || len(r.events) != 0 {
			t.Errorf("read %q and %v, want none and that the conversation is busy", r.seen(), r.err)
		}
	} else if !errors.Is(r.err, want.err) || !r.over {
		t.Errorf("the stream ended with %v, want %v", r.err, want.err)
	}
	if got := r.finished(); want.err == nil && !want.is(got) {
		t.Errorf("the stream ended with %v, want %s %q", got, want.state, want.reason)
	}
	switch got, err := f.Get(t.Context(), tenant, "c", r.turnID()); {
	case want.state == "" && err == nil:
		t.Errorf("there is %v, want no turn", got)
	case want.state != "" && (err != nil || !want.is(got)):
		t.Errorf("there is %v (%v), want %s %q", got, err, want.state, want.reason)
	}
	if c.happens != deleted {
		if diff := cmp.Diff(c.history(want.kept), f.kept(t)); diff != "" {
			t.Errorf("kept (-want +got):\n%s", diff)
		}
	} else if _, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the deleted conversation is there (%v)", err)
	}
	if n := f.Running(); n != 0 {
		t.Errorf("%d turns run", n)
	}
}

// is tells whether the turn ended so.
func (e end) is(turn *parleyv1.Turn) bool {
	return stateName(turn.GetState()) == e.state && turn.GetError().GetReason() == e.reason && turn.GetFinishTime() != nil
}
