package boltstore

import (
	"sync"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
)

// maxVersions is the maximum number of conversations in versions. They take about 20 MB.
const maxVersions = 100_000

// versions caches the version of conversations that this process has written. With it, a read that
// knows the version needs no transaction to see that nothing has changed; the transaction would be
// a fourth of the cost of its call.
//
// The cache has the committed state. Readers can see a commit in the file before the writer has
// updated the cache. So the writer removes changed conversations before the commit. Otherwise a
// reader could see the change in the file, and another one could afterwards get "unchanged" from
// the cache.
type versions struct {
	mu     sync.RWMutex
	limit  int
	byID   map[string]version // by layout.IDKey; nil after close
	closed bool
}

// version is a cached version. The zero value matches no version.
type version struct {
	known   store.Known
	expires time.Time
	running bool
}

func newVersions(limit int) *versions {
	return &versions{limit: limit, byID: map[string]version{}}
}

// unchanged reports whether the conversation is certainly live and in the known state. The caller
// must have checked that its id is not ephemeral.
func (v *versions) unchanged(tenant, id string, known store.Known, now time.Time) bool {
	v.mu.RLock()
	of := v.byID[string(layout.IDKey(tenant, id))]
	v.mu.RUnlock()
	return known.Is(of.known) && !record.Ephemeral{}.Expired(now, of.expires, of.running)
}

// remove removes the changed conversations from the cache.
func (v *versions) remove(changed map[string]version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range changed {
		delete(v.byID, key)
	}
}

// apply adds the changes of a committed transaction. Above the limit it removes arbitrary
// conversations, whose readers read the file.
func (v *versions) apply(changed map[string]version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	mergeChanged(v.byID, changed)
	for key := range v.byID {
		if len(v.byID) <= v.limit {
			return
		}
		delete(v.byID, key)
	}
}

// close removes all conversations for good.
func (v *versions) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed, v.byID = true, nil
}

// recordVersion records the version that the conversation has after this transaction.
func (t *txn) recordVersion(tenant string, r *record.Record) {
	c := r.Conversation()
	t.versions[string(layout.IDKey(tenant, c.GetId()))] = version{
		known:   store.Known{Version: c.GetVersion(), UID: c.GetUid()},
		expires: r.ExpireTime(), running: r.Running(),
	}
}
