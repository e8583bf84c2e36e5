package redisstore

import (
	"context"
	"slices"
	"sync"
)

// turnstile lets the writes of a key pass one at a time, in the order in which they came.
type turnstile struct {
	mu    sync.Mutex
	lines map[string]*line // of keys with a write
}

// line is the writes that wait for a key.
type line struct {
	waiting []chan struct{} // each is closed when its turn comes
}

func newTurnstile() *turnstile { return &turnstile{lines: make(map[string]*line)} }

// enter waits until all earlier writes of the key have left. queued, if not nil, is called when the place is fixed. The
// error is that of ctx; the write has then no place. Otherwise the caller must call leave.
func (t *turnstile) enter(ctx context.Context, key string, queued func()) error {
	t.mu.Lock()
	l := t.lines[key]
	var turn chan struct{}
	if l == nil {
		t.lines[key] = new(line)
	} else {
		turn = make(chan struct{})
		l.waiting = append(l.waiting, turn)
	}
	t.mu.Unlock()
	if queued != nil {
		queued()
	}
	if turn != nil {
		select {
		case <-turn:
		case <-ctx.Done():
			if t.giveUp(key, turn) {
				return ctx.Err()
			}
		}
	}
	if err := ctx.Err(); err != nil {
		t.leave(key)
		return err
	}
	return nil
}

// giveUp removes a waiting write. It reports whether the write was still waiting.
func (t *turnstile) giveUp(key string, turn chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[key]
	i := slices.Index(l.waiting, turn)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// leave lets the next write of the key pass.
func (t *turnstile) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[key]
	if len(l.waiting) == 0 {
		delete(t.lines, key)
		return
	}
	close(l.waiting[0])
	l.waiting = l.waiting[1:]
}
