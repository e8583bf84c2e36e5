package mcp

import (
	"context"
	"sync"
)

// maxNamedBytes of a name are kept; those of sessions given here have 26.
const maxNamedBytes = 256

// callName names a call among those of all clients over HTTP. Clients of protocols before
// 2026-07-28 cancel by a request of its own, which has the call's id, unique only among those
// of the client. So the first answer to a client names a session for it, which it sends with
// all other requests. Nothing is kept of a session but its calls that are under way, and any
// name will do: one that another server has given, say.
type callName struct{ session, id string }

// calls are those that are under way and have a name.
type calls struct {
	mu      sync.Mutex
	cancels map[callName]context.CancelFunc
}

func newCalls() *calls {
	return &calls{cancels: map[callName]context.CancelFunc{}}
}

// add has cancel called when the call of that name is cancelled, until remove is called. It
// does nothing for a call that cannot be named.
func (c *calls) add(name callName, cancel context.CancelFunc) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, taken := c.cancels[name]
	if taken || name.session == "" || len(name.session)+len(name.id) > maxNamedBytes {
		return func() {}
	}
	c.cancels[name] = cancel
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancels, name)
	}
}

// cancel cancels the call of that name, if it is under way.
func (c *calls) cancel(name callName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel, found := c.cancels[name]; found {
		cancel()
	}
}
