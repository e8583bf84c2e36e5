package record

import (
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
)

// Session is what an id is as session memory. The zero Session is that of any other id.
type Session struct {
	// Held: somebody holds the id.
	Held bool
	// DeleteTime is when its time is over; zero while it is held.
	DeleteTime time.Time
}

// IsZero reports whether the id is no session memory and has not been any.
func (s Session) IsZero() bool { return !s.Held && s.DeleteTime.IsZero() }

// Over reports whether the id was session memory whose time is over at this instant.
func (s Session) Over(now time.Time) bool { return !s.DeleteTime.IsZero() && !now.Before(s.DeleteTime) }

// Lasts reports whether the id is session memory at this instant.
func (s Session) Lasts(now time.Time) bool { return s.Held || now.Before(s.DeleteTime) }

// Expired reports whether a conversation with that expire_time is no more at this instant;
// running says that a turn runs on it.
func (s Session) Expired(now, expire time.Time, running bool) bool {
	if !s.IsZero() {
		return s.Over(now)
	}
	return !running && !now.Before(expire)
}

// Sessions says what an id of one tenant is as session memory; nil: no id is.
type Sessions func(id string) Session

// Of calls s, unless it is nil.
func (s Sessions) Of(id string) Session {
	if s == nil {
		return Session{}
	}
	return s(id)
}

// IDs returns the ids of a hold, each once.
func IDs(h *store.Hold) []string {
	return slices.Compact(slices.Sorted(slices.Values(h.ConversationIDs)))
}
