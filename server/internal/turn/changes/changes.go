// Package changes wakes goroutines that wait for a change of a conversation which another server makes.
//
// A [Waiter] does not learn what has changed. Its goroutine reads the store again. Wakes that come before the goroutine
// has read are one wake.
//
// Start at [Waiters].
package changes

import "sync"

// Waiters are the waiters of all conversations, by key. The zero value has none. It is safe for concurrent use.
type Waiters[K comparable] struct {
	mu    sync.Mutex
	byKey map[K]map[*Waiter[K]]struct{}
}

// Waiter waits for changes of one conversation. Create it with Add and end it with Remove.
type Waiter[K comparable] struct {
	// C has a value when there were changes since the last one was received.
	C <-chan struct{}

	of   *Waiters[K]
	key  K
	wake chan<- struct{}
}

// Add returns a new waiter for the changes of a key.
func (w *Waiters[K]) Add(key K) *Waiter[K] {
	c := make(chan struct{}, 1)
	added := &Waiter[K]{C: c, of: w, key: key, wake: c}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey == nil {
		w.byKey = make(map[K]map[*Waiter[K]]struct{})
	}
	if w.byKey[key] == nil {
		w.byKey[key] = make(map[*Waiter[K]]struct{})
	}
	w.byKey[key][added] = struct{}{}
	return added
}

// Remove ends the waiter. A second Remove does nothing.
func (w *Waiter[K]) Remove() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.byKey[w.key], w)
	if len(w.of.byKey[w.key]) == 0 {
		delete(w.of.byKey, w.key)
	}
}

// Wake wakes the waiters of a key. It does not block.
func (w *Waiters[K]) Wake(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for waiter := range w.byKey[key] {
		waiter.signal()
	}
}

// WakeAll wakes all waiters. It does not block.
func (w *Waiters[K]) WakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, waiters := range w.byKey {
		for waiter := range waiters {
			waiter.signal()
		}
	}
}

func (w *Waiter[K]) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // The goroutine has not yet received the last wake.
	}
}
