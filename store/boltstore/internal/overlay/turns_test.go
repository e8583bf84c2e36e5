package overlay

import (
	"encoding/binary"
	"runtime"
	"slices"
	"testing"

	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

func numbered(n int) (id record.TurnID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// TestTurns checks which turns a set has while they begin and end and its generations change.
func TestTurns(t *testing.T) {
	s := NewSet()
	begin := func(n int) { s.PutTurn("acme", layout.InnerKey{byte(n)}, TurnChange{Begun: numbered(n)}) }
	end := func(n int) { s.PutTurn("acme", layout.InnerKey{byte(n)}, TurnChange{Ended: numbered(n)}) }
	want := func(running bool, newest ...int) {
		t.Helper()
		var want []Turn
		for _, n := range newest {
			turn := Turn{ID: numbered(n), Conversation: layout.InnerKey{byte(n)}}
			if got, ok := s.Turn("acme", turn.ID); !ok || got != turn {
				t.Errorf("Turn(%d) = %v, %t", n, got, ok)
			}
			want = append(want, turn)
		}
		if got := s.Turns("acme", nil, running, 100); !slices.Equal(got, want) {
			t.Errorf("Turns(running: %t) = %v, want %v", running, got, want)
		}
		for i := range want {
			if got := s.Turns("acme", &want[i].ID, running, 2); !slices.Equal(got, want[i+1:min(i+3, len(want))]) {
				t.Errorf("Turns before turn %d (running: %t) = %v", newest[i], running, got)
			}
		}
	}
	want(false)
	for _, n := range []int{3, 1, 2} {
		begin(n)
	}
	end(2)
	want(false, 3, 2, 1)
	want(true, 3, 1)
	s.Begin(0)
	begin(5)
	begin(4)
	end(1)
	end(4)
	end(9)
	want(false, 5, 4, 3, 2, 1)
	want(true, 5, 3)
	if got := s.Turns("other", nil, false, 9); len(got) > 0 {
		t.Errorf("Turns of another tenant = %v", got)
	}
	s.End()
	want(false, 5, 4)
	want(true, 5)
	if _, ok := s.Turn("acme", numbered(1)); ok {
		t.Error("Turn(1) is found after its generation has ended")
	}
}

// TestMemoryOfTurns checks that turns use about as much memory as a set counts for them. All of them have ended.
func TestMemoryOfTurns(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, tenants := range []int{1, 1000} {
		const turns = 100_000
		names := make([]string, tenants)
		for i := range names {
			names[i] = string(binary.BigEndian.AppendUint32(nil, uint32(i)))
		}
		s, before := NewSet(), heap()
		for n := range turns {
			of := names[n%tenants]
			s.PutTurn(of, layout.InnerKey{}, TurnChange{Begun: numbered(n)})
			s.PutTurn(of, layout.InnerKey{}, TurnChange{Ended: numbered(n)})
		}
		got := heap() - before
		counted, _ := s.Memory()
		if float64(got) > 1.3*float64(counted) || float64(got) < 0.5*float64(counted) {
			t.Errorf("%d turns of %d tenants take %d bytes, counted %d", turns, tenants, got, counted)
		}
		runtime.KeepAlive(s)
	}
}
