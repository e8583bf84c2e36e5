package watch

import (
	"container/list"
	"strings"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// Limits of the remembered endings of all tenants together.
const (
	// endingTime is how long an ending is remembered.
	endingTime = time.Hour
	// maxEndings and maxEndingBytes are their maximum number and memory.
	maxEndings     = 20_000
	maxEndingBytes = 8 << 20
	// endingOverheadBytes is the approximate memory of an ending without its id.
	endingOverheadBytes = 300
)

// Ending says how a conversation ended.
type Ending struct {
	// Kind is DELETED, EXPIRED or EVICTED.
	Kind parleyv1.ChangeKind
	// At is when the conversation ended. For EXPIRED it is the expire_time, otherwise the time when the store removed the
	// conversation.
	At time.Time
}

// Ended returns how the conversation of a tenant with this id ended. The bool is false if the hub remembers no end:
// the conversation exists, never existed, ended more than an hour before now or before the start of the server, or
// newer endings replaced it.
func (h *Hub) Ended(tenant, id string, now time.Time) (e Ending, ok bool) {
	return h.endings.find(tenant, id, now)
}

// endings remembers the newest endings.
//
// When a limit is reached, a tenant with more than an equal share of it loses its own oldest ending. Otherwise the
// oldest of all endings is dropped. So one tenant does not displace the endings of others.
type endings struct {
	maxCount, maxBytes int

	mu      sync.Mutex
	tenants map[string]*tenantEndings // those with endings
	inOrder *list.List                // of *ending, of all tenants, oldest first
	bytes   int
}

// tenantEndings has the endings of one tenant.
type tenantEndings struct {
	name    string
	byID    map[string]*ending
	inOrder *list.List // of *ending, oldest first
}

// ending is a remembered ending with its places in the lists.
type ending struct {
	Ending
	id           string
	tenant       *tenantEndings
	inAll, inOwn *list.Element
}

func (e *ending) size() int { return endingOverheadBytes + len(e.id) }

func newEndings(maxCount, maxBytes int) *endings {
	return &endings{
		maxCount: maxCount, maxBytes: maxBytes, tenants: make(map[string]*tenantEndings), inOrder: list.New(),
	}
}

// add adds the endings in committed changes, and forgets those of conversations that were created again.
func (e *endings) add(changes []store.Change) {
	for i := range changes {
		switch c := &changes[i]; c.Kind {
		case parleyv1.ChangeKind_CHANGE_KIND_CREATED:
			e.forget(c.Tenant, c.ConversationID)
		case parleyv1.ChangeKind_CHANGE_KIND_DELETED, parleyv1.ChangeKind_CHANGE_KIND_EXPIRED,
			parleyv1.ChangeKind_CHANGE_KIND_EVICTED:
			at := c.Time
			if !c.ExpireTime.IsZero() { // The sweep, at c.Time, may be later.
				at = c.ExpireTime
			}
			e.remember(c.Tenant, c.ConversationID, Ending{Kind: c.Kind, At: at})
		default:
		}
	}
}

// find implements Hub.Ended.
func (e *endings) find(tenant, id string, now time.Time) (Ending, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenants[tenant]
	if t == nil || t.byID[id] == nil || now.Sub(t.byID[id].At) > endingTime {
		return Ending{}, false
	}
	return t.byID[id].Ending, true
}

// forget removes the ending of a conversation, if there is one.
func (e *endings) forget(tenant, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.tenants[tenant]; t != nil && t.byID[id] != nil {
		e.remove(t.byID[id])
	}
}

// remember adds an ending and removes the old ones and those over the limits. The caller adds endings in the order of
// their changes. Their times may differ from this order by the delay of a sweep.
func (e *endings) remember(tenant, id string, newest Ending) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tenants[tenant]
	if t == nil {
		t = &tenantEndings{name: tenant, byID: make(map[string]*ending), inOrder: list.New()}
		e.tenants[tenant] = t
	}
	if before := t.byID[id]; before != nil {
		e.remove(before)
		e.tenants[tenant] = t // It may have been the only ending of the tenant.
	}
	added := &ending{Ending: newest, id: strings.Clone(id), tenant: t}
	added.inAll, added.inOwn = e.inOrder.PushBack(added), t.inOrder.PushBack(added)
	t.byID[added.id], e.bytes = added, e.bytes+added.size()
	for e.inOrder.Len() > e.maxCount || e.bytes > e.maxBytes {
		from := e.inOrder
		if t.inOrder.Len() > max(1, e.maxCount/len(e.tenants)) {
			from = t.inOrder
		}
		e.remove(oldest(from))
	}
	for e.inOrder.Len() > 0 && newest.At.Sub(oldest(e.inOrder).At) > endingTime {
		e.remove(oldest(e.inOrder))
	}
}

// oldest returns the first element of a list of endings that is not empty.
func oldest(of *list.List) *ending {
	return of.Front().Value.(*ending) //nolint:errcheck,forcetypeassert // The list has no others.
}

// remove removes an ending. The caller holds mu.
func (e *endings) remove(old *ending) {
	t := old.tenant
	e.inOrder.Remove(old.inAll)
	t.inOrder.Remove(old.inOwn)
	delete(t.byID, old.id)
	e.bytes -= old.size()
	if len(t.byID) == 0 {
		delete(e.tenants, t.name)
	}
}
