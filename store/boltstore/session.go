package boltstore

import (
	"context"
	"errors"

	"github.com/parleyhq/parley/store"
)

// Hold implements store.Store.
func (s *Store) Hold(context.Context, *store.Hold) error { return errors.ErrUnsupported }

// Release implements store.Store.
func (s *Store) Release(context.Context, *store.Hold) error { return errors.ErrUnsupported }
