package record_test

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// heads is a record.ChunkReader for messages that are dropped.
type heads []*record.Chunk

func (h heads) Head(sequence int32) (*record.Chunk, error) {
	i, _ := slices.BinarySearchFunc(h, sequence, func(c *record.Chunk, sequence int32) int {
		return cmp.Compare(c.Last(), sequence)
	})
	return h[i], nil
}

func (heads) From(int32) ([]*record.Chunk, error) { return nil, store.ErrCorrupt }

func (heads) Before(int32) iter.Seq2[*record.Chunk, error] { return nil }

// TestWorkOfTypes divides a conversation of which each message has a type of its own, and drops most of its messages in
// chunks. The work per message must not grow with the number of types.
func TestWorkOfTypes(t *testing.T) {
	const messages, size = 2000, 100
	o := store.Options{MaxMessages: messages}.WithDefaults()
	history := make([]*parleyv1.Message, messages)
	for i := range history {
		history[i] = withData(fmt.Sprint("type ", i))
	}
	value := appended(t, nil, o, history...)
	d := &divided{value: value, chunks: map[int32][]byte{}}
	if n := d.write(t, d.record(t, false), size); n < messages/20 {
		t.Fatalf("%d chunks, want %d at least", n, messages/20)
	}
	chunks := d.all(t)
	u := &store.Update{
		Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 100}},
	}
	for name, work := range map[string]func(){
		"Divide": func() { unmarshal(t, value).Divide(size) },
		"Update": func() {
			r := unmarshal(t, d.value)
			r.Chunks = heads(chunks)
			if _, err := record.Update(r, u, time.Unix(1_800_000_000, 0), &o); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(1, work); n > 10*messages {
			t.Errorf("%s of %d messages makes %v allocations, want %d at most", name, messages, n, 10*messages)
		}
	}
}

// TestTypesAreLimited checks that the types of older messages that are counted have a limit, that they are still found
// after others were dropped, and that types without a count are never taken for counted ones.
func TestTypesAreLimited(t *testing.T) {
	const messages, size = 3000, 100
	o := store.Options{MaxMessages: messages}.WithDefaults()
	history := make([]*parleyv1.Message, messages)
	for i := range history {
		history[i] = withData(fmt.Sprint("type ", i))
	}
	d := &divided{value: appended(t, nil, o, history...), chunks: map[int32][]byte{}}
	d.write(t, d.record(t, false), size)
	for _, left := range []int32{messages, 2500, 1500} {
		r := d.record(t, false)
		if left < messages {
			r.Chunks = heads(d.all(t))
			u := &store.Update{
				Fields: []string{"retention.max_messages"},
				Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: left}},
			}
			out, err := record.Update(r, u, time.Unix(1_800_000_000, 0), &o)
			if err != nil {
				t.Fatal(err)
			}
			r = out.Record
		}
		if r.CountsAll() {
			t.Errorf("with %d messages: CountsAll() = true, want false", left)
		}
		found := 0
		for i := range messages {
			if r.HasType(fmt.Sprint("type ", i)) {
				found++
				if i < messages-int(left) {
					t.Fatalf("with %d messages: type %d of a dropped message is found", left, i)
				}
			}
		}
		if want := 1000 - (messages - int(left)); left > 2000 && found < want || found > 1100 {
			t.Errorf("with %d messages: %d types are found, want about %d", left, found, want)
		}
	}
}
