// Package cache keeps the newest states of conversations and records in memory, so that a read needs no transaction on
// the store's file. A record has an entry and a key of its own. The following rules apply to both.
//
// For each conversation, the cache has the committed state, or nothing. The writer of the store replaces a
// state when its change becomes visible. Before a transaction on the file is committed, the writer blocks
// the conversations that it changes, because it does not know the instant at which readers see the
// changes. Until the end of the block, Get does not find these conversations, and no reader puts them
// into the cache.
//
// A reader that finds nothing reads the file and fills the cache. If the conversation is replaced or
// blocked in the meantime, what it has read may be old, and the fill is dropped. A full cache accepts only
// conversations that were read and not found twice: if far more conversations are read than it can keep, it would
// otherwise replace one at each read, and find almost none.
//
// Start at [Cache].
package cache

import (
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/store"
)

// overhead is about how much memory an entry takes besides its key and its state, in bytes.
const overhead = 400

// missSlots is the number of conversations that were not found and that a full cache remembers. At the default limit,
// the cache has 5000 conversations of 20 messages of 500 bytes.
const missSlots = 16 << 10

// State is a conversation or a record. It does not change, and shares memory with the cache and other states.
type State struct {
	// Head is the encoded conversation without its messages, or a record as a reply contains it.
	Head []byte
	// Messages are the retained messages of a conversation.
	Messages store.Frames
	// Expires is when a record expires. It is the zero time if the record does not expire, and for a conversation.
	Expires time.Time
}

// Cache is a set of states by the key of their conversation or record, with a limit in bytes. All methods may be
// called from many goroutines.
type Cache struct {
	limit int

	mu      sync.RWMutex
	entries map[string]*entry
	bytes   int
	clock   []*entry // all entries, in the order in which the hand passes them to find one to remove
	hand    int      // index in clock
	fills   map[string]*Fill
	blocked map[string]struct{}
	seed    maphash.Seed
	missed  []uint32 // hashes of keys, in the slots that the other bits of their hashes choose; nil until needed

	hits, misses atomic.Int64
}

type entry struct {
	key    string
	state  State
	buffer int         // size of the memory in which the messages of the state are
	used   atomic.Bool // since the hand last passed it
	at     int         // in clock
}

// size is the memory of the entry in bytes.
func (e *entry) size() int { return cap(e.state.Head) + e.buffer + len(e.key) + overhead }

// New returns a cache whose states take at most limit bytes. If limit is 0, the cache stays empty.
func New(limit int) *Cache {
	return &Cache{
		limit: limit, entries: map[string]*entry{}, fills: map[string]*Fill{}, blocked: map[string]struct{}{},
		seed: maphash.MakeSeed(),
	}
}

// Get returns the state of a conversation, if the cache has it.
func (c *Cache) Get(key string) (State, bool) {
	c.mu.RLock()
	e := c.entries[key]
	if _, blocked := c.blocked[key]; blocked || e == nil {
		c.mu.RUnlock()
		c.misses.Add(1)
		return State{}, false
	}
	state := e.state
	c.mu.RUnlock()
	if !e.used.Load() { // Mostly it is true. Without a write, other processors keep it in their caches.
		e.used.Store(true)
	}
	c.hits.Add(1)
	return state, true
}

// Fill is a read of the file by a reader that found nothing in the cache. Nil is a fill without effect.
type Fill struct {
	cache *Cache
	key   string
}

// Fill begins a fill, which the caller must end with Put or Drop. It must begin before the reader's transaction. It
// returns nil if the conversation is blocked or in the cache already, if the limit is 0, or if the cache is full and
// this is the first fill of the conversation for some time.
func (c *Cache) Fill(key string) *Fill {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, blocked := c.blocked[key]; blocked || c.entries[key] != nil || c.limit == 0 || !c.accepts(key) {
		return nil
	}
	f := &Fill{cache: c, key: key}
	c.fills[key] = f // A fill that runs already is dropped: one of the two is enough.
	return f
}

// accepts reports whether a conversation that was not found may be put into the cache. If not, the next call does.
func (c *Cache) accepts(key string) bool {
	if c.bytes+c.bytes/max(len(c.entries), 1) <= c.limit { // There is space for one more of average size.
		return true
	}
	if c.missed == nil {
		c.missed = make([]uint32, missSlots)
	}
	hash := maphash.String(c.seed, key)
	slot := &c.missed[hash%missSlots]
	tag := uint32(hash>>32) | 1 // Never that of an empty slot.
	if *slot == tag {
		return true
	}
	*slot = tag
	return false
}

// Put puts what the reader has read into the cache, unless it may be old.
func (f *Fill) Put(s State) {
	if f == nil {
		return
	}
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	if f.cache.fills[f.key] == f {
		delete(f.cache.fills, f.key)
		f.cache.set(f.key, s, cap(s.Messages))
	}
}

// Drop ends a fill without putting anything. After Put it does nothing.
func (f *Fill) Drop() {
	if f == nil {
		return
	}
	f.cache.mu.Lock()
	defer f.cache.mu.Unlock()
	if f.cache.fills[f.key] == f {
		delete(f.cache.fills, f.key)
	}
}

// Block blocks conversations and drops their fills. Unblock or Remove ends the block. Only the writer calls
// these three methods, Append and Replace.
func (c *Cache) Block(keys iter.Seq[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range keys {
		delete(c.fills, key)
		c.blocked[key] = struct{}{}
	}
}

// Unblock ends a block. The cache then has the states from before the block, or those of Append.
func (c *Cache) Unblock(keys iter.Seq[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range keys {
		delete(c.blocked, key)
	}
}

// Remove removes conversations from the cache and ends their block.
func (c *Cache) Remove(keys iter.Seq[string]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range keys {
		delete(c.blocked, key)
		c.remove(key)
	}
}

// Append sets the head of a blocked conversation and appends messages. Of all its messages, it keeps the newest,
// which have retained bytes. If the cache does not have the conversation, Append does nothing.
func (c *Cache) Append(key string, head []byte, messages store.Frames, retained int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil {
		return
	}
	old := e.state.Messages
	kept := retained - len(messages)
	if kept > len(old) {
		c.remove(key) // The state is not the one to which the messages were appended.
		return
	}
	if kept < 0 { // Not even all new messages remain.
		old, messages = nil, messages[-kept:]
	} else {
		old = old[len(old)-kept:]
	}
	// The bytes after the newest state are free, and earlier states end before them.
	buffer, capacity := e.buffer, cap(old)
	old = append(old, messages...)
	if cap(old) > capacity {
		buffer = cap(old) // The buffer is new. The earlier one also has the messages that are not retained any more.
	}
	c.set(key, State{Head: head, Messages: old}, buffer)
}

// Has reports whether the cache has a state under a key, even if it is blocked.
func (c *Cache) Has(key string) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.entries[key] != nil
}

// Replace sets the state of a blocked record. If the cache does not have the record, Replace does nothing.
func (c *Cache) Replace(key string, s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] != nil {
		c.set(key, s, 0)
	}
}

// Close removes all states and makes later fills have no effect.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.bytes, c.clock = 0, 0, nil
	clear(c.entries)
	clear(c.fills)
}

// set sets the state of a conversation, whose messages are in a buffer of that many bytes. Above the limit it removes
// other conversations.
func (c *Cache) set(key string, s State, buffer int) {
	e := c.entries[key]
	if e == nil {
		e = &entry{key: key, at: len(c.clock)}
		c.entries[key], c.clock = e, append(c.clock, e)
	} else {
		c.bytes -= e.size()
	}
	e.state, e.buffer = s, buffer
	c.bytes += e.size()
	if e.size() > c.limit/8 { // A few large conversations must not push out the others. After Close the limit is 0.
		c.remove(key)
		return
	}
	for c.bytes > c.limit {
		c.hand++
		if c.hand >= len(c.clock) {
			c.hand = 0
		}
		if victim := c.clock[c.hand]; victim != e && !victim.used.Swap(false) {
			c.remove(victim.key)
		}
	}
}

func (c *Cache) remove(key string) {
	e := c.entries[key]
	if e == nil {
		return
	}
	delete(c.entries, key)
	c.bytes -= e.size()
	last := c.clock[len(c.clock)-1]
	c.clock[e.at], last.at = last, e.at
	c.clock = c.clock[:len(c.clock)-1]
}

// Stats are the statistics of a cache: the calls of Get since New that found a state, those that found none, and the
// memory of the states in bytes.
type Stats struct{ Hits, Misses, Bytes int64 }

// Stats returns the statistics.
func (c *Cache) Stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Stats{Hits: c.hits.Load(), Misses: c.misses.Load(), Bytes: int64(c.bytes)}
}
