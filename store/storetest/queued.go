package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law17Queued starts each append when the one before is queued.
func (s Subject) law17Queued(t *testing.T) {
	t.Run("order", s.queuedOrder)
	t.Run("cancellation", s.queuedCancellation)
}

// queuedOrder makes appends to three conversations. Each append requires the version that the one before leaves, or
// must be refused. Other writes take place at the same time.
func (s Subject) queuedOrder(t *testing.T) {
	const rounds, each = 4, 40
	f := s.open(t, nil)
	stopOthers := f.writeOthers()
	defer stopOthers()
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			id := fmt.Sprint("c", i)
			for round := range rounds {
				calls := f.appendQueued(f.t.Context(), queuedAppends(id, each))
				for n, c := range calls {
					switch {
					case c.fails != (c.err != nil) || c.fails && !errorIs(c.err, c.want):
						f.t.Errorf("round %d: append %d of %s = %v, want an error: %t, %v", round, n, id, c.err, c.fails, c.want)
					case c.err == nil && (c.queued.Load() != 1 || c.result.Replayed != c.replay):
						f.t.Errorf("round %d: append %d of %s called Queued %d times, Replayed = %t, want 1 and %t",
							round, n, id, c.queued.Load(), c.result.Replayed, c.replay)
					}
				}
				// The next round creates the conversation again.
				if err := f.store.Delete(f.t.Context(), &store.Delete{Tenant: tenant, ConversationID: id}); err != nil {
					f.t.Errorf("Delete: %v", err)
				}
			}
		})
	}
	group.Wait()
}

// queuedCall is an append of appendQueued.
type queuedCall struct {
	append store.Append
	fails  bool  // an error is expected
	want   error // the expected one; nil means any
	replay bool  // a replayed result is expected

	queued atomic.Int32 // calls of Queued
	result *store.Result
	err    error
}

// queuedAppends returns n appends to a new conversation, with refused and repeated ones among them.
func queuedAppends(id string, n int) []*queuedCall {
	calls := make([]*queuedCall, n)
	version := int32(0)
	for i := range calls {
		c := &queuedCall{append: store.Append{
			Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user(fmt.Sprint(i))},
			Request: request(fmt.Sprint(i), ""), IfVersion: new(version),
		}}
		switch i % 8 {
		case 1:
			c.append.ReplaceAfter = new(int32(i / 2))
			version++
		case 3:
			c.append.IfVersion, c.fails = new(version+1), true
			c.want = &store.VersionError{Current: version, Required: version + 1}
		case 4:
			c.append.Messages, c.fails = []*parleyv1.Message{user("no UTF-8: \xff")}, true
		case 5:
			c.append.Request, c.replay = request(fmt.Sprint(i-3), ""), true
		case 6:
			c.append.Begin, c.append.IfVersion = &parleyv1.Turn{Id: fmt.Sprint("turn ", i)}, nil
			version++
		case 7:
			c.append.End = &parleyv1.Turn{Id: fmt.Sprint("turn ", i-1), State: parleyv1.TurnState_TURN_STATE_COMPLETED}
			version++
		default:
			version++
		}
		calls[i] = c
	}
	return calls
}

// queuedCancellation ends the context of appends when one of them is queued. Those that were applied are the first.
func (s Subject) queuedCancellation(t *testing.T) {
	const rounds, n = 20, 16
	f := s.open(t, nil)
	for round := range rounds {
		ctx, cancel := context.WithCancel(f.t.Context())
		calls := queuedAppends(fmt.Sprint("c", round), 3)
		for i := len(calls); i < n; i++ {
			calls = append(calls, &queuedCall{append: store.Append{
				Tenant: tenant, ConversationID: fmt.Sprint("c", round), Messages: []*parleyv1.Message{user(fmt.Sprint(i))},
			}})
		}
		for i, c := range calls {
			if i == round%n {
				c.append.Queued = cancel
			}
		}
		calls = f.appendQueued(ctx, calls)
		cancel()
		refused := false
		for i, c := range calls {
			switch {
			case c.err != nil && !errors.Is(c.err, context.Canceled):
				t.Errorf("round %d: append %d = %v, want it applied or %v", round, i, c.err, context.Canceled)
			case c.err == nil && refused:
				t.Errorf("round %d: append %d was applied, but not one before it", round, i)
			}
			refused = refused || c.err != nil
		}
	}
}

// appendQueued starts each append when the one before is queued or has returned. It returns when all have returned. It
// may be called from any goroutine.
func (f *fixture) appendQueued(ctx context.Context, calls []*queuedCall) []*queuedCall {
	var group sync.WaitGroup
	for _, c := range calls {
		next := make(chan struct{}, 2)
		also := c.append.Queued
		c.append.Queued = func() {
			if also != nil {
				also()
			}
			if c.queued.Add(1) == 1 {
				next <- struct{}{}
			}
		}
		group.Go(func() {
			c.result, c.err = f.store.Append(ctx, &c.append)
			next <- struct{}{}
		})
		<-next
	}
	group.Wait()
	return calls
}

// writeOthers creates and deletes another conversation again and again until stop is called.
func (f *fixture) writeOthers() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			id := fmt.Sprint("other", i%2)
			_, err := f.store.Append(ctx, &store.Append{
				Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user("x")},
			})
			if err == nil && i%3 == 0 {
				err = f.store.Delete(ctx, &store.Delete{Tenant: tenant, ConversationID: id})
			}
			if err != nil && ctx.Err() == nil {
				f.t.Errorf("another write: %v", err)
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
