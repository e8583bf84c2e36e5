package record_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestParseTurnID compares ParseTurnID with package uuid.
func TestParseTurnID(t *testing.T) {
	parse := func(text string) (id record.TurnID, ok bool) {
		u, err := uuid.Parse(text)
		if err != nil || u.String() != text || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
			return id, false
		}
		return record.TurnID(u), true
	}
	rapid.Check(t, func(t *rapid.T) {
		u := uuid.Must(uuid.NewV7())
		copy(u[:], rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "bytes"))
		text := []byte(u.String())
		if rapid.Bool().Draw(t, "changed") {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] = rapid.SampledFrom([]byte("0789:/@Aag-`G")).Draw(t, "byte")
		}
		got, ok := record.ParseTurnID(text)
		if want, wantOK := parse(string(text)); got != want || ok != wantOK {
			t.Fatalf("ParseTurnID(%s) = %v, %t, want %v, %t", text, got, ok, want, wantOK)
		}
		if ok && got.String() != string(text) {
			t.Fatalf("String of %s = %s", text, got)
		}
	})
	for _, id := range []string{"", "turn", strings.ToUpper(uuid.Must(uuid.NewV7()).String()), uuid.NewString()} {
		if got, ok := record.ParseTurnID(id); ok {
			t.Errorf("ParseTurnID(%q) = %s, want false", id, got)
		}
	}
}

// turnChunks are the chunks of turns of a record in a test.
type turnChunks map[int64][]byte

func (c turnChunks) Size(ordinal int64) int { return len(c[ordinal]) }

func (c turnChunks) Turns(ordinal int64) ([]byte, error) {
	if list, ok := c[ordinal]; ok {
		return list, nil
	}
	return nil, store.ErrCorrupt
}

// TestKeptTurns checks that a record keeps the same turns, with the same size, whenever it is divided, and that its
// index has exactly these turns.
func TestKeptTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := rapid.SliceOfN(rapid.OneOf(rapid.Int32Range(0, 34), rapid.Int32Range(35, 200)), 1, 3).Draw(t, "limits")
		var often, seldom *record.Record
		chunks := [2]turnChunks{{}, {}}
		index := map[record.TurnID]bool{}
		n := 0
		for _, limit := range limits {
			for range rapid.IntRange(1, 150).Draw(t, "turns") {
				id := fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n)
				n++
				often, seldom = runTurn(t, often, limit, id), runTurn(t, seldom, limit, id)
				divide(t, &often, chunks[0], index)
				if seldom.MustDivideTurns() {
					divide(t, &seldom, chunks[1], map[record.TurnID]bool{})
				}
				kept := keptTurns(t, often)
				if other := keptTurns(t, seldom); !slices.Equal(kept, other) {
					t.Fatalf("after %d turns, the record divided often keeps %v, the other one %v", n, kept, other)
				}
				if len(index) != len(kept) {
					t.Fatalf("after %d turns, the index has %d turns, want %d", n, len(index), len(kept))
				}
				for _, id := range kept {
					if parsed, _ := record.ParseTurnID(id); !index[parsed] {
						t.Fatalf("after %d turns, the index lacks turn %s", n, id)
					}
				}
			}
		}
	})
}

// runTurn begins and ends a turn of a record, which may be nil, that keeps so many turns.
func runTurn(t *rapid.T, r *record.Record, limit int32, id string) *record.Record {
	chunks := record.TurnChunkReader(nil)
	if r != nil {
		chunks = r.TurnChunks
		r.Conversation().GetRetention().MaxTurns = limit
	}
	with := &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxTurns: limit}}
	r = write(t, r, &store.Append{ConversationID: "a", CreateWith: with, Begin: &parleyv1.Turn{Id: id}})
	r.TurnChunks = chunks
	r = write(t, r, &store.Append{ConversationID: "a", End: &parleyv1.Turn{Id: id}})
	r.TurnChunks = chunks
	return r
}

// divide divides the turns of a record, and changes its chunks and its index of turns. The value before the write is
// one with the turns of the index.
func divide(t *rapid.T, r **record.Record, chunks turnChunks, index map[record.TurnID]bool) {
	put := (*r).DivideTurns()
	change := (*r).ChangeOfIndex(record.IndexedTurns(chunks[-1]), put)
	for _, c := range put {
		chunks[c.Ordinal] = slices.Clone(c.Turns)
	}
	for ordinal, list := range chunks {
		if ordinal >= 0 && ordinal < (*r).Header.GetTurnChunks().GetFirst() {
			change.Dropped = append(change.Dropped, record.TurnIDs(list)...)
			delete(chunks, ordinal)
		}
	}
	for _, id := range change.Added {
		if index[id] {
			t.Fatalf("turn %s was added twice", id)
		}
		index[id] = true
	}
	for _, id := range change.Dropped {
		delete(index, id)
	}
	value, err := (*r).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	chunks[-1] = value // No chunk has this ordinal.
	if *r, err = record.Unmarshal(value); err != nil {
		t.Fatal(err)
	}
	(*r).TurnChunks = chunks
	size := 0
	for ordinal, list := range chunks {
		if ordinal >= 0 {
			size += len(list)
		}
	}
	if got := (*r).Size() - (*r).ValueSize(); got != size {
		t.Fatalf("the record counts %d bytes in chunks, want %d", got, size)
	}
}

// keptTurns returns the ids of the turns that a record keeps, oldest first.
func keptTurns(t *rapid.T, r *record.Record) (ids []string) {
	l := &store.ListTurns{ConversationID: "a", Limit: 1000}
	for {
		page, err := r.ListTurns(l)
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
