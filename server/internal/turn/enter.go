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

// errStale reports that the running turn began after the conversation was read. The next read
// includes what that turn has written.
var errStale = errors.New("the conversation was read too early")

// enter gives a request its turn: a new one, or the one that q began when it came first,
// which is then joined. The caller is attached to it and has to follow it. A turn that is
// only in the store is a seenError.
func (m *Manager) enter(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) (t *live, joined bool, err error) {
	at := key{tenant, request.GetConversationId()}
	for {
		t, joined, err := m.tryEnter(ctx, at, request, q)
		if errors.Is(err, errStale) {
			continue // Only another turn that begins after the next read can make that read stale too.
		}
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
	uid := m.uidOf(at) // Taken before the read: a read that does not find this conversation proves its end.
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
	if uid != "" && uid != found.Conversation.GetUid() {
		// The store reports this end too, but that of an ephemeral conversation only at the sweep.
		m.deleted(&store.Change{Tenant: at.tenant, ConversationID: at.id, UID: uid})
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

// uidOf returns the uid of the conversation in which the turns of an id run. It is empty if there
// are no turns or the first one has not begun.
func (m *Manager) uidOf(at key) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch l := m.lines[at]; {
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
