package record

import (
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
)

// Session is the state of an id with respect to holds. The zero value means that the id is not
// ephemeral.
type Session struct {
	// Held is true while a client holds the id.
	Held bool
	// DeleteTime is the time at which the conversation ends; zero while the id is held.
	DeleteTime time.Time
}

// IsZero reports whether the id is not ephemeral.
func (s Session) IsZero() bool { return !s.Held && s.DeleteTime.IsZero() }

// Over reports whether the ephemeral conversation has ended at this time.
func (s Session) Over(now time.Time) bool { return !s.DeleteTime.IsZero() && !now.Before(s.DeleteTime) }

// Lasts reports whether the id is ephemeral and has not ended at this time.
func (s Session) Lasts(now time.Time) bool { return s.Held || now.Before(s.DeleteTime) }

// Expired reports whether a conversation with that expire_time has expired or ended at this time.
// running reports whether a turn runs on it.
func (s Session) Expired(now, expire time.Time, running bool) bool {
	if !s.IsZero() {
		return s.Over(now)
	}
	return !running && !now.Before(expire)
}

// Sessions returns the state of an id of one tenant. If nil, no id is ephemeral.
type Sessions func(id string) Session

// Of calls s. If s is nil, it returns the zero value.
func (s Sessions) Of(id string) Session {
	if s == nil {
		return Session{}
	}
	return s(id)
}

// IDs returns the ids of a hold in order, each once.
func IDs(h *store.Hold) []string {
	return slices.Compact(slices.Sorted(slices.Values(h.ConversationIDs)))
}
