package boltstore

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/storetest"
)

// checked makes a test of turns check the file of a store at its end. For all tests, that would take too long.
func checked(tb testing.TB, s *Store) *Store {
	tb.Helper()
	if !strings.Contains(tb.Name(), "Law20") {
		return s
	}
	tb.Cleanup(func() {
		s.Close()
		if _, err := Check(s.path, func(fault string) { tb.Error(fault) }); err != nil {
			tb.Error(err)
		}
	})
	return s
}

func TestLaw(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Durable: true,
		Open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			return checked(tb, open(tb, filepath.Join(dir, "parley.db"), o))
		},
	})
}

// TestLawWithChunks tests the law with chunks so small that most conversations have some, with a journal and without.
func TestLawWithChunks(t *testing.T) {
	for _, budget := range []int64{0, 4 << 10} {
		t.Run(fmt.Sprint("journal ", budget), func(t *testing.T) {
			storetest.RunVariant(t, storetest.Subject{
				Durable: true,
				Open: func(tb testing.TB, dir string, o store.Options) store.Store {
					tb.Helper()
					return checked(tb, openDivided(tb, filepath.Join(dir, "parley.db"), o, budget, 64))
				},
			})
		})
	}
}

// TestLawWithJournal tests the law with a journal so small that it is folded all the time.
func TestLawWithJournal(t *testing.T) {
	storetest.RunVariant(t, storetest.Subject{
		Durable: true,
		Open: func(tb testing.TB, dir string, o store.Options) store.Store {
			tb.Helper()
			return checked(tb, openJournaled(tb, filepath.Join(dir, "parley.db"), o, 4<<10))
		},
	})
}
