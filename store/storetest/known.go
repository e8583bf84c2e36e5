package storetest

import (
	"errors"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// checkKnown checks Read.Known for a conversation that was just read, and stores its state for
// checkKnownMissing. Every read of other tests calls it.
func (f *fixture) checkKnown(id string, c *parleyv1.Conversation) {
	f.t.Helper()
	now := store.Known{Version: c.GetVersion(), UID: c.GetUid()}
	f.known[id] = now
	for _, k := range []store.Known{
		now,
		{Version: now.Version},
		{Version: now.Version - 1, UID: now.UID},
		{Version: now.Version + 1},
		{Version: now.Version, UID: "other"},
		{UID: now.UID},
		{},
	} {
		for _, newest := range []int{0, 1} {
			got, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Known: k, Newest: newest})
			if err != nil {
				f.t.Fatalf("Read(%s) with known %+v: %v", id, k, err)
			}
			if want := k.Version == now.Version && k.UID != "other"; got.Unchanged != want {
				f.t.Errorf("Read(%s) in state %+v with known %+v: Unchanged = %t, want %t", id, now, k, got.Unchanged, want)
			}
			if got.Unchanged {
				same(f.t, "unchanged "+id, got, &store.Snapshot{Unchanged: true})
			} else {
				same(f.t, "version of "+id, got.Conversation.GetVersion(), now.Version)
			}
		}
	}
}

// checkKnownMissing checks Read.Known for a conversation that does not exist.
func (f *fixture) checkKnownMissing(id string) {
	f.t.Helper()
	for _, k := range []store.Known{f.known[id], {Version: f.known[id].Version}, {Version: 1}} {
		got, err := f.store.Read(f.t.Context(), &store.Read{Tenant: tenant, ConversationID: id, Known: k})
		if !errors.Is(err, store.ErrNotFound) || got != nil {
			f.t.Errorf("Read(%s) of a missing conversation with known %+v = %v, %v, want ErrNotFound", id, k, got, err)
		}
	}
}

// knownOrder reads with Known while versions are written. After any reader has seen a version, no
// reader may get Unchanged for an older version.
func (s Subject) knownOrder(t *testing.T) {
	const readers, writes = 8, 300
	f := s.open(t, nil)
	f.append("a", user("hello"))
	written := make(chan struct{})
	var group sync.WaitGroup
	for range readers {
		group.Go(func() {
			for seen := int32(1); ; {
				select {
				case <-written:
					return
				default:
				}
				snapshot, err := f.store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a"})
				if err != nil {
					t.Error(err)
					return
				}
				now := snapshot.Conversation.GetVersion()
				if now < seen {
					t.Errorf("Read returned version %d after version %d", now, seen)
				}
				seen = now
				before, err := f.store.Read(t.Context(), &store.Read{
					Tenant: tenant, ConversationID: "a", Known: store.Known{Version: now - 1},
				})
				if err != nil || before.Unchanged {
					t.Errorf("Read returned version %d, then Unchanged for the older version %d (%v)", now, now-1, err)
					return
				}
			}
		})
	}
	for range writes {
		f.append("a", user("more"))
	}
	close(written)
	group.Wait()
}
