package adk

import (
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"sync"
	"time"

	"google.golang.org/adk/v2/session"
)

// storedSession is a session as a caller sees it: the copy that it read, with the events that it appended since.
type storedSession struct {
	key identity
	// copied is the id of this copy: the appends of two copies are different requests.
	copied string

	// appending is held during an append: the appends of one session follow each other. It guards stored.
	appending sync.Mutex
	stored    states // As this copy last read or wrote them.

	mu        sync.RWMutex // Guards the fields below.
	events    []*session.Event
	state     map[string]any
	updatedAt time.Time
}

// identity names a session. conversation is derived from the other fields.
type identity struct{ app, user, id, conversation string }

// newSession returns a session as it is in the server.
func newSession(key identity, stored states, events []*session.Event) (*storedSession, error) {
	state, err := stored.merged()
	if err != nil {
		return nil, fmt.Errorf("session %q: %w", key.id, err)
	}
	return &storedSession{
		key: key, copied: rand.Text(), stored: stored, events: events, state: state,
		updatedAt: time.Time(stored.header.Updated),
	}, nil
}

// ID implements [session.Session].
func (s *storedSession) ID() string { return s.key.id }

// AppName implements [session.Session].
func (s *storedSession) AppName() string { return s.key.app }

// UserID implements [session.Session].
func (s *storedSession) UserID() string { return s.key.user }

// State implements [session.Session].
func (s *storedSession) State() session.State { return stateView{s} }

// Events implements [session.Session].
func (s *storedSession) Events() session.Events {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return eventList(s.events)
}

// LastUpdateTime implements [session.Session].
func (s *storedSession) LastUpdateTime() time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.updatedAt
}

// apply adds an event that was stored. The state gets its temporary keys too, which last as long as this copy.
func (s *storedSession) apply(event *session.Event, delta map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.state, delta)
	s.events = append(s.events, event)
	s.updatedAt = event.Timestamp
}

// eventList is a list of events. A session only appends to it, so that readers need no lock.
type eventList []*session.Event

// Len implements [session.Events].
func (l eventList) Len() int { return len(l) }

// At implements [session.Events]. It returns nil if there is no event i.
func (l eventList) At(i int) *session.Event {
	if i < 0 || i >= len(l) {
		return nil
	}
	return l[i]
}

// All implements [session.Events].
func (l eventList) All() iter.Seq[*session.Event] {
	return func(yield func(*session.Event) bool) {
		for _, event := range l {
			if !yield(event) {
				return
			}
		}
	}
}

// stateView is the state of a session. Set changes only this copy, as the framework's services do: what an event's
// StateDelta has is stored.
type stateView struct{ of *storedSession }

// Get implements [session.State].
func (v stateView) Get(key string) (any, error) {
	v.of.mu.RLock()
	defer v.of.mu.RUnlock()
	value, ok := v.of.state[key]
	if !ok {
		return nil, session.ErrStateKeyNotExist
	}
	return value, nil
}

// Set implements [session.State].
func (v stateView) Set(key string, value any) error {
	v.of.mu.Lock()
	defer v.of.mu.Unlock()
	v.of.state[key] = value
	return nil
}

// All implements [session.State].
func (v stateView) All() iter.Seq2[string, any] {
	v.of.mu.RLock()
	defer v.of.mu.RUnlock()
	return maps.All(maps.Clone(v.of.state))
}
