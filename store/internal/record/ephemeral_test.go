package record_test

import (
	"slices"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

func TestEphemeral(t *testing.T) {
	expire := time.Unix(1_800_000_000, 0)
	early, late := expire.Add(-time.Hour), expire.Add(time.Hour)
	for _, test := range []struct {
		name                   string
		state                  record.Ephemeral
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
		if got := test.state.Expired(test.now, expire, test.running); got != test.expired {
			t.Errorf("%s: Expired() = %v, want %v", test.name, got, test.expired)
		}
		if got := test.state.HasEnded(test.now); got != test.ended {
			t.Errorf("%s: HasEnded() = %v, want %v", test.name, got, test.ended)
		}
		if got := test.state.IsActive(test.now); got != test.active {
			t.Errorf("%s: IsActive() = %v, want %v", test.name, got, test.active)
		}
		if got := record.EphemeralStates(func(string) record.Ephemeral { return test.state }).Of("a"); got != test.state {
			t.Errorf("%s: EphemeralStates.Of() = %+v, want %+v", test.name, got, test.state)
		}
	}
	if got := record.EphemeralStates(nil).Of("a"); !got.IsZero() {
		t.Errorf("EphemeralStates(nil).Of() = %+v, want zero", got)
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
