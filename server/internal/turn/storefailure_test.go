package turn

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/answer"
	"github.com/parleyhq/parley/store"
)

// TestEndAbandonedOnUse: a turn that could not be ended at the server's start, because the disk was
// full, is ended by the next Chat or CancelTurn.
func TestEndAbandonedOnUse(t *testing.T) {
	for _, by := range []string{"Chat", "CancelTurn"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m *crashStore
				var full *refusingStore
				f, p := newControlled(t, func(o *Options) {
					m = &crashStore{Store: o.Store}
					full = &refusingStore{Store: m}
					o.Store = full
				})
				first := f.startChat(t, chatRequest("q", 0))
				p.lastRun().sendText("half")
				<-time.After(saveInterval)
				synctest.Wait()
				full.refusals = []error{store.ErrClosed, store.ErrNoSpace} // of the stop, of the start
				f.crash(t, m)

				want := []string{"user: q", "assistant: half …"}
				if by == "CancelTurn" {
					if turn := f.mustCancel(t, first.turnID()); stateName(turn.GetState()) != "INTERRUPTED" {
						t.Errorf("Cancel = %v, want INTERRUPTED", turn)
					}
				} else {
					if next := f.startChat(t, chatRequest("next", 0)); next.err != nil || next.ended {
						t.Errorf("next Chat = %q, %v, want a running turn", next.received(), next.err)
					}
					want = append(want, "user: next")
				}
				if diff := cmp.Diff(want, f.stored(t)); diff != "" {
					t.Errorf("stored messages (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// unreadableStore is a store that cannot read messages.
type unreadableStore struct{ store.Store }

func (u unreadableStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if r.Newest != 0 {
		return nil, store.ErrCorrupt
	}
	return u.Store.Read(ctx, r)
}

// TestUnreadableHistory: a turn whose history cannot be read fails with a reason, and its
// conversation stays usable.
func TestUnreadableHistory(t *testing.T) {
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(text("a"))},
		func(o *Options) { o.Store = unreadableStore{o.Store} })
	for range 2 {
		events := collect(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
		turn := events[len(events)-1].GetFinished().GetTurn()
		if events[0].GetStarted() == nil || stateName(turn.GetState()) != "FAILED" ||
			turn.GetError().GetReason() != "INTERNAL" {
			t.Errorf("turn ended %v after %v, want FAILED, INTERNAL after started", turn, events[0])
		}
	}
}

// TestMaxAnswerValues checks guarantee 12 for values that are not text.
func TestMaxAnswerValues(t *testing.T) {
	var pieces []*parleyv1.RespondResponse
	for i := range answer.MaxValues + 10 {
		pieces = append(pieces, call(fmt.Sprint(i)))
	}
	f := newFixture(t, map[string]agent.Agent{"main": respondWith(pieces...)}, nil)
	end := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}))
	if n := len(end.GetMessages()[0].GetToolCalls()); n != answer.MaxValues ||
		end.GetTurn().GetError().GetReason() != "AGENT_OUTPUT_TOO_LARGE" {
		t.Errorf("%d calls, turn %v, want %d calls and AGENT_OUTPUT_TOO_LARGE", n, end.GetTurn(), answer.MaxValues)
	}
}

// TestEndsAreReported checks the report of a turn that has ended. A turn whose answer is not stored has failed,
// although its agent has not.
func TestEndsAreReported(t *testing.T) {
	for _, test := range []struct {
		name     string
		refusals []error
		want     End
	}{
		{"stored", nil, End{Agent: "main", State: parleyv1.TurnState_TURN_STATE_COMPLETED}},
		{
			"not stored",
			[]error{store.ErrFailed},
			End{Agent: "main", State: parleyv1.TurnState_TURN_STATE_FAILED, Reason: "INTERNAL"},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := func(_ context.Context, _ *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
				for _, piece := range []string{"a", "b"} {
					<-time.After(time.Second) // The clock of the bubble.
					if !yield(text(piece), nil) {
						return
					}
				}
			}
			ends := make(chan End, 1)
			f := newFixture(t, map[string]agent.Agent{"main": agentFunc(slow)}, func(o *Options) {
				o.Store, o.OnEnd = &refusingStore{o.Store, test.refusals}, func(e End) { ends <- e }
			})
			var last error
			for _, err := range f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}) {
				last = err
			}
			if stored := test.refusals == nil; (last == nil) != stored {
				t.Errorf("stream ended with %v, want an error: %t", last, !stored)
			}
			test.want.FirstPiece, test.want.Answer = time.Second, 2*time.Second
			if diff := cmp.Diff(test.want, <-ends); diff != "" {
				t.Errorf("End of a turn that is %s (-want +got):\n%s", test.name, diff)
			}
		})
	}
}
