package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// concurrentTurns tests that each turn that has begun is found, and is listed once, while others begin and end.
func (s Subject) concurrentTurns(t *testing.T) {
	const writers, each = 4, 30 // A conversation keeps all its turns.
	f := s.open(t, nil)
	var mu sync.Mutex
	var begun []string // turns whose begin has returned
	started := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(begun)
	}
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			id := fmt.Sprint("c", w)
			for n := range each {
				turn := &parleyv1.Turn{Id: turnID(n*writers + w), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
				for _, a := range []*store.Append{{Begin: turn}, {End: turn}} {
					a.Tenant, a.ConversationID = tenant, id
					if _, err := f.store.Append(t.Context(), a); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					begun = append(begun, turn.GetId())
					mu.Unlock()
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
		before := started()
		listed := f.turnList(store.ListTurns{Limit: 50}, func() {})
		for _, id := range before {
			if i := slices.Index(listed, id); i < 0 || slices.Contains(listed[i+1:], id) {
				t.Errorf("ListTurns returned turn %s never or twice", id)
			}
			f.findTurn("", id)
		}
	}
}
