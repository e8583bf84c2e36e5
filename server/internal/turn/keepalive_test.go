package turn

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// slowStore is a store in which some writes wait for a gate, as on a disk that hangs.
type slowStore struct {
	store.Store
	gate      chan struct{}
	end, save bool // which writes wait: the end of a turn; the partial answer
}

func (s *slowStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.End != nil && s.end {
		<-s.gate
	}
	return s.Store.Append(ctx, a)
}

func (s *slowStore) SaveProgress(ctx context.Context, p *store.Progress) error {
	if s.save {
		<-s.gate
	}
	return s.Store.SaveProgress(ctx, p)
}

// newSlowStore returns a manager on a slowStore.
func newSlowStore(t *testing.T, s *slowStore) (*fixture, *controlledAgent) {
	t.Helper()
	s.gate = make(chan struct{})
	return newControlled(t, func(o *Options) {
		s.Store = o.Store
		o.Store = s
	})
}

// TestKeepAlives: readers of a silent turn receive an event every 15 s.
func TestKeepAlives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, map[string]agent.Agent{"main": hangAfter("a", nil)},
			func(o *Options) { o.IdleTimeout = 50 * time.Second })
		startTime, times := time.Now(), []time.Duration(nil)
		for event, err := range f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q"}) {
			if err != nil {
				t.Fatal(err)
			}
			if p := event.GetProgress(); p != nil {
				times = append(times, time.Since(startTime).Round(2*time.Second))
			}
		}
		if diff := cmp.Diff([]time.Duration{16 * time.Second, 30 * time.Second, 46 * time.Second}, times); diff != "" {
			t.Errorf("times of keep-alives (-want +got):\n%s", diff)
		}
	})
}

// TestKeepAlivesIgnoreEmptyPieces: pieces without events for readers do not replace keep-alives.
func TestKeepAlivesIgnoreEmptyPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, p := newControlled(t, nil)
		r := f.startChat(t, chatRequest("q", 0))
		for range 9 {
			<-time.After(6 * time.Second)
			p.lastRun().sendText("")
		}
		if notes := len(r.events) - 1; notes != 3 {
			t.Errorf("%d keep-alives in 54 s, want 3: %q", notes, r.received())
		}
	})
}

// TestKeepAlivesWhileTheStoreHangs: readers receive an event every 15 s while the store hangs. A
// client treats a stream as broken that is silent for longer.
func TestKeepAlivesWhileTheStoreHangs(t *testing.T) {
	for name, s := range map[string]*slowStore{
		"the end hangs":                {end: true},
		"the answer so far hangs":      {save: true},
		"the answer so far, then ends": {save: true, end: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, p := newSlowStore(t, s)
				f.o.IdleTimeout, f.o.TurnTimeout = time.Hour, time.Hour
				r := f.startChat(t, chatRequest("q", 0))
				p.lastRun().sendText("yes")
				<-time.After(5 * time.Minute)
				p.lastRun().complete()
				<-time.After(5 * time.Minute)
				close(s.gate)
				synctest.Wait()
				// A keep-alive may be late by keepAliveCheckInterval.
				keepAlives := len(r.events) - len([]string{"started", "text", "finished"})
				if keepAlives < 38 || keepAlives > 40 || stateName(r.finished().GetState()) != "COMPLETED" {
					t.Errorf("%d keep-alives in ten minutes of silence, want one every 15 s: %q, %v", keepAlives, r.received(), r.err)
				}
			})
		})
	}
}

// TestResumeAfterTheStoreHung: the store receives the index of the finished event before it hangs.
// No event that readers receive in the meantime has that index. A client can resume after any
// event, whether the turn is still in memory or is read from the store.
func TestResumeAfterTheStoreHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{end: true}
		f, p := newSlowStore(t, s)
		r := f.startChat(t, chatRequest("q", 0))
		p.lastRun().sendText("yes")
		p.lastRun().complete()
		<-time.After(time.Minute)
		close(s.gate)
		synctest.Wait()
		turnID, events := r.turnID(), slices.Clone(r.events)
		for i := 1; i < len(events); i++ {
			if events[i].GetIndex() <= events[i-1].GetIndex() {
				t.Fatalf("event %v follows %v", events[i], events[i-1])
			}
		}
		last := events[len(events)-1].GetIndex()
		for _, event := range events[:len(events)-1] {
			if got := f.startResume(t, turnID, event.GetIndex()); got.finished() == nil ||
				got.events[len(got.events)-1].GetIndex() != last {
				t.Errorf("Resume(%d) = %q, %v, want the events to the end", event.GetIndex(), got.received(), got.err)
			}
		}
		if got := f.startResume(t, turnID, last); got.err != nil || got.events != nil {
			t.Errorf("Resume at the end = %q, %v, want no events", got.received(), got.err)
		}
		f.releaseAll()
		for _, event := range events[:len(events)-1] {
			got := f.startResume(t, turnID, event.GetIndex())
			if errors.As(got.err, new(*EventsGoneError)) {
				got = f.startResume(t, turnID, 0)
			}
			if got.err != nil || got.finished() == nil {
				t.Errorf("Resume(%d) from the store = %q, %v", event.GetIndex(), got.received(), got.err)
			}
		}
	})
}

// TestStoreHangsThenRefuses: a store that hangs and then refuses the answer receives the right
// index on the second attempt.
func TestStoreHangsThenRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{end: true}
		f, p := newSlowStore(t, s)
		s.Store = &refusingStore{Store: s.Store, refusals: []error{store.ErrOverloaded}}
		r := f.startChat(t, chatRequest("q", 0))
		p.lastRun().sendText("yes")
		p.lastRun().complete()
		<-time.After(time.Minute)
		close(s.gate)
		<-time.After(time.Second)
		synctest.Wait()
		end := r.events[len(r.events)-1]
		f.releaseAll()
		got := f.startResume(t, r.turnID(), 0)
		if got.finished() == nil || got.events[len(got.events)-1].GetIndex() != end.GetIndex() {
			t.Errorf("Resume(0) = %q, want finished at %d", got.received(), end.GetIndex())
		}
	})
}
