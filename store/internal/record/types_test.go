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
