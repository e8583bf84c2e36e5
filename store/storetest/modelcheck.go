package storetest

import (
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// check compares everything that can be read.
func (m *machine) check(*rapid.T) {
	m.nextInstant()
	m.compareChanges()
	got := m.all()
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(m.oracle.conversations))) {
		m.t.Fatalf("List = %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(m.oracle.conversations)))
	}
	var messages int
	for id, c := range m.oracle.conversations {
		kept, err := got[id].Messages.Messages()
		if err != nil {
			m.t.Fatal(err)
		}
		c.header.SizeBytes = int32(len(got[id].Messages))
		same(m.t, id, got[id].Conversation, c.header)
		same(m.t, "messages of "+id, kept, c.messages)
		m.alignTurns(id, c)
		m.compareNewest(id, got[id], c)
		messages += len(kept)
	}
	m.missing(slices.DeleteFunc([]string{"a", "b", "c", "d", "e"}, func(id string) bool {
		return m.oracle.conversations[id] != nil
	})...)
	m.compareList(store.List{PageSize: 2}, func(c *parleyv1.Conversation) time.Time { return c.GetCreateTime().AsTime() })
	m.compareList(store.List{PageSize: 2, OldestFirst: true}, func(c *parleyv1.Conversation) time.Time {
		return c.GetCreateTime().AsTime()
	})
	m.compareList(store.List{PageSize: 2, Order: byUpdateTime}, func(c *parleyv1.Conversation) time.Time {
		return c.GetUpdateTime().AsTime()
	})
	m.checkTurns()
	m.compareAbandoned()
	m.checkRecords()
	stats, unswept := m.stats(), 0
	for _, counts := range []map[string]int{m.oracle.expired, m.oracle.ended} {
		for _, n := range counts {
			unswept += n
		}
	}
	m.checkTenantStats()
	live := len(m.oracle.conversations)
	if n := int(stats.Conversations); n < live || n > live+unswept || m.oracle.excess(n-live) > 0 && !m.unswept ||
		n == live && int(stats.Messages) != messages {
		m.t.Fatalf("Stats() = %+v, want %d conversations, %d messages, and at most %d expired ones", stats, live, messages,
			unswept)
	}
}

// compareChanges compares the changes of store and oracle. The store may remove an expired
// conversation at any time, but only once.
func (m *machine) compareChanges() {
	var got []string
	for _, change := range m.observer.drain() {
		if change.Kind == parleyv1.ChangeKind_CHANGE_KIND_EXPIRED {
			m.oracle.expired[change.ConversationID]--
			if m.oracle.expired[change.ConversationID] < 0 {
				m.t.Fatalf("unexpected EXPIRED change of %s", change.ConversationID)
			}
			continue
		}
		if m.uids[change.UID] != change.ConversationID {
			m.t.Fatalf("change of %s has the uid of %q", change.ConversationID, m.uids[change.UID])
		}
		summary := summaries([]store.Change{change})[0]
		if m.oracle.ended[summary] > 0 {
			m.oracle.ended[summary]--
			continue
		}
		got = append(got, summary)
	}
	want := m.oracle.changes
	m.oracle.changes = nil
	isDelete := func(change string) bool { return strings.HasPrefix(change, "DELETED") }
	if len(want) > 1 && isDelete(want[0]) && isDelete(want[1]) { // The order within a purge is not defined.
		slices.Sort(got)
	}
	same(m.t, "changes", got, want)
}

// compareList compares a list with the oracle's conversations sorted by a time, with and without a
// filter by type.
func (m *machine) compareList(l store.List, by func(*parleyv1.Conversation) time.Time) {
	all := slices.Collect(maps.Values(m.oracle.conversations))
	slices.SortFunc(all, func(a, b *oracleConversation) int { return by(b.header).Compare(by(a.header)) })
	if l.OldestFirst {
		slices.Reverse(all)
	}
	var want, withData []string
	for _, c := range all {
		want = append(want, c.header.GetId())
		if slices.ContainsFunc(c.messages, func(m *parleyv1.Message) bool { return len(m.GetStructuredData()) > 0 }) {
			withData = append(withData, c.header.GetId())
		}
	}
	same(m.t, l.Order.String(), slices.Concat(m.pages(l)...), want)
	l.StructuredDataType = "list"
	same(m.t, l.Order.String()+" with structured data", slices.Concat(m.pages(l)...), withData)
}

// deleteAll deletes all conversations and checks that all counts are zero.
func (m *machine) deleteAll() {
	for _, id := range slices.Sorted(maps.Keys(m.oracle.conversations)) {
		m.writeBoth(&store.Delete{ConversationID: id})
	}
	m.deleteRecords()
	m.clock.Advance(24 * time.Hour)
	m.sweep()
	stats := m.stats()
	stats.Expired, stats.Evicted = 0, 0
	if stats.Conversations != 0 || stats.Messages != 0 || stats.Bytes != 0 || stats.Records != 0 ||
		stats.RecordBytes != 0 {
		m.t.Fatalf("Stats() after deleting everything = %+v, want zero counts", stats)
	}
	m.compareChanges()
	for id, n := range m.oracle.expired {
		if n != 0 {
			m.t.Fatalf("no EXPIRED change of %s", id)
		}
	}
	for change, n := range m.oracle.ended {
		if n != 0 {
			m.t.Fatalf("missing change %s", change)
		}
	}
}
