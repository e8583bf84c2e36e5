package turn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
)

// newEnding returns a manager on a store that counts its running turn as abandoned, and a function by which another
// server ends that turn.
func newEnding(t *testing.T) (*fixture, *controlledAgent, *sharedStore, func(change string)) {
	t.Helper()
	f, p, s := newShared(t)
	s.Store = &crashStore{Store: s.Store}
	other := New(t.Context(), f.o)
	t.Cleanup(func() { other.Stop(context.WithoutCancel(t.Context())) })
	return f, p, s, func(change string) {
		s.elsewhere(change, func(store.Store) error { return other.Recover(context.WithoutCancel(t.Context())) })
		synctest.Wait()
	}
}

// isOver reports whether the run has ended.
func (r *agentRun) isOver() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// TestEndedElsewhere: a turn that another server has ended cancels its agent, and its readers receive the rest that the
// store has and the stored end on the same stream: at once if the change is reported or a gap is, and otherwise when the
// next part of the answer or its end is refused. The next turn of the queue then starts.
func TestEndedElsewhere(t *testing.T) {
	for name, test := range map[string]struct {
		change string
		then   func(run *agentRun)
	}{
		"reported": {change: reported},
		"gap":      {change: gap},
		"save": {change: missed, then: func(run *agentRun) {
			run.sendText("refused")
			<-time.After(saveInterval)
			synctest.Wait()
		}},
		"end": {change: missed, then: func(run *agentRun) { run.complete() }},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, p, _, end := newEnding(t)
			request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r"}
			r := f.startChat(t, request)
			next := f.startChat(t, chatRequest("next", onBusyQueue))
			run := p.lastRun()
			run.sendText("saved ", "too ")
			<-time.After(saveInterval)
			synctest.Wait()
			run.sendText("lost")
			end(test.change)
			if test.then != nil {
				if r.ended {
					t.Errorf("%s: the stream ended although the change was missed", name)
				}
				test.then(run)
			}
			received := r.received()
			want := fmt.Sprintf("%d finished INTERRUPTED", 3+replay.LostIndexGap)
			if !r.ended || r.err != nil || received[len(received)-1] != want || !run.isOver() {
				t.Errorf("%s: events = %q, %v, ended: %t, agent has stopped: %t, want last %q", name, received, r.err, r.ended,
					run.isOver(), want)
			}
			if reason := r.finished().GetError().GetReason(); reason != "SHUTTING_DOWN" {
				t.Errorf("%s: reason = %s, want that of the stored end", name, reason)
			}
			if got := r.events[len(r.events)-1].GetFinished().GetMessages()[0].GetContent(); got != "saved too " {
				t.Errorf("%s: messages of the end = %q, want the stored ones", name, got)
			}
			turn, err := f.Get(t.Context(), tenant, "c", r.turnID())
			if err != nil || !proto.Equal(turn, r.finished()) {
				t.Errorf("%s: Get = %v, %v, want %v", name, turn, err, r.finished())
			}
			if len(next.events) == 0 || next.events[len(next.events)-1].GetStarted() == nil || p.runCount() != 2 {
				t.Errorf("%s: events of the next turn = %q, %v, want started", name, next.received(), next.err)
			}
			repeated := f.startChat(t, request)
			if stateName(repeated.finished().GetState()) != "INTERRUPTED" || p.runCount() != 2 {
				t.Errorf("%s: repeated Chat = %q, %v, want the stored turn", name, repeated.received(), repeated.err)
			}
		})
	}
}

// TestCancelOfEndedElsewhere: CancelTurn of a turn that another server ends in the meantime returns the stored turn.
func TestCancelOfEndedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, _, end := newEnding(t)
		r := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Metadata: ignoreCancel})
		var turn *parleyv1.Turn
		var err error
		go func() { turn, err = f.Cancel(t.Context(), tenant, "c", r.turnID()) }()
		synctest.Wait()
		end(reported)
		if turn != nil || r.ended {
			t.Fatalf("Cancel = %v before the agent has stopped", turn)
		}
		p.lastRun().complete()
		if err != nil || stateName(turn.GetState()) != "INTERRUPTED" || !proto.Equal(turn, r.finished()) {
			t.Errorf("Cancel = %v, %v, want %v", turn, err, r.finished())
		}
	})
}

// TestDeletedElsewhere: if another server deletes the conversation, streams end with ErrConversationDeleted, even if
// the conversation exists again, and whether the server is notified or not.
func TestDeletedElsewhere(t *testing.T) {
	for _, change := range []string{reported, gap, missed} {
		for _, again := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				f, p, s := newShared(t)
				r := f.startChat(t, chatRequest("q", 0))
				follower := startReading(t.Context(), func(ctx context.Context) eventSeq {
					return f.FollowStored(ctx, tenant, "c", r.turnID(), Received{})
				})
				s.set(func() { s.change = missed })
				if err := s.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "c"}); err != nil {
					t.Fatal(err)
				}
				if again {
					s.begin("another")
				}
				s.set(func() { s.change = "" })
				switch change {
				case reported:
					f.Committed([]store.Change{{
						Tenant: tenant, ConversationID: "c", Elsewhere: true, Kind: parleyv1.ChangeKind_CHANGE_KIND_UPDATED,
					}})
				case gap:
					f.Committed([]store.Change{{Kind: parleyv1.ChangeKind_CHANGE_KIND_GAP, Elsewhere: true}})
				case missed:
					p.lastRun().complete()
					<-time.After(recoverInterval)
				}
				synctest.Wait()
				for who, r := range map[string]*reader{"Chat": r, "FollowStored": follower} {
					if !r.ended || !errors.Is(r.err, ErrConversationDeleted) {
						t.Errorf("%s, created again: %t: %s = %q, %v, ended: %t, want ErrConversationDeleted", change, again, who,
							r.received(), r.err, r.ended)
					}
				}
			})
		}
	}
}

// TestEndIsUncertain: an end that was stored although the store did not answer is the end that readers receive.
func TestEndIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p, s := newShared(t)
		r := f.startChat(t, chatRequest("q", 0))
		p.lastRun().sendText("complete")
		s.set(func() {
			s.afterAppend = func(a *store.Append) error {
				if a.End != nil {
					return store.ErrUnavailable
				}
				return nil
			}
		})
		p.lastRun().complete()
		<-time.After(storeRetry)
		synctest.Wait()
		want := []string{`1 started "q" created`, `2 text "complete" at 0`, "3 finished COMPLETED"}
		if diff := cmp.Diff(want, r.received()); diff != "" || r.err != nil {
			t.Errorf("error = %v; events (-want +got):\n%s", r.err, diff)
		}
	})
}

// TestFollowStored: an agent sends random pieces, of which some are saved, and the turn ends or its server is killed.
// A reader that has received any number of events continues from the store. It then has the events of the stored
// answer, each byte once and in order. If it has events that are lost, it receives the finished event alone. A reader
// that resumed within a text receives the same as from Resume.
func TestFollowStored(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, rt, func(t *testing.T) {
			t.Helper()
			f, p, s, end := newEnding(t)
			r := f.startChat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"})
			var pieces pieceGenerator
			for range rapid.IntRange(0, 3).Draw(rt, "parts") {
				for range rapid.IntRange(0, 2).Draw(rt, "draws") {
					for _, piece := range pieces.draw(rt) {
						p.lastRun().do(step{pieces: []*parleyv1.RespondResponse{piece}})
					}
				}
				if rapid.Bool().Draw(rt, "saved") {
					<-time.After(saveInterval)
					synctest.Wait()
				}
			}
			events := slices.Clone(r.events)
			followers := make([]*reader, len(events)+1)
			for i := range followers {
				var received Received
				for _, event := range events[:i] {
					received.Add(event)
				}
				followers[i] = startReading(t.Context(), func(ctx context.Context) eventSeq {
					return f.FollowStored(ctx, tenant, "c", r.turnID(), received)
				})
			}
			if killed := rapid.Bool().Draw(rt, "killed"); killed {
				end(reported)
			} else {
				p.lastRun().complete()
				<-time.After(recoverInterval)
				synctest.Wait()
			}
			found, err := s.FindTurn(t.Context(), &store.FindTurn{Tenant: tenant, ConversationID: "c", TurnID: r.turnID()})
			if err != nil {
				rt.Fatal(err)
			}
			lost := found.Events.GetLostAfter()
			for i, follower := range slices.Concat(followers, []*reader{r}) {
				all := slices.Concat(events[:min(i, len(events))], follower.events)
				if follower == r {
					i, all = len(events), slices.Clone(r.events)
				}
				if !follower.ended || follower.err != nil {
					rt.Errorf("reader of %d events: error = %v, ended: %t", i, follower.err, follower.ended)
					continue
				}
				finished := all[len(all)-1]
				if finished.GetIndex() != found.Events.GetFinished() || !proto.Equal(finished.GetFinished().GetTurn(), found.Turn) {
					rt.Errorf("reader of %d events: last event = %v, want that of %v", i, finished, found)
				}
				if index := int32(i); lost > 0 && index > lost {
					if follower != r && len(follower.events) != 1 {
						rt.Errorf("reader of %d events, saved %d: then %q, want finished alone", i, lost, follower.received())
					}
				} else if err := checkAnswer(withoutCallDeltas(all), finished.GetFinished().GetMessages()); err != nil {
					rt.Errorf("reader of %d events, then %q: %v", i, follower.received(), err)
				}
				if index := int32(i); follower != r && (lost == 0 || index <= lost) {
					f.releaseAll()
					want, wantErr := readAll(f.Resume(t.Context(), tenant, "c", r.turnID(), index))
					got, err := readAll(f.FollowStored(t.Context(), tenant, "c", r.turnID(), ReceivedThrough(index)))
					if diff := diffEvents(want, got); diff != "" || fmt.Sprint(err) != fmt.Sprint(wantErr) {
						rt.Errorf("FollowStored through %d: error = %v, want %v, events (-want +got):\n%s", index, err, wantErr, diff)
					}
				}
			}
		})
	})
}

// TestFollowStoredWaits: while the turn runs, FollowStored sends keep-alives with the index that the reader has, which
// stay below the events that follow. A reader that leaves and a stop of the server
// end the wait.
func TestFollowStoredWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _, s := newShared(t)
		s.begin("there")
		received := ReceivedThrough(1)
		follow := func(turnID string) *reader {
			return startReading(t.Context(), func(ctx context.Context) eventSeq {
				return f.FollowStored(ctx, tenant, "c", turnID, received)
			})
		}
		r, leaves := follow("there"), follow("there")
		<-time.After(2*keepAliveInterval + time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{`1 progress ""`, `1 progress ""`}, r.received()); diff != "" {
			t.Errorf("events after 31 s (-want +got):\n%s", diff)
		}
		leaves.disconnect()
		if !leaves.ended || !errors.Is(leaves.err, context.Canceled) {
			t.Errorf("reader that left: error = %v, ended: %t", leaves.err, leaves.ended)
		}
		s.end(reported)
		if !r.ended || stateName(r.finished().GetState()) != "COMPLETED" || r.events[2].GetIndex() <= 1 {
			t.Errorf("events after the end = %q, %v, want finished", r.received(), r.err)
		}
		if unknown := follow("unknown"); !errors.As(unknown.err, new(*NotFoundError)) {
			t.Errorf("FollowStored of an unknown turn: error = %v, want NotFoundError", unknown.err)
		}
		s.begin("second")
		stopped := follow("second")
		f.Stop(t.Context())
		synctest.Wait()
		if !stopped.ended || !errors.Is(stopped.err, ErrShuttingDown) {
			t.Errorf("after Stop: error = %v, ended: %t, want ErrShuttingDown", stopped.err, stopped.ended)
		}
	})
}

// withoutCallDeltas removes deltas of calls, which the store does not replay.
func withoutCallDeltas(events []*parleyv1.TurnEvent) []*parleyv1.TurnEvent {
	return slices.DeleteFunc(events, func(e *parleyv1.TurnEvent) bool { return e.GetToolCallDelta() != nil })
}
