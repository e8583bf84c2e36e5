package boltstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// indexedTurn returns the n-th of ids of turns that stores index, in rising order.
func indexedTurn(n int) string { return fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n) }

// beginTurn begins a turn in a conversation of tenant "acme".
func beginTurn(tb testing.TB, s *Store, conversation, id string) {
	tb.Helper()
	if _, err := s.Append(tb.Context(), &store.Append{
		Tenant: "acme", ConversationID: conversation, Begin: &parleyv1.Turn{Id: id},
	}); err != nil {
		tb.Fatal(err)
	}
}

// runTurn begins and ends a turn in a conversation of tenant "acme".
func runTurn(tb testing.TB, s *Store, conversation, id string) {
	tb.Helper()
	beginTurn(tb, s, conversation, id)
	if _, err := s.Append(tb.Context(), &store.Append{
		Tenant: "acme", ConversationID: conversation,
		End: &parleyv1.Turn{Id: id, State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}); err != nil {
		tb.Fatal(err)
	}
}

// keepTurns makes a conversation of tenant "acme" keep so many turns. It creates the conversation if needed.
func keepTurns(t *testing.T, s *Store, id string, n int32) {
	t.Helper()
	c := &parleyv1.Conversation{Id: id, Retention: &parleyv1.Retention{MaxTurns: n}}
	_, err := s.Create(t.Context(), &store.Create{Tenant: "acme", Conversation: c})
	if errors.Is(err, store.ErrConversationExists) {
		_, err = s.Update(t.Context(), &store.Update{
			Tenant: "acme", ConversationID: id, Fields: []string{"retention.max_turns"}, Values: c,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// listedTurns returns the ids in a list of the turns of tenant "acme" in rising order.
func listedTurns(t *testing.T, s *Store, states ...parleyv1.TurnState) (ids []string) {
	t.Helper()
	l := &store.ListTurns{Tenant: "acme", States: states, Limit: 3}
	for {
		page, err := s.ListTurns(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		for _, turn := range page.Turns {
			ids = append(ids, turn.GetId())
		}
		if l.Before = page.Next; l.Before == "" {
			slices.Reverse(ids)
			return ids
		}
	}
}

// wantTurns checks that turns are listed and found, and that those of them in running are listed as running.
func wantTurns(t *testing.T, s *Store, what string, turns, running []string) {
	t.Helper()
	if got := listedTurns(t, s); !slices.Equal(got, turns) {
		t.Errorf("%s: ListTurns = %v, want %v", what, got, turns)
	}
	if got := listedTurns(t, s, parleyv1.TurnState_TURN_STATE_RUNNING); !slices.Equal(got, running) {
		t.Errorf("%s: ListTurns of those that run = %v, want %v", what, got, running)
	}
	for _, id := range turns {
		if found, err := s.FindTurn(t.Context(), &store.FindTurn{Tenant: "acme", TurnID: id}); err != nil {
			t.Errorf("%s: FindTurn(%s) = %v, %v", what, id, found, err)
		}
	}
}

// TestTurnsDuringFold checks that turns are found and listed once in each state of a fold, and after the end of the
// process in that state.
func TestTurnsDuringFold(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	var turns, running []string
	next := 0
	// run runs a turn of each kind: in a conversation of its own that a transaction creates, and in others that the
	// journal takes.
	run := func() {
		t.Helper()
		appendTo(t, s, fmt.Sprint("runs ", next), "hello")
		beginTurn(t, s, fmt.Sprint("runs ", next), indexedTurn(next))
		appendTo(t, s, "ended", "hello")
		runTurn(t, s, "ended", indexedTurn(next+1))
		beginTurn(t, s, fmt.Sprint("created ", next), indexedTurn(next+2))
		appendTo(t, s, fmt.Sprint("removed ", next), "hello")
		runTurn(t, s, fmt.Sprint("removed ", next), indexedTurn(next+3))
		if err := s.Delete(t.Context(), &store.Delete{
			Tenant: "acme", ConversationID: fmt.Sprint("removed ", next),
		}); err != nil {
			t.Fatal(err)
		}
		turns = append(turns, indexedTurn(next), indexedTurn(next+1), indexedTurn(next+2))
		running = append(running, indexedTurn(next), indexedTurn(next+2))
		next += 4
	}
	do := func(apply func(*txn) error) {
		t.Helper()
		if err := s.do(t.Context(), "acme", 0, apply); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string) {
		t.Helper()
		wantTurns(t, s, what, turns, running)
		wantConsistent(t, s)
		kill(t, s)
		s = openJournaled(t, path, store.Options{}, 1<<20)
		wantTurns(t, s, what+", killed", turns, running)
		wantConsistent(t, s)
	}
	steps := []func(){
		func() {},
		func() {
			do(func(tx *txn) error {
				tx.tally.pending.Begin(tx.tally.journalEntry.Through)
				return nil
			})
		},
		func() {
			do(func(tx *txn) error {
				keys, _ := tx.tally.pending.Begin(tx.tally.journalEntry.Through)
				_, err := tx.foldKeys(keys)
				return err
			})
		},
		func() { s.folder.fold() },
	}
	for i := range steps {
		run()
		for _, step := range steps[:i+1] {
			step()
		}
		wantTurns(t, s, fmt.Sprint("step ", i), turns, running)
		run()
		check(fmt.Sprint("step ", i, " and more"))
	}
}

// TestTurnsOfOldTransaction checks that a transaction that began before a fold reads each turn once, with what the
// journal had before the transaction.
func TestTurnsOfOldTransaction(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 1<<20)
	appendTo(t, s, "a", "hello")
	runTurn(t, s, "a", indexedTurn(0))
	s.folder.fold()
	runTurn(t, s, "a", indexedTurn(1))
	beginTurn(t, s, "a", indexedTurn(2))
	l := &store.ListTurns{Tenant: "acme", Limit: 10}
	if err := s.readTurns(t.Context(), "acme", func() func(*turnReader) error {
		pending := s.tally.pending.Turns("acme", nil, false, 10)
		return func(r *turnReader) error {
			s.folder.fold()
			p := record.NewTurnPager(l)
			for c := range r.merged(nil, pending) {
				if err := r.add(p, c); err != nil {
					return err
				}
			}
			var got []string
			for _, turn := range p.Page().Turns {
				got = append(got, turn.GetId())
			}
			if want := []string{indexedTurn(2), indexedTurn(1), indexedTurn(0)}; !slices.Equal(got, want) {
				t.Errorf("the transaction has turns %v, want %v", got, want)
			}
			return nil
		}
	}); err != nil {
		t.Fatal(err)
	}
	wantTurns(t, s, "folded", []string{indexedTurn(0), indexedTurn(1), indexedTurn(2)}, []string{indexedTurn(2)})
}

// TestTurnBuckets checks when a file gets the buckets of turns, and that it has their schema from then on.
func TestTurnBuckets(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		s := openJournaled(t, newPath(t), store.Options{}, budget)
		want := func(what string, turns bool) {
			t.Helper()
			if s.folder != nil {
				s.folder.fold()
			}
			if got, want := schemaOf(t, s), boltfile.EncodeSchema(boltfile.SchemaOf(budget > 0, turns, turns)); !slices.Equal(
				got, want) {
				t.Errorf("journal %d, %s: schema = %x, want %x", budget, what, got, want)
			}
			wantConsistent(t, s)
		}
		keepTurns(t, s, "a", 100)
		for i := range 48 {
			runTurn(t, s, "a", fmt.Sprint("turn ", i))
		}
		want("turns of other ids", false)
		for i := range 20 { // With a journal, it is the fold that divides them.
			runTurn(t, s, "a", fmt.Sprint("more ", i))
		}
		want("a chunk", true)

		s = openJournaled(t, newPath(t), store.Options{}, budget)
		runTurn(t, s, "b", "turn")
		want("another id", false)
		runTurn(t, s, "b", indexedTurn(0))
		want("an indexed turn", true)
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "b"}); err != nil {
			t.Fatal(err)
		}
		want("no conversation", true)
	}
}

// TestTurnsInJournal checks that a conversation whose turns the journal takes is divided before it has too many.
func TestTurnsInJournal(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 64<<20)
	keepTurns(t, s, "a", 1000)
	for i := range 300 {
		runTurn(t, s, "a", indexedTurn(i))
		snapshot, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "a", Turns: true})
		if n := len(snapshot.Turns); err != nil || n < min(i+1, store.DefaultMaxTurns) || n > record.MaxUndividedTurns {
			t.Fatalf("Read after %d turns = %d turns, %v", i+1, n, err)
		}
	}
	if n := s.journalCounts.folds.Load(); n > 0 {
		t.Errorf("%d folds, want none", n)
	}
	wantConsistent(t, s)
}

// TestTurnsOfEarlierVersions checks that turns that an earlier version wrote without entries in the index need none
// until a turn of their conversation is written, even if their ids are UUIDs of version 7.
func TestTurnsOfEarlierVersions(t *testing.T) {
	s := openJournaled(t, newPath(t), store.Options{}, 0)
	runTurn(t, s, "a", indexedTurn(0))
	runTurn(t, s, "a", "turn")
	runTurn(t, s, "b", indexedTurn(1))
	if err := s.db.Update(func(tx *bolt.Tx) error {
		conversations := tx.Bucket([]byte(layout.ConversationsBucket))
		key, value := conversations.Cursor().First()
		r, err := record.Unmarshal(slices.Clone(value))
		if err != nil {
			return err
		}
		size := r.Size()
		r.Header.TurnsIndexed = false
		earlier, err := r.Marshal()
		if err != nil {
			return err
		}
		id, _ := record.ParseTurnID(indexedTurn(0))
		tenants, tenant := tx.Bucket([]byte(layout.TenantsBucket)), layout.TenantKey("acme")
		counts, _ := layout.DecodeCounts(tenant, tenants.Get(tenant))
		counts.Bytes += int64(len(earlier) - size)
		s.tally.tenants["acme"], s.tally.total = counts, counts
		return errors.Join(tenants.Put(tenant, counts.Encode(tenant)), conversations.Put(slices.Clone(key), earlier),
			tx.Bucket([]byte(layout.TurnIDsBucket)).Delete(layout.TurnKey("acme", id)))
	}); err != nil {
		t.Fatal(err)
	}
	wantTurns(t, s, "before", []string{indexedTurn(1)}, nil)
	wantConsistent(t, s)
	appendTo(t, s, "a", "hello")
	wantConsistent(t, s)
	runTurn(t, s, "a", indexedTurn(2))
	wantTurns(t, s, "after", []string{indexedTurn(0), indexedTurn(1), indexedTurn(2)}, nil)
	wantConsistent(t, s)
}
