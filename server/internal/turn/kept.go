package turn

import (
	"slices"
	"time"
)

// Turns that have ended can be followed event by event for keepFor, and as long as all of
// them take no more memory than maxKeptBytes; the oldest go first. What is no longer kept
// is replayed from the store, with merged texts.
const (
	keepFor      = 10 * time.Minute
	maxKeptBytes = 128 << 20
)

// maxTurns of a conversation are kept, as many as a store keeps.
const maxTurns = 32

// keep keeps a turn that has ended, and takes so many bytes.
func (m *Manager) keep(t *live, memory int) {
	t.ended = true
	t.memory = memory
	m.keptFor += t.memory
	t.element = m.kept.PushBack(t)
	t.line.ended = append(t.line.ended, t)
	t.expiry = time.AfterFunc(keepFor, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.forget(t)
	})
	if len(t.line.ended) > maxTurns {
		m.forget(t.line.ended[0])
	}
	for m.keptFor > maxKeptBytes {
		m.forget(m.oldest())
	}
}

// forget drops a turn that has ended; readers who follow it already are not disturbed.
func (m *Manager) forget(t *live) {
	if t.element == nil {
		return
	}
	t.expiry.Stop()
	m.kept.Remove(t.element)
	t.element = nil
	m.keptFor -= t.memory
	delete(m.turns, t.id)
	t.line.ended = slices.DeleteFunc(t.line.ended, func(other *live) bool { return other == t })
	m.tidy(t.line)
}

// forgetAll drops all turns that have ended.
func (m *Manager) forgetAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.kept.Len() > 0 {
		m.forget(m.oldest())
	}
}

// oldest is the one that ended first of those that are kept; there is one.
func (m *Manager) oldest() *live {
	return m.kept.Front().Value.(*live) //nolint:errcheck,forcetypeassert // nothing else is in it
}
