package storetest

import (
	"slices"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

func (s Subject) law03Durability(t *testing.T) {
	t.Run("a batch is stored completely or not at all", func(t *testing.T) {
		f := s.open(t, nil)
		f.append("there", user("hello"))
		for _, id := range []string{"there", "new"} {
			f.expectError(&store.Append{
				ConversationID: id, Messages: []*parleyv1.Message{user("good"), user("no UTF-8: \xff"), user("good")},
				Request: request("r", ""),
			}, nil)
			f.expectError(&store.Append{
				ConversationID: id, Messages: []*parleyv1.Message{user("good")}, Begin: &parleyv1.Turn{Id: "turn", Agent: "\xff"},
			}, nil)
		}
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "new", Title: "\xff"}}, nil)
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "new"}, Request: request("\xff", "")}, nil)
		f.expectError(&store.Update{ConversationID: "there", Lease: &store.Lease{Agent: "writer", Reason: "\xff"}}, nil)
		messages := f.read("there").Messages
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: messages[:len(messages)-1]},
			store.ErrCorrupt)
		f.expectError(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: append(slices.Clone(messages),
			0)}, store.ErrCorrupt)
		f.missing("new", "fork")
	})
	t.Run("written before Close", func(t *testing.T) {
		if !s.Durable {
			t.Skip("this store keeps no data after Close")
		}
		f := s.open(t, nil)
		f.create("empty")
		for _, write := range writes(f) {
			f.do(write)
		}
		f.beginTurn("running", "turn 2")
		f.append("cleared", user("one"), user("two"), user("three"))
		f.do(&store.Update{ConversationID: "cleared", KeepThrough: new(int32(1))})
		f.create("deleted")
		f.do(&store.Delete{ConversationID: "deleted"})
		token := f.list(store.List{PageSize: 2}).NextPageToken
		before, stats := f.all(), f.stats()

		for range 2 {
			f.reopen(nil)
			same(t, "after Close and Open", f.all(), before)
			after := f.stats()
			after.FileBytes, after.FileBytesInUse = stats.FileBytes, stats.FileBytesInUse
			same(t, "counts after Close and Open", after, stats)
			f.missing("deleted")
			if page := f.list(store.List{PageSize: 10, PageToken: token}); len(page.Entries) != len(before)-2 {
				t.Errorf("List with a token from before Close = %v", ids(page))
			}
		}
		again := f.do(&store.Append{
			ConversationID: "a", Messages: []*parleyv1.Message{user("question")}, Request: request("r2", "question"),
		})
		if !again.Replayed {
			t.Error("a request from before Close was not replayed")
		}
		if result := f.append("a", user("next")); result.Appended[0].GetSequence() != 5 {
			t.Errorf("sequence = %d, want 5", result.Appended[0].GetSequence())
		}
	})
}
