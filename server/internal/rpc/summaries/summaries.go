// Package summaries keeps the routing summaries that were requested last, encoded as replies. A coordinator asks
// for one before every message, often again before the conversation has changed: then a lookup of the version
// replaces the computation.
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
	// Options are those with which it was made.
	Options routing.Options
	// Until is the end of the lease that it contains. From then on the summary is wrong. The zero value is no end.
	Until time.Time
	// Reply is the encoded reply.
	Reply []byte
}

// Cache is a set of summaries, one for a conversation, with a limit in bytes. It is safe for concurrent
// use. Of a conversation that is deleted, the summary stays until others push it out.
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

// New returns a cache whose summaries take at most limit bytes. With 0 it keeps none.
func New(limit int) *Cache {
	return &Cache{limit: limit, byID: map[key]*list.Element{}, newest: list.New()}
}

// Get returns the summary of a conversation with those options that is right at that time if the
// conversation has not changed, or nil if there is none.
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

// Put keeps the summary of a conversation in place of another one of it. If the summary takes more than an eighth of
// the limit, it is not kept. The caller must not change it.
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
