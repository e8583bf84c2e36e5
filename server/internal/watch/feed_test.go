package watch

import (
	"fmt"
	"testing"

	"github.com/parleyhq/parley/store"
)

// TestBatchLimits: a reader receives small batches, since it may be slow, and all entries in the
// end. Entries of others may be dropped where it stops.
func TestBatchLimits(t *testing.T) {
	const retained, wanted = 5000, 200
	for _, size := range []int{0, 1 << 10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := newFeed("t", &budget{maxEntries: retained, maxBytes: 1 << 30}, store.Place{})
			r := newReader([]string{"c"}, make(chan struct{}, 1))
			f.addReader(r)
			add := func(id string, n int) {
				for range n {
					f.add(changeEntry(&store.Change{Tenant: "t", ConversationID: id, Message: make(store.Frame, size)}, 0))
				}
			}
			for range wanted {
				add("c", 1)
				add("others", 15) // most entries of a scan are for others
			}
			add("others", maxScanned)
			got := 0
			for more := true; more; {
				b := f.next(r, f.end())
				if b.gap {
					t.Fatalf("gap after %d entries, want none", got)
				}
				bytes := 0
				for i, e := range b.entries {
					if bytes += e.size; i > 0 && bytes-e.size >= maxBatchBytes {
						t.Errorf("batch of %d bytes in %d entries exceeds the limit", bytes, i+1)
					}
				}
				got, more = got+len(b.entries), b.more
				if !more && b.position != f.end() {
					t.Errorf("last position = %d, want %d", b.position, f.end())
				}
			}
			if got != wanted {
				t.Errorf("next returned %d entries, want %d", got, wanted)
			}
			add("others", 2*retained)
			if b := f.next(r, f.end()); b.gap || len(b.entries) > 0 {
				t.Errorf("next after entries of others = %+v, want no entries and no gap", b)
			}
		})
	}
}
