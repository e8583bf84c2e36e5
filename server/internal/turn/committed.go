package turn

import (
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Committed receives the changes of the store. If a conversation is deleted, Committed ends its turns. If another
// server has changed a conversation, or changes were missed, Committed wakes the goroutines that wait for the end of a
// turn there. It does not block.
func (m *Manager) Committed(committed []store.Change) {
	for i := range committed {
		c := &committed[i]
		isDeletion := false
		switch c.Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED,
			parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			isDeletion = true
			m.conversationDeleted(c)
		case parleyv1.ChangeKind_CHANGE_KIND_GAP:
			m.waiters.WakeAll()
		default:
		}
		if c.Elsewhere || isDeletion {
			m.waiters.Wake(key{c.Tenant, c.ConversationID})
		}
	}
}

// conversationDeleted ends the turns of a conversation that was deleted.
func (m *Manager) conversationDeleted(c *store.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[key{c.Tenant, c.ConversationID}]
	if q == nil {
		return
	}
	for _, e := range slices.Clone(q.ended) {
		if c.UID == "" || e.uid == "" || e.uid == c.UID { // A damaged conversation has no uid.
			m.release(e)
		}
	}
	switch e := q.running; {
	case e == nil:
	case e.uid != "":
		if c.UID == "" || c.UID == e.uid {
			m.closeQueue(q)
		}
	case q.uid != "":
		if c.UID == "" || c.UID == q.uid {
			e.deletedUIDs = append(e.deletedUIDs, q.uid)
			m.closeQueue(q)
		}
	default: // The store has not answered yet; recordStart will compare the uid.
		e.deletedUIDs = append(e.deletedUIDs, c.UID)
	}
}

// closeQueue ends all turns of a queue whose conversation was deleted. A new conversation with the
// same id has another queue. If the store has not yet answered whether the running turn starts,
// that turn ends after the answer. The caller holds mu.
func (m *Manager) closeQueue(q *queue) {
	q.deleted = true
	m.removeAllWaiting(q, ErrConversationDeleted)
	if q.running.uid != "" {
		q.running.live.cancel(ErrConversationDeleted)
	}
	for _, e := range slices.Clone(q.ended) {
		m.release(e)
	}
	if m.queues[q.key] == q {
		delete(m.queues, q.key)
	}
}
