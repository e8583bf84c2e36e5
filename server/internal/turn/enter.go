package turn

import (
	"context"
	"errors"
	"fmt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// undecidedError says that it is still open whether the turn ahead begins at all.
type undecidedError struct{ decided <-chan struct{} }

// Error says so.
func (*undecidedError) Error() string { return "a turn is about to begin" }

// enter gives a request its turn: a new one, or the one that q began when it came first,
// which is then joined. The caller is attached to it and has to follow it. A turn that is
// only in the store is a seenError.
func (m *Manager) enter(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) (t *live, joined bool, err error) {
	at := key{tenant, request.GetConversationId()}
	for {
		t, joined, err := m.tryEnter(ctx, at, request, q)
		undecided, ok := errors.AsType[*undecidedError](err)
		if !ok {
			return t, joined, err
		}
		select {
		case <-undecided.decided:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (m *Manager) tryEnter(ctx context.Context, at key, request *parleyv1.ChatRequest, q *store.Request) (t *live, joined bool, err error) {
	// One that has not ended need not be looked up in the store.
	if t, err := m.join(at, q); t != nil || err != nil {
		return t, true, err
	}
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id, Request: q}
	interrupts := request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
	if interrupts && fromHistory(request) {
		read.Newest = -1
	}
	found, err := m.o.Store.Read(ctx, read)
	switch {
	case errors.Is(err, store.ErrNotFound):
		found = &store.Snapshot{}
	case err != nil:
		return nil, false, err
	case found.Seen != nil:
		return nil, false, &seenError{found.Seen}
	}
	if !m.known(request.GetAgent()) {
		return nil, false, &UnknownAgentError{Agent: request.GetAgent(), Known: m.o.Agents.Names()}
	}
	var hopeless error
	if interrupts {
		hopeless = m.hopeless(request, found)
	}
	return m.admit(at, proto.CloneOf(request), q, found, hopeless)
}

// hopeless says why a request would be refused when it begins: nothing is to be cut off for
// one that is.
func (m *Manager) hopeless(request *parleyv1.ChatRequest, found *store.Snapshot) error {
	if version := found.Conversation.GetVersion(); request.IfVersion != nil && request.GetIfVersion() != version {
		return &store.VersionError{Current: version}
	}
	if _, err := m.choose(request, found.Conversation); err != nil {
		return err
	}
	if !fromHistory(request) {
		return nil
	}
	history, err := found.Messages.Messages()
	if err != nil {
		return err
	}
	if request.GetAnswerPending() {
		_, err = pendingIn(history)
		return err
	}
	answered, err := answeredBy(history, request.GetToolResults())
	if err != nil {
		return err
	}
	return mayStore(Inputs(request), answered, found, m.o.MaxConversationBytes)
}

// join attaches the caller to the turn of its request that has not ended; nil when there is
// none.
func (m *Manager) join(at key, q *store.Request) (*live, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lines[at].join(q, "")
}

// admit puts a new turn into its line, if the request may have one, or joins the one that
// there is by now. A request that is hopeless does not interrupt another.
func (m *Manager) admit(at key, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot, hopeless error) (t *live, joined bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.lines[at]
	if t, err := l.join(q, found.Conversation.GetUid()); t != nil || err != nil {
		return t, true, err
	}
	switch {
	case m.closed:
		return nil, false, ErrShuttingDown
	case l != nil && l.running != nil:
		if err := l.mayWait(request.GetOnBusy()); err != nil {
			return nil, false, err
		}
		if request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT && (request.IfVersion != nil || fromHistory(request)) {
			if err := l.mayInterrupt(found); err != nil {
				return nil, false, err
			}
		}
		if hopeless != nil {
			return nil, false, hopeless
		}
	case m.running[at.tenant] >= m.o.MaxTurns:
		return nil, false, fmt.Errorf("%w: %d of this tenant, the limit is %d", ErrTooManyTurns, m.running[at.tenant], m.o.MaxTurns)
	case m.runningInAll >= maxTurnsInAll:
		return nil, false, fmt.Errorf("%w: %d in all", ErrTooManyTurns, m.runningInAll)
	}
	if l == nil {
		l = &line{key: at}
		m.lines[at] = l
	}
	t = newLive(m, l, request, q, found)
	m.turns[t.id] = t
	if l.running == nil {
		l.running = t
		close(t.ahead)
		m.running[at.tenant]++
		m.runningInAll++
	} else {
		l.wait(t)
	}
	go t.run()
	return t, false, nil
}
