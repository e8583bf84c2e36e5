package storetest

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// offsets tests Snapshot.DroppedBytes and Snapshot.Offsets, with and without dropped messages.
func (s Subject) offsets(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.MaxConversationBytes = 6, 20_000 })
	before, end := make(map[int32]int64), int64(0) // offset of each message ever appended, by sequence
	appendSizes := func(sizes ...int) {
		t.Helper()
		var batch []*parleyv1.Message
		for _, size := range sizes {
			batch = append(batch, user(strings.Repeat("x", size)))
		}
		f.append("a", batch...)
		for _, change := range f.observer.drain() {
			if change.Message == nil {
				continue
			}
			m, err := change.Message.Message()
			if err != nil {
				t.Fatal(err)
			}
			before[m.GetSequence()] = end
			end += int64(proto.Size(m))
		}
	}
	check := func(what string, first, count int32) {
		t.Helper()
		snapshot, want := f.read("a"), []int64{}
		for sequence := range count {
			want = append(want, before[first+sequence])
		}
		same(t, what, snapshot.Offsets(), append(want, end))
		if snapshot.DroppedBytes != want[0] {
			t.Errorf("%s: DroppedBytes = %d, want %d", what, snapshot.DroppedBytes, want[0])
		}
	}
	appendSizes(10, 200, 30)
	check("nothing dropped", 1, 3)
	appendSizes(4, 5, 600, 70, 8)
	check("dropped by count", 3, 6)
	appendSizes(1, 2, 3, 4, 5, 6, 7, 8)
	check("dropped, some in the batch that added them", 11, 6)
	appendSizes(4000, 5000)
	check("by count, bytes just fit", 13, 6)
	appendSizes(2000)
	check("dropped by bytes", 18, 2)
	appendSizes(20_000)
	check("all but the newest dropped", 20, 1)
	appendSizes(1, 20, 300, 4)
	f.do(&store.Update{
		ConversationID: "a", Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 3}},
	})
	check("dropped by a lower limit", 22, 3)
	if s.Durable {
		f.reopen(nil)
		check("reopened", 22, 3)
	}
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(22))})
	f.observer.drain()
	end = before[23]
	check("cleared at the new end", 22, 1)
	appendSizes(50, 60, 70, 80)
	check("dropped after a clear", 26, 3)

	source := f.read("a")
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: source.Messages})
	imported := proto.CloneOf(source.Conversation)
	imported.Id = "import"
	f.do(&store.Import{Conversation: imported, Messages: source.Messages})
	for _, id := range []string{"fork", "import"} {
		if n := f.read(id).DroppedBytes; n != 0 {
			t.Errorf("%s: DroppedBytes = %d, want 0", id, n)
		}
	}
}
