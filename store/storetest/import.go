package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// imports tests Import.
func (s Subject) imports(t *testing.T) {
	t.Run("unchanged", s.importUnchanged)
	t.Run("derived fields", s.importDerived)
	t.Run("limits", s.importLimits)
	t.Run("existing id", s.importExisting)
	t.Run("capacity", s.importCapacity)
	t.Run("order in lists", s.importOrder)
	t.Run("expired", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.expectError(f.newImport("late", 2*time.Hour+2*time.Second), store.ErrExpired)
		over := f.newImport("a", 3*time.Hour)
		over.Overwrite = true
		f.expectError(over, store.ErrExpired)
		last := f.newImport("last", 2*time.Hour+2*time.Second)
		last.Conversation.LastAppendTime.Nanos++ // It expires one nanosecond later.
		f.do(last)
		f.observer.drain()
		f.clock.Advance(1)
		f.missing("last")
		f.sweep()
		same(t, "changes", summaries(f.observer.drain()), []string{"EXPIRED last version 41 count 4 trimmed 0"})
	})
	t.Run("ephemeral", func(t *testing.T) {
		f := s.open(t, nil)
		hold := &store.Hold{Tenant: tenant, ConversationIDs: []string{"a"}, DeleteAfter: time.Minute}
		if err := f.store.Hold(t.Context(), hold); err != nil {
			t.Fatal(err)
		}
		late := f.newImport("a", 24*time.Hour)
		result := f.do(late)
		same(t, "header", f.header("a"), importedHeader(late, result))
		if err := f.store.Release(t.Context(), hold); err != nil {
			t.Fatal(err)
		}
		f.header("a")
		f.clock.Advance(time.Minute)
		f.missing("a")
		f.expectError(late, store.ErrExpired)
		f.do(f.newImport("a", time.Minute))
		same(t, "changes", summaries(f.observer.drain()), []string{
			"DELETED a version 41 count 4 trimmed 0" + ephemeralEnded, "CREATED a version 41 count 4 trimmed 0",
		})
	})
	t.Run("nothing is stored if decoding fails", func(t *testing.T) {
		f := s.open(t, nil)
		i := f.newImport("a", time.Minute)
		i.Messages = i.Messages[:len(i.Messages)-1]
		f.expectError(i, store.ErrCorrupt)
		f.expectError(&store.Import{Conversation: &parleyv1.Conversation{
			Id: "a", Title: "no UTF-8: \xff", Version: 1, LastAppendTime: timestamppb.New(f.clock.Now()),
		}}, nil)
	})
}

func (s Subject) importUnchanged(t *testing.T) {
	f := s.open(t, nil)
	i := f.newImport("a", 40*time.Minute)
	given := proto.CloneOf(i.Conversation)
	result := f.do(i)
	want := importedHeader(i, result)
	same(t, "caller's argument", i.Conversation, given)
	changes := f.observer.drain()
	same(t, "changes", summaries(changes), []string{"CREATED a version 41 count 4 trimmed 0"})
	if at := changes[0].Time; !at.Equal(f.clock.Now()) {
		t.Errorf("time of the change = %v, want the time of the commit", at)
	}
	check := func(what string) {
		t.Helper()
		snapshot := f.read("a")
		same(t, what, snapshot, &store.Snapshot{Conversation: want, Messages: i.Messages})
		for _, list := range []store.List{
			{}, {StructuredDataType: "table", Labels: map[string]string{"team": "blue"}}, {OldestFirst: true},
		} {
			list.PageSize = 9
			row := proto.CloneOf(want)
			row.SystemPrompt = ""
			same(t, what+": row", f.list(list).Entries, []*parleyv1.ConversationEntry{{Conversation: row, Preview: "a2"}})
		}
		if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 4 {
			t.Errorf("%s: Stats() = %+v", what, stats)
		}
	}
	check("imported")
	row := proto.CloneOf(want)
	row.SystemPrompt = ""
	same(t, "result", result, &store.Result{Conversation: row, Created: true})
	same(t, "header of the change", changes[0].Conversation, row)
	if s.Durable {
		f.reopen(nil)
		check("reopened")
	}
	next := f.append("a", assistant("a2b"), user("q3"))
	if a := next.Appended; a[0].GetSequence() != 24 || a[0].GetExchange() != 7 || a[1].GetExchange() != 8 ||
		next.Conversation.GetVersion() != 42 {
		t.Errorf("Append after Import = %v", next)
	}
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(4))})
	if c := f.header("a"); c.GetMessageCount() != 2 || c.GetLastSequence() != 25 {
		t.Errorf("header after clearing = %v", c)
	}
}

func (s Subject) importDerived(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.TTL = 3, time.Hour })
	i := f.newImport("a", time.Minute)
	given := proto.CloneOf(i.Conversation)
	long := timestamppb.New(time.Unix(1, 0))
	i.Conversation.MessageCount, i.Conversation.SizeBytes = 99, 99
	i.Conversation.ActiveTurnId, i.Conversation.ExpireTime = "turn", long
	result := f.do(i)
	i.Conversation = given
	same(t, "header", f.header("a"), importedHeader(i, result))
	f.beginTurn("a", "another turn")

	i = f.newImport("b", time.Minute)
	i.Conversation.Retention = nil
	i.Conversation.ActiveAgent.LeaseExpireTime = timestamppb.New(f.clock.Now())
	f.observer.drain()
	f.do(i)
	got := f.header("b")
	same(t, "retention", got.GetRetention(), &parleyv1.Retention{MaxMessages: 3, Ttl: durationpb.New(time.Hour)})
	same(t, "a lease that has ended", got.GetActiveAgent(), (*parleyv1.ActiveAgent)(nil))
	changes := f.observer.drain()
	same(t, "changes", summaries(changes), []string{"CREATED b version 41 count 3 trimmed 1"})
	same(t, "the lease in the change", changes[0].Conversation.GetActiveAgent(), (*parleyv1.ActiveAgent)(nil))
	if ttl := got.GetExpireTime().AsTime().Sub(got.GetLastAppendTime().AsTime()); ttl != time.Hour {
		t.Errorf("conversation expires %v after its last append, want 1h", ttl)
	}

	i = f.newImport("cleared", time.Minute)
	i.Messages = nil
	i.Conversation.MessageCount, i.Conversation.SizeBytes = 99, 99
	result = f.do(i)
	same(t, "without messages", f.header("cleared"), importedHeader(i, result))
	if a := f.append("cleared", user("q")).Appended[0]; a.GetSequence() != 24 || a.GetExchange() != 1 {
		t.Errorf("Append after Import without messages = %v, want sequence 24 and exchange 1", a)
	}

	// The requests and turns of the source are not stored with the copy.
	r := request("r", "hello")
	f.do(&store.Append{
		ConversationID: "source", Messages: []*parleyv1.Message{user("hello")}, Request: r, Begin: &parleyv1.Turn{Id: "turn"},
	})
	source := f.read("source")
	source.Conversation.Id = "copy"
	f.do(&store.Import{Conversation: source.Conversation, Messages: source.Messages})
	same(t, "turns of the copy", f.read("copy").Turns, []*parleyv1.Turn(nil))
	again := f.do(&store.Append{
		ConversationID: "copy", Messages: []*parleyv1.Message{user("hello")}, Request: r, Begin: &parleyv1.Turn{Id: "turn"},
	})
	if again.Replayed || again.Appended[0].GetSequence() != 2 {
		t.Errorf("Append to the copy = %v, want no replay", again)
	}
}

func (s Subject) importLimits(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversationBytes = 2000 })
	i := f.newImport("few", time.Minute)
	i.Conversation.Retention.MaxMessages = 1
	f.do(i)
	same(t, "changes", summaries(f.observer.drain()), []string{"CREATED few version 41 count 1 trimmed 3"})
	if m := f.messages("few"); len(m) != 1 || m[0].GetSequence() != 20 {
		t.Errorf("kept messages = %v, want only sequence 20", m)
	}
	if page := f.list(store.List{PageSize: 9, StructuredDataType: "table"}); len(page.Entries) != 0 {
		t.Errorf("List by the type of a dropped message = %v, want none", ids(page))
	}
	for size, want := range map[int][]int32{900: {2, 3}, 3000: {3}} {
		i = f.newImport(fmt.Sprint("large", size), time.Minute)
		var large []*parleyv1.Message
		for n := range int32(3) {
			large = append(large, &parleyv1.Message{
				Id: "id", Role: parleyv1.Role_ROLE_USER, Sequence: n + 1, Content: strings.Repeat("x", size),
			})
		}
		i.Messages = frames(t, large...)
		f.do(i)
		var got []int32
		for _, m := range f.messages(i.Conversation.GetId()) {
			got = append(got, m.GetSequence())
		}
		if c := f.header(i.Conversation.GetId()); !slices.Equal(got, want) || int(c.GetMessageCount()) != len(want) ||
			c.GetLastSequence() != 23 {
			t.Errorf("messages of %d bytes: kept sequences = %v, want %v; header %v", size, got, want, c)
		}
	}
}

func (s Subject) importExisting(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("hello"), assistant("hi", "greeting"))
	f.expectError(f.newImport("a", time.Minute), store.ErrConversationExists)
	over := f.newImport("a", time.Minute)
	over.Overwrite = true
	f.beginTurn("a", "turn")
	f.expectError(f.newImport("a", time.Minute), store.ErrConversationExists)
	f.expectError(over, &store.BusyError{TurnID: "turn"})
	f.endTurn("a", "turn")
	f.observer.drain()
	result := f.do(over)
	same(t, "changes", summaries(f.observer.drain()), []string{
		"DELETED a version 3 count 4 trimmed 0", "CREATED a version 41 count 4 trimmed 0",
	})
	same(t, "header", f.header("a"), importedHeader(over, result))
	same(t, "turns", f.read("a").Turns, []*parleyv1.Turn(nil))
	same(t, "list", f.pages(store.List{PageSize: 9}), [][]string{{"a"}})
	same(t, "list by the old type", f.pages(store.List{PageSize: 9, StructuredDataType: "greeting"}), [][]string{nil})
	if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 4 || stats.Evicted+stats.Expired != 0 {
		t.Errorf("Stats() = %+v", stats)
	}
	over = f.newImport("new", time.Minute)
	over.Overwrite = true
	f.do(over)
	same(t, "changes of a new conversation", summaries(f.observer.drain()), []string{
		"CREATED new version 41 count 4 trimmed 0",
	})

	f.create("expired")
	f.clock.Advance(time.Hour)
	f.observer.drain()
	result = f.do(f.newImport("expired", time.Minute))
	same(t, "changes of replacing an expired conversation", summaries(f.observer.drain()), []string{
		"EXPIRED expired version 1 count 0 trimmed 0", "CREATED expired version 41 count 4 trimmed 0",
	})
	same(t, "header", f.header("expired"), importedHeader(f.newImport("expired", time.Minute), result))
	// The clock was set back. The times of the changes must still not be before those of earlier
	// changes.
	last := f.append("a", user("hello")).Conversation.GetUpdateTime().AsTime()
	f.clock.Advance(-30 * time.Second)
	over = f.newImport("a", time.Minute)
	over.Overwrite = true
	f.observer.drain()
	f.do(over)
	for _, c := range f.observer.drain() {
		if c.Time.Before(last) {
			t.Errorf("change %s has the time %v, want none before the last change", kind(c.Kind), c.Time)
		}
	}
}

func (s Subject) importCapacity(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 3 })
	f.create("a")
	f.clock.Advance(30 * time.Minute)
	f.create("b")
	f.do(f.newImport("c", 10*time.Minute))
	f.whenFull("d", 3, func() { f.expectError(f.newImport("d", time.Minute), store.ErrFull) })
	f.do(&store.Create{Tenant: "another", Conversation: &parleyv1.Conversation{Id: "d"}})
	over := f.newImport("b", time.Minute)
	over.Overwrite = true
	f.do(over)
	if stats := f.stats(); stats.Conversations != 4 || stats.Evicted != 0 {
		t.Errorf("Stats() = %+v", stats)
	}
	f.clock.Advance(30 * time.Minute) // a expires.
	f.observer.drain()
	f.do(f.newImport("d", time.Minute))
	f.sameChanges("EXPIRED a version 1 count 0 trimmed 0", "CREATED d version 41 count 4 trimmed 0")
	same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"d", "b", "c"}})
	f.whenFull("e", 3, func() { f.expectError(f.newImport("e", time.Minute), store.ErrFull) })
	// The imported conversation is now the oldest and is evicted first.
	f.create("e")
	f.settle()
	f.missing("c")
}

func (s Subject) importOrder(t *testing.T) {
	f := s.open(t, nil)
	f.create("now")
	f.clock.Advance(time.Minute)
	f.create("later")
	for _, id := range []string{"x", "y", "z"} { // All have the same create time, whose order several buckets do not keep.
		if s.lanes() > 1 {
			f.clock.Advance(1)
		}
		f.do(f.newImport(id, 30*time.Second))
	}
	f.do(f.newImport("oldest", 20*time.Minute))
	want := []string{"oldest", "now", "x", "y", "z", "later"}
	check := func() {
		t.Helper()
		for _, size := range []int{1, 2, 9} {
			same(t, "oldest first", slices.Concat(f.pages(store.List{PageSize: size, OldestFirst: true})...), want)
		}
		backward := slices.Clone(want)
		slices.Reverse(backward)
		same(t, "newest first", f.pages(store.List{PageSize: 9}), [][]string{backward})
	}
	check()
	if s.Durable {
		f.reopen(nil)
		check()
	}
	purged, err := f.store.Purge(t.Context(), &store.Purge{Tenant: tenant, InactiveFor: 10 * time.Minute})
	if err != nil || !slices.Equal(purged.SampleIDs, []string{"oldest"}) {
		t.Errorf("Purge = %v, %v, want only the oldest", purged, err)
	}
}
