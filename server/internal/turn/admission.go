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
type startPendingError struct{ decided <-chan struct{} }

// Error says so.
func (*startPendingError) Error() string { return "a turn is about to begin" }

// errStale reports that the running turn began after the conversation was read. The next read
// includes what that turn has written.
var errStaleSnapshot = errors.New("the conversation was read too early")

// enter gives a request its turn: a new one, or the one that q began when it came first,
// which is then joined. The caller is attached to it and has to follow it. A turn that is
// only in the store is a seenError.
func (m *Manager) admit(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) (t *liveTurn, attached bool, err error) {
	at := key{tenant, request.GetConversationId()}
	for {
		t, attached, err := m.tryAdmit(ctx, at, request, q)
		if errors.Is(err, errStaleSnapshot) {
			continue // Only another turn that begins after the next read can make that read stale too.
		}
		pending, ok := errors.AsType[*startPendingError](err)
		if !ok {
			return t, attached, err
		}
		select {
		case <-pending.decided:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (m *Manager) tryAdmit(ctx context.Context, at key, request *parleyv1.ChatRequest, q *store.Request) (t *liveTurn, attached bool, err error) {
	uid := m.conversationUID(at) // Taken before the read: a read that does not find this conversation proves its end.
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id, Request: q}
	interrupts := request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
	if interrupts && dependsOnHistory(request) {
		read.Newest = -1
	}
	found, err := m.o.Store.Read(ctx, read)
	switch {
	case errors.Is(err, store.ErrNotFound):
		found = &store.Snapshot{}
	case err != nil:
		return nil, false, err
	case found.Seen != nil:
		return nil, false, &repeatedRequestError{found.Seen}
	}
	if uid != "" && uid != found.Conversation.GetUid() {
		// The store reports this end too, but that of an ephemeral conversation only at the sweep.
		m.conversationDeleted(&store.Change{Tenant: at.tenant, ConversationID: at.id, UID: uid})
	}
	if !m.isConfigured(request.GetAgent()) {
		return nil, false, &UnknownAgentError{Agent: request.GetAgent(), Known: m.o.Agents.Names()}
	}
	var refusal error
	if interrupts {
		refusal = m.interruptRefusal(request, found)
	}
	return m.enqueueOrAttach(at, proto.CloneOf(request), q, found, refusal)
}

// hopeless says why a request would be refused when it begins: nothing is to be cut off for
// one that is.
func (m *Manager) interruptRefusal(request *parleyv1.ChatRequest, found *store.Snapshot) error {
	if version := found.Conversation.GetVersion(); request.IfVersion != nil && request.GetIfVersion() != version {
		return &store.VersionError{Current: version}
	}
	if _, err := m.chooseAgent(request, found.Conversation); err != nil {
		return err
	}
	if !dependsOnHistory(request) {
		return nil
	}
	history, err := found.Messages.Messages()
	if err != nil {
		return err
	}
	if request.GetAnswerPending() {
		_, err = pendingMessage(history)
		return err
	}
	answered, err := matchResults(history, request.GetToolResults())
	if err != nil {
		return err
	}
	return checkRetention(Inputs(request), answered, found, m.o.MaxConversationBytes)
}

// uidOf returns the uid of the conversation in which the turns of an id run. It is empty if there
// are no turns or the first one has not begun.
func (m *Manager) conversationUID(at key) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch l := m.queues[at]; {
	case l == nil || l.running == nil:
		return ""
	case l.running.uid == "":
		return l.uid
	default:
		return l.running.uid
	}
}

// admit puts a new turn into its line, if the request may have one, or joins the one that
// there is by now. A request that is hopeless does not interrupt another.
func (m *Manager) enqueueOrAttach(at key, request *parleyv1.ChatRequest, q *store.Request, found *store.Snapshot, refusal error) (t *liveTurn, attached bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.queues[at]
	if t, err := l.attachToRequest(q, found.Conversation.GetUid()); t != nil || err != nil {
		return t, true, err
	}
	switch {
	case m.stopping:
		return nil, false, ErrShuttingDown
	case l != nil && l.running != nil:
		if err := l.checkBusy(request.GetOnBusy()); err != nil {
			return nil, false, err
		}
		if request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT && (request.IfVersion != nil || dependsOnHistory(request)) {
			if err := l.checkSnapshot(found); err != nil {
				return nil, false, err
			}
		}
		if refusal != nil {
			return nil, false, refusal
		}
	case m.runningByTenant[at.tenant] >= m.o.MaxTurns:
		return nil, false, fmt.Errorf("%w: %d of this tenant, the limit is %d", ErrTooManyTurns, m.runningByTenant[at.tenant], m.o.MaxTurns)
	case m.runningTotal >= maxRunningTotal:
		return nil, false, fmt.Errorf("%w: %d in all", ErrTooManyTurns, m.runningTotal)
	}
	if l == nil {
		l = &queue{key: at}
		m.queues[at] = l
	}
	t = newLiveTurn(m, l, request, q, found)
	m.turns[t.id] = t
	if l.running == nil {
		l.running = t
		close(t.mayStart)
		m.runningByTenant[at.tenant]++
		m.runningTotal++
	} else {
		l.enqueue(t)
	}
	go t.run()
	return t, false, nil
}
