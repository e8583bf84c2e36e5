package record_test

import (
	"slices"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

func TestSession(t *testing.T) {
	expire := time.Unix(1_800_000_000, 0)
	early, late := expire.Add(-time.Hour), expire.Add(time.Hour)
	for _, test := range []struct {
		name                   string
		session                record.Ephemeral
		now                    time.Time
		running                bool
		expired, ended, active bool
	}{
		{"not ephemeral", record.Ephemeral{}, expire.Add(-1), false, false, false, false},
		{"not ephemeral, at expire_time", record.Ephemeral{}, expire, false, true, false, false},
		{"not ephemeral, with a turn", record.Ephemeral{}, late, true, false, false, false},
		{"held", record.Ephemeral{Held: true}, late, false, false, false, true},
		{"released, after expire_time", record.Ephemeral{DeleteTime: late}, late.Add(-1), false, false, false, true},
		{"ended", record.Ephemeral{DeleteTime: late}, late, false, true, true, false},
		{"ended, with a turn", record.Ephemeral{DeleteTime: late}, late, true, true, true, false},
		{"ended before expire_time", record.Ephemeral{DeleteTime: early}, early, false, true, true, false},
	} {
		if got := test.session.Expired(test.now, expire, test.running); got != test.expired {
			t.Errorf("%s: Expired = %v", test.name, got)
		}
		if got := test.session.HasEnded(test.now); got != test.ended {
			t.Errorf("%s: Over = %v", test.name, got)
		}
		if got := test.session.IsActive(test.now); got != test.active {
			t.Errorf("%s: Lasts = %v", test.name, got)
		}
		if got := record.EphemeralStates(func(string) record.Ephemeral { return test.session }).Of("a"); got != test.session {
			t.Errorf("%s: Sessions.Of = %+v", test.name, got)
		}
	}
	if got := record.EphemeralStates(nil).Of("a"); !got.IsZero() {
		t.Errorf("Of of nil Sessions = %+v, want zero", got)
	}
}

func TestIDs(t *testing.T) {
	h := &store.Hold{ConversationIDs: []string{"b", "a", "", "b", "a"}}
	if got, want := record.HoldIDs(h), []string{"", "a", "b"}; !slices.Equal(got, want) {
		t.Errorf("IDs = %q, want %q", got, want)
	}
	if want := []string{"b", "a", "", "b", "a"}; !slices.Equal(h.ConversationIDs, want) {
		t.Errorf("the caller's slice = %q, want it unchanged", h.ConversationIDs)
	}
}
