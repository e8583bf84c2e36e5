package memstore_test

import (
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
	"github.com/parleyhq/parley/store/storetest"
)

func TestLaw(t *testing.T) {
	storetest.Run(t, storetest.Subject{
		Open: func(_ testing.TB, _ string, o store.Options) store.Store { return memstore.New(o) },
	})
}
