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

// Memory in bytes of a turn that has ended, without its events, as measured: turnOverheadBytes for
// each turn, messageOverheadBytes for each message of the answer, valueOverheadBytes for each of its
// values and runOverheadBytes for each of its runs of text and reasoning.
const (
	turnOverheadBytes    = 2 << 10
	messageOverheadBytes = 192
	valueOverheadBytes   = 8
	runOverheadBytes     = 88
)

// maxRetainedTurns is the maximum number of ended turns of a conversation that are retained.
const maxRetainedTurns = 32

// retain retains a turn that has ended and uses size bytes. The caller holds mu.
func (m *Manager) retain(e *queueEntry, size int) {
	e.ended = true
	e.retainedBytes = size
	m.retainedBytes += e.retainedBytes
	e.retainedElement = m.retained.PushBack(e)
	e.queue.ended = append(e.queue.ended, e)
	e.releaseTimer = time.AfterFunc(retainFor, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.release(e)
	})
	if len(e.queue.ended) > maxRetainedTurns {
		m.release(e.queue.ended[0])
	}
	for m.retainedBytes > maxRetainedBytes {
		m.release(m.oldestRetained())
	}
}

// release releases a retained turn. Readers that already follow it are not disturbed. The caller
// holds mu.
func (m *Manager) release(e *queueEntry) {
	if e.retainedElement == nil {
		return
	}
	e.releaseTimer.Stop()
	m.retained.Remove(e.retainedElement)
	e.retainedElement = nil
	m.retainedBytes -= e.retainedBytes
	delete(m.turns, e.live.id)
	e.queue.ended = slices.DeleteFunc(e.queue.ended, func(other *queueEntry) bool { return other == e })
	m.removeIfEmpty(e.queue)
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
func (m *Manager) oldestRetained() *queueEntry {
	return m.retained.Front().Value.(*queueEntry) //nolint:errcheck,forcetypeassert // the list contains nothing else
}
