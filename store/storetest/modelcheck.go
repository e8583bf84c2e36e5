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

// check compares all that can be read.
func (m *machine) check(*rapid.T) {
	m.tick()
	m.compareChanges()
	got := m.all()
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(m.oracle.conversations))) {
		m.t.Fatalf("there are %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(m.oracle.conversations)))
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
		same(m.t, "turns of "+id, got[id].Turns, c.turns)
		same(m.t, "events of "+id, got[id].Events, c.events)
		messages += len(kept)
	}
	m.missing(slices.DeleteFunc([]string{"a", "b", "c", "d", "e"}, func(id string) bool { return m.oracle.conversations[id] != nil })...)
	m.compareList(store.List{PageSize: 2}, func(c *parleyv1.Conversation) time.Time { return c.GetCreateTime().AsTime() })
	m.compareList(store.List{PageSize: 2, OldestFirst: true}, func(c *parleyv1.Conversation) time.Time { return c.GetCreateTime().AsTime() })
	m.compareList(store.List{PageSize: 2, Order: byUpdateTime}, func(c *parleyv1.Conversation) time.Time { return c.GetUpdateTime().AsTime() })
	m.compareAbandoned()
	stats, unswept := m.stats(), 0
	for _, waiting := range []map[string]int{m.oracle.expired, m.oracle.ended} {
		for _, n := range waiting {
			unswept += n
		}
	}
	live := len(m.oracle.conversations)
	if n := int(stats.Conversations); n < live || n > live+unswept || n > m.options.MaxConversations && !m.unswept || n == live && int(stats.Messages) != messages {
		m.t.Fatalf("stats: %+v; there are %d conversations, %d messages, and %d expired", stats, live, messages, unswept)
	}
}

// compareChanges takes both sides' changes. When an expired conversation goes is the
// store's affair, but each goes once.
func (m *machine) compareChanges() {
	var got []string
	for _, change := range m.seen.take() {
		if change.Kind == parleyv1.ChangeKind_CHANGE_KIND_EXPIRED {
			m.oracle.expired[change.ConversationID]--
			if m.oracle.expired[change.ConversationID] < 0 {
				m.t.Fatalf("%s is told to have expired", change.ConversationID)
			}
			continue
		}
		if m.uids[change.UID] != change.ConversationID {
			m.t.Fatalf("a change of %s has the uid of %q", change.ConversationID, m.uids[change.UID])
		}
		told := brief([]store.Change{change})[0]
		if m.oracle.ended[told] > 0 {
			m.oracle.ended[told]--
			continue
		}
		got = append(got, told)
	}
	want := m.oracle.changes
	m.oracle.changes = nil
	purged := func(change string) bool { return strings.HasPrefix(change, "DELETED") }
	if len(want) > 1 && purged(want[0]) && purged(want[1]) { // A purge goes in any order.
		slices.Sort(got)
	}
	same(m.t, "changes", got, want)
}

// compareList compares a list with the oracle's, sorted by a time, and filtered by type.
func (m *machine) compareList(l store.List, by func(*parleyv1.Conversation) time.Time) {
	all := slices.Collect(maps.Values(m.oracle.conversations))
	slices.SortFunc(all, func(a, b *told) int { return by(b.header).Compare(by(a.header)) })
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
	same(m.t, l.Order.String()+" with data", slices.Concat(m.pages(l)...), withData)
}

// empty deletes everything and looks whether the counts are those of nothing.
func (m *machine) empty() {
	for _, id := range slices.Sorted(maps.Keys(m.oracle.conversations)) {
		m.both(&store.Delete{ConversationID: id})
	}
	m.clock.Advance(24 * time.Hour)
	m.sweep()
	stats := m.stats()
	stats.Expired, stats.Evicted = 0, 0
	if stats.Conversations != 0 || stats.Messages != 0 || stats.Bytes != 0 {
		m.t.Fatalf("stats when all is deleted: %+v", stats)
	}
	m.compareChanges()
	for id, n := range m.oracle.expired {
		if n != 0 {
			m.t.Fatalf("%s expired, and the store never said so", id)
		}
	}
	for change, n := range m.oracle.ended {
		if n != 0 {
			m.t.Fatalf("the store never said %s", change)
		}
	}
}
