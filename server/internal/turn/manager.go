// Package turn runs Chat turns from the request to the durable answer.
//
// Each turn runs in its own goroutine and continues when the stream that started it ends. The turns
// of a conversation form a queue, and one of them runs at a time. Readers follow the events of a turn,
// which are retained for a while after its end. The store contains everything that must not be lost; a
// turn that is no longer retained is replayed from there.
//
//	Chat ── admit ──▶ queue ── start ──▶ execution ── events ──▶ output ──▶ Chat, Resume
//	                 Manager.mu       turn's goroutine          own locks
//
// # Goroutines
//
// [Manager].mu guards the queues of turns, the entries in them and the manager's counts.
// A turn has these parts:
//
//	part        owner                             contents
//	liveTurn    none, it never changes            ids, options of the request, channels, context
//	queueEntry  Manager.mu                        readers, position, uid, state of retention
//	execution   the turn's goroutine, no lock     request, agent, inputs, event indexes
//	output      eventlog.Log and answer.Answer,   events and messages for readers
//	            each with its own lock
//	completion  the turn's goroutine; constant    the turn as it ended
//	            after done is closed
//
// A queueEntry and an execution have their liveTurn in the field live. A liveTurn embeds the output and
// the completion.
//
// These goroutines use them:
//
//	goroutine              runs                         uses
//	caller's               Chat, Resume, Get, Cancel    Manager.mu, output, completion
//	turn's                 execution.run                all parts; queueEntry through the manager
//	save, while the        execution.save, twice a      output; reads execution
//	agent answers          second; checkRunning, when
//	                       another server has changed
//	                       the conversation
//	keep-alive, from the   execution.startKeepAlive,    output
//	start to the end       twice a second
//	store's                Manager.Committed            Manager.mu, waiters
//	recovery               Manager.KeepRecovering       Manager.mu
//	timers                 timeouts of the agent,       context; Manager.mu
//	                       release of a retained turn
//
// # Several servers
//
// Other servers may run turns in the same store. The store has one running turn for each conversation, whichever server
// runs it. A call about a turn of another server ends with [ElsewhereError], so that the caller can ask that server.
// These wait for the end of a turn in the store: the head of a queue for a turn of another server, a running turn for
// its end by another server, and [Manager.FollowStored]. [Manager.Committed] wakes them.
//
// # Locks
//
// The order of locks is: Manager.mu or the lock of the answer, then the lock of the event log, then
// that of the event sink. The lock of the answer is never taken under Manager.mu. No lock of this package
// is held during calls of the store or an agent. The store may hold its own when it calls
// [Manager.Committed].
//
// The packages below contain the parts of a turn that need neither a queue nor a goroutine: eventlog
// retains its events, answer collects its messages, history answers questions about stored messages,
// replay restores the events of a stored turn, and changes wakes those that wait. History and replay are pure.
//
// Start at [Manager.Chat].
package turn

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/turn/changes"
	"github.com/parleyhq/parley/server/internal/turn/eventlog"
	"github.com/parleyhq/parley/store"
)

// maxRunningTotal limits the running turns of all tenants together.
const maxRunningTotal = 1024

// Options configures a Manager. All fields are required except EventSink, MaxConversationBytes,
// MaxRecordBytes, Owner and OnEnd.
type Options struct {
	Store     store.Store
	Agents    *agent.Set
	EventSink eventlog.Sink
	Log       *slog.Logger
	// TurnTimeout limits the time of an answer, IdleTimeout the time before each of its pieces. Both
	// begin when the agent is called, so that the time in the queue does not count.
	TurnTimeout, IdleTimeout time.Duration
	// MaxAnswerBytes limits the size of the stored answer.
	MaxAnswerBytes int
	// MaxTurns limits the running turns of a tenant.
	MaxTurns int
	// MaxTurnsOf returns the limit of a tenant in place of MaxTurns. The manager calls it at each turn, so
	// its results may change. If nil, each tenant has MaxTurns.
	MaxTurnsOf func(tenant string) int
	// MaxConversationBytes is the limit of the store. Tool results are refused if storing them
	// would drop the calls that they answer. If 0, the limit is unknown and not checked.
	MaxConversationBytes int
	// MaxRecordBytes is the limit of the store for the records of a conversation. A request that would exceed it does
	// not interrupt a turn. If 0, the limit is unknown and not checked.
	MaxRecordBytes int64
	// Owner returns the running turn of a conversation and the server that answers it, as store.Shared does. It spares
	// the search among all abandoned turns. If nil, or if the result has no server, the manager searches.
	Owner func(ctx context.Context, tenant, conversationID string) (store.Owner, error)
	// OnEnd is called when a turn that had started has ended, in its goroutine. It must return quickly. If nil,
	// ends are not reported. Turns that a crash left running are not reported.
	OnEnd func(End)
}

// End describes a turn that has ended, for metrics. Durations are 0 if there was no such time.
type End struct {
	Agent  string // that answered
	State  parleyv1.TurnState
	Reason string // of the error; empty if there is none

	Wait       time.Duration // from the request to the start
	FirstPiece time.Duration // from the call of the agent to its first piece
	Answer     time.Duration // from the call of the agent to the end of its answer
}

// Manager runs turns. Create a Manager with New and end it with Stop.
type Manager struct {
	o Options

	// mu guards the fields of this block, and the queues and entries that they lead to.
	mu            sync.Mutex
	stopping      bool
	turns         map[string]*queueEntry // by turn id: waiting, running and retained turns
	queues        map[key]*queue
	runningQueues map[string]map[*queue]bool // queues with a running turn, by tenant
	runningTotal  int                        // queues with a running turn
	endingTotal   int                        // turns that do not run any more, but whose streams have not ended
	waitingTotal  int                        // turns that wait in all queues
	waitingBytes  int                        // of their requests, at most maxWaitingBytes
	// waitingBytesByTenant has the same by tenant, at most maxTenantWaitingBytes for each.
	waitingBytesByTenant map[string]int
	idle                 chan struct{}       // closed when stopping is true and all turns have ended
	isIdle               bool                // idle is closed
	retained             *list.List          // elements are *queueEntry, in the order in which they ended
	retainedBytes        int                 // memory of the retained turns
	left                 map[string]leftTurn // by turn id; few, since each follows an error of the store

	// waiters wait for the end of a turn in the store.
	waiters changes.Waiters[key]

	ctx    context.Context //nolint:containedctx // the manager's own life, not a call's
	cancel context.CancelCauseFunc
}

// New returns a manager without turns. When ctx ends, the running turns end too.
func New(ctx context.Context, o Options) *Manager {
	if o.MaxTurnsOf == nil {
		o.MaxTurnsOf = func(string) int { return o.MaxTurns }
	}
	if o.Owner == nil {
		o.Owner = func(context.Context, string, string) (store.Owner, error) { return store.Owner{}, nil }
	}
	if o.OnEnd == nil {
		o.OnEnd = func(End) {}
	}
	managerCtx, cancel := context.WithCancelCause(ctx)
	return &Manager{
		o: o, turns: make(map[string]*queueEntry), queues: make(map[key]*queue),
		waitingBytesByTenant: make(map[string]int),
		runningQueues:        make(map[string]map[*queue]bool), idle: make(chan struct{}), retained: list.New(),
		left: make(map[string]leftTurn),
		ctx:  managerCtx, cancel: cancel,
	}
}

// Chat starts the turn of a valid request and yields its events. The request must have a
// conversation_id. If requestKey identifies a request that already started a turn, Chat yields the
// events of that turn; requestKey may be nil.
//
// The sequence ends after a finished event or with an error: an error of the store, of this
// package, or the cause of ctx. If there was no started event, nothing was written. A caller that
// stops reading does not end the turn unless on_disconnect is CANCEL. A queued turn is dropped when
// its last reader leaves.
func (m *Manager) Chat(
	ctx context.Context, tenant string, request *parleyv1.ChatRequest, requestKey *store.Request,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		e, attached, err := m.admit(ctx, tenant, request, requestKey)
		if err == nil {
			err = m.followAndDetach(ctx, e, 0, attached, yield)
		}
		m.endSequence(ctx, key{tenant, request.GetConversationId()}, err, yield)
	}
}

// Resume yields the events of a turn after an index; 0 yields all. If turnID is empty, Resume reads
// the running turn, or the newest turn if none runs. The sequence ends like that of Chat. It can
// also end with NotFoundError or EventsGoneError.
func (m *Manager) Resume(
	ctx context.Context, tenant, conversationID, turnID string, after int32,
) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		at := key{tenant, conversationID}
		m.endSequence(ctx, at, m.replay(ctx, at, turnID, after, yield), yield)
	}
}

// endSequence ends a sequence. If err says that the request already started a turn, it yields the
// events of that turn. It yields any other error.
func (m *Manager) endSequence(ctx context.Context, at key, err error, yield yieldFunc) {
	if repeated, ok := errors.AsType[*repeatedRequestError](err); ok {
		err = &NotFoundError{}
		if repeated.TurnID != "" {
			err = m.replay(ctx, at, repeated.TurnID, 0, yield)
		}
		if _, notFound := errors.AsType[*NotFoundError](err); notFound {
			err = &EventsGoneError{} // The store retains request ids longer than turns.
		}
	}
	if err != nil && !errors.Is(err, errReaderStopped) {
		yield(nil, err)
	}
}

// Inputs returns the messages that a request stores, without ids: one for each tool result, in
// order, then the user message if there is one. It returns none if answer_pending is set. The turn
// answers the last message.
func Inputs(r *parleyv1.ChatRequest) []*parleyv1.Message {
	if r.GetAnswerPending() {
		return nil
	}
	var inputs []*parleyv1.Message
	for _, result := range r.GetToolResults() {
		inputs = append(inputs, &parleyv1.Message{Role: parleyv1.Role_ROLE_TOOL, ToolResult: result})
	}
	if r.GetContent() != "" || len(r.GetStructuredData())+len(r.GetAttachments()) > 0 || len(inputs) == 0 {
		inputs = append(inputs, &parleyv1.Message{
			Role: parleyv1.Role_ROLE_USER, Content: r.GetContent(), StructuredData: r.GetStructuredData(),
			Attachments: r.GetAttachments(),
		})
	}
	inputs[len(inputs)-1].Metadata = r.GetMetadata()
	return inputs
}

// isConfigured reports whether the agent is configured. The empty name counts as configured.
func (m *Manager) isConfigured(name string) bool {
	_, ok := m.o.Agents.Get(name)
	return ok || name == ""
}

// chooseAgent returns the agent that answers: that of the request, of the routing lease, of the
// conversation, or the default, in this order. If c is nil, the request creates the conversation.
func (m *Manager) chooseAgent(request *parleyv1.ChatRequest, c *parleyv1.Conversation) (*agent.Entry, error) {
	if c == nil {
		c = request.GetCreateWith()
	}
	name := cmp.Or(request.GetAgent(), c.GetActiveAgent().GetAgent(), c.GetAgent())
	if name == "" {
		return m.o.Agents.Default(), nil
	}
	if entry, ok := m.o.Agents.Get(name); ok {
		return entry, nil
	}
	return nil, &AgentNotConfiguredError{Agent: name, Known: m.o.Agents.Names()}
}

// Running returns the number of running turns.
func (m *Manager) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runningTotal
}

// Waiting returns the number of turns in queues, without the running ones.
func (m *Manager) Waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waitingTotal
}

// RunningOf returns the number of running turns of a tenant.
func (m *Manager) RunningOf(tenant string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.runningQueues[tenant])
}

// Stop refuses new turns and drops queued turns. It waits for running turns until ctx ends, then
// cancels them. It returns when their partial answers are durable and their last events are sent.
func (m *Manager) Stop(ctx context.Context) {
	m.stopAccepting()
	select {
	case <-m.idle:
	case <-ctx.Done():
		m.cancel(ErrShuttingDown)
		<-m.idle
	}
	m.cancel(ErrShuttingDown)
	m.releaseAll()
}

// stopAccepting refuses new turns and drops queued turns.
func (m *Manager) stopAccepting() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return
	}
	m.stopping = true
	for _, q := range m.queues {
		m.removeAllWaiting(q, ErrShuttingDown)
	}
	m.closeIfIdle()
}

// closeIfIdle ends the wait of Stop when all turns have ended. The caller holds mu.
func (m *Manager) closeIfIdle() {
	if m.stopping && !m.isIdle && m.runningTotal+m.endingTotal == 0 {
		m.isIdle = true
		close(m.idle)
	}
}
