package turn

import (
	"context"
	"errors"
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// enter gives a request its turn: a new one, or the one that q began when it came first,
// which is then joined. The caller is attached to it and has to follow it. A turn that is
// only in the store is a seenError.
func (m *Manager) enter(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) (t *live, joined bool, err error) {
	if len(request.GetToolResults()) > 0 {
		return nil, false, &UnsupportedError{What: "tool_results"}
	}
	at := place{tenant, request.GetConversationId()}
	if t, err := m.join(at, q); t != nil || err != nil {
		return t, true, err
	}
	found, err := m.o.Store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: at.id, Request: q})
	switch {
	case errors.Is(err, store.ErrNotFound):
		found = &store.Snapshot{}
		m.forgetLine(at) // The conversation has expired.
	case err != nil:
		return nil, false, err
	case found.Seen != nil:
		return nil, false, &seenError{found.Seen}
	}
	if !m.known(request.GetAgent()) {
		return nil, false, &UnknownAgentError{Agent: request.GetAgent(), Known: m.o.Agents.Names()}
	}
	for {
		t, joined, undecided, err := m.admit(ctx, at, request, q, found)
		if undecided == nil {
			return t, joined, err
		}
		select {
		case <-undecided:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

// join attaches the caller to the turn of its request, unless the store has to be asked
// first whether the conversation is still there. Nil: there is none.
func (m *Manager) join(at place, q *store.Request) (*live, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, err := m.lines[at].find(q)
	if t == nil || t.ended && t.uid != "" {
		return nil, err
	}
	t.readers++
	return t, nil
}

// admit puts a new turn into its line, if the request may have one. While it is open
// whether the turn ahead begins at all, a request that does not wait is to ask again when
// undecided is closed.
func (m *Manager) admit(ctx context.Context, at place, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot) (t *live, joined bool, undecided <-chan struct{}, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lines[at]
	if t, err := l.find(q); t != nil || err != nil {
		if t != nil {
			t.readers++
		}
		return t, true, nil, err
	}
	switch {
	case m.closed:
		return nil, false, nil, ErrShuttingDown
	case l != nil && l.running != nil:
		if undecided, err := l.mayWait(request.GetOnBusy()); undecided != nil || err != nil {
			return nil, false, undecided, err
		}
	case m.running[at.tenant] >= m.o.MaxTurns:
		return nil, false, nil, fmt.Errorf("%w: %d of this tenant, the limit is %d", ErrTooManyTurns, m.running[at.tenant], m.o.MaxTurns)
	case m.inAll >= maxTurnsInAll:
		return nil, false, nil, fmt.Errorf("%w: %d in all", ErrTooManyTurns, m.inAll)
	}
	if l == nil {
		l = &line{place: at}
		m.lines[at] = l
	}
	t = newLive(ctx, m, l, request, q, found)
	m.turns[t.id] = t
	if l.running == nil {
		l.running = t
		close(t.ahead)
		m.running[at.tenant]++
		m.inAll++
	} else {
		l.wait(t)
	}
	go t.run()
	return t, false, nil, nil
}
