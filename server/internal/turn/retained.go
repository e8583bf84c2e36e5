package turn

import (
	"slices"
	"time"
)

// Turns that have ended are retained for retainFor, so that readers receive each event. All
// retained turns together use at most maxRetainedBytes; the oldest are released first. A released
// turn is replayed from the store, with merged texts.
const (
	retainFor        = 10 * time.Minute
	maxRetainedBytes = 128 << 20
)

// maxListedTurns is the number of turns that are listed and retained for a conversation. It equals
// the number that a store retains.
const maxListedTurns = 32

// retain retains a turn that has ended and uses size bytes. The caller holds mu.
func (m *Manager) retain(t *liveTurn, size int) {
	t.ended = true
	t.retainedBytes = size
	m.retainedBytes += t.retainedBytes
	t.retainedElement = m.retained.PushBack(t)
	t.queue.ended = append(t.queue.ended, t)
	t.releaseTimer = time.AfterFunc(retainFor, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.release(t)
	})
	if len(t.queue.ended) > maxListedTurns {
		m.release(t.queue.ended[0])
	}
	for m.retainedBytes > maxRetainedBytes {
		m.release(m.oldestRetained())
	}
}

// release releases a retained turn. Readers that already follow it are not disturbed. The caller
// holds mu.
func (m *Manager) release(t *liveTurn) {
	if t.retainedElement == nil {
		return
	}
	t.releaseTimer.Stop()
	m.retained.Remove(t.retainedElement)
	t.retainedElement = nil
	m.retainedBytes -= t.retainedBytes
	delete(m.turns, t.id)
	t.queue.ended = slices.DeleteFunc(t.queue.ended, func(other *liveTurn) bool { return other == t })
	m.removeIfEmpty(t.queue)
}

// releaseAll releases all retained turns.
func (m *Manager) releaseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.retained.Len() > 0 {
		m.release(m.oldestRetained())
	}
}

// oldestRetained returns the retained turn that ended first. There must be one.
func (m *Manager) oldestRetained() *liveTurn {
	return m.retained.Front().Value.(*liveTurn) //nolint:errcheck,forcetypeassert // the list contains nothing else
}
