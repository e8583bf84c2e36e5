// Package turn runs Chat turns from the request to the durable answer. Begin with
// [Manager.Chat].
//
// A turn runs in a goroutine of its own, whoever reads it: it outlives the stream that
// began it. The turns of a conversation stand in a line, and one runs at a time. Readers
// follow a turn's list of events, which is kept for a while after its end; the store holds
// what must not be lost, and what is no longer in a list is replayed from there.
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
	"github.com/parleyhq/parley/store"
)

// maxTurnsInAll bounds the running turns of all tenants together.
const maxRunningTotal = 1024

// Audience is told what happens in turns; package watch is.
type EventSink interface {
	// Listening reports whether it wants to be told.
	HasSubscribers() bool
	// TurnEvent takes the next event of a turn, which is not to be changed any more. It must
	// not block and must not call the manager.
	TurnEvent(tenant, conversationID string, event *parleyv1.TurnEvent)
}

// Options of a Manager; all are required but Audience and MaxConversationBytes.
type Options struct {
	Store    store.Store
	Agents   *agent.Set
	Audience EventSink
	Log      *slog.Logger
	// TurnTimeout bounds a whole turn, IdleTimeout the time between two pieces. Waiting in
	// line is no part of either.
	TurnTimeout, IdleTimeout time.Duration
	// MaxAnswerBytes bounds what is kept of an answer.
	MaxAnswerBytes int
	// MaxTurns bounds the running turns of a tenant.
	MaxTurns int
	// MaxConversationBytes is the store's own option: tool results that would push the calls
	// out which they answer are refused. 0: what has so many bytes is not known.
	MaxConversationBytes int
}

// Manager runs turns. Make one with New; end it with Stop.
type Manager struct {
	o Options

	mu              sync.Mutex
	stopping        bool
	turns           map[string]*liveTurn // by id: those that wait, run, or have ended and are kept
	queues          map[key]*queue
	runningByTenant map[string]int // lines in which a turn runs, by tenant
	runningTotal    int            // lines in which a turn runs
	idle            chan struct{}  // closed when closed and no turn runs
	retained        *list.List     // of *live that have ended, in the order of their ends
	retainedBytes   int            // what they hold in memory, in bytes

	ctx    context.Context //nolint:containedctx // the manager's own life, not a call's
	cancel context.CancelCauseFunc
}

// New returns a manager without turns. Ctx is the manager's life: when it ends, so do the
// turns.
func New(ctx context.Context, o Options) *Manager {
	managerCtx, cancel := context.WithCancelCause(ctx)
	return &Manager{
		o: o, turns: make(map[string]*liveTurn), queues: make(map[key]*queue), runningByTenant: make(map[string]int),
		idle: make(chan struct{}), retained: list.New(), ctx: managerCtx, cancel: cancel,
	}
}

// Chat begins the turn that a valid request asks for, whose conversation_id is filled in,
// and yields its events; or those of the turn that q, which may be nil, began when it came
// first. The sequence ends after a finished event, or with an error: one of the store or of
// this package, or ctx's. Without a started event nothing was written. Leaving the sequence
// does not end the turn unless the request says so; a turn that still waits in line is
// dropped with its last reader.
func (m *Manager) Chat(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		t, attached, err := m.admit(ctx, tenant, request, q)
		if err == nil {
			err = t.follow(ctx, 0, attached, yield)
		}
		m.endSequence(ctx, key{tenant, request.GetConversationId()}, err, yield)
	}
}

// Resume yields the events of a turn behind an index; 0 is all. An empty turnID is the
// running turn, else the newest. The sequence ends like Chat's; beside the errors of Chat
// there are NotFoundError and EventsGoneError.
func (m *Manager) Resume(ctx context.Context, tenant, conversationID, turnID string, after int32) iter.Seq2[*parleyv1.TurnEvent, error] {
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		at := key{tenant, conversationID}
		m.endSequence(ctx, at, m.replay(ctx, at, turnID, after, yield), yield)
	}
}

// conclude ends a sequence that ended with err so far: with the turn that a request began when
// it came first, if that is what err says.
func (m *Manager) endSequence(ctx context.Context, at key, err error, yield yieldFunc) {
	if repeated, ok := errors.AsType[*repeatedRequestError](err); ok {
		err = &NotFoundError{}
		if repeated.TurnID != "" {
			err = m.replay(ctx, at, repeated.TurnID, 0, yield)
		}
		if _, notFound := errors.AsType[*NotFoundError](err); notFound {
			err = &EventsGoneError{} // The store remembers the request longer than the turn.
		}
	}
	if err != nil && !errors.Is(err, errReaderStopped) {
		yield(nil, err)
	}
}

// Inputs are the messages that a request has stored, without their ids: one for each of its
// tool results, in their order, then the user's, if it has one; none with answer_pending. The
// last one is what the turn answers.
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
			Role: parleyv1.Role_ROLE_USER, Content: r.GetContent(), StructuredData: r.GetStructuredData(), Attachments: r.GetAttachments(),
		})
	}
	inputs[len(inputs)-1].Metadata = r.GetMetadata()
	return inputs
}

// known reports whether a request may name this agent, or none.
func (m *Manager) isConfigured(name string) bool {
	_, ok := m.o.Agents.Get(name)
	return ok || name == ""
}

// choose names the agent that answers: the request's, else the holder of the routing
// lease, else the conversation's, else the default.
func (m *Manager) chooseAgent(request *parleyv1.ChatRequest, c *parleyv1.Conversation) (*agent.Entry, error) {
	name := cmp.Or(request.GetAgent(), c.GetActiveAgent().GetAgent(), c.GetAgent())
	if name == "" {
		return m.o.Agents.Default(), nil
	}
	if entry, ok := m.o.Agents.Get(name); ok {
		return entry, nil
	}
	return nil, &AgentNotConfiguredError{Agent: name, Known: m.o.Agents.Names()}
}

// Running counts the turns that run.
func (m *Manager) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runningTotal
}

// Stop takes no more turns and drops those that wait; it waits for those that run until
// ctx ends, then cuts them off and returns when their answers, as far as they had come, are
// durable.
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

func (m *Manager) stopAccepting() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return
	}
	m.stopping = true
	for _, l := range m.queues {
		m.removeAllWaiting(l, ErrShuttingDown)
	}
	if m.runningTotal == 0 {
		close(m.idle)
	}
}
