package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func (s Subject) law07Observation(t *testing.T) {
	t.Run("each change once, in the order of commit", func(t *testing.T) {
		const writers, writes = 64, 10
		f := s.open(t, func(o *store.Options) { o.MaxMessages = 1000 })
		var told sync.Map
		f.seen.and(func(changes []store.Change) {
			for _, c := range changes {
				told.Store(fmt.Sprint(c.ConversationID, c.Version), true)
			}
		})
		var group sync.WaitGroup
		for w := range writers {
			group.Go(func() {
				id := fmt.Sprint("c", w%4)
				for range writes {
					result, err := f.store.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user("one"), user("two")}})
					if err != nil {
						t.Errorf("Append: %v", err)
						continue
					}
					if _, ok := told.Load(fmt.Sprint(id, result.Conversation.GetVersion())); !ok {
						t.Errorf("%s version %d: the write returned before its change was told", id, result.Conversation.GetVersion())
					}
				}
			})
		}
		group.Wait()
		sequences, versions := make(map[string]int32), make(map[string]int32)
		for _, c := range f.seen.take() {
			id := c.ConversationID
			if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
				if sequences[id] != 0 {
					t.Errorf("%s is told to be made after sequence %d", id, sequences[id])
				}
				continue
			}
			sequences[id]++
			if got := c.Message.Sequence(); c.Kind != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED || got != sequences[id] {
				t.Fatalf("%s: change %v, sequence %d, where sequence %d belongs", id, kind(c.Kind), got, sequences[id])
			}
			versions[id] = (sequences[id] + 1) / 2
			if c.Version != versions[id] {
				t.Errorf("%s: sequence %d comes with version %d, want %d", id, sequences[id], c.Version, versions[id])
			}
		}
		for id, n := range sequences {
			if n != 2*writers*writes/4 {
				t.Errorf("%s: %d messages were told, want %d", id, n, 2*writers*writes/4)
			}
		}
	})
	t.Run("after the commit, outside any transaction", func(t *testing.T) {
		f := s.open(t, nil)
		f.create("other")
		begun, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error)
		begin := sync.OnceFunc(func() { close(begun) })
		f.seen.and(func([]store.Change) {
			begin()
			<-goOn
		})
		go func() {
			_, err := f.store.Append(t.Context(), &store.Append{Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{user("hello")}})
			done <- err
		}()
		<-begun
		if n := f.read("a").Messages.Count(); n != 1 {
			t.Errorf("%d messages are there when the observer is told of the first", n)
		}
		f.list(store.List{PageSize: 1})
		f.stats()
		f.seen.and(nil)
		close(goOn)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// changes checks what is told of each kind of write.
func (s Subject) changes(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages = 4 })
	told := func(what string, want ...string) []store.Change {
		t.Helper()
		changes := f.seen.take()
		same(t, what, brief(changes), want)
		return changes
	}
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "a", SystemPrompt: "be brief", Title: "title"}})
	created := told("Create", "CREATED a version 1 count 0 trimmed 0")
	f.clock.Advance(time.Second)
	f.append("a", user("one"), user("two"), user("three"))
	appended := told("Append",
		"MESSAGE_APPENDED a version 2 count 1 trimmed 0", "MESSAGE_APPENDED a version 2 count 2 trimmed 0", "MESSAGE_APPENDED a version 2 count 3 trimmed 0")
	messages := f.messages("a")
	f.append("a", user("four"), user("five"))
	told("Append over the limit", "MESSAGE_APPENDED a version 3 count 4 trimmed 0", "MESSAGE_APPENDED a version 3 count 4 trimmed 1")
	f.append("new", user("one"))
	told("Append to none", "CREATED new version 1 count 1 trimmed 0", "MESSAGE_APPENDED new version 1 count 1 trimmed 0")
	f.do(&store.Append{ConversationID: "a", Begin: &parleyv1.Turn{Id: "turn"}})
	begun := told("a turn without a message", "UPDATED a version 4 count 4 trimmed 0")
	f.do(&store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: "turn"}})
	told("its end", "UPDATED a version 5 count 4 trimmed 0")
	f.do(&store.Update{ConversationID: "a", Fields: []string{"retention.max_messages"}, Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 3}}})
	told("a lower limit", "UPDATED a version 6 count 3 trimmed 1")
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(3))})
	cleared := told("Clear", "CLEARED a version 7 count 2 trimmed 0")
	f.do(&store.Delete{ConversationID: "a"})
	deleted := told("Delete", "DELETED a version 7 count 1 trimmed 0")

	for i, m := range messages {
		got, err := appended[i].Message.Message()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "message of the change", got, m)
	}
	for _, c := range []store.Change{created[0], begun[0], cleared[0]} {
		if c.Conversation.GetVersion() != c.Version || c.Conversation.GetTitle() != "title" || c.Conversation.GetSystemPrompt() != "" {
			t.Errorf("%s comes with %v", kind(c.Kind), c.Conversation)
		}
	}
	if turn := begun[0].Conversation.GetActiveTurnId(); turn != "turn" {
		t.Errorf("active turn %q", turn)
	}
	if c := deleted[0]; c.Conversation != nil || c.Message != nil {
		t.Errorf("DELETED comes with %v, %v", c.Conversation, c.Message)
	}
	for _, c := range []store.Change{created[0], appended[2], deleted[0]} {
		if c.UID != created[0].Conversation.GetUid() || c.UID == "" || c.Tenant != tenant {
			t.Errorf("%s tells of uid %q, tenant %q", kind(c.Kind), c.UID, c.Tenant)
		}
	}
	if !appended[0].Time.Equal(messages[0].GetCreateTime().AsTime()) {
		t.Errorf("time %v of a message made at %v", appended[0].Time, messages[0].GetCreateTime().AsTime())
	}
}
