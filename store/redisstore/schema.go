package redisstore

import (
	"context"
	"fmt"
	"strings"
)

const (
	// MaxBuckets is the largest value of Options.Buckets.
	MaxBuckets = 1024
	// MaxSpread is the largest value of Options.Spread.
	MaxSpread = 16
	// MinShare is the smallest capacity of a tenant per bucket with a spread above 1. Below it, the excess that the
	// buckets of a tenant may have above their share is too large a part of the capacity.
	MinShare = 1000
)

const defaultBuckets = 64

// layout is the content of the schema key of a store.
type layout struct {
	buckets int
	spread  int // buckets of a tenant
}

// Versions of the schema. A store with a spread above 1 has another version, so that programs that do not know the
// spread refuse it.
const (
	schemaVersion = 1
	spreadVersion = 2
)

// String returns the text of the schema key.
func (l layout) String() string {
	if l.spread == 1 {
		return fmt.Sprintf("%d %d", schemaVersion, l.buckets)
	}
	return fmt.Sprintf("%d %d %d", spreadVersion, l.buckets, l.spread)
}

// check checks the numbers of a new store.
func (l layout) check() error {
	switch {
	case l.buckets < 1 || l.buckets > MaxBuckets:
		return fmt.Errorf("%d buckets: choose 1 to %d", l.buckets, MaxBuckets)
	case l.spread < 1 || l.spread > MaxSpread:
		return fmt.Errorf("%d buckets a tenant: choose 1 to %d", l.spread, MaxSpread)
	case l.buckets%l.spread != 0:
		return fmt.Errorf("%d buckets a tenant do not divide the %d buckets evenly: choose a divisor of %d",
			l.spread, l.buckets, l.buckets)
	}
	return nil
}

// schemaKey returns the key of the schema.
func (s *Store) schemaKey() string { return s.prefix + ":schema" }

// schema returns the layout of the store, and makes a new store if there is none.
func (s *Store) schema(ctx context.Context, o *Options) (layout, error) {
	wanted := layout{o.Buckets, max(1, o.Spread)}
	if wanted.buckets == 0 {
		wanted.buckets = defaultBuckets
	}
	key := s.schemaKey()
	get := func() (string, error) { return s.client.Do(ctx, s.client.B().Get().Key(key).Build()).ToString() }
	text, err := get()
	if isNil(err) { // An engine whose memory is full would refuse to set the key, even if it exists.
		if err := wanted.check(); err != nil {
			return layout{}, err
		}
		err = s.client.Do(ctx, s.client.B().Set().Key(key).Value(wanted.String()).Nx().Build()).Error()
		if err == nil || isNil(err) {
			text, err = get()
		}
	}
	if err != nil {
		return layout{}, s.fault(err)
	}
	return readSchema(key, text, o)
}

// readSchema returns the layout of a store whose schema key has this text. The options must be those of that store.
func readSchema(key, text string, o *Options) (layout, error) {
	if strings.HasPrefix(text, copyMark) {
		return layout{}, fmt.Errorf("the data of the engine at %q is an unfinished copy: run parleyd migrate again, which "+
			"removes it and starts over", key)
	}
	var version int
	found := layout{spread: 1}
	n, _ := fmt.Sscanf(text, "%d %d %d", &version, &found.buckets, &found.spread)
	if n < 2 {
		return layout{}, fmt.Errorf("the engine has %q at %q: it is not a store of this program", text, key)
	}
	if version != schemaVersion && version != spreadVersion {
		return layout{}, fmt.Errorf("the data of the engine at %q has version %d, this program reads versions %d and %d: "+
			"use a program of that version, or another prefix", key, version, schemaVersion, spreadVersion)
	}
	if found.check() != nil || found.String() != text {
		return layout{}, fmt.Errorf("the engine has %q at %q: it is not a store of this program", text, key)
	}
	if o.Buckets != 0 && o.Buckets != found.buckets {
		return layout{}, fmt.Errorf("the data of the engine at %q has %d buckets, which cannot be changed to %d: "+
			"set %d or none", key, found.buckets, o.Buckets, found.buckets)
	}
	if spread := max(1, o.Spread); spread != found.spread {
		return layout{}, fmt.Errorf("the data of the engine at %q has a spread of %d, which cannot be changed to %d: set %d",
			key, found.spread, spread, found.spread)
	}
	return found, nil
}
