package store_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/store"
)

// failingReleases is a store whose first releases fail.
type failingReleases struct {
	store.Store
	errs     []error
	attempts []time.Duration // times since start
	start    time.Time
}

// Release returns the next error, or nil if there is none.
func (s *failingReleases) Release(context.Context, *store.Hold) error {
	s.attempts = append(s.attempts, time.Since(s.start))
	if len(s.errs) == 0 {
		return nil
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return err
}

func TestRetryRelease(t *testing.T) {
	unknown := errors.New("unknown error")
	for _, test := range []struct {
		name string
		errs []error
		stop time.Duration // 0: never
		want error
		at   []int // seconds at the attempts
	}{
		{"accepted", nil, 0, nil, []int{0}},
		{"closed", []error{store.ErrClosed}, 0, store.ErrClosed, []int{0}},
		{"failed", []error{store.ErrFailed}, 0, store.ErrFailed, []int{0}},
		{
			"rejected six times",
			[]error{store.ErrOverloaded, store.ErrNoSpace, unknown, unknown, unknown, unknown},
			0, nil,
			[]int{0, 1, 3, 7, 15, 25, 35},
		},
		{"stopped", slices.Repeat([]error{unknown}, 9), 5 * time.Second, unknown, []int{0, 1, 3}},
		{"stopped before", []error{unknown}, -1, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &failingReleases{errs: test.errs, start: time.Now()}
				stop := make(chan struct{})
				switch {
				case test.stop < 0:
					close(stop)
				case test.stop > 0:
					time.AfterFunc(test.stop, func() { close(stop) })
				}
				failed := 0
				err := store.RetryRelease(t.Context(), s, new(store.Hold), stop, func(attempt int, _ error) {
					if attempt != failed {
						t.Errorf("failed(%d), want failed(%d)", attempt, failed)
					}
					failed++
				})
				if !errors.Is(err, test.want) || test.want == nil && err != nil {
					t.Errorf("RetryRelease = %v, want %v", err, test.want)
				}
				var want []time.Duration
				for _, seconds := range test.at {
					want = append(want, time.Duration(seconds)*time.Second)
				}
				if !slices.Equal(s.attempts, want) {
					t.Errorf("attempts after %v, want %v", s.attempts, want)
				}
			})
		})
	}
}
