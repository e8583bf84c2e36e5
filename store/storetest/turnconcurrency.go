package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	turnWriters = 4
	// concurrentMaxTurns is the max_turns of the conversations of concurrentTurns. It is large enough for two chunks.
	concurrentMaxTurns = 70
)

// concurrentTurns tests that turns that are kept are found and listed once while others begin, end and are dropped.
func (s Subject) concurrentTurns(t *testing.T) {
	const each = 160 // So that stores that keep turns in chunks drop some.
	f := s.open(t, nil)
	var writers [turnWriters]turnWriter
	var running sync.WaitGroup
	for w := range writers {
		id := fmt.Sprint("c", w)
		f.withMaxTurns(id, concurrentMaxTurns)
		running.Go(func() {
			for n := range each {
				turn := &parleyv1.Turn{Id: turnID(n*turnWriters + w), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
				writers[w].calls.Add(1)
				for _, a := range []*store.Append{{Begin: turn}, {End: turn}} {
					a.Tenant, a.ConversationID = tenant, id
					if _, err := f.store.Append(t.Context(), a); err != nil {
						t.Error(err)
						return
					}
					writers[w].begun.Store(int32(n + 1))
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		running.Wait()
		close(done)
	}()
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		f.checkTurnsOf(&writers, store.ListTurns{Limit: 50})
		for w := range writers {
			f.checkTurnsOf(&writers, store.ListTurns{ConversationID: fmt.Sprint("c", w), Limit: 20})
		}
	}
}

// turnWriter counts the turns of a conversation.
type turnWriter struct {
	calls atomic.Int32 // that began a turn or may have done so
	begun atomic.Int32
}

// checkTurnsOf checks that a list has each turn once that is kept during all of its calls, and no turn that was dropped
// before them. It checks also that the kept turns are found.
func (f *fixture) checkTurnsOf(writers *[turnWriters]turnWriter, l store.ListTurns) {
	least, most := keptTurns(concurrentMaxTurns)
	var begun [turnWriters]int
	for w := range writers {
		begun[w] = int(writers[w].begun.Load())
	}
	listed := map[string]int{}
	for _, id := range f.turnList(l, func() {}) {
		listed[id]++
		if listed[id] == 2 {
			f.t.Errorf("ListTurns(%+v) returned turn %s twice", l, id)
		}
	}
	for w := range writers {
		if l.ConversationID != "" && l.ConversationID != fmt.Sprint("c", w) {
			continue
		}
		calls := func() int { return int(writers[w].calls.Load()) }
		after := calls()
		for n := range begun[w] {
			id := turnID(n*turnWriters + w)
			switch kept, dropped := n >= after-least, n < begun[w]-most; {
			case kept && listed[id] == 0:
				f.t.Errorf("ListTurns(%+v) lacks turn %d of c%d, which had begun %d to %d", l, n, w, begun[w], after)
			case dropped && listed[id] > 0:
				f.t.Errorf("ListTurns(%+v) returned turn %d of c%d, which had begun %d", l, n, w, begun[w])
			case kept:
				_, err := f.store.FindTurn(f.t.Context(), &store.FindTurn{Tenant: tenant, TurnID: id})
				if began := calls(); err != nil && n >= began-least {
					f.t.Errorf("FindTurn of turn %d of c%d, which had begun %d at most: %v", n, w, began, err)
				}
			}
		}
	}
}
