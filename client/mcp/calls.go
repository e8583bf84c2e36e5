package mcp

import (
	"context"
	"sync"
)

// maxNamedBytes limits the bytes of a callName. The session ids of this server have 26.
const maxNamedBytes = 256

// callName identifies a call among those of all clients over HTTP. Clients of protocols before 2026-07-28 cancel a
// call with another request, which contains the id of the call. That id is unique only within the
// client. So the first reply to a client contains a session id, which the client sends with all other
// requests. The server stores only the running calls of a session and accepts any session id, for
// example one of another server.
// The user is that of [WithUser].
type callName struct{ user, session, id string }

// calls are the running calls that can be cancelled by name.
type calls struct {
	mu      sync.Mutex
	cancels map[callName]context.CancelFunc
}

func newCalls() *calls {
	return &calls{cancels: map[callName]context.CancelFunc{}}
}

// add registers cancel for the call with name until remove is called. It does nothing if the name is already used, too
// long, or without a session.
func (c *calls) add(name callName, cancel context.CancelFunc) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, exists := c.cancels[name]
	if exists || name.session == "" || len(name.session)+len(name.id) > maxNamedBytes {
		return func() {}
	}
	c.cancels[name] = cancel
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancels, name)
	}
}

// cancel cancels the call with name, if it is running.
func (c *calls) cancel(name callName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cancel, found := c.cancels[name]; found {
		cancel()
	}
}
