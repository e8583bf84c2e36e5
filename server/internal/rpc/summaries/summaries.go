// Package summaries caches the routing summaries that were requested last, encoded as replies. A coordinator requests
// a summary before every message, often before the conversation has changed. Then the server compares the version
// instead of computing the summary again.
//
// The package does not know whether a summary is still that of its conversation. Callers compare the version with the
// store's.
//
// Start at [Cache].
package summaries

import (
	"container/list"
	"sync"
	"time"

	"github.com/parleyhq/parley/server/internal/routing"
	"github.com/parleyhq/parley/store"
)

// overhead is about how much memory a summary takes besides its reply and id, in bytes.
const overhead = 300

// Summary is a routing summary. It does not change.
type Summary struct {
	// Of is the state of the conversation that it summarizes.
	Of store.Known
	// Options are the options with which it was computed.
	Options routing.Options
	// Until is the end of the lease that it contains. From then on the summary is wrong. The zero value is no end.
	Until time.Time
	// Reply is the encoded reply.
	Reply []byte
}

// Cache is a set of summaries, one for a conversation, with a limit in bytes. It is safe for concurrent
// use. The summary of a deleted conversation stays until it is the one that was not used for the longest time.
type Cache struct {
	limit int

	mu     sync.Mutex
	byID   map[key]*list.Element // of entry
	newest *list.List            // the one that was used last is at the front
	bytes  int
}

type key struct{ tenant, id string }

type entry struct {
	key     key
	summary *Summary
}

// size is the memory of an entry in bytes.
func (e entry) size() int { return cap(e.summary.Reply) + len(e.key.tenant) + len(e.key.id) + overhead }

// New returns a cache whose summaries take at most limit bytes. If limit is 0, the cache stays empty.
func New(limit int) *Cache {
	return &Cache{limit: limit, byID: map[key]*list.Element{}, newest: list.New()}
}

// Get returns the summary of a conversation with those options, or nil if there is none or if its Until
// has passed. The caller must check that the conversation is still in the state Of.
func (c *Cache) Get(tenant, id string, o routing.Options, now time.Time) *Summary {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.byID[key{tenant, id}]
	if element == nil {
		return nil
	}
	s := valueOf(element).summary
	if s.Options != o || !s.Until.IsZero() && !now.Before(s.Until) {
		return nil
	}
	c.newest.MoveToFront(element)
	return s
}

// Put puts the summary of a conversation into the cache and removes the earlier one. If the summary takes more than an
// eighth of the limit, it is not put there. The caller must not change the summary after that.
func (c *Cache) Put(tenant, id string, s *Summary) {
	e := entry{key{tenant, id}, s}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.byID[e.key]; old != nil {
		c.remove(old)
	}
	if e.size() > c.limit/8 {
		return
	}
	c.byID[e.key] = c.newest.PushFront(e)
	c.bytes += e.size()
	for c.bytes > c.limit {
		c.remove(c.newest.Back())
	}
}

func (c *Cache) remove(element *list.Element) {
	e := valueOf(element)
	c.newest.Remove(element)
	delete(c.byID, e.key)
	c.bytes -= e.size()
}

func valueOf(element *list.Element) entry {
	e, _ := element.Value.(entry)
	return e
}
