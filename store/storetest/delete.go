package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// delete tests Delete.
func (s Subject) delete(t *testing.T) {
	f := s.open(t, nil)
	f.expectError(&store.Delete{ConversationID: "a"}, store.ErrNotFound)
	f.expectError(&store.Delete{ConversationID: "a", IfVersion: new(int32)}, store.ErrNotFound)
	f.append("a", user("hello"), assistant("hi", "list"))
	f.append("b", user("hello"))
	f.expectError(&store.Delete{ConversationID: "a", IfVersion: new(int32(2))},
		&store.VersionError{Current: 1, Required: 2})
	f.beginTurn("a", "turn")
	f.do(&store.Delete{ConversationID: "a", IfVersion: new(int32(2))}) // A running turn does not prevent it.
	f.missing("a")
	f.expectError(&store.Delete{ConversationID: "a"}, store.ErrNotFound)
	same(t, "remaining conversations", f.pages(store.List{PageSize: 9}), [][]string{{"b"}})
	if page := f.list(store.List{PageSize: 9, StructuredDataType: "list"}); len(page.Entries) != 0 || page.Total != 1 {
		t.Errorf("List by type = %v, total %d, want none, total 1", ids(page), page.Total)
	}
}

// purge tests Purge.
func (s Subject) purge(t *testing.T) {
	purge := func(f *fixture, inactive time.Duration, dry bool) store.Purged {
		f.t.Helper()
		purged, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant, InactiveFor: inactive, DryRun: dry})
		if err != nil {
			f.t.Fatalf("Purge: %v", err)
		}
		slices.Sort(purged.SampleIDs)
		return purged
	}
	t.Run("only inactive conversations", func(t *testing.T) {
		f := s.open(t, nil)
		same(t, "empty store", purge(f, time.Minute, false), store.Purged{})
		short := &parleyv1.Conversation{Id: "expired", Retention: withTTL(time.Minute)}
		f.do(&store.Create{Conversation: short})
		f.append("old", user("hello"), user("again"))
		f.beginTurn("old with a turn", "turn")
		f.append("appended to", user("hello"))
		f.append("updated", user("hello"))
		f.clock.Advance(10 * time.Minute)
		f.append("appended to", user("again"))
		f.do(&store.Update{
			ConversationID: "updated", Fields: []string{"title"}, Values: &parleyv1.Conversation{Title: "title"},
		})
		f.append("new", user("hello"))
		want := store.Purged{Count: 3, SampleIDs: []string{"old", "old with a turn", "updated"}}
		before := f.all()
		f.observer.drain()
		same(t, "dry run", purge(f, 9*time.Minute, true), want)
		same(t, "after a dry run", f.all(), before)
		if changes := f.observer.drain(); len(changes) > 0 {
			t.Errorf("a dry run reported %v", summaries(changes))
		}
		same(t, "purged", purge(f, 9*time.Minute, false), want)
		f.missing(want.SampleIDs...)
		for _, id := range want.SampleIDs {
			delete(before, id)
		}
		same(t, "remaining conversations", f.all(), before)
		changes := slices.DeleteFunc(summaries(f.observer.drain()), func(c string) bool {
			return c == "EXPIRED expired version 1 count 0 trimmed 0"
		})
		slices.Sort(changes)
		same(t, "changes", changes, []string{
			"DELETED old version 1 count 2 trimmed 0", "DELETED old with a turn version 1 count 1 trimmed 0",
			"DELETED updated version 2 count 1 trimmed 0",
		})
	})
	t.Run("exact time", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("a", user("hello"))
		f.clock.Advance(time.Minute - 1)
		same(t, "one nanosecond early", purge(f, time.Minute, false), store.Purged{})
		f.clock.Advance(1)
		same(t, "on time", purge(f, time.Minute, false), store.Purged{Count: 1, SampleIDs: []string{"a"}})
	})
	t.Run("at most 100 samples", func(t *testing.T) {
		f := s.open(t, nil)
		f.fill(130)
		f.clock.Advance(time.Minute)
		for _, dry := range []bool{true, false} {
			purged := purge(f, time.Minute, dry)
			if purged.Count != 130 || len(slices.Compact(purged.SampleIDs)) != 100 {
				t.Errorf("Purge, dry run %t = %d conversations, %d samples, want 130 and 100", dry, purged.Count,
					len(purged.SampleIDs))
			}
		}
		if stats := f.stats(); stats.Conversations != 0 || stats.Expired != 0 || stats.Evicted != 0 {
			t.Errorf("Stats() = %+v", stats)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		const all = 700
		f := s.open(t, nil)
		f.fill(all)
		f.clock.Advance(time.Minute)
		f.observer.drain()
		ctx, cancel := context.WithCancel(t.Context())
		f.observer.setCallback(func([]store.Change) { cancel() })
		purged, err := f.store.Purge(ctx, &store.Purge{Tenant: tenant, InactiveFor: time.Minute})
		reported := int64(len(f.observer.drain()))
		if !errors.Is(err, context.Canceled) || purged.Count == 0 || purged.Count == all {
			t.Errorf("cancelled Purge = %d of %d, %v, want a part and context.Canceled", purged.Count, all, err)
		}
		if left := f.stats().Conversations; purged.Count != reported || left != all-reported {
			t.Errorf("Purge deleted %d, reported %d changes, left %d", purged.Count, reported, left)
		}
		for _, id := range purged.SampleIDs {
			f.missing(id)
		}
		f.observer.setCallback(nil)
		same(t, "second purge", purge(f, time.Minute, false).Count, all-reported)
	})
}

func withTTL(ttl time.Duration) *parleyv1.Retention {
	return &parleyv1.Retention{Ttl: durationpb.New(ttl)}
}

// read tests Read.
func (s Subject) read(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
	f.missing("a")
	asked := request("r", "hello")
	f.do(&store.Append{
		ConversationID: "a", Messages: []*parleyv1.Message{user("1"), user("2"), user("3"), user("4"), user("5")},
		Begin: &parleyv1.Turn{Id: "turn"}, Request: asked,
	})
	f.do(&store.Append{ConversationID: "a", Messages: []*parleyv1.Message{user("6")}, Request: request("r2", "hello")})
	read := func(r store.Read) (*store.Snapshot, error) {
		r.Tenant = tenant
		return f.store.Read(t.Context(), &r)
	}
	without, err := read(store.Read{ConversationID: "a", Newest: -1})
	if err != nil {
		t.Fatal(err)
	}
	shared, err := read(store.Read{ConversationID: "a", Newest: -1, Shared: true})
	if err != nil || !bytes.Equal(shared.Messages, without.Messages) {
		t.Errorf("Read of shared messages = %v, %v", shared, err)
	}
	for newest, want := range map[int][]int32{
		-1: {3, 4, 5, 6}, 0: nil, 1: {6}, 3: {4, 5, 6}, 4: {3, 4, 5, 6}, 1000: {3, 4, 5, 6},
	} {
		snapshot, err := read(store.Read{ConversationID: "a", Newest: newest})
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for frame := range snapshot.Messages.All() {
			got = append(got, frame.Sequence())
		}
		same(t, fmt.Sprint("newest ", newest), got, want)
		if snapshot.Turns != nil || snapshot.Seen != nil || snapshot.Conversation.GetVersion() != 2 {
			t.Errorf("Read, newest %d = %+v", newest, snapshot)
		}
	}
	otherMethod := *asked
	otherMethod.Method = "Chat"
	for _, test := range []struct {
		id      string
		request *store.Request
		want    *store.Seen
		err     error
	}{
		{"a", asked, &store.Seen{Created: true, TurnID: "turn"}, nil},
		{"a", request("r2", "hello"), &store.Seen{}, nil},
		{"a", request("r3", "hello"), nil, nil},
		{"a", &otherMethod, nil, nil},
		{"a", request("r", "other"), nil, store.ErrRequestReused},
		{"b", asked, nil, store.ErrNotFound},
	} {
		snapshot, err := read(store.Read{ConversationID: test.id, Request: test.request})
		switch {
		case !errors.Is(err, test.err) || err != nil && snapshot != nil:
			t.Errorf("Read(%s) with request %s = %v, want %v", test.id, test.request.ID, err, test.err)
		case err == nil:
			same(t, "Seen", snapshot.Seen, test.want)
		}
	}
}
