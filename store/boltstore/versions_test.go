package boltstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// checkVersions checks that the cached versions are those in the file.
func checkVersions(from reader, tl *tally) (faults []error) {
	for key, got := range tl.versions.byID {
		tenant, id, _ := layout.CutTenant([]byte(key))
		f, err := from.find(tenant, string(id), head)
		if err != nil {
			faults = append(faults, fmt.Errorf("cached version of %q of %q is %+v, in the file: %w", id, tenant, got, err))
			continue
		}
		r := f.record
		c := r.Conversation()
		want := version{
			known: store.Known{Version: c.GetVersion(), UID: c.GetUid()}, expires: r.ExpireTime(), running: r.Running(),
		}
		if got.known != want.known || got.running != want.running || !got.expires.Equal(want.expires) {
			faults = append(faults, fmt.Errorf("cached version of %q of %q is %+v, in the file %+v", id, tenant, got, want))
		}
	}
	return faults
}

// TestVersionsCached checks that a read with the newest version needs no transaction. The tests of
// the law cannot observe that.
func TestVersionsCached(t *testing.T) {
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
	wantCached := func(what string, k store.Known, want bool) {
		t.Helper()
		if got := s.tally.versions.unchanged(string(layout.IDKey("acme", "a")), k, now, record.Ephemeral{}); got != want {
			t.Errorf("%s: unchanged(%+v) = %t", what, k, got)
		}
	}
	first := write(&store.Append{Messages: text("hello")})
	wantCached("made", first, true)
	started := write(&store.Append{Begin: &parleyv1.Turn{Id: "turn"}})
	wantCached("changed", first, false)
	wantCached("changed", started, true)
	now = now.Add(2 * time.Hour)
	wantCached("a turn runs", started, true)
	ended := write(&store.Append{End: &parleyv1.Turn{Id: "turn", State: parleyv1.TurnState_TURN_STATE_COMPLETED}})
	wantCached("ended", ended, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := s.Read(ctx, &store.Read{
		Tenant: "acme", ConversationID: "a", Known: ended,
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("Read with an ended context = %v, %v, want Canceled", got, err)
	}
	now = now.Add(time.Hour)
	wantCached("expired", ended, false)
}

// TestVersionsLimit adds more versions than the limit.
func TestVersionsLimit(t *testing.T) {
	const limit = 10
	v := newVersions(limit)
	known := func(i int) store.Known { return store.Known{Version: int32(i)} }
	for i := range 3 * limit {
		v.apply(map[string]version{string(layout.IDKey("acme", fmt.Sprint(i))): {known: known(i), running: true}})
		if n := len(v.byID); n != min(i+1, limit) {
			t.Fatalf("%d versions after %d writes", n, i+1)
		}
	}
	for i := range 3 * limit {
		v.apply(map[string]version{string(layout.IDKey("acme", fmt.Sprint(i))): {}})
	}
	if len(v.byID) != 0 {
		t.Errorf("%d versions of removed conversations, want none", len(v.byID))
	}
}
