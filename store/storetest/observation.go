package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Numbers of the appends of observedAppends.
const (
	observedWriters       = 64
	observedWrites        = 10 // of a writer
	observedConversations = 4
)

// observedAppends appends pairs of messages concurrently and returns the changes that were observed.
func (s Subject) observedAppends(t *testing.T) []store.Change {
	t.Helper()
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 1000 })
	var reported sync.Map
	f.observer.setCallback(func(changes []store.Change) {
		for _, c := range changes {
			reported.Store(fmt.Sprint(c.ConversationID, c.Version), true)
		}
	})
	var group sync.WaitGroup
	for w := range observedWriters {
		group.Go(func() {
			id := fmt.Sprint("c", w%observedConversations)
			for range observedWrites {
				result, err := f.store.Append(t.Context(), &store.Append{
					Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user("one"), user("two")},
				})
				if err != nil {
					t.Errorf("Append: %v", err)
					continue
				}
				if _, ok := reported.Load(fmt.Sprint(id, result.Conversation.GetVersion())); !ok {
					t.Errorf("%s version %d: the write returned before its change was observed", id, result.Conversation.GetVersion())
				}
			}
		})
	}
	group.Wait()
	return f.observer.drain()
}

// checkObservedAppends checks that the changes of observedAppends are complete and in order.
func checkObservedAppends(t *testing.T, changes []store.Change) {
	t.Helper()
	sequences, versions := make(map[string]int32), make(map[string]int32)
	for _, c := range changes {
		id := c.ConversationID
		if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
			if sequences[id] != 0 {
				t.Errorf("%s: CREATED after sequence %d", id, sequences[id])
			}
			continue
		}
		sequences[id]++
		if got := c.Message.Sequence(); c.Kind != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || got != sequences[id] {
			t.Fatalf("%s: change %v with sequence %d, want sequence %d", id, kind(c.Kind), got, sequences[id])
		}
		versions[id] = (sequences[id] + 1) / 2
		if c.Version != versions[id] {
			t.Errorf("%s: sequence %d has version %d, want %d", id, sequences[id], c.Version, versions[id])
		}
	}
	for id, n := range sequences {
		if n != 2*observedWriters*observedWrites/observedConversations {
			t.Errorf("%s: %d messages were observed, want %d", id, n, 2*observedWriters*observedWrites/observedConversations)
		}
	}
	if len(sequences) != observedConversations {
		t.Errorf("changes of %d conversations were observed, want %d", len(sequences), observedConversations)
	}
}

func (s Subject) law07Observation(t *testing.T) {
	t.Run("each change once, in the order of commit", func(t *testing.T) {
		// A store of several processes may tell a GAP if this process did not run for a moment. Then the test begins again.
		for attempt := 1; ; attempt++ {
			changes := s.observedAppends(t)
			missed := slices.ContainsFunc(changes, func(c store.Change) bool {
				return c.Kind == parleyv1.ChangeKind_CHANGE_KIND_GAP
			})
			if !missed {
				checkObservedAppends(t, changes)
				return
			}
			if !s.Together || attempt == 5 {
				t.Fatalf("a GAP was observed in %d attempts of %d", attempt, attempt)
			}
		}
	})
	t.Run("places", s.places)
	t.Run("after the commit, outside any transaction", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("other")
		started, proceed, done := make(chan struct{}), make(chan struct{}), make(chan error)
		start := sync.OnceFunc(func() { close(started) })
		f.observer.setCallback(func([]store.Change) {
			start()
			<-proceed
		})
		go func() {
			_, err := f.store.Append(t.Context(), &store.Append{
				Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{user("hello")},
			})
			done <- err
		}()
		<-started
		if n := f.read("a").Messages.Count(); n != 1 {
			t.Errorf("Read inside the observer returned %d messages, want 1", n)
		}
		f.list(store.List{PageSize: 1})
		f.stats()
		f.observer.setCallback(nil)
		close(proceed)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// places tests the places of changes. If the store has no order that other processes know, all places are zero.
// Otherwise they rise within one epoch, and the last change of a commit has LastIndex.
func (s Subject) places(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxConversations = 2 })
	ordered, ok := f.store.(store.Ordered)
	var before store.Place
	if ok = ok && s.Lanes <= 1; ok { // Several buckets have no common order.
		_, before = ordered.Since(tenant)
	}
	first := before
	for _, id := range []string{"a", "b", "c"} { // The third evicts the first.
		f.create(id)
		f.append(id, user("one"), user("two"), user("three"))
		changes := f.observer.drain()
		for i := range changes {
			place, last := changes[i].Place, i == len(changes)-1 || changes[i+1].Version != changes[i].Version
			switch {
			case !ok && place != store.Place{}:
				t.Errorf("a store without an order has the place %v", place)
			case ok && (place.Epoch != before.Epoch || place.Epoch == "" || place.Compare(before) <= 0):
				t.Errorf("%s of %s has the place %v after %v", kind(changes[i].Kind), changes[i].ConversationID, place, before)
			case ok && last != (place.Index == store.LastIndex) && changes[i].Kind != parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
				t.Errorf("%s of %s has the place %v", kind(changes[i].Kind), changes[i].ConversationID, place)
			}
			before = place
		}
	}
	if !ok {
		return
	}
	if _, since := ordered.Since(tenant); since != first {
		t.Errorf("Since moved from %v to %v without a GAP", first, since)
	}
}

// changes tests which changes each kind of write reports.
func (s Subject) changes(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
	expectChanges := func(what string, want ...string) []store.Change {
		t.Helper()
		changes := f.observer.drain()
		same(t, what, summaries(changes), want)
		return changes
	}
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a", SystemPrompt: "be brief", Title: "title"}})
	created := expectChanges("Create", "CREATED a version 1 count 0 trimmed 0")
	f.clock.Advance(time.Second)
	f.append("a", user("one"), user("two"), user("three"))
	appended := expectChanges("Append",
		"MESSAGE_APPENDED a version 2 count 1 trimmed 0", "MESSAGE_APPENDED a version 2 count 2 trimmed 0",
		"MESSAGE_APPENDED a version 2 count 3 trimmed 0")
	messages := f.messages("a")
	f.append("a", user("four"), user("five"))
	expectChanges("Append over the limit", "MESSAGE_APPENDED a version 3 count 4 trimmed 0",
		"MESSAGE_APPENDED a version 3 count 4 trimmed 1")
	f.append("new", user("one"))
	expectChanges("Append to a missing conversation", "CREATED new version 1 count 1 trimmed 0",
		"MESSAGE_APPENDED new version 1 count 1 trimmed 0")
	f.do(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "turn"}})
	started := expectChanges("a turn without a message", "UPDATED a version 4 count 4 trimmed 0")
	f.do(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "turn"}})
	expectChanges("end of the turn", "UPDATED a version 5 count 4 trimmed 0")
	f.do(&store.Update{
		ConversationID: "a", Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 3}},
	})
	expectChanges("a lower limit", "UPDATED a version 6 count 3 trimmed 1")
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(3))})
	cleared := expectChanges("Clear", "CLEARED a version 7 count 2 trimmed 0, removed after 3")
	f.do(&store.Delete{ConversationID: "a"})
	deleted := expectChanges("Delete", "DELETED a version 7 count 1 trimmed 0")

	for i, m := range messages {
		got, err := appended[i].Message.Message()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "message of the change", got, m)
	}
	for _, c := range []store.Change{created[0], started[0], cleared[0]} {
		if c.Conversation.GetVersion() != c.Version || c.Conversation.GetTitle() != "title" ||
			c.Conversation.GetSystemPrompt() != "" {
			t.Errorf("%s has the header %v", kind(c.Kind), c.Conversation)
		}
	}
	if turn := started[0].Conversation.GetActiveTurnId(); turn != "turn" {
		t.Errorf("active_turn_id = %q, want turn", turn)
	}
	if c := deleted[0]; c.Conversation != nil || c.Message != nil {
		t.Errorf("DELETED has header %v and message %v, want neither", c.Conversation, c.Message)
	}
	for _, c := range []store.Change{created[0], appended[2], deleted[0]} {
		if c.UID != created[0].Conversation.GetUid() || c.UID == "" || c.Tenant != tenant {
			t.Errorf("%s has uid %q and tenant %q", kind(c.Kind), c.UID, c.Tenant)
		}
	}
	if !appended[0].Time.Equal(messages[0].GetCreateTime().AsTime()) {
		t.Errorf("time of the change = %v, want the create_time %v", appended[0].Time, messages[0].GetCreateTime().AsTime())
	}
}
