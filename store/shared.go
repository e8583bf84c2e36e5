package store

import (
	"cmp"
	"context"
)

// Shared is implemented by stores that several servers may have open at the same time. A running turn is answered by
// one of them, which alone has its pieces and its queue.
type Shared interface {
	// Owner returns the running turn of a conversation and the server that answers it. It is the zero value if no turn
	// is running, or if the conversation does not exist.
	Owner(ctx context.Context, tenant, conversationID string) (Owner, error)
	// Peers returns the other servers that have a lease and can be called, in the order of their addresses.
	Peers(ctx context.Context) ([]Server, error)
	// Self returns this server, as it is for the others.
	Self() Server
}

// Owner is a running turn with its server.
type Owner struct {
	// TurnID of the running turn; empty if none is running.
	TurnID string
	// Server that answers it. The zero value means that its lease has ended, or that it cannot be called.
	Server Server
}

// Server is a process that has a shared store open.
type Server struct {
	// Address at which other servers call it, as host:port. If empty, it cannot be called.
	Address string
	// Key is a secret that only those know who can read the store. A server that is called with its own key is called by
	// another server. It is new at each start.
	Key string
}

// Ordered is implemented by stores whose changes have places that all processes know.
type Ordered interface {
	// Since returns the place after which the observer has received all changes of a tenant, and the number of a bucket,
	// from 0. The place is the same for all tenants with this bucket. The zero place means that there is none at present.
	// The place is later after each change of kind GAP, and changes only directly before one. Since may be called while
	// the observer receives changes.
	Since(tenant string) (bucket int, since Place)
}

// Place is the place of a change in an order that all processes with the same store open know.
type Place struct {
	// Epoch is random and identifies the order. Places of different epochs cannot be compared. It is a secret, like what
	// the store contains.
	Epoch string
	// Number is the number of the commit, from 1, rising. The commits of other tenants are also counted.
	Number uint64
	// Index is the index of the change in its commit, from 0. The last change has LastIndex, so that its place is the end
	// of the commit.
	Index uint32
}

// LastIndex is the Place.Index of the last change of a commit.
const LastIndex = 1<<32 - 1

// Compare returns -1 if p is before other, 1 if it is after it, and 0 if both are the same. They must have the same
// epoch.
func (p Place) Compare(other Place) int {
	return cmp.Or(cmp.Compare(p.Number, other.Number), cmp.Compare(p.Index, other.Index))
}
