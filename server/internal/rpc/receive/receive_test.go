package receive

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// call returns the context of a call, and a receive that waits until the context ends.
func call(t *testing.T) (ctx context.Context, unfinished func() error) {
	t.Helper()
	ctx, err := Tap(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, func() error { <-ctx.Done(); return ctx.Err() }
}

// TestMaxTime checks that a receive ends after MaxTime, and that the slot can be used again.
func TestMaxTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(1)
		for range 2 {
			ctx, unfinished := call(t)
			start := time.Now()
			if err := l.Receive(ctx, unfinished); !errors.Is(err, ErrSlow) || time.Since(start) != MaxTime {
				t.Errorf("Receive = %v after %v, want %v after %v", err, time.Since(start), ErrSlow, MaxTime)
			}
		}
		ctx, _ := call(t)
		if err := l.Receive(ctx, func() error { return nil }); err != nil {
			t.Errorf("Receive of a complete request = %v", err)
		}
		<-time.After(2 * MaxTime)
		if ctx.Err() != nil {
			t.Error("a call ended after it had received its request")
		}
	})
}

// TestWaiting checks that a call that waits ends slow receives, but none before MinTime.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(2)
		results := make(chan error, 2)
		for range 2 {
			ctx, unfinished := call(t)
			go func() { results <- l.Receive(ctx, unfinished) }()
		}
		synctest.Wait()
		ctx, _ := call(t)
		start := time.Now()
		if err := l.Receive(ctx, func() error { return nil }); err != nil || time.Since(start) != MinTime {
			t.Errorf("Receive = %v after %v, want none after %v", err, time.Since(start), MinTime)
		}
		for range 2 {
			if err := <-results; !errors.Is(err, ErrSlow) {
				t.Errorf("slow receive = %v, want %v", err, ErrSlow)
			}
		}
	})
}

// TestTooMany checks how long a call waits if the others do not end.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ended := New(1), make(chan struct{})
		other, _ := call(t)
		go func() { _ = l.Receive(other, func() error { <-ended; return nil }) }()
		synctest.Wait()
		ctx, unfinished := call(t)
		start := time.Now()
		if err := l.Receive(ctx, unfinished); !errors.Is(err, ErrTooMany) || time.Since(start) != MaxWait {
			t.Errorf("Receive = %v after %v, want %v after %v", err, time.Since(start), ErrTooMany, MaxWait)
		}
		parent, cancel := context.WithCancel(t.Context())
		cancel()
		ctx, err := Tap(parent, nil)
		if err == nil {
			err = l.Receive(ctx, unfinished)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Receive of a call that has ended = %v", err)
		}
		close(ended)
	})
}

// TestPanic checks that a receive that panics leaves its slot free.
func TestPanic(t *testing.T) {
	l := New(1)
	ctx, _ := call(t)
	func() {
		defer func() { _ = recover() }()
		_ = l.Receive(ctx, func() error { panic("broken codec") })
	}()
	if err := l.Receive(ctx, func() error { return nil }); err != nil {
		t.Errorf("Receive after a panic = %v", err)
	}
}

// TestAllocations checks that a call allocates nothing for a slot.
func TestAllocations(t *testing.T) {
	l := New(1)
	ctx, _ := call(t)
	if n := testing.AllocsPerRun(100, func() { _ = l.Receive(ctx, func() error { return nil }) }); n != 0 {
		t.Errorf("Receive allocates %v times", n)
	}
}
