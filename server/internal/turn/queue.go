package turn

import (
	"container/list"
	"context"
	"errors"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Limits of waiting turns in a conversation. Interrupting turns have a higher limit, since they
// wait only until the agent of the running turn stops.
const (
	maxQueued       = 16
	maxInterrupting = 64
)

// maxWaitingBytes limits the requests of the waiting turns of all conversations together, in encoded form, and
// maxTenantWaitingBytes those of one tenant. A waiting turn holds its complete request, with up to 4 MiB of records.
const maxWaitingBytes, maxTenantWaitingBytes = 64 << 20, 32 << 20

// key identifies a conversation.
type key struct{ tenant, id string }

// queue contains the turns of one conversation. Manager.mu guards its fields; the caller of a method holds
// it.
type queue struct {
	key
	// running is the turn at the head of the queue, from before its first commit until its end is
	// stored. It counts toward Options.MaxTurns. When it ends, the next waiting turn takes over its
	// capacity.
	running *queueEntry
	// waiting contains the other turns: first those that interrupt, then the rest, each group in the
	// order of arrival.
	waiting []*queueEntry
	// ended contains the retained turns, oldest first.
	ended []*queueEntry
	// uid is the conversation's uid. It is set when a turn has ended while others wait. The waiting
	// turns start in this conversation or not at all.
	uid string
	// deleted is set when the conversation is deleted. A new conversation with the same id has
	// another queue.
	deleted bool
}

// queueEntry is the part of a turn that the manager owns. Manager.mu guards its fields, except
// live and queue, which never change.
type queueEntry struct {
	live         *liveTurn
	queue        *queue
	requestKey   *store.Request // nil if no request can attach to the turn any more
	readers      int
	position     int      // in the queue, from 1
	requestBytes int      // of the request in encoded form
	removalCause error    // why the turn was removed from the queue before its start
	uid          string   // of the conversation; empty before the start
	version      int32    // of the conversation at the start
	deletedUIDs  []string // uids of conversations with this id that were deleted during the start
	// awaited is the turn of another server for whose end this one waits at the head of its queue. In that time it can be
	// removed like a waiting turn. Empty otherwise.
	awaited string
	ended   bool

	retainedBytes   int           // memory of the turn after its end
	retainedElement *list.Element // in Manager.retained
	releaseTimer    *time.Timer
}

// isQueued reports whether the turn has not started and may still start. The caller holds Manager.mu.
func (e *queueEntry) isQueued() bool { return !e.ended && e.uid == "" }

// attachToRequest attaches a reader to the turn that the request started and returns the turn,
// nil if there is none. A turn that has ended qualifies if it never started or if it started in the
// conversation with this uid.
func (q *queue) attachToRequest(request *store.Request, uid string) (*queueEntry, error) {
	if q == nil || request == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	for _, e := range q.turns() {
		switch {
		case e.requestKey == nil || e.requestKey.ID != request.ID || e.ended && e.uid != "" && e.uid != uid:
		case e.requestKey.Digest != request.Digest:
			return nil, store.ErrRequestReused
		default:
			e.readers++
			return e, nil
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// turns returns all turns of the queue, oldest first.
func (q *queue) turns() []*queueEntry {
	turns := slices.Clone(q.ended)
	if q.running != nil {
		turns = append(turns, q.running)
	}
	return append(turns, q.waiting...)
}

// checkBusy reports whether a request may wait for the running turn. It returns a startPendingError
// if the request must not wait and it is unknown whether the running turn starts.
func (q *queue) checkBusy(mode parleyv1.OnBusy) error {
	interrupting := 0
	for _, e := range q.waiting {
		if e.live.interrupts {
			interrupting++
		}
	}
	awaited := q.running.awaited
	switch {
	case mode == parleyv1.OnBusy_ON_BUSY_QUEUE:
		if len(q.waiting)-interrupting >= maxQueued {
			return ErrQueueFull
		}
	case mode == parleyv1.OnBusy_ON_BUSY_INTERRUPT && awaited != "":
		return &ElsewhereError{TurnID: awaited} // Only the other server can interrupt that turn.
	case mode == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
		if interrupting >= maxInterrupting {
			return ErrQueueFull
		}
	case awaited != "":
		return &store.BusyError{TurnID: awaited}
	case q.running.uid == "":
		return &startPendingError{q.running.live.startDecided}
	default:
		return &store.BusyError{TurnID: q.running.live.id}
	}
	return nil
}

// enqueue adds a turn to the queue. An interrupting turn goes before turns that do not interrupt.
// It cancels the running turn if that has started; the messages of the running turn remain stored.
func (q *queue) enqueue(e *queueEntry) {
	at := len(q.waiting)
	if e.live.interrupts {
		at = 0
		for at < len(q.waiting) && q.waiting[at].live.interrupts {
			at++
		}
		if q.running.uid != "" {
			q.running.live.cancel(errInterrupted)
		}
	}
	q.waiting = slices.Insert(q.waiting, at, e)
	q.reportPositions()
}

// checkSnapshot reports whether the snapshot against which an interrupting request was validated is
// still current: it must include the start of the running turn, and no other interrupting turn may
// wait. If not, the request must be validated again.
func (q *queue) checkSnapshot(snapshot *store.Snapshot) error {
	if q.running.uid == "" {
		return &startPendingError{q.running.live.startDecided}
	}
	if len(q.waiting) > 0 && q.waiting[0].live.interrupts {
		return &startPendingError{q.waiting[0].live.startDecided}
	}
	if c := snapshot.Conversation; c.GetUid() != q.running.uid || c.GetVersion() < q.running.version {
		return errStaleSnapshot
	}
	return nil
}

// reportPositions reports new positions to the readers of waiting turns, among them one that waits for a turn of
// another server.
func (q *queue) reportPositions() {
	waiting := q.waiting
	if q.running != nil && q.running.awaited != "" {
		waiting = append([]*queueEntry{q.running}, waiting...)
	}
	for i, e := range waiting {
		if e.position != i+1 {
			e.position = i + 1
			e.reportPosition()
		}
	}
}

// reportPosition reports the turn's position in the queue to its readers. The caller holds
// Manager.mu.
func (e *queueEntry) reportPosition() {
	if e.removalCause == nil && e.position > 0 {
		e.live.events.Add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Queued{
			Queued: &parleyv1.TurnQueued{Position: int32(e.position)},
		}})
	}
}

// reportPosition reports the turn's position in the queue to its readers.
func (m *Manager) reportPosition(e *queueEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.reportPosition()
}

// countWaiting counts a turn that begins to wait if sign is 1, or that no longer waits if it is -1. The caller holds
// mu.
func (m *Manager) countWaiting(e *queueEntry, sign int) {
	tenant := e.queue.tenant
	m.waitingTotal += sign
	m.waitingBytes += sign * e.requestBytes
	if m.waitingBytesByTenant[tenant] += sign * e.requestBytes; m.waitingBytesByTenant[tenant] == 0 {
		delete(m.waitingBytesByTenant, tenant)
	}
}

// removeWaiting removes a waiting turn from its queue for the given cause. It reports whether the
// turn was waiting. A turn that waits for one of another server stays the running turn of its queue until its goroutine
// ends. The caller holds mu.
func (m *Manager) removeWaiting(e *queueEntry, cause error) bool {
	i := slices.Index(e.queue.waiting, e)
	switch {
	case i >= 0:
		e.queue.waiting = slices.Delete(e.queue.waiting, i, i+1)
		m.countWaiting(e, -1)
	case e.awaited != "":
		e.awaited = ""
	default:
		return false
	}
	e.removalCause = cause
	e.live.cancel(cause)
	if errors.Is(cause, errCancelled) {
		// Otherwise a retry of the request would start the turn again.
		m.retain(e, turnOverheadBytes+e.live.events.Memory())
	} else {
		delete(m.turns, e.live.id)
	}
	e.queue.reportPositions()
	return true
}

// removeAllWaiting removes all waiting turns of a queue, the last one first, so that no position
// changes. The caller holds mu.
func (m *Manager) removeAllWaiting(q *queue, cause error) {
	for len(q.waiting) > 0 {
		m.removeWaiting(q.waiting[len(q.waiting)-1], cause)
	}
	if q.running != nil {
		m.removeWaiting(q.running, cause) // It is only removed if it waits for a turn of another server.
	}
}

// detachReader removes a reader from the turn.
func (m *Manager) detachReader(e *queueEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.readers--
	m.cancelIfUnread(e)
}

// cancelIfUnread drops a waiting turn that has no readers, and cancels a running one if its request
// requires that. The caller holds mu.
func (m *Manager) cancelIfUnread(e *queueEntry) {
	if e.readers > 0 || e.ended || m.removeWaiting(e, errDroppedFromQueue) {
		return
	}
	if e.uid != "" && e.live.cancelOnDisconnect {
		e.live.cancel(errDisconnected)
	}
}

// removeCancelled removes a cancelled turn from its queue and returns the cause. It returns nil if
// the turn may start.
func (m *Manager) removeCancelled(e *queueEntry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeWaiting(e, context.Cause(e.live.ctx))
	return e.removalCause
}

// checkStart reports whether a turn may still start. It returns the uid of the conversation in which
// earlier turns of the queue ran, empty if there were none.
func (m *Manager) checkStart(e *queueEntry) (uid string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case e.queue.deleted:
		err = ErrConversationDeleted
	case e.readers == 0:
		err = errDroppedFromQueue
	}
	if err != nil {
		e.requestKey = nil // No request can attach to this turn any more.
		delete(m.turns, e.live.id)
	}
	return e.queue.uid, err
}

// recordStart records that a turn has started in a conversation, and handles what happened during
// the commit of the start.
func (m *Manager) recordStart(e *queueEntry, c *parleyv1.Conversation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.uid, e.version = c.GetUid(), c.GetVersion()
	e.queue.reportPositions() // It may have waited for a turn of another server.
	switch {
	case slices.Contains(e.deletedUIDs, e.uid):
		m.closeQueue(e.queue) // The running turn has a uid only now, so that closeQueue cancels it.
	case len(e.queue.waiting) > 0 && e.queue.waiting[0].live.interrupts:
		e.live.cancel(errInterrupted)
	default:
		m.cancelIfUnread(e)
	}
}

// finishTurn removes a turn that has ended from its queue and starts the next one. If the turn has
// a finished event, it is retained for readers and uses size bytes. The caller must call endedStreams when the last
// event is sent.
func (m *Manager) finishTurn(e *queueEntry, finished bool, size int) {
	e.live.cancel(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endingTotal++
	q := e.queue
	if q.running == e {
		m.startNext(q)
	}
	switch {
	case e.removalCause != nil: // removeWaiting has retained or deleted the turn.
	case finished && !q.deleted && !m.stopping:
		m.retain(e, size)
	default:
		delete(m.turns, e.live.id)
	}
	e.ended = true
	m.removeIfEmpty(q)
}

// endedStreams reports that the streams of a turn have ended, after finishTurn.
func (m *Manager) endedStreams() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endingTotal--
	m.closeIfIdle()
}

// startNext starts the next turn of a queue. If there is none, it frees the capacity. The caller holds
// mu.
func (m *Manager) startNext(q *queue) {
	if q.running.uid != "" {
		q.uid = q.running.uid
	}
	q.running = nil
	if len(q.waiting) > 0 {
		q.running = q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		m.countWaiting(q.running, -1)
		close(q.running.live.mayStart)
		q.reportPositions()
		return
	}
	q.uid = ""
	m.runningTotal--
	delete(m.runningQueues[q.tenant], q)
	if len(m.runningQueues[q.tenant]) == 0 {
		delete(m.runningQueues, q.tenant)
	}
}

// removeIfEmpty deletes a queue that has no turns. The caller holds mu.
func (m *Manager) removeIfEmpty(q *queue) {
	if q.running == nil && len(q.waiting)+len(q.ended) == 0 && m.queues[q.key] == q {
		delete(m.queues, q.key)
	}
}
