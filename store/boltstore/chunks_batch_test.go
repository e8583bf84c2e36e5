package boltstore

import (
	"encoding/binary"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestDropAfterRemovalInTransaction: if one transaction removes complete chunks and then drops messages of the chunk
// before them, the right messages are dropped. The removals leave empty pages in the transaction.
func TestDropAfterRemovalInTransaction(t *testing.T) {
	t.Parallel()
	s := openDivided(t, newPath(t), store.Options{MaxMessages: 2000}, 0, 3000)
	appendNumbers(t, s, "a", 1, 400)
	keep := func(n int) *store.Update {
		return &store.Update{
			Fields: []string{"retention.max_messages"},
			Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: int32(n)}},
		}
	}
	update := func(updates ...*store.Update) {
		t.Helper()
		if err := s.transact(func(tx *txn) error {
			for _, u := range updates {
				now := time.Now()
				c := &change{tenant: "acme", id: "a"}
				old, err := tx.load(c.tenant, c.id, all)
				if err != nil {
					return err
				}
				out, err := record.Update(old.live(now), u, now, &s.options.Options)
				if err == nil {
					err = tx.write(c, old, out, nil, now)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	update(keep(390)) // The first chunk has lost a part.
	var ends []int32
	for _, key := range chunkKeys(t, s) {
		ends = append(ends, int32(binary.BigEndian.Uint64(key[len(key)-layout.SequenceSize:])))
	}
	remove := &store.Update{}
	for sequence := ends[0] + 1; sequence <= ends[5]; sequence++ {
		remove.Sequences = append(remove.Sequences, sequence)
	}
	update(remove, keep(390-len(remove.Sequences)-2))
	got, err := readNumbers(t, s, store.Read{ConversationID: "a", Newest: -1})
	if err != nil || len(got) != 390-len(remove.Sequences)-2 || got[0] != "13" {
		t.Errorf("Read() = %d messages, %v, want %d from 13 on: %.80q", len(got), err, 388-len(remove.Sequences), got)
	}
	wantConsistent(t, s)
}
