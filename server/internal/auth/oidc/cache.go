package oidc

import (
	"crypto/sha256"
	"sync"

	"github.com/parleyhq/parley/server/internal/auth"
)

// maxCached is the maximum number of tokens that are not verified again.
const maxCached = 20_000

// cache contains the identities of verified tokens by the hash of the token. It keeps at least the half of its limit
// that was used last.
type cache struct {
	half int

	mu           sync.Mutex
	newer, older identities
	round        int // number of clears
}

type identities map[[sha256.Size]byte]auth.Identity

func newCache(limit int) *cache { return &cache{half: limit / 2, newer: identities{}} }

// find returns the identity of a token, which may have expired. round is for a later add.
func (c *cache) find(hash [sha256.Size]byte) (identity auth.Identity, round int, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if identity, found = c.newer[hash]; found {
		return identity, c.round, true
	}
	if identity, found = c.older[hash]; found {
		c.put(hash, identity)
	}
	return identity, c.round, found
}

// add adds the identity of a token, unless the cache was cleared after the find that returned round.
func (c *cache) add(hash [sha256.Size]byte, identity auth.Identity, round int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if round == c.round {
		c.put(hash, identity)
	}
}

// put adds to newer. If that is full, it becomes older, and what was in older is dropped.
func (c *cache) put(hash [sha256.Size]byte, identity auth.Identity) {
	if len(c.newer) >= c.half {
		c.newer, c.older = identities{}, c.newer
	}
	c.newer[hash] = identity
}

// clear removes all tokens.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newer, c.older = identities{}, nil
	c.round++
}
