package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// abandonTurns begins a turn on each of n conversations, saves an answer of saved(i) bytes for
// each, and reopens the store.
func abandonTurns(t *testing.T, n int, saved func(i int) int) *Store {
	t.Helper()
	path := newPath(t)
	s := open(t, path, store.Options{})
	for i := range n {
		id := fmt.Sprintf("c%03d", i)
		if _, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, Messages: text("question"), Begin: &parleyv1.Turn{Id: "turn"},
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.SaveProgress(t.Context(), &store.Progress{
			Tenant: "acme", ConversationID: id, TurnID: "turn", Messages: []*parleyv1.Message{
				{Content: strings.Repeat("x", saved(i))},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	return open(t, path, store.Options{})
}

// abandonedPages returns the ids of all abandoned turns, page by page.
func abandonedPages(t *testing.T, s *Store) [][]string {
	t.Helper()
	var pages [][]string
	after := ""
	for range 1000 {
		turns, next, err := s.Abandoned(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		page := []string{}
		for _, p := range turns {
			page = append(page, p.ConversationID)
		}
		pages = append(pages, page)
		if after = next; after == "" {
			return pages
		}
	}
	t.Fatal("Abandoned returned 1000 pages, want an end")
	return nil
}

func TestAbandonedPages(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name  string
		turns int
		saved func(i int) int
		want  []int
	}{
		{"none", 0, nil, []int{0}},
		{"by count", 150, func(int) int { return 1 }, []int{64, 64, 22}},
		{"exactly one page", 64, func(int) int { return 1 }, []int{64}},
		{"by size", 20, func(int) int { return mib }, []int{7, 7, 6}}, // Each turn is larger than 1 MiB with its other data.
		{"one turn larger than the limit", 4, func(i int) int { return 9 * mib * (i % 2) }, []int{1, 1, 1, 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []int
			var ids []string
			for _, page := range abandonedPages(t, abandonTurns(t, test.turns, test.saved)) {
				got, ids = append(got, len(page)), append(ids, page...)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("pages have %v turns, want %v", got, test.want)
			}
			if !slices.IsSorted(ids) || len(slices.Compact(ids)) != test.turns {
				t.Errorf("abandoned turns = %v, want each of %d once, in order", ids, test.turns)
			}
		})
	}
}

// TestAbandonedPositions calls Abandoned with positions at which there was never a turn.
func TestAbandonedPositions(t *testing.T) {
	s := abandonTurns(t, 3, func(int) int { return 1 })
	for place, want := range map[string]int{
		"\x00": 3, "\x04acme": 3, string(layout.IDKey("acme", "c000a")): 2,
		string(layout.IDKey("acme", "c001")): 1, string(layout.IDKey("acme", "c002")): 0, "\xff": 0,
	} {
		turns, next, err := s.Abandoned(t.Context(), place)
		if err != nil || len(turns) != want || next != "" {
			t.Errorf("Abandoned(%q) = %d turns, %q, %v; want %d", place, len(turns), next, err, want)
		}
	}
}

// TestAbandonedDamaged damages conversations on every page, so that their turns cannot be ended.
func TestAbandonedDamaged(t *testing.T) {
	s := abandonTurns(t, 130, func(int) int { return 1 })
	for i, at := range map[int]int{0: 20, 63: 20, 64: 20, 129: 20, 1: -1, 65: -1, 128: -1} {
		damage(t, s, layout.ConversationsBucket, func(tx *bolt.Tx) []byte {
			id := layout.IDKey("acme", fmt.Sprintf("c%03d", i))
			p, err := layout.DecodePlace(id, tx.Bucket([]byte(layout.IDsBucket)).Get(id))
			if err != nil {
				panic(err)
			}
			return layout.ConversationKey("acme", p.Key)
		}, flip(at))
	}
	end := func(id string) error {
		_, err := s.Append(t.Context(), &store.Append{
			Tenant: "acme", ConversationID: id, End: &parleyv1.Turn{
				Id: "turn", State: parleyv1.TurnState_TURN_STATE_INTERRUPTED,
			},
		})
		return err
	}
	// A turn is unknown if its header is damaged, but known if its messages are.
	all := slices.Concat(abandonedPages(t, s)...)
	if len(all) != 126 {
		t.Errorf("Abandoned = %d turns, want 126", len(all))
	}
	var unended []string
	for _, id := range all {
		if err := end(id); errors.Is(err, store.ErrCorrupt) {
			unended = append(unended, id)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"c001", "c065", "c128"}
	if !slices.Equal(unended, want) {
		t.Errorf("turns that could not be ended = %v, want %v", unended, want)
	}
	if again := slices.Concat(abandonedPages(t, s)...); !slices.Equal(again, want) {
		t.Errorf("Abandoned afterwards = %v, want %v", again, want)
	}
}
