package watch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// stressTimeout limits a stress test. Only a failing test takes this long.
const stressTimeout = time.Minute

// stressTest is a hub under load. Writers commit in turn, as those of a store. All conversations
// have one tenant and count their versions.
type stressTest struct {
	*watch.Hub

	ids         []string
	final       int32 // version of each conversation at the end
	gapsAllowed bool
	order       sync.Mutex // held during a commit
	versions    map[string]*atomic.Int32
}

func newStressTest(h *watch.Hub, final int32, mayGap bool) *stressTest {
	s := &stressTest{
		Hub: h, ids: []string{"a", "b", "c", "d", "e", "f"}, final: final, gapsAllowed: mayGap,
		versions: make(map[string]*atomic.Int32),
	}
	for _, id := range s.ids {
		s.versions[id] = new(atomic.Int32)
	}
	return s
}

// writeAll commits batches until all conversations have their final version.
func (s *stressTest) writeAll() {
	for done := false; !done; {
		s.order.Lock()
		done = true
		var batch []store.Change
		for _, i := range rand.Perm(len(s.ids))[:3] {
			id := s.ids[i]
			if v := s.versions[id]; v.Load() < s.final {
				batch = append(batch, appendedChange("t", id, v.Add(1), ""))
			}
		}
		for _, v := range s.versions {
			done = done && v.Load() == s.final
		}
		s.Committed(batch)
		s.order.Unlock()
		s.Committed(nil)
		if s.HasSubscribers() {
			s.TurnEvent("t", s.ids[0], textEvent(1))
		}
	}
}

// knownState is what a client knows of a conversation.
type knownState struct {
	version int32 // of the last change received
	read    int32 // read from the state after a GAP
	gap     bool  // the next change may have any later version
}

// watchToEnd watches some conversations from a cursor until all have their final version. It stops
// and resumes on the way.
func (s *stressTest) watchToEnd(ctx context.Context, cursor string, ids []string, events bool) error {
	known := make(map[string]*knownState)
	for _, id := range s.ids {
		if ids == nil || slices.Contains(ids, id) {
			known[id] = new(knownState)
		}
	}
	isOver := func() bool {
		for _, of := range known {
			if max(of.version, of.read) < s.final {
				return false
			}
		}
		return true
	}
	stretch := func() error {
		w, err := s.Watch(watch.Watch{Tenant: "t", ConversationIDs: ids, Cursor: cursor, TurnEvents: events})
		if err != nil {
			return err
		}
		defer w.Stop()
		responses := rand.IntN(500)
		for response, err := range w.All(ctx, nil) {
			change, failed := decode(response)
			if err := errors.Join(err, failed); err != nil {
				return err
			}
			if err := s.checkChange(known, change); err != nil {
				return err
			}
			cursor = change.GetCursor()
			responses--
			if responses < 0 || isOver() {
				break
			}
		}
		return nil
	}
	for !isOver() {
		if err := stretch(); err != nil {
			return err
		}
	}
	return nil
}

// checkChange checks that a change is the next one of its conversation.
func (s *stressTest) checkChange(known map[string]*knownState, c *parleyv1.ConversationChange) error {
	switch c.GetKind() {
	case parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED:
		of, version := known[c.GetConversationId()], c.GetVersion()
		if of == nil || version <= of.version || version > of.version+1 && !of.gap {
			return fmt.Errorf("received %v after %+v", c, of)
		}
		of.version, of.gap = version, false
	case parleyv1.ChangeKind_CHANGE_KIND_GAP:
		if !s.gapsAllowed {
			return fmt.Errorf("received %v, but everything is retained", c)
		}
		for id, of := range known {
			of.read, of.gap = s.versions[id].Load(), true
		}
	}
	return nil
}

func TestStress(t *testing.T) {
	tests := []struct {
		name   string
		hub    *watch.Hub
		mayGap bool
	}{
		{"everything is retained", watch.NewSmall(watch.Options{}, 1<<20, 1<<30), false},
		{"little is retained", watch.NewSmall(watch.Options{}, 16, 1<<30), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newStressTest(test.hub, 1000, test.mayGap)
			ctx, cancel := context.WithTimeout(t.Context(), stressTimeout)
			defer cancel()
			start := s.Cursor("t")
			var writers, all sync.WaitGroup
			writing, written := context.WithCancel(ctx)
			for i := range 12 {
				ids := slices.Clone(s.ids[:i%len(s.ids)])
				if len(ids) == 0 {
					ids = nil
				}
				all.Go(func() {
					if err := s.watchToEnd(ctx, start, ids, i%2 == 0); err != nil {
						t.Errorf("watcher %d: %v", i, err)
					}
				})
			}
			for _, id := range s.ids {
				all.Go(func() { s.waitForVersions(ctx, t, id) })
			}
			for range 2 {
				all.Go(func() { s.startAndStop(writing, t) })
			}
			for range 4 {
				writers.Go(s.writeAll)
			}
			writers.Wait()
			written()
			all.Wait()
			if keys, readers := s.Readers(); keys != 0 || readers != 0 || s.Watchers() != 0 {
				t.Errorf("%d keys, %d readers and %d watchers after the end, want none", keys, readers, s.Watchers())
			}
		})
	}
}

// waitForVersions subscribes and waits until the final version, as readers of a routing summary do.
// It must miss no version.
func (s *stressTest) waitForVersions(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	for known := int32(0); known < s.final; {
		changed, stop, err := s.Subscribe("t", id)
		if err != nil {
			t.Error(err)
			return
		}
		for range 10 {
			if known = s.versions[id].Load(); known == s.final {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Errorf("%s: not woken after version %d", id, known)
				stop()
				return
			}
		}
		stop()
	}
}

// startAndStop starts watchers and ends them at once, or after the first changes.
func (s *stressTest) startAndStop(writing context.Context, t *testing.T) {
	t.Helper()
	for i := 0; writing.Err() == nil; i++ {
		w, err := s.Watch(watch.Watch{Tenant: "t", TurnEvents: i%2 == 0})
		if err != nil {
			t.Error(err)
			return
		}
		n, stop := 0, make(chan struct{})
		for _, err := range w.All(writing, stop) {
			n++
			if err != nil && writing.Err() == nil {
				t.Errorf("response %d: error = %v", n, err)
			}
			if n == i%3 {
				close(stop)
			}
			if i%3 == 0 {
				break
			}
		}
		w.Stop()
	}
}

// TestStartAndStopDuringWrites is for the race detector: nothing happens between the start of a
// watch and its end, so that no other lock orders them.
func TestStartAndStopDuringWrites(t *testing.T) {
	h := watch.New(watch.Options{})
	writing, written := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for version := int32(1); writing.Err() == nil; version++ {
			commit(h, "t", "a", version)
			h.TurnEvent("t", "a", textEvent(version))
			runtime.Gosched()
		}
	})
	for i := range 2000 {
		w := startWatch(t, h, watch.Watch{Tenant: "t", TurnEvents: i%2 == 0})
		for range 20 {
			runtime.Gosched()
		}
		w.Stop()
	}
	written()
	writer.Wait()
}
