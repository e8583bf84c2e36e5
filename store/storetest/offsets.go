package storetest

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// offsets is the test of what a snapshot tells of the bytes ahead of its messages, whatever
// is still kept of them.
func (s Subject) offsets(t *testing.T) {
	f := s.open(t, func(o *store.Options) { o.MaxMessages, o.MaxConversationBytes = 6, 20_000 })
	before, end := make(map[int32]int64), int64(0) // of each message ever appended
	say := func(sizes ...int) {
		t.Helper()
		var batch []*parleyv1.Message
		for _, size := range sizes {
			batch = append(batch, user(strings.Repeat("x", size)))
		}
		f.append("a", batch...)
		for _, change := range f.seen.take() {
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
			t.Errorf("%s: %d bytes were dropped, want %d", what, snapshot.DroppedBytes, want[0])
		}
	}
	say(10, 200, 30)
	check("nothing dropped", 1, 3)
	say(4, 5, 600, 70, 8)
	check("dropped by count", 3, 6)
	say(1, 2, 3, 4, 5, 6, 7, 8)
	check("dropped, some of them before they were kept", 11, 6)
	say(4000, 5000)
	check("by count, bytes just fit", 13, 6)
	say(2000)
	check("dropped by bytes", 18, 2)
	say(20_000)
	check("all but the newest dropped", 20, 1)
	say(1, 20, 300, 4)
	f.do(&store.Update{
		ConversationID: "a", Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 3}},
	})
	check("dropped by a lower limit", 22, 3)
	if s.Durable {
		f.reopen(nil)
		check("opened again", 22, 3)
	}
	f.do(&store.Update{ConversationID: "a", KeepThrough: new(int32(22))})
	f.seen.take()
	end = before[23]
	check("cleared at the new end", 22, 1)
	say(50, 60, 70, 80)
	check("dropped after a clear", 26, 3)

	source := f.read("a")
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, Messages: source.Messages})
	imported := proto.CloneOf(source.Conversation)
	imported.Id = "import"
	f.do(&store.Import{Conversation: imported, Messages: source.Messages})
	for _, id := range []string{"fork", "import"} {
		if n := f.read(id).DroppedBytes; n != 0 {
			t.Errorf("the %s begins with %d bytes dropped", id, n)
		}
	}
}
