package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// overloadedOnce is a store whose first release fails with ErrOverloaded.
type overloadedOnce struct {
	store.Store
	failed bool
}

// Release fails once.
func (s *overloadedOnce) Release(ctx context.Context, h *store.Hold) error {
	if !s.failed {
		s.failed = true
		return store.ErrOverloaded
	}
	return s.Store.Release(ctx, h)
}

// retryRelease checks that store.RetryRelease releases a hold after a failed attempt, and gives up when it
// is stopped or the store is closed.
func (s Subject) retryRelease(t *testing.T) {
	hold := &store.Hold{Tenant: tenant, ConversationIDs: []string{"a"}}
	t.Run("after a failed attempt", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.hold("a")
		attempts := 0
		err := store.RetryRelease(
			t.Context(),
			&overloadedOnce{Store: f.store},
			hold,
			nil,
			func(int, error) { attempts++ },
		)
		if err != nil || attempts != 1 {
			t.Errorf("RetryRelease = %v after %d failed attempts, want nil after 1", err, attempts)
		}
		f.missing("a")
	})
	t.Run("stopped", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.hold("a")
		stop := make(chan struct{})
		close(stop)
		if err := store.RetryRelease(t.Context(), f.store, hold, stop, nil); err != nil {
			t.Errorf("RetryRelease = %v, want nil", err)
		}
		f.clock.Advance(24 * time.Hour)
		f.visible("a")
	})
	t.Run("closed", func(t *testing.T) {
		f := s.open(t, nil)
		f.hold("a")
		if err := f.store.Close(); err != nil {
			t.Fatalf("Close = %v", err)
		}
		if err := store.RetryRelease(t.Context(), f.store, hold, nil, nil); !errors.Is(err, store.ErrClosed) {
			t.Errorf("RetryRelease = %v, want ErrClosed", err)
		}
	})
}
