package store

import "context"

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
