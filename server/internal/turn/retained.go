package turn

import (
	"slices"
	"time"
)

// Turns that have ended can be followed event by event for keepFor, and as long as all of
// them take no more memory than maxKeptBytes; the oldest go first. What is no longer kept
// is replayed from the store, with merged texts.
const (
	retainFor        = 10 * time.Minute
	maxRetainedBytes = 128 << 20
)

// maxTurns of a conversation are kept, as many as a store keeps.
const maxListedTurns = 32

// keep keeps a turn that has ended, and takes so many bytes.
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

// forget drops a turn that has ended; readers who follow it already are not disturbed.
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

// forgetAll drops all turns that have ended.
func (m *Manager) releaseAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.retained.Len() > 0 {
		m.release(m.oldestRetained())
	}
}

// oldest is the one that ended first of those that are kept; there is one.
func (m *Manager) oldestRetained() *liveTurn {
	return m.retained.Front().Value.(*liveTurn) //nolint:errcheck,forcetypeassert // nothing else is in it
}
