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

// place names a conversation.
type place struct{ tenant, id string }

// line is the turns of one conversation. The manager's mu guards what is in it.
type line struct {
	place
	// running is the turn that the others wait for: from before its first commit until it has
	// ended in the store. It holds one of the places that Options.MaxTurns counts, and hands
	// it on to the next one.
	running *live
	// waiting are the others: those that interrupt, then those that queue, each in the order
	// in which they came.
	waiting []*live
	// ended can still be followed, oldest first.
	ended []*live
}

// find returns the turn that a request began.
func (l *line) find(q *store.Request) (*live, error) {
	if l == nil || q == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	for _, t := range l.all() {
		if t.q == nil || t.q.ID != q.ID {
			continue
		}
		if t.q.Digest != q.Digest {
			return nil, store.ErrRequestReused
		}
		return t, nil
	}
	return nil, nil //nolint:nilnil // there is none
}

// all are the turns of the line, the oldest first.
func (l *line) all() []*live {
	all := slices.Clone(l.ended)
	if l.running != nil {
		all = append(all, l.running)
	}
	return append(all, l.waiting...)
}

// mayWait says whether a request may wait for the running turn: nil and nil when it may.
func (l *line) mayWait(mode parleyv1.OnBusy) (undecided <-chan struct{}, err error) {
	interrupting := 0
	for _, t := range l.waiting {
		if t.interrupts() {
			interrupting++
		}
	}
	switch {
	case mode == parleyv1.OnBusy_ON_BUSY_QUEUE:
		if len(l.waiting)-interrupting >= maxQueued {
			return nil, ErrQueueFull
		}
	case mode == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
		if interrupting >= maxInterrupting {
			return nil, ErrQueueFull
		}
	case l.running.uid == "":
		return l.running.decided, nil
	default:
		return nil, &store.BusyError{TurnID: l.running.id}
	}
	return nil, nil //nolint:nilnil // it may
}

// wait puts a turn into the line. One that interrupts goes ahead of those that queue, and
// cuts the running one off once that has begun: its words are stored all the same.
func (l *line) wait(t *live) {
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
	l.tellPositions()
}

// tellPositions tells the turns that wait how many are ahead of them, where that is news.
func (l *line) tellPositions() {
	for i, t := range l.waiting {
		if t.position != i+1 {
			t.position = i + 1
			t.tellPosition()
		}
	}
}

// withdraw takes a turn out of the line that still waits there, and says whether it did.
func (m *Manager) withdraw(t *live, why error) bool {
	i := slices.Index(t.line.waiting, t)
	if i < 0 {
		return false
	}
	t.line.waiting = slices.Delete(t.line.waiting, i, i+1)
	t.withdrawn = true
	t.cancel(why)
	if errors.Is(why, errCancelled) {
		m.keep(t) // Else the same request, asked again, would begin it anew.
	} else {
		delete(m.turns, t.id)
	}
	t.line.tellPositions()
	return true
}

// disperse withdraws all that wait in a line.
func (m *Manager) disperse(l *line, why error) {
	for len(l.waiting) > 0 {
		m.withdraw(l.waiting[len(l.waiting)-1], why)
	}
}

// detach tells that a reader of the turn has left.
func (m *Manager) detach(t *live) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.readers--
	m.deserted(t)
}

// deserted does what is to be done about a turn without readers.
func (m *Manager) deserted(t *live) {
	if t.readers > 0 || t.ended || m.withdraw(t, errLeft) {
		return
	}
	if t.uid != "" && t.request.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL {
		t.cancel(errLeft)
	}
}

// leave takes a turn that has ended out of its line and lets the next one run. Kept, it can
// still be followed.
func (m *Manager) leave(t *live, keep bool) {
	t.unhook()
	t.cancel(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	l := t.line
	if l.running == t {
		m.advance(l)
	}
	switch current := m.lines[l.place] == l; {
	case t.element != nil: // It was kept when it was withdrawn.
	case keep && current && !m.closed:
		m.keep(t)
	default:
		t.ended = true
		delete(m.turns, t.id)
	}
	m.tidy(l)
	t.release()
}

// advance lets the next turn of a line run.
func (m *Manager) advance(l *line) {
	l.running = nil
	if len(l.waiting) > 0 {
		l.running = l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(l.running.ahead)
		l.tellPositions()
		return
	}
	m.inAll--
	m.running[l.tenant]--
	if m.running[l.tenant] == 0 {
		delete(m.running, l.tenant)
	}
	if m.inAll == 0 && m.closed {
		close(m.idle)
	}
}

// tidy drops a line in which nothing is left.
func (m *Manager) tidy(l *line) {
	if l.running == nil && len(l.waiting)+len(l.ended) == 0 && m.lines[l.place] == l {
		delete(m.lines, l.place)
	}
}

// Committed takes the store's changes: a conversation that is gone takes its turns along.
// It does not block.
func (m *Manager) Committed(changes []store.Change) {
	for i := range changes {
		switch changes[i].Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED, parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			m.deleted(&changes[i])
		default:
		}
	}
}

func (m *Manager) deleted(c *store.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lines[place{c.Tenant, c.ConversationID}]
	if l == nil {
		return
	}
	for _, t := range slices.Clone(l.ended) {
		if c.UID == "" || t.uid == "" || t.uid == c.UID { // A damaged one has no uid.
			m.forget(t)
		}
	}
	switch t := l.running; {
	case t == nil:
	case t.uid == "": // The store is still being asked; begun will know.
		t.gone = append(t.gone, c.UID)
	case c.UID == "" || t.uid == c.UID:
		m.shut(l)
	}
}

// shut ends a line whose conversation is gone. Its id may be taken again at once, by a
// conversation with a line of its own.
func (m *Manager) shut(l *line) {
	m.disperse(l, ErrConversationGone)
	l.running.cancel(ErrConversationGone)
	for _, t := range slices.Clone(l.ended) {
		m.forget(t)
	}
	if m.lines[l.place] == l {
		delete(m.lines, l.place)
	}
}
