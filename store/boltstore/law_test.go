package boltstore

import (
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
