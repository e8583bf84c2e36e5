package memstore

import (
	"context"
	"errors"

	"github.com/parleyhq/parley/store"
)

// Import implements store.Store.
func (s *Store) Import(context.Context, *store.Import) (*store.Result, error) {
	return nil, errors.ErrUnsupported
}
