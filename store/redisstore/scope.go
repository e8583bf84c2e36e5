package redisstore

import (
	"context"
	"iter"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

// scope reads the records of a conversation or of the tenant. It reads them in pages; all is of one instant if ended
// returns nil.
type scope struct {
	store    *Store
	ctx      context.Context //nolint:containedctx // It is that of one read.
	p        space
	id       string // of the conversation; empty for the records of the tenant
	revision string
	err      error
}

// scope returns the records of a conversation that exists, or of the tenant if the id is empty.
func (s *Store) scope(ctx context.Context, p space, id string, now time.Time) (*scope, error) {
	c := &scope{store: s, ctx: ctx, p: p, id: id}
	if id == "" {
		revision, err := s.client.Do(ctx, s.client.B().Hget().Key(p.key("t")).Field("v").Build()).ToString()
		if err != nil && !isNil(err) {
			return nil, s.fault(err)
		}
		c.revision = revision
		if isLocked(revision) {
			return nil, s.settleForRead(ctx, p)
		}
		return c, nil
	}
	of, err := s.load(ctx, p, id)
	if err != nil {
		return nil, err
	}
	if of.live(now) == nil {
		return nil, store.ErrNotFound
	}
	c.revision = of.revision
	return c, nil
}

// ended returns errMoved if the scope has changed since it was opened, and the error of the reads.
func (c *scope) ended() error {
	key := c.p.key("t")
	if c.id != "" {
		key = c.p.of("c", c.id)
	}
	revision, err := c.store.client.Do(c.ctx, c.store.client.B().Hget().Key(key).Field("v").Build()).ToString()
	if err != nil && !isNil(err) {
		return c.store.fault(err)
	}
	if revision != c.revision {
		return errMoved
	}
	return c.err
}

// Pages of records: pageKeys keys are read at once, and values of up to about pageValues bytes.
const (
	pageKeys   = 128
	pageValues = 1 << 20
)

// values returns the values of keys, nil for those that do not exist.
func (c *scope) values(keys []string) [][]byte {
	get := c.store.client.B().Hmget().Key(c.p.scope("k", c.id)).Field(keys...).Build()
	found, err := c.store.client.Do(c.ctx, get).ToArray()
	if err != nil {
		c.err = c.store.fault(err)
		return nil
	}
	values := make([][]byte, len(keys))
	for i, m := range found {
		if !m.IsNil() {
			values[i], _ = m.AsBytes()
		}
	}
	return values
}

// pages yields the keys and values in the order of next, which returns the keys after a key.
func (c *scope) pages(next func(after string, n int) rueidis.Completed) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		after := ""
		for n := 8; ; n = min(pageKeys, 4*n) {
			keys, err := c.store.client.Do(c.ctx, next(after, n)).AsStrSlice()
			if err != nil {
				c.err = c.store.fault(err)
				return
			}
			if len(keys) == 0 {
				return
			}
			after = keys[len(keys)-1]
			values := c.values(keys)
			if values == nil {
				return
			}
			for i, key := range keys {
				if values[i] != nil && !yield(key, values[i]) {
					return
				}
			}
			if len(keys) < n {
				return
			}
		}
	}
}

// ascend implements records.Ascend.
func (c *scope) ascend(from string) iter.Seq2[string, []byte] {
	return c.pages(func(after string, n int) rueidis.Completed {
		least := "[" + from
		if after != "" {
			least = "(" + after
		}
		return c.store.client.B().Zrange().Key(c.p.scope("kx", c.id)).Min(least).Max("+").Bylex().Limit(0, int64(n)).Build()
	})
}

// descend implements records.Descend.
func (c *scope) descend(before string) iter.Seq2[string, []byte] {
	return c.pages(func(after string, n int) rueidis.Completed {
		most := "+"
		switch {
		case after != "":
			most = "(" + after
		case before != "":
			most = "(" + before
		}
		list := c.store.client.B().Zrange().Key(c.p.scope("kx", c.id)).Min(most).Max("-").Bylex().Rev()
		return list.Limit(0, int64(n)).Build()
	})
}
