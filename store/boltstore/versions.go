package boltstore

import (
	"sync"
	"time"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// maxVersions bounds how many conversations versions holds, in about 20 MB.
const maxVersions = 100_000

// versions holds in memory what tells whether a conversation has changed, for some of those
// that this process has written: a reader that knows the version needs no transaction then,
// which would be a fourth of what its call costs.
//
// What is there is the committed state. Since a commit can be seen in the file before its
// caller comes to memory, the writer forgets ahead of it what it changes: no reader is told
// here that nothing has changed once another has seen the change there.
type versions struct {
	mu     sync.RWMutex
	limit  int
	byID   map[string]version // by idKey; nil when closed
	closed bool
}

// version is what is known of a conversation; the zero one knows nothing.
type version struct {
	known   store.Known
	expires time.Time
	running bool
}

func newVersions(limit int) *versions {
	return &versions{limit: limit, byID: map[string]version{}}
}

// unchanged reports whether the conversation is certainly alive and as it is known. Whoever
// asks has made sure that its id is no session memory.
func (v *versions) unchanged(tenant, id string, known store.Known, now time.Time) bool {
	v.mu.RLock()
	of := v.byID[string(idKey(tenant, id))]
	v.mu.RUnlock()
	return known.Is(of.known) && !record.Session{}.Expired(now, of.expires, of.running)
}

// forget knows nothing more of these conversations.
func (v *versions) remove(changed map[string]version) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range changed {
		delete(v.byID, key)
	}
}

// settle takes over what a transaction has changed, once it is committed. Beyond the limit
// any others go: whoever asks for them reads the file.
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

// close knows nothing more of any.
func (v *versions) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed, v.byID = true, nil
}

// noteVersion keeps what the conversation is from this transaction on.
func (t *txn) recordVersion(tenant string, r *record.Record) {
	c := r.Conversation()
	t.versions[string(idKey(tenant, c.GetId()))] = version{
		known:   store.Known{Version: c.GetVersion(), UID: c.GetUid()},
		expires: r.ExpireTime(), running: r.Running(),
	}
}
