package boltstore

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/storetest"
)

func TestLaw(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Durable: true,
		Open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			return open(tb, filepath.Join(dir, "parley.db"), o)
		},
	})
}

// TestLawWithChunks tests the law with chunks so small that most conversations have some, with a journal and without.
func TestLawWithChunks(t *testing.T) {
	if testing.Short() {
		t.Skip("TestRandom uses chunks, too, and takes less time")
	}
	for _, budget := range []int64{0, 4 << 10} {
		t.Run(fmt.Sprint("journal ", budget), func(t *testing.T) {
			storetest.Run(t, storetest.Subject{
				Durable: true,
				Open: func(tb testing.TB, dir string, o store.Options) store.Store {
					tb.Helper()
					return openDivided(tb, filepath.Join(dir, "parley.db"), o, budget, 64)
				},
			})
		})
	}
}

// TestLawWithJournal tests the law with a journal so small that it is folded all the time.
func TestLawWithJournal(t *testing.T) {
	if testing.Short() {
		t.Skip("TestRandom uses a journal, too, and takes less time")
	}
	storetest.Run(t, storetest.Subject{
		Durable: true,
		Open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			return openJournaled(tb, filepath.Join(dir, "parley.db"), o, 4<<10)
		},
	})
}
