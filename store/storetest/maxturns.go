package storetest

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law20MaxTurns tests how many turns a conversation keeps.
func (s Subject) law20MaxTurns(t *testing.T) {
	for _, test := range []struct{ limit, begun int32 }{
		{0, 70}, {1, 3}, {5, 12}, {32, 70}, {33, 200}, {64, 200}, {100, 300}, {10_000, 400},
	} {
		t.Run(fmt.Sprint(test.limit), func(t *testing.T) {
			f := s.open(t, nil)
			f.withMaxTurns("a", test.limit)
			for n := range test.begun {
				f.beginTurnWith("a", turnID(int(n)), turnEvents(n))
				if n+1 == test.begun {
					f.wantKept(test.limit, int(n)+1)
				} else if n%17 == 11 { // One of these commits finds 48 turns for a limit of 33, and one 115 for a limit of 100.
					f.wantKeptOf(test.limit, int(n)+1, someTurns)
				}
				f.endTurnWith("a", turnID(int(n)), turnEvents(n+1000))
			}
			f.wantKept(test.limit, int(test.begun))
			f.reopen(nil)
			if s.Durable {
				f.wantKept(test.limit, int(test.begun))
			}
		})
	}
	t.Run("changed", func(t *testing.T) {
		f := s.open(t, nil)
		f.withMaxTurns("a", 1000)
		n := 0
		for _, limit := range []int32{300, 2, 90, 10, 0, 40, 1} {
			for range 150 {
				f.beginTurnWith("a", turnID(n), turnEvents(int32(n)))
				f.endTurnWith("a", turnID(n), turnEvents(int32(n+1000)))
				n++
			}
			kept := f.turnList(store.ListTurns{ConversationID: "a", Limit: 100}, func() {})
			f.do(&store.Update{
				ConversationID: "a", Fields: []string{"retention.max_turns"},
				Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxTurns: limit}},
			})
			if limit == 0 {
				limit = store.DefaultMaxTurns
			}
			limit = min(limit, int32(len(kept)))
			f.wantKeptOf(limit, n, someTurns)
			f.sweep()
			f.wantKept(limit, n)
		}
		f.do(&store.Delete{ConversationID: "a"})
		f.sweep()
		f.wantTurns(store.ListTurns{})
		if stats := f.stats(); stats.Bytes != 0 {
			t.Errorf("Stats after the deletion = %d bytes, want 0", stats.Bytes)
		}
	})
	t.Run("other ids in chunks", func(t *testing.T) {
		f := s.open(t, nil)
		f.withMaxTurns("a", 500)
		var ids []string
		for n := range 150 {
			ids = append(ids, fmt.Sprint("turn ", n))
			f.runTurn("a", ids[n])
		}
		f.wantTurns(store.ListTurns{ConversationID: "a"}, ids...)
		f.wantTurns(store.ListTurns{})
		f.findTurn("a", "turn 0")
		f.wantNoTurn("", "turn 0", store.ErrTurnNotFound)
	})
	t.Run("of a fork and an import", func(t *testing.T) {
		f := s.open(t, nil)
		f.withMaxTurns("a", 100)
		f.runTurn("a", turnID(0))
		f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "fork", Retention: f.header("a").GetRetention()}})
		imported := f.header("a")
		imported.Id = "imported"
		f.do(&store.Import{Conversation: imported})
		for _, id := range []string{"fork", "imported"} {
			f.wantTurns(store.ListTurns{ConversationID: id})
			if got := f.header(id).GetRetention().GetMaxTurns(); got != 100 {
				t.Errorf("max_turns of %s = %d, want 100", id, got)
			}
		}
		f.wantTurns(store.ListTurns{}, turnID(0))
	})
}

// keptTurns returns how many turns a conversation with this max_turns keeps at least and at most.
func keptTurns(maxTurns int32) (least, most int) {
	switch least = int(maxTurns); {
	case least == 0:
		return store.DefaultMaxTurns, store.DefaultMaxTurns
	case least > store.DefaultMaxTurns:
		return least, least + 15
	}
	return least, least
}

// someTurns is the distance between the turns that wantKeptOf finds by their ids, unless it checks all turns.
const someTurns = 8

// wantKept checks that conversation "a", whose turns are turnID(0) to turnID(begun-1) and which alone has turns, keeps
// the newest as law 20 says, and that all calls agree about them.
func (f *fixture) wantKept(maxTurns int32, begun int) {
	f.t.Helper()
	f.wantKeptOf(maxTurns, begun, 1)
}

// wantKeptOf is wantKept with fewer checks. It checks lists with several page sizes only if every is 1. By id it finds
// only one of every turns, and the turns at both ends of the kept ones.
func (f *fixture) wantKeptOf(maxTurns int32, begun, every int) {
	f.t.Helper()
	const id = "a"
	kept := f.turnList(store.ListTurns{ConversationID: id, Limit: 1000}, func() {})
	slices.Reverse(kept)
	least, most := keptTurns(maxTurns)
	least, most = min(least, begun), min(most, begun)
	if len(kept) < least || len(kept) > most || !slices.Equal(kept, turnIDs(begun-len(kept), begun)) {
		f.t.Fatalf("after %d turns, ListTurns = %d turns from %s to %s, want the newest %d to %d", begun, len(kept),
			kept[0], kept[len(kept)-1], least, most)
	}
	if every == 1 {
		f.wantTurns(store.ListTurns{ConversationID: id}, kept...)
		f.wantTurns(store.ListTurns{}, kept...)
	} else {
		f.wantTurnPages(store.ListTurns{}, []int{1000}, kept...)
	}
	newest := f.read(id).Turns
	if n := len(newest); n < min(store.DefaultMaxTurns, len(kept)) || n > store.DefaultMaxTurns+63 || n > len(kept) {
		f.t.Errorf("Read returned %d of %d turns", n, len(kept))
	}
	for i, turn := range newest {
		if want := kept[len(kept)-len(newest)+i]; turn.GetId() != want {
			f.t.Errorf("turn %d of Read = %s, want %s", i, turn.GetId(), want)
		}
	}
	first := begun - len(kept)
	for n := max(0, first-40); n < begun; n++ {
		if n%every != 0 && n != first-1 && n != first && n != begun-1 {
			continue
		}
		if n < first {
			f.wantNoTurn("", turnID(n), store.ErrTurnNotFound)
			f.wantNoTurn(id, turnID(n), store.ErrTurnNotFound)
			continue
		}
		found := f.findTurn("", turnID(n))
		same(f.t, "turn with its conversation", f.findTurn(id, turnID(n)), found)
		got := found.Events
		want := turnEvents(int32(n))
		if found.Turn.GetFinishTime() != nil {
			want = turnEvents(int32(n + 1000))
		}
		if want.TurnId, want.ConversationVersion = turnID(n), got.GetConversationVersion(); !proto.Equal(got, want) {
			f.t.Errorf("events of turn %d = %v, want %v", n, got, want)
		}
	}
}
