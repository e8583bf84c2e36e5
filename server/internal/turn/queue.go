package turn

import (
	"errors"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// How many turns of a conversation may wait. Those that interrupt wait for the turn ahead
// to end, which takes no longer than an agent takes to stop.
const (
	maxQueued       = 16
	maxInterrupting = 64
)

// key names a conversation.
type key struct{ tenant, id string }

// line is the turns of one conversation. The manager's mu guards what is in it.
type queue struct {
	key
	// running is the turn that the others wait for: from before its first commit until it has
	// ended in the store. It holds one of the places that Options.MaxTurns counts, and hands
	// it on to the next one.
	running *liveTurn
	// waiting are the others: those that interrupt, then those that queue, each in the order
	// in which they came.
	waiting []*liveTurn
	// ended can still be followed, oldest first.
	ended []*liveTurn
	// uid is that of the conversation, once a turn has begun and as long as others wait for
	// it: they begin in the same one, or not at all.
	uid string
	// gone: the conversation was deleted. Its id may be taken again, with another line.
	deleted bool
}

// join attaches a reader to the turn that a request began; nil when there is none. One that
// has ended is joined only if it never began, or began in the conversation with that uid.
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

// all are the turns of the line, the oldest first.
func (l *queue) turns() []*liveTurn {
	turns := slices.Clone(l.ended)
	if l.running != nil {
		turns = append(turns, l.running)
	}
	return append(turns, l.waiting...)
}

// mayWait says whether a request may wait for the running turn. While it is open whether
// that one begins at all, a request that does not wait has to ask again.
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

// wait puts a turn into the line. One that interrupts goes ahead of those that queue, and
// cuts the running one off once that has begun: its words are stored all the same.
func (l *queue) enqueue(t *liveTurn) {
	t.hadToWait, t.conversation = true, nil // What was read is old by then.
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

// mayInterrupt says whether what a request was held against is what there is: the running
// turn as it began, and nobody ahead who is to change that. Else it has to look again.
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

// tellPositions tells the turns that wait how many are ahead of them, where that is news.
func (l *queue) reportPositions() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.reportPosition()
		}
	}
}

// withdraw takes a turn out of the line that still waits there, and says whether it did.
func (m *Manager) removeWaiting(t *liveTurn, cause error) bool {
	i := slices.Index(t.queue.waiting, t)
	if i < 0 {
		return false
	}
	t.queue.waiting = slices.Delete(t.queue.waiting, i, i+1)
	t.removalCause = cause
	t.cancel(cause)
	if errors.Is(cause, errCancelled) {
		m.retain(t, turnOverheadBytes+t.events.memory()) // Without it, a retry of the request would begin the turn again.
	} else {
		delete(m.turns, t.id)
	}
	t.queue.reportPositions()
	return true
}

// disperse withdraws all that wait in a line.
func (m *Manager) removeAllWaiting(l *queue, cause error) {
	for len(l.waiting) > 0 {
		m.removeWaiting(l.waiting[len(l.waiting)-1], cause)
	}
}

// detach tells that a reader of the turn has left.
func (m *Manager) detachReader(t *liveTurn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.readers--
	m.cancelIfUnread(t)
}

// deserted does what is to be done about a turn without readers.
func (m *Manager) cancelIfUnread(t *liveTurn) {
	if t.readers > 0 || t.ended || m.removeWaiting(t, errDroppedFromQueue) {
		return
	}
	if t.uid != "" && t.request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL {
		t.cancel(errDisconnected)
	}
}

// leave removes a turn that has ended from its queue and lets the next one run. If it has a
// finished event, the turn is retained for readers.
func (m *Manager) finishTurn(t *liveTurn, finished encodedEvent) {
	t.cancel(nil)
	retainedBytes := t.retainedSize(finished) // Before the lock, since it takes a while.
	m.mu.Lock()
	defer m.mu.Unlock()
	l := t.queue
	if l.running == t {
		m.startNext(l)
	}
	switch {
	case t.removalCause != nil: // That has been seen to.
	case finished.kind != noEvent && !l.deleted && !m.stopping:
		m.retain(t, retainedBytes)
	default:
		delete(m.turns, t.id)
	}
	t.ended = true
	m.removeIfEmpty(l)
	t.dropReferences()
}

// advance lets the next turn of a line run.
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

// tidy drops a line in which nothing is left.
func (m *Manager) removeIfEmpty(l *queue) {
	if l.running == nil && len(l.waiting)+len(l.ended) == 0 && m.queues[l.key] == l {
		delete(m.queues, l.key)
	}
}

// Committed takes the store's changes: a conversation that is gone takes its turns along.
// It does not block.
func (m *Manager) Committed(changes []store.Change) {
	for i := range changes {
		switch changes[i].Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
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
		if c.UID == "" || t.uid == "" || t.uid == c.UID { // A damaged one has no uid.
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
	default: // The store is still being asked; begun will know.
		t.deletedUIDs = append(t.deletedUIDs, c.UID)
	}
}

// shut ends a line whose conversation is gone. Its id may be taken again at once, by a
// conversation with a line of its own. A turn of which the store is still being asked ends
// when it answers.
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
