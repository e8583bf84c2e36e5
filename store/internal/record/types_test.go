package record_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// TestWorkOfTypes divides a conversation of which each message has a type of its own, and drops most of its messages in
// chunks. The work per message must not grow with the number of types.
func TestWorkOfTypes(t *testing.T) {
	const messages, size = 2000, 100
	o := store.Options{MaxMessages: messages}.WithDefaults()
	all := make([]*parleyv1.Message, messages)
	for i := range all {
		all[i] = withData(fmt.Sprint("type ", i))
	}
	value := appended(t, nil, o, all...)
	d := &divided{value: value, chunks: map[int32][]byte{}}
	if n := d.write(t, d.record(t, false), size); n < messages/20 {
		t.Fatalf("%d chunks, want %d at least", n, messages/20)
	}
	heads := map[int32]*record.Chunk{}
	for _, c := range d.all(t) {
		heads[c.Last()] = c
	}
	lasts := slices.Sorted(maps.Keys(heads))
	u := &store.Update{
		Fields: []string{"retention.max_messages"},
		Values: &parleyv1.Conversation{Retention: &parleyv1.Retention{MaxMessages: 100}},
	}
	for name, work := range map[string]func(){
		"Divide": func() { unmarshal(t, value).Divide(size) },
		"Update": func() {
			r := unmarshal(t, d.value)
			r.OldestChunk = func(sequence int32) (*record.Chunk, error) {
				i, _ := slices.BinarySearch(lasts, sequence)
				return heads[lasts[i]], nil
			}
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
