package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// tenants tests Tenants.
func (s Subject) tenants(t *testing.T) {
	t.Run("only while they have conversations", s.tenantsWithConversations)
	t.Run("pages", s.tenantPages)
	t.Run("pages while tenants come and go", s.tenantPagesChange)
	t.Run("invalid positions", s.tenantPositions)
	if s.Durable {
		t.Run("after reopening", func(t *testing.T) {
			f := s.open(t, nil)
			f.createIn("left", "right", "gone")
			f.do(&store.Delete{Tenant: "gone", ConversationID: "a"})
			f.reopen(nil)
			same(t, "tenants", f.tenantNames(2), []string{"left", "right"})
			f.checkTenantStats()
		})
	}
}

// tenantsWithConversations removes the conversations of tenants in every way.
func (s Subject) tenantsWithConversations(t *testing.T) {
	f := s.open(t, nil)
	same(t, "tenants of an empty store", f.tenantNames(1), []string(nil))
	for name, remove := range map[string]func(name string){
		"deleted": func(name string) { f.do(&store.Delete{Tenant: name, ConversationID: "a"}) },
		"expired": func(string) { f.clock.Advance(time.Hour + sweepSlack); f.sweep() },
		"purged": func(name string) {
			f.clock.Advance(time.Second)
			if _, err := f.store.Purge(t.Context(), &store.Purge{Tenant: name, InactiveFor: time.Second}); err != nil {
				t.Fatalf("Purge: %v", err)
			}
		},
		"ephemeral": func(name string) {
			h := &store.Hold{Tenant: name, ConversationIDs: []string{"a"}}
			if err := errors.Join(f.store.Hold(t.Context(), h), f.store.Release(t.Context(), h)); err != nil {
				t.Fatalf("Hold and Release: %v", err)
			}
		},
	} {
		f.createIn(name)
		same(t, "tenants before one is "+name, f.tenantNames(1), []string{name})
		f.checkTenantStats()
		remove(name)
		same(t, "tenants after one was "+name, f.tenantNames(1), []string(nil))
		f.checkTenantStats()
	}
	h := &store.Hold{Tenant: "holds only", ConversationIDs: []string{"a"}, DeleteAfter: time.Hour}
	if err := f.store.Hold(t.Context(), h); err != nil {
		t.Fatalf("Hold: %v", err)
	}
	same(t, "tenants with an id that is held and has no conversation", f.tenantNames(1), []string(nil))
	f.createIn("expired, not swept")
	f.clock.Advance(2 * time.Hour)
	same(t, "tenants with an expired conversation", f.tenantNames(1), []string{"expired, not swept"})
}

// tenantPages reads pages of different sizes. The names have different lengths, and one has a NUL byte.
func (s Subject) tenantPages(t *testing.T) {
	f := s.open(t, nil)
	want := []string{"a", "a.", "a\x00", "aa", "b", "é", "tenant-with-a-longer-name"}
	f.createIn(want...)
	f.createIn(want[:3]...) // A tenant with two conversations is listed once.
	slices.Sort(want)
	for limit := range len(want) + 2 {
		same(t, fmt.Sprintf("tenants in pages of %d", limit+1), f.tenantNames(limit+1), want)
	}
}

// tenantPagesChange removes and adds tenants between pages. The others must be listed once.
func (s Subject) tenantPagesChange(t *testing.T) {
	f := s.open(t, nil)
	var stay, leave []string
	for i := range 40 {
		stay, leave = append(stay, fmt.Sprintf("stay%d", i*7%40)), append(leave, fmt.Sprintf("go%d", i*7%40))
	}
	f.createIn(stay...)
	f.createIn(leave...)
	var listed []string
	for after, page := "", 0; ; page++ {
		names, next, err := f.store.Tenants(t.Context(), after, 3)
		if err != nil || len(names) > 3 {
			t.Fatalf("Tenants(%q, 3) = %q, %v", after, names, err)
		}
		for _, name := range names { // The position of the next page may be that of a removed tenant.
			if slices.Contains(leave, name) {
				f.do(&store.Delete{Tenant: name, ConversationID: "a"})
			}
		}
		f.createIn(fmt.Sprintf("new%d", page))
		listed = append(listed, names...)
		if after = next; after == "" {
			break
		}
	}
	slices.Sort(listed)
	slices.Sort(stay)
	if unique := slices.Compact(slices.Clone(listed)); len(unique) != len(listed) {
		t.Errorf("Tenants returned a tenant twice: %q", listed)
	}
	got := slices.DeleteFunc(listed, func(name string) bool { return !slices.Contains(stay, name) })
	same(t, "tenants that had conversations all the time", got, stay)
}

// tenantPositions passes positions that Tenants has not returned.
func (s Subject) tenantPositions(t *testing.T) {
	f := s.open(t, nil)
	f.createIn("a", "b")
	for _, after := range []string{"x", "\x00", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a", "\x01"} {
		names, next, err := f.store.Tenants(t.Context(), after, 2)
		if err != nil && !errors.Is(err, store.ErrPageToken) || len(names) > 2 || next != "" {
			t.Errorf("Tenants(%q) = %q, %q, %v; want ErrPageToken or some tenants", after, names, next, err)
		}
	}
}

// createIn creates a conversation in each of the tenants, with the id "a" if it is free.
func (f *fixture) createIn(tenants ...string) {
	f.t.Helper()
	for _, name := range tenants {
		f.clock.Advance(time.Millisecond)
		c := &store.Create{Tenant: name, Conversation: &parleyv1.Conversation{Id: "a"}}
		_, err := f.try(c)
		if errors.Is(err, store.ErrConversationExists) {
			c.Conversation.Id = "b"
			_, err = f.try(c)
		}
		if err != nil {
			f.t.Fatalf("Create in tenant %q: %v", name, err)
		}
	}
}

// tenantNames returns all tenants, sorted. It reads pages with this limit.
func (f *fixture) tenantNames(limit int) []string {
	f.t.Helper()
	var all []string
	for after := ""; ; {
		names, next, err := f.store.Tenants(f.t.Context(), after, limit)
		if err != nil || len(names) > limit || len(names) == 0 && next != "" {
			f.t.Fatalf("Tenants(%q, %d) = %q, %q, %v", after, limit, names, next, err)
		}
		all = append(all, names...)
		if after = next; after == "" {
			break
		}
	}
	slices.Sort(all)
	return all
}

// checkTenantStats checks that the counts of the tenants add up to those of the store.
func (f *fixture) checkTenantStats() {
	f.t.Helper()
	counts := func(s store.Stats) store.Stats {
		return store.Stats{
			Conversations: s.Conversations, Messages: s.Messages, Bytes: s.Bytes, Records: s.Records, RecordBytes: s.RecordBytes,
		}
	}
	for {
		want, sum := counts(f.stats()), f.sumOfTenants()
		// A store may encode conversations again in the background, which changes their bytes.
		if counts(f.stats()) == want {
			same(f.t, "sum of TenantStats", sum, want)
			return
		}
	}
}

// sumOfTenants returns the sum of the counts of all tenants.
func (f *fixture) sumOfTenants() (sum store.Stats) {
	f.t.Helper()
	names := f.tenantNames(100)
	for _, name := range names {
		if of := f.tenantStats(name); of.Conversations+of.Records <= 0 || of.Bytes <= 0 {
			f.t.Errorf("TenantStats(%q) = %+v, want counts above 0 for a tenant that is listed", name, of)
		}
	}
	if !slices.Contains(names, tenant) {
		names = append(names, tenant) // It may have requests, which have bytes.
	}
	for _, name := range names {
		of := f.tenantStats(name)
		sum.Conversations += of.Conversations
		sum.Messages += of.Messages
		sum.Bytes += of.Bytes
		sum.Records += of.Records
		sum.RecordBytes += of.RecordBytes
	}
	return sum
}

// tenantStats returns the counts of a tenant.
func (f *fixture) tenantStats(name string) store.Stats {
	f.t.Helper()
	stats, err := f.store.TenantStats(f.t.Context(), name)
	if err != nil {
		f.t.Fatalf("TenantStats(%q): %v", name, err)
	}
	return stats
}
