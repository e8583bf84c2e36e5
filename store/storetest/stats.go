package storetest

import (
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// stats tests Stats. The model test compares the counts, too.
func (s Subject) stats(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.MaxConversations = 3, 2 })
	counts := func(what string, conversations, messages, expired, evicted int64) int64 {
		t.Helper()
		got := f.stats()
		bytes := got.Bytes
		got.Bytes, got.FileBytes, got.FileBytesInUse = 0, 0, 0
		same(t, what, got, store.Stats{Conversations: conversations, Messages: messages, Expired: expired, Evicted: evicted})
		f.checkTenantStats()
		return bytes
	}
	if bytes := counts("empty store", 0, 0, 0, 0); bytes != 0 {
		t.Errorf("Stats().Bytes of an empty store = %d, want 0", bytes)
	}
	f.create("a")
	empty := counts("one conversation", 1, 0, 0, 0)
	f.append("a", user("a message of some length"), user("and another one"))
	two := counts("with messages", 1, 2, 0, 0)
	if empty <= 0 || two < empty+40 {
		t.Errorf("Stats().Bytes = %d for an empty conversation, %d with messages", empty, two)
	}
	f.append("a", user("3"), user("4"))
	counts("trimmed", 1, 3, 0, 0)
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(2))})
	counts("cleared", 1, 1, 0, 0)
	f.do(&store.Append{Tenant: "another", ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
	counts("all tenants", 2, 2, 0, 0)
	for name, conversations := range map[string]int64{tenant: 1, "another": 1, "without conversations": 0} {
		of := f.tenantStats(name)
		if (of.Bytes > 0) != (conversations > 0) {
			t.Errorf("TenantStats(%q).Bytes = %d", name, of.Bytes)
		}
		of.Bytes = 0
		same(t, "counts of the tenant "+name, of, store.Stats{Conversations: conversations, Messages: conversations})
	}
	f.beginTurn("a", "turn")
	bytes := counts("while a turn runs", 2, 3, 0, 0)
	if err := f.store.SaveProgress(t.Context(), &store.Progress{
		Tenant: tenant, ConversationID: "a", TurnID: "turn", Messages: []*parleyv1.Message{user("so far")},
	}); err != nil {
		t.Fatal(err)
	}
	if after := counts("with progress", 2, 3, 0, 0); after != bytes {
		t.Errorf("SaveProgress changed Stats().Bytes from %d to %d", bytes, after)
	}
	f.endTurn("a", "turn")
	f.create("b")
	f.create("c")
	f.settle()
	counts("evicted", 3, 1, 0, 1)
	f.clock.Advance(time.Hour + sweepSlack)
	counts("expired, not swept", 3, 1, 0, 1)
	f.sweep()
	if bytes := counts("swept", 0, 0, 3, 1); bytes != 0 {
		t.Errorf("Stats().Bytes after the sweep = %d, want 0", bytes)
	}
}
