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

// imports is the test of Import.
func (s Subject) imports(t *testing.T) {
	t.Run("as it was", s.importAsItWas)
	t.Run("what the store sets", s.importDerived)
	t.Run("limits", s.importLimits)
	t.Run("an id that is taken", s.importTaken)
	t.Run("room", s.importRoom)
	t.Run("its place", s.importPlace)
	t.Run("expired", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("a")
		f.refuse(f.importing("late", 2*time.Hour+2*time.Second), store.ErrExpired)
		over := f.importing("a", 3*time.Hour)
		over.Overwrite = true
		f.refuse(over, store.ErrExpired)
		last := f.importing("last", 2*time.Hour+2*time.Second)
		last.Conversation.LastAppendTime.Nanos++ // So long it has.
		f.do(last)
		f.seen.take()
		f.clock.Advance(1)
		f.missing("last")
		f.sweep()
		same(t, "changes", brief(f.seen.take()), []string{"EXPIRED last version 41 count 4 trimmed 0"})
	})
	t.Run("session memory", func(t *testing.T) {
		f := s.open(t, nil)
		hold := &store.Hold{Tenant: tenant, ConversationIDs: []string{"a"}, DeleteAfter: time.Minute}
		if err := f.store.Hold(t.Context(), hold); err != nil {
			t.Fatal(err)
		}
		late := f.importing("a", 24*time.Hour)
		result := f.do(late)
		same(t, "header", f.header("a"), imported(late, result))
		if err := f.store.Release(t.Context(), hold); err != nil {
			t.Fatal(err)
		}
		f.header("a")
		f.clock.Advance(time.Minute)
		f.missing("a")
		f.refuse(late, store.ErrExpired)
		f.do(f.importing("a", time.Minute))
		same(t, "changes", brief(f.seen.take()), []string{"DELETED a version 41 count 4 trimmed 0" + sessionEnded, "CREATED a version 41 count 4 trimmed 0"})
	})
	t.Run("nothing of what cannot be decoded", func(t *testing.T) {
		f := s.open(t, nil)
		i := f.importing("a", time.Minute)
		i.Messages = i.Messages[:len(i.Messages)-1]
		f.refuse(i, store.ErrCorrupt)
		f.refuse(&store.Import{Conversation: &parleyv1.Conversation{Id: "a", Title: "no UTF-8: \xff", Version: 1, LastAppendTime: timestamppb.New(f.clock.Now())}}, nil)
	})
}

func (s Subject) importAsItWas(t *testing.T) {
	f := s.open(t, nil)
	i := f.importing("a", 40*time.Minute)
	given := proto.CloneOf(i.Conversation)
	result := f.do(i)
	want := imported(i, result)
	same(t, "the caller's header", i.Conversation, given)
	told := f.seen.take()
	same(t, "changes", brief(told), []string{"CREATED a version 41 count 4 trimmed 0"})
	if at := told[0].Time; !at.Equal(f.clock.Now()) {
		t.Errorf("the change has the time %v, want that of the commit", at)
	}
	look := func(what string) {
		t.Helper()
		snapshot := f.read("a")
		same(t, what, snapshot, &store.Snapshot{Conversation: want, Messages: i.Messages})
		for _, list := range []store.List{{}, {StructuredDataType: "table", Labels: map[string]string{"team": "blue"}}, {OldestFirst: true}} {
			list.PageSize = 9
			row := proto.CloneOf(want)
			row.SystemPrompt = ""
			same(t, what+": row", f.list(list).Entries, []*parleyv1.ConversationEntry{{Conversation: row, Preview: "a2"}})
		}
		if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 4 {
			t.Errorf("%s: stats %+v", what, stats)
		}
	}
	look("imported")
	row := proto.CloneOf(want)
	row.SystemPrompt = ""
	same(t, "result", result, &store.Result{Conversation: row, Created: true})
	same(t, "header of the change", told[0].Conversation, row)
	if s.Durable {
		f.reopen(nil)
		look("opened again")
	}
	next := f.append("a", assistant("a2b"), user("q3"))
	if a := next.Appended; a[0].GetSequence() != 24 || a[0].GetExchange() != 7 || a[1].GetExchange() != 8 || next.Conversation.GetVersion() != 42 {
		t.Errorf("it goes on with %v", next)
	}
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(4))})
	if c := f.header("a"); c.GetMessageCount() != 2 || c.GetLastSequence() != 25 {
		t.Errorf("cleared: %v", c)
	}
}

func (s Subject) importDerived(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.TTL = 3, time.Hour })
	i := f.importing("a", time.Minute)
	given := proto.CloneOf(i.Conversation)
	long := timestamppb.New(time.Unix(1, 0))
	i.Conversation.MessageCount, i.Conversation.SizeBytes, i.Conversation.ActiveTurnId, i.Conversation.ExpireTime = 99, 99, "turn", long
	result := f.do(i)
	i.Conversation = given
	same(t, "header", f.header("a"), imported(i, result))
	f.begin("a", "another turn")

	i = f.importing("b", time.Minute)
	i.Conversation.Retention = nil
	i.Conversation.ActiveAgent.LeaseExpireTime = timestamppb.New(f.clock.Now())
	f.seen.take()
	f.do(i)
	got := f.header("b")
	same(t, "retention", got.GetRetention(), &parleyv1.Retention{MaxMessages: 3, Ttl: durationpb.New(time.Hour)})
	same(t, "a lease that has run out", got.GetActiveAgent(), (*parleyv1.ActiveAgent)(nil))
	told := f.seen.take()
	same(t, "changes", brief(told), []string{"CREATED b version 41 count 3 trimmed 1"})
	same(t, "the lease in the change", told[0].Conversation.GetActiveAgent(), (*parleyv1.ActiveAgent)(nil))
	if ttl := got.GetExpireTime().AsTime().Sub(got.GetLastAppendTime().AsTime()); ttl != time.Hour {
		t.Errorf("it lives for %v after its last append", ttl)
	}

	i = f.importing("cleared", time.Minute)
	i.Messages = nil
	i.Conversation.MessageCount, i.Conversation.SizeBytes = 99, 99
	result = f.do(i)
	same(t, "without messages", f.header("cleared"), imported(i, result))
	if a := f.append("cleared", user("q")).Appended[0]; a.GetSequence() != 24 || a.GetExchange() != 1 {
		t.Errorf("it goes on with %v", a)
	}

	// What a request or a turn did elsewhere is not known here.
	r := request("r", "hello")
	f.do(&store.Append{ConversationID: "source", Messages: []*parleyv1.Message{user("hello")}, Request: r, Begin: &parleyv1.Turn{Id: "turn"}})
	source := f.read("source")
	source.Conversation.Id = "copy"
	f.do(&store.Import{Conversation: source.Conversation, Messages: source.Messages})
	same(t, "turns of the copy", f.read("copy").Turns, []*parleyv1.Turn(nil))
	again := f.do(&store.Append{ConversationID: "copy", Messages: []*parleyv1.Message{user("hello")}, Request: r, Begin: &parleyv1.Turn{Id: "turn"}})
	if again.Replayed || again.Appended[0].GetSequence() != 2 {
		t.Errorf("the request is known to the copy: %v", again)
	}
}

func (s Subject) importLimits(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversationBytes = 2000 })
	i := f.importing("few", time.Minute)
	i.Conversation.Retention.MaxMessages = 1
	f.do(i)
	same(t, "changes", brief(f.seen.take()), []string{"CREATED few version 41 count 1 trimmed 3"})
	if m := f.messages("few"); len(m) != 1 || m[0].GetSequence() != 20 {
		t.Errorf("kept is %v", m)
	}
	if page := f.list(store.List{PageSize: 9, StructuredDataType: "table"}); len(page.Entries) != 0 {
		t.Errorf("listed by a type that was dropped: %v", ids(page))
	}
	for size, want := range map[int][]int32{900: {2, 3}, 3000: {3}} {
		i = f.importing(fmt.Sprint("large", size), time.Minute)
		var large []*parleyv1.Message
		for n := range int32(3) {
			large = append(large, &parleyv1.Message{Id: "id", Role: parleyv1.Role_ROLE_USER, Sequence: n + 1, Content: strings.Repeat("x", size)})
		}
		i.Messages = frames(t, large...)
		f.do(i)
		var got []int32
		for _, m := range f.messages(i.Conversation.GetId()) {
			got = append(got, m.GetSequence())
		}
		if c := f.header(i.Conversation.GetId()); !slices.Equal(got, want) || int(c.GetMessageCount()) != len(want) || c.GetLastSequence() != 23 {
			t.Errorf("messages of %d bytes: %v are kept, want %v; %v", size, got, want, c)
		}
	}
}

func (s Subject) importTaken(t *testing.T) {
	f := s.open(t, nil)
	f.append("a", user("hello"), assistant("hi", "greeting"))
	f.refuse(f.importing("a", time.Minute), store.ErrConversationExists)
	over := f.importing("a", time.Minute)
	over.Overwrite = true
	f.begin("a", "turn")
	f.refuse(f.importing("a", time.Minute), store.ErrConversationExists)
	f.refuse(over, &store.BusyError{TurnID: "turn"})
	f.end("a", "turn")
	f.seen.take()
	result := f.do(over)
	same(t, "changes", brief(f.seen.take()), []string{"DELETED a version 3 count 4 trimmed 0", "CREATED a version 41 count 4 trimmed 0"})
	same(t, "header", f.header("a"), imported(over, result))
	same(t, "turns", f.read("a").Turns, []*parleyv1.Turn(nil))
	same(t, "list", f.pages(store.List{PageSize: 9}), [][]string{{"a"}})
	same(t, "by the old type", f.pages(store.List{PageSize: 9, StructuredDataType: "greeting"}), [][]string{nil})
	if stats := f.stats(); stats.Conversations != 1 || stats.Messages != 4 || stats.Evicted+stats.Expired != 0 {
		t.Errorf("stats %+v", stats)
	}
	over = f.importing("new", time.Minute)
	over.Overwrite = true
	f.do(over)
	same(t, "changes of one that was not there", brief(f.seen.take()), []string{"CREATED new version 41 count 4 trimmed 0"})

	f.create("expired")
	f.clock.Advance(time.Hour)
	f.seen.take()
	result = f.do(f.importing("expired", time.Minute))
	same(t, "changes in place of one that has expired", brief(f.seen.take()), []string{
		"EXPIRED expired version 1 count 0 trimmed 0", "CREATED expired version 41 count 4 trimmed 0",
	})
	same(t, "header", f.header("expired"), imported(f.importing("expired", time.Minute), result))
	// The clock was set back: the change is not told ahead of those before it.
	last := f.append("a", user("hello")).Conversation.GetUpdateTime().AsTime()
	f.clock.Advance(-30 * time.Second)
	over = f.importing("a", time.Minute)
	over.Overwrite = true
	f.seen.take()
	f.do(over)
	for _, c := range f.seen.take() {
		if c.Time.Before(last) {
			t.Errorf("%s has the time %v", kind(c.Kind), c.Time)
		}
	}
}

func (s Subject) importRoom(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 3 })
	f.create("a")
	f.clock.Advance(30 * time.Minute)
	f.create("b")
	f.do(f.importing("c", 10*time.Minute))
	f.refuse(f.importing("d", time.Minute), store.ErrFull)
	f.do(&store.Create{Tenant: "another", Conversation: &parleyv1.Conversation{Id: "d"}})
	over := f.importing("b", time.Minute)
	over.Overwrite = true
	f.do(over)
	if stats := f.stats(); stats.Conversations != 4 || stats.Evicted != 0 {
		t.Errorf("stats %+v", stats)
	}
	f.clock.Advance(30 * time.Minute) // a expires.
	f.seen.take()
	f.do(f.importing("d", time.Minute))
	same(t, "changes", brief(f.seen.take()), []string{"EXPIRED a version 1 count 0 trimmed 0", "CREATED d version 41 count 4 trimmed 0"})
	same(t, "what is left", f.pages(store.List{PageSize: 9}), [][]string{{"d", "b", "c"}})
	f.refuse(f.importing("e", time.Minute), store.ErrFull)
	// The one that is the oldest now goes first.
	f.create("e")
	f.missing("c")
}

func (s Subject) importPlace(t *testing.T) {
	f := s.open(t, nil)
	f.create("now")
	f.clock.Advance(time.Minute)
	f.create("later")
	for _, id := range []string{"x", "y", "z"} { // All of the same instant.
		f.do(f.importing(id, 30*time.Second))
	}
	f.do(f.importing("oldest", 20*time.Minute))
	want := []string{"oldest", "now", "x", "y", "z", "later"}
	look := func() {
		t.Helper()
		for _, size := range []int{1, 2, 9} {
			same(t, "oldest first", slices.Concat(f.pages(store.List{PageSize: size, OldestFirst: true})...), want)
		}
		backward := slices.Clone(want)
		slices.Reverse(backward)
		same(t, "newest first", f.pages(store.List{PageSize: 9}), [][]string{backward})
	}
	look()
	if s.Durable {
		f.reopen(nil)
		look()
	}
	purged, err := f.store.Purge(t.Context(), &store.Purge{Tenant: tenant, InactiveFor: 10 * time.Minute})
	if err != nil || !slices.Equal(purged.SampleIDs, []string{"oldest"}) {
		t.Errorf("Purge: %v, %v", purged, err)
	}
}
