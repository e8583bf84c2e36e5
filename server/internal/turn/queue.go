package turn

import (
	"errors"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// Limits of waiting turns in a conversation. Interrupting turns have a higher limit, since they
// wait only until the agent of the running turn stops.
const (
	maxQueued       = 16
	maxInterrupting = 64
)

// key identifies a conversation.
type key struct{ tenant, id string }

// queue holds the turns of one conversation. Manager.mu guards its fields.
type queue struct {
	key
	// running is the turn at the head of the queue, from before its first commit until its end is
	// stored. It counts toward Options.MaxTurns. When it ends, the next waiting turn takes over its
	// capacity.
	running *liveTurn
	// waiting holds the other turns: first those that interrupt, then the rest, each group in the
	// order of arrival.
	waiting []*liveTurn
	// ended holds the retained turns, oldest first.
	ended []*liveTurn
	// uid is the conversation's uid. It is set when a turn has ended while others wait. The waiting
	// turns start in this conversation or not at all.
	uid string
	// deleted is set when the conversation is deleted. A new conversation with the same id has
	// another queue.
	deleted bool
}

// attachToRequest attaches a reader to the turn that the request q started and returns the turn,
// nil if there is none. A turn that has ended qualifies if it never started or if it started in the
// conversation with this uid.
func (l *queue) attachToRequest(q *store.Request, uid string) (*liveTurn, error) {
	if l == nil || q == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	for _, t := range l.turns() {
		switch {
		case t.requestKey == nil || t.requestKey.ID != q.ID || t.ended && t.uid != "" && t.uid != uid:
		case t.requestKey.Digest != q.Digest:
			return nil, store.ErrRequestReused
		default:
			t.readers++
			return t, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// turns returns all turns of the queue, oldest first.
func (l *queue) turns() []*liveTurn {
	turns := slices.Clone(l.ended)
	if l.running != nil {
		turns = append(turns, l.running)
	}
	return append(turns, l.waiting...)
}

// checkBusy reports whether a request may wait for the running turn. It returns a startPendingError
// if the request must not wait and it is unknown whether the running turn starts.
func (l *queue) checkBusy(mode parleyv1.OnBusy) error {
	interrupting := 0
	for _, t := range l.waiting {
		if t.interrupts() {
			interrupting++
		}
	}
	switch {
	case mode == parleyv1.OnBusy_ON_BUSY_QUEUE:
		if len(l.waiting)-interrupting >= maxQueued {
			return ErrQueueFull
		}
	case mode == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
		if interrupting >= maxInterrupting {
			return ErrQueueFull
		}
	case l.running.uid == "":
		return &startPendingError{l.running.startDecided}
	default:
		return &store.BusyError{TurnID: l.running.id}
	}
	return nil
}

// enqueue adds a turn to the queue. An interrupting turn goes before turns that do not interrupt.
// It cancels the running turn if that has started; the messages of the running turn remain stored.
func (l *queue) enqueue(t *liveTurn) {
	t.hadToWait, t.conversation = true, nil // The snapshot is outdated when the turn starts.
	at := len(l.waiting)
	if t.interrupts() {
		at = 0
		for at < len(l.waiting) && l.waiting[at].interrupts() {
			at++
		}
		if l.running.uid != "" {
			l.running.cancel(errInterrupted)
		}
	}
	l.waiting = slices.Insert(l.waiting, at, t)
	l.reportPositions()
}

// checkSnapshot reports whether the snapshot against which an interrupting request was validated is
// still current: it must include the start of the running turn, and no other interrupting turn may
// wait. If not, the request must be validated again.
func (l *queue) checkSnapshot(found *store.Snapshot) error {
	if l.running.uid == "" {
		return &startPendingError{l.running.startDecided}
	}
	if len(l.waiting) > 0 && l.waiting[0].interrupts() {
		return &startPendingError{l.waiting[0].startDecided}
	}
	if c := found.Conversation; c.GetUid() != l.running.uid || c.GetVersion() < l.running.version {
		return errStaleSnapshot
	}
	return nil
}

// reportPositions reports new positions to the readers of waiting turns.
func (l *queue) reportPositions() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.reportPosition()
		}
	}
}

// removeWaiting removes a waiting turn from its queue for the given cause. It reports whether the
// turn was waiting.
func (m *Manager) removeWaiting(t *liveTurn, cause error) bool {
	i := slices.Index(t.queue.waiting, t)
	if i < 0 {
		return false
	}
	t.queue.waiting = slices.Delete(t.queue.waiting, i, i+1)
	t.removalCause = cause
	t.cancel(cause)
	if errors.Is(cause, errCancelled) {
		m.retain(t, turnOverheadBytes+t.events.Memory()) // Otherwise a retry of the request would start the turn again.
	} else {
		delete(m.turns, t.id)
	}
	t.queue.reportPositions()
	return true
}

// removeAllWaiting removes all waiting turns of a queue, the last one first, so that no position
// changes.
func (m *Manager) removeAllWaiting(l *queue, cause error) {
	for len(l.waiting) > 0 {
		m.removeWaiting(l.waiting[len(l.waiting)-1], cause)
	}
}

// detachReader removes a reader from the turn.
func (m *Manager) detachReader(t *liveTurn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.readers--
	m.cancelIfUnread(t)
}

// cancelIfUnread drops or cancels a turn that has no readers, if its request requires it.
func (m *Manager) cancelIfUnread(t *liveTurn) {
	if t.readers > 0 || t.ended || m.removeWaiting(t, errDroppedFromQueue) {
		return
	}
	if t.uid != "" && t.request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL {
		t.cancel(errDisconnected)
	}
}

// finishTurn removes a turn that has ended from its queue and starts the next one. If the turn has
// a finished event, it is retained for readers.
func (m *Manager) finishTurn(t *liveTurn, finished eventlog.Encoded) {
	t.cancel(nil)
	retainedBytes := t.retainedSize(finished) // Calculate this before locking, since it takes a while.
	m.mu.Lock()
	defer m.mu.Unlock()
	l := t.queue
	if l.running == t {
		m.startNext(l)
	}
	switch {
	case t.removalCause != nil: // removeWaiting has retained or deleted the turn.
	case !finished.IsZero() && !l.deleted && !m.stopping:
		m.retain(t, retainedBytes)
	default:
		delete(m.turns, t.id)
	}
	t.ended = true
	m.removeIfEmpty(l)
	t.dropReferences()
}

// startNext starts the next turn of a queue. If there is none, it frees the capacity.
func (m *Manager) startNext(l *queue) {
	if l.running.uid != "" {
		l.uid = l.running.uid
	}
	l.running = nil
	if len(l.waiting) > 0 {
		l.running = l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(l.running.mayStart)
		l.reportPositions()
		return
	}
	l.uid = ""
	m.runningTotal--
	m.runningByTenant[l.tenant]--
	if m.runningByTenant[l.tenant] == 0 {
		delete(m.runningByTenant, l.tenant)
	}
	if m.runningTotal == 0 && m.stopping {
		close(m.idle)
	}
}

// removeIfEmpty deletes a queue that has no turns.
func (m *Manager) removeIfEmpty(l *queue) {
	if l.running == nil && len(l.waiting)+len(l.ended) == 0 && m.queues[l.key] == l {
		delete(m.queues, l.key)
	}
}

// Committed receives the changes of the store. If a conversation is deleted, Committed ends its
// turns. It does not block.
func (m *Manager) Committed(changes []store.Change) {
	for i := range changes {
		switch changes[i].Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED,
			parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			m.conversationDeleted(&changes[i])
		default:
		}
	}
}

func (m *Manager) conversationDeleted(c *store.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.queues[key{c.Tenant, c.ConversationID}]
	if l == nil {
		return
	}
	for _, t := range slices.Clone(l.ended) {
		if c.UID == "" || t.uid == "" || t.uid == c.UID { // A damaged conversation has no uid.
			m.release(t)
		}
	}
	switch t := l.running; {
	case t == nil:
	case t.uid != "":
		if c.UID == "" || c.UID == t.uid {
			m.closeQueue(l)
		}
	case l.uid != "":
		if c.UID == "" || c.UID == l.uid {
			t.deletedUIDs = append(t.deletedUIDs, l.uid)
			m.closeQueue(l)
		}
	default: // The store has not answered yet; recordStart will compare the uid.
		t.deletedUIDs = append(t.deletedUIDs, c.UID)
	}
}

// closeQueue ends all turns of a queue whose conversation was deleted. A new conversation with the
// same id has another queue. If the store has not yet answered whether the running turn starts,
// that turn ends after the answer.
func (m *Manager) closeQueue(l *queue) {
	l.deleted = true
	m.removeAllWaiting(l, ErrConversationGone)
	if l.running.uid != "" {
		l.running.cancel(ErrConversationGone)
	}
	for _, t := range slices.Clone(l.ended) {
		m.release(t)
	}
	if m.queues[l.key] == l {
		delete(m.queues, l.key)
	}
}
