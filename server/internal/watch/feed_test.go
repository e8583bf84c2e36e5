package watch

import (
	"fmt"
	"testing"

	"github.com/parleyhq/parley/store"
)

// A reader is handed little at a time, since it may be slow, and all of it in the end; where
// it stops, what is for others may be dropped without its losing anything.
func TestBatchLimits(t *testing.T) {
	const kept, mine = 5000, 200
	for _, size := range []int{0, 1 << 10, 100 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := newFeed(kept, 1<<30)
			r := newReader("t", nil, make(chan struct{}, 1))
			f.addReader(r)
			add := func(tenant string, n int) {
				for range n {
					f.add(changeEntry(&store.Change{Tenant: tenant, ConversationID: "c", Message: make(store.Frame, size)}))
				}
			}
			for range mine {
				add("t", 1)
				add("others", 15) // Most of a look is for others.
			}
			add("others", maxScanned)
			got := 0
			for more := true; more; {
				b := f.next(r, f.end())
				if b.gap {
					t.Fatalf("after %d: lost", got)
				}
				bytes := 0
				for i, e := range b.entries {
					if bytes += e.size; i > 0 && bytes-e.size >= maxBatchBytes {
						t.Errorf("%d bytes in %d entries at a time", bytes, i+1)
					}
				}
				got, more = got+len(b.entries), b.more
				if !more && b.position != f.end() {
					t.Errorf("stops at %d of %d, ahead of nothing but others", b.position, f.end())
				}
			}
			if got != mine {
				t.Errorf("handed %d, want %d", got, mine)
			}
			add("others", 2*kept)
			if b := f.next(r, f.end()); b.gap || len(b.entries) > 0 {
				t.Errorf("after nothing but others: %+v", b)
			}
		})
	}
}
