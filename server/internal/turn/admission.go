package turn

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/history"
	"github.com/parleyhq/parley/store"
)

// startPendingError reports that it is not yet known whether the previous turn starts.
type startPendingError struct{ decided <-chan struct{} }

// Error implements error.
func (*startPendingError) Error() string { return "the previous turn is about to start" }

// errStaleSnapshot reports that the running turn started after the conversation was read. The next
// read includes the messages of that turn.
var errStaleSnapshot = errors.New("the running turn started after the conversation was read")

// admit returns the turn of a request: a new turn, or the turn that the same request already
// started, to which it attaches the caller. The caller must follow the turn. If the earlier turn is
// only in the store, admit returns a repeatedRequestError.
func (m *Manager) admit(
	ctx context.Context, tenant string, request *parleyv1.ChatRequest, requestKey *store.Request,
) (e *queueEntry, attached bool, err error) {
	at := key{tenant, request.GetConversationId()}
	for {
		e, attached, err := m.tryAdmit(ctx, at, request, requestKey)
		if errors.Is(err, errStaleSnapshot) {
			continue // A new read can become stale only if another turn starts after it.
		}
		pending, ok := errors.AsType[*startPendingError](err)
		if !ok {
			return e, attached, err
		}
		select {
		case <-pending.decided:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (m *Manager) tryAdmit(
	ctx context.Context, at key, request *parleyv1.ChatRequest, requestKey *store.Request,
) (e *queueEntry, attached bool, err error) {
	// Get the uid before the read: if the read does not find this conversation, the conversation has ended.
	uid := m.conversationUID(at)
	read := &store.Read{Tenant: at.tenant, ConversationID: at.id, Request: requestKey}
	interrupts := request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT
	if interrupts && dependsOnHistory(request) {
		read.Newest, read.MaxBytes = -1, store.MaxMessageBytes
	}
	snapshot, err := m.o.Store.Read(ctx, read)
	switch {
	case errors.Is(err, store.ErrNotFound):
		snapshot = &store.Snapshot{}
	case err != nil:
		return nil, false, err
	case snapshot.Seen != nil:
		return nil, false, &repeatedRequestError{snapshot.Seen}
	}
	if uid != "" && uid != snapshot.Conversation.GetUid() {
		// The store reports this end as well, but for an ephemeral conversation only at the sweep.
		m.conversationDeleted(&store.Change{Tenant: at.tenant, ConversationID: at.id, UID: uid})
	}
	if !m.isConfigured(request.GetAgent()) {
		return nil, false, &UnknownAgentError{Agent: request.GetAgent(), Known: m.o.Agents.Names()}
	}
	var refusal error
	if interrupts {
		if refusal = m.interruptRefusal(request, snapshot); refusal == nil {
			refusal = m.refusalOfRecords(ctx, at, request.GetRecords(), snapshot.Conversation)
		}
	}
	return m.enqueueOrAttach(ctx, at, proto.CloneOf(request), requestKey, snapshot, refusal)
}

// interruptRefusal returns why the request would be refused at its start. Such a request must not
// interrupt the running turn.
func (m *Manager) interruptRefusal(request *parleyv1.ChatRequest, snapshot *store.Snapshot) error {
	if version := snapshot.Conversation.GetVersion(); request.IfVersion != nil && request.GetIfVersion() != version {
		return &store.VersionError{Current: version, Required: request.GetIfVersion()}
	}
	if _, err := m.chooseAgent(request, snapshot.Conversation); err != nil {
		return err
	}
	if err := history.CheckFull(Inputs(request), snapshot.Conversation, m.o.MaxConversationBytes); err != nil {
		return err
	}
	if !dependsOnHistory(request) {
		return nil
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		return err
	}
	if request.GetAnswerPending() {
		_, err = history.Pending(messages)
		return err
	}
	answered, err := history.MatchResults(messages, request.GetToolResults())
	if err != nil {
		return err
	}
	return history.CheckRetention(Inputs(request), answered, snapshot, m.o.MaxConversationBytes)
}

// conversationUID returns the uid of the conversation in which the turns of an id run. It is empty
// if there are no turns or the first one has not started.
func (m *Manager) conversationUID(at key) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch q := m.queues[at]; {
	case q == nil || q.running == nil:
		return ""
	case q.running.uid == "":
		return q.uid
	default:
		return q.running.uid
	}
}

// enqueueOrAttach adds a new turn to its queue, or attaches the caller to the turn that the same
// request started in the meantime. If refusal is not nil, the request must not interrupt a running
// turn.
func (m *Manager) enqueueOrAttach(
	ctx context.Context, at key, request *parleyv1.ChatRequest, requestKey *store.Request, snapshot *store.Snapshot,
	refusal error,
) (e *queueEntry, attached bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, requestBytes := m.queues[at], proto.Size(request)
	if e, err := q.attachToRequest(requestKey, snapshot.Conversation.GetUid()); e != nil || err != nil {
		return e, true, err
	}
	switch {
	case m.stopping:
		return nil, false, ErrShuttingDown
	case q != nil && q.running != nil:
		if err := q.checkBusy(request.GetOnBusy()); err != nil {
			return nil, false, err
		}
		if request.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT &&
			(request.IfVersion != nil || dependsOnHistory(request) || dependsOnRecords(request)) {
			if err := q.checkSnapshot(snapshot); err != nil {
				return nil, false, err
			}
		}
		if refusal != nil {
			return nil, false, refusal
		}
		if m.waitingBytes+requestBytes > maxWaitingBytes ||
			m.waitingBytesByTenant[at.tenant]+requestBytes > maxTenantWaitingBytes {
			return nil, false, ErrQueueFull
		}
	default:
		if err := m.checkCapacity(at.tenant); err != nil {
			return nil, false, err
		}
	}
	if q == nil {
		q = &queue{key: at}
		m.queues[at] = q
	}
	e = &queueEntry{
		live: newLiveTurn(ctx, m, at, request), queue: q, requestKey: requestKey, readers: 1, requestBytes: requestBytes,
	}
	m.turns[e.live.id] = e
	hasToWait := q.running != nil
	if hasToWait {
		q.enqueue(e)
		m.countWaiting(e, 1)
	} else {
		q.running = e
		close(e.live.mayStart)
		if m.runningQueues[at.tenant] == nil {
			m.runningQueues[at.tenant] = make(map[*queue]bool)
		}
		m.runningQueues[at.tenant][q] = true
		m.runningTotal++
	}
	go newExecution(m, e, request, snapshot, hasToWait).run()
	return e, false, nil
}

// checkCapacity returns ErrTooManyTurns if no further turn of the tenant may run. The caller holds
// mu.
func (m *Manager) checkCapacity(tenant string) error {
	switch n, most := len(m.runningQueues[tenant]), m.o.MaxTurnsOf(tenant); {
	case n >= most:
		return fmt.Errorf("%w: this tenant has %d (limit %d)", ErrTooManyTurns, n, most)
	case m.runningTotal >= maxRunningTotal:
		return fmt.Errorf("%w: the server has %d (limit %d)", ErrTooManyTurns, m.runningTotal, maxRunningTotal)
	}
	return nil
}
