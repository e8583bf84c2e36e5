package store

import (
	"context"
	"errors"
	"time"
)

const (
	// firstReleaseWait is the time before the first retry of RetryRelease. Each wait is twice as long as
	// the one before.
	firstReleaseWait = time.Second
	// maxReleaseWait is the maximum time between two attempts of RetryRelease.
	maxReleaseWait = 10 * time.Second
)

// RetryRelease releases a hold like [Store.Release], and retries until the store accepts the release.
// Without the release, the conversations would be ephemeral and exist forever. An overloaded store may
// reject releases when many streams end at once, and so may a store whose disk is full.
//
// RetryRelease gives up when stop is closed, and with ErrClosed and ErrFailed: the store releases all
// holds of a process at its next start. It then returns the error of the last attempt, or nil if stop was
// closed before the first attempt. After each other failed attempt it calls failed with the number of
// attempts before.
func RetryRelease(
	ctx context.Context, s Store, h *Hold, stop <-chan struct{}, failed func(attempt int, err error),
) error {
	var err error
	wait := firstReleaseWait
	for attempt := 0; ; attempt++ {
		select {
		case <-stop:
			return err
		default:
		}
		err = s.Release(ctx, h)
		if err == nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrFailed) {
			return err
		}
		failed(attempt, err)
		select {
		case <-stop:
		case <-time.After(wait):
		}
		wait = min(2*wait, maxReleaseWait)
	}
}
