package record

import (
	"slices"
	"time"

	"github.com/parleyhq/parley/store"
)

// Ephemeral is the state of an id with respect to holds. The zero value means that the id is not
// ephemeral.
type Ephemeral struct {
	// Held is true while a client holds the id.
	Held bool
	// DeleteTime is the time at which the conversation ends; zero while the id is held.
	DeleteTime time.Time
}

// IsZero reports whether the id is not ephemeral.
func (s Ephemeral) IsZero() bool { return !s.Held && s.DeleteTime.IsZero() }

// HasEnded reports whether the ephemeral conversation has ended at this time.
func (s Ephemeral) HasEnded(now time.Time) bool {
	return !s.DeleteTime.IsZero() && !now.Before(s.DeleteTime)
}

// IsActive reports whether the id is ephemeral and has not ended at this time.
func (s Ephemeral) IsActive(now time.Time) bool { return s.Held || now.Before(s.DeleteTime) }

// Expired reports whether a conversation with that expire_time has expired or ended at this time.
// running reports whether a turn runs on it.
func (s Ephemeral) Expired(now, expire time.Time, running bool) bool {
	if !s.IsZero() {
		return s.HasEnded(now)
	}
	return !running && !now.Before(expire)
}

// NotFound returns the error of a read of a conversation: store.ExpiredError if it has expired, store.ErrNotFound if it
// is ephemeral and has ended, nil if it is live. The parameters are those of Expired.
func (s Ephemeral) NotFound(now, expire time.Time, running bool) error {
	switch {
	case !s.Expired(now, expire, running):
		return nil
	case s.IsZero():
		return &store.ExpiredError{At: expire}
	default:
		return store.ErrNotFound
	}
}

// EphemeralStates returns the state of an id of one tenant. If nil, no id is ephemeral.
type EphemeralStates func(id string) Ephemeral

// Of calls s. If s is nil, it returns the zero value.
func (s EphemeralStates) Of(id string) Ephemeral {
	if s == nil {
		return Ephemeral{}
	}
	return s(id)
}

// HoldIDs returns the ids of a hold in order, each once.
func HoldIDs(h *store.Hold) []string {
	return slices.Compact(slices.Sorted(slices.Values(h.ConversationIDs)))
}
