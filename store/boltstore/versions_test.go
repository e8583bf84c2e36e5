package boltstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// checkVersions looks at the versions in memory: what is there is what the file has.
func checkVersions(tx *bolt.Tx, tl *tally) (faults []error) {
	for key, got := range tl.versions.byID {
		tenant, id, _ := cutTenant([]byte(key))
		r, err := find(tx, tenant, string(id), record.UnmarshalHead)
		if err != nil {
			faults = append(faults, fmt.Errorf("%q of %q is %+v in memory, and in the file: %w", id, tenant, got, err))
			continue
		}
		c := r.Conversation()
		want := version{known: store.Known{Version: c.GetVersion(), UID: c.GetUid()}, expires: r.ExpireTime(), running: r.Running()}
		if got.known != want.known || got.running != want.running || !got.expires.Equal(want.expires) {
			faults = append(faults, fmt.Errorf("%q of %q is %+v in memory, and in the file %+v", id, tenant, got, want))
		}
	}
	return faults
}

// TestVersionsInMemory checks that a version that was written can be asked for without a
// transaction, which the law cannot see.
func TestVersionsInMemory(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := open(t, newPath(t), store.Options{Now: func() time.Time { return now }, TTL: time.Hour})
	write := func(a *store.Append) store.Known {
		t.Helper()
		a.Tenant, a.ConversationID = "acme", "a"
		result, err := s.Append(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		return store.Known{Version: result.Conversation.GetVersion(), UID: result.Conversation.GetUid()}
	}
	inMemory := func(what string, k store.Known, want bool) {
		t.Helper()
		if got := s.tally.versions.unchanged("acme", "a", k, now); got != want {
			t.Errorf("%s: %+v is known to be the newest: %t", what, k, got)
		}
	}
	first := write(&store.Append{Messages: text("hello")})
	inMemory("made", first, true)
	begun := write(&store.Append{Begin: &parleyv1.Turn{Id: "turn"}})
	inMemory("changed", first, false)
	inMemory("changed", begun, true)
	now = now.Add(2 * time.Hour)
	inMemory("a turn runs", begun, true)
	ended := write(&store.Append{End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_COMPLETED}})
	inMemory("ended", ended, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := s.Read(ctx, &store.Read{Tenant: "acme", ConversationID: "a", Known: ended}); !errors.Is(err, context.Canceled) {
		t.Errorf("Read when nobody waits any more: %v, %v", got, err)
	}
	now = now.Add(time.Hour)
	inMemory("expired", ended, false)
}

// TestVersionsBound fills the memory for versions beyond its limit.
func TestVersionsBound(t *testing.T) {
	const limit = 10
	v := newVersions(limit)
	known := func(i int) store.Known { return store.Known{Version: int32(i)} }
	for i := range 3 * limit {
		v.apply(map[string]version{string(idKey("acme", fmt.Sprint(i))): {known: known(i), running: true}})
		if n := len(v.byID); n != min(i+1, limit) {
			t.Fatalf("%d versions after %d writes", n, i+1)
		}
	}
	for i := range 3 * limit {
		v.apply(map[string]version{string(idKey("acme", fmt.Sprint(i))): {}})
	}
	if len(v.byID) != 0 {
		t.Errorf("%d versions of conversations that are gone", len(v.byID))
	}
}
