package oidc

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/parleyhq/parley/server/internal/auth"
)

func hash(n int) (h [sha256.Size]byte) {
	binary.BigEndian.PutUint64(h[:], uint64(n))
	return h
}

// TestCacheLimit checks that the cache is bounded and keeps what is in use.
func TestCacheLimit(t *testing.T) {
	const limit = 10
	c := newCache(limit)
	c.add(hash(-1), auth.Identity{Name: "in use"}, 0)
	for n := range 1000 {
		c.add(hash(n), auth.Identity{}, 0)
		if size := len(c.newer) + len(c.older); size > limit {
			t.Fatalf("cache has %d tokens, want at most %d", size, limit)
		}
		if i, _, found := c.find(hash(-1)); !found || i.Name != "in use" {
			t.Fatalf("find() after %d other tokens = %+v, %t, want the token in use", n, i, found)
		}
		if _, _, found := c.find(hash(n)); !found {
			t.Fatalf("find() of the newest token = false")
		}
	}
	if _, _, found := c.find(hash(0)); found {
		t.Error("find() of the oldest token = true, want false")
	}
}

// TestCacheClear checks that a token that was verified with removed keys is not added.
func TestCacheClear(t *testing.T) {
	c := newCache(10)
	_, round, _ := c.find(hash(1))
	c.add(hash(2), auth.Identity{}, round)
	c.clear()
	c.add(hash(1), auth.Identity{}, round)
	for n := 1; n <= 2; n++ {
		if _, _, found := c.find(hash(n)); found {
			t.Errorf("find(token %d) after clear = true, want false", n)
		}
	}
}
