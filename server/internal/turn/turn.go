// Package turn runs Chat turns from the request to the durable answer. Begin with
// [Manager.Chat].
//
// A turn runs in a goroutine of its own, whoever reads it: it outlives the stream that
// began it. Readers follow its list of events; the store holds what must not be lost.
package turn

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// maxTurnsInAll bounds the turns of all tenants together.
const maxTurnsInAll = 1024

// saveEvery is how much of an answer a crash can cost.
const saveEvery = time.Second

// Options of a Manager; all are required.
type Options struct {
	Store  store.Store
	Agents *agent.Set
	Log    *slog.Logger
	// TurnTimeout bounds a whole turn, IdleTimeout the time between two pieces.
	TurnTimeout, IdleTimeout time.Duration
	// MaxAnswerBytes bounds what is kept of an answer.
	MaxAnswerBytes int
	// MaxTurns bounds the running turns of a tenant.
	MaxTurns int
}

// Manager runs turns. Make one with New; end it with Stop.
type Manager struct {
	o Options

	mu      sync.Mutex
	closed  bool
	running map[string]int          // tenant: turns, those that are about to begin included
	inAll   int                     // sum of running
	live    map[conversation]*live  // at most one a conversation: the store sees to it
	idle    chan struct{}           // closed when closed and inAll is 0
	stopped context.CancelCauseFunc // ends what waits for the store
	stop    context.Context         //nolint:containedctx // the manager's own life, not a call's
}

type conversation struct{ tenant, id string }

// New returns a manager without turns. Ctx is the manager's life: when it ends, so do the
// turns.
func New(ctx context.Context, o Options) *Manager {
	stop, stopped := context.WithCancelCause(ctx)
	return &Manager{
		o: o, running: make(map[string]int), live: make(map[conversation]*live),
		idle: make(chan struct{}), stop: stop, stopped: stopped,
	}
}

// Chat begins the turn that a valid request asks for, whose conversation_id is filled in,
// and returns its events; or those of the turn that q, which may be nil, began when it
// came first. When it returns an error nothing was written: an error of the store or of
// this package. The sequence ends after a finished event, or with an error: ctx's, or what
// kept the turn from ending. Leaving it does not end the turn.
func (m *Manager) Chat(ctx context.Context, tenant string, request *parleyv1.ChatRequest, q *store.Request) (iter.Seq2[*parleyv1.TurnEvent, error], error) {
	if err := supported(request); err != nil {
		return nil, err
	}
	id := request.GetConversationId()
	found, err := m.o.Store.Read(ctx, &store.Read{Tenant: tenant, ConversationID: id, Request: q})
	if errors.Is(err, store.ErrNotFound) {
		found, err = &store.Snapshot{}, nil
	}
	if err != nil {
		return nil, err
	}
	if found.Seen != nil {
		return m.replay(ctx, tenant, id, found.Seen)
	}
	entry, err := m.choose(request, found.Conversation)
	if err != nil {
		return nil, err
	}
	if err := m.reserve(tenant); err != nil {
		return nil, err
	}
	message := UserMessage(request)
	message.Id = uuid.NewString()
	a := &store.Append{
		Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{message},
		Request: q, MustExist: request.GetMustExist(), IfVersion: request.IfVersion,
		Begin: &parleyv1.Turn{Id: uuid.NewString(), RequestId: request.GetRequestId(), Agent: entry.Name},
	}
	result, err := m.o.Store.Append(ctx, a)
	if err != nil {
		m.release(tenant)
		return nil, err
	}
	if result.Replayed {
		m.release(tenant)
		return m.replay(ctx, tenant, id, &store.Seen{Created: result.Created, TurnID: result.Turn.GetId()})
	}
	t := m.begin(ctx, tenant, request, entry, message, result)
	go t.run()
	return t.events.read(ctx, 0), nil
}

// UserMessage is the message that a request has stored, without its id.
func UserMessage(r *parleyv1.ChatRequest) *parleyv1.Message {
	return &parleyv1.Message{
		Role: parleyv1.Role_ROLE_USER, Content: r.GetContent(), StructuredData: r.GetStructuredData(),
		Attachments: r.GetAttachments(), Metadata: r.GetMetadata(),
	}
}

// supported refuses what later versions do.
func supported(r *parleyv1.ChatRequest) error {
	switch {
	case r.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_QUEUE, r.GetOnBusy() == parleyv1.OnBusy_ON_BUSY_INTERRUPT:
		return &UnsupportedError{What: "on_busy: " + r.GetOnBusy().String()}
	case r.GetOnDisconnect() == parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL:
		return &UnsupportedError{What: "on_disconnect: " + r.GetOnDisconnect().String()}
	case len(r.GetToolResults()) > 0:
		return &UnsupportedError{What: "tool_results"}
	case r.GetAnswerPending():
		return &UnsupportedError{What: "answer_pending"}
	}
	return nil
}

// choose names the agent that answers: the request's, else the holder of the routing
// lease, else the conversation's, else the default.
func (m *Manager) choose(request *parleyv1.ChatRequest, c *parleyv1.Conversation) (*agent.Entry, error) {
	if name := request.GetAgent(); name != "" {
		if entry, ok := m.o.Agents.Get(name); ok {
			return entry, nil
		}
		return nil, &UnknownAgentError{Agent: name, Known: m.o.Agents.Names()}
	}
	name := c.GetActiveAgent().GetAgent()
	if name == "" {
		name = c.GetAgent()
	}
	if name == "" {
		return m.o.Agents.Default(), nil
	}
	if entry, ok := m.o.Agents.Get(name); ok {
		return entry, nil
	}
	return nil, &AgentNotConfiguredError{Agent: name, Known: m.o.Agents.Names()}
}

// reserve takes one of the places for running turns.
func (m *Manager) reserve(tenant string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrShuttingDown
	case m.running[tenant] >= m.o.MaxTurns:
		return fmt.Errorf("%w: %d of this tenant, the limit is %d", ErrTooManyTurns, m.running[tenant], m.o.MaxTurns)
	case m.inAll >= maxTurnsInAll:
		return fmt.Errorf("%w: %d in all", ErrTooManyTurns, m.inAll)
	}
	m.running[tenant]++
	m.inAll++
	return nil
}

// release gives a place back.
func (m *Manager) release(tenant string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inAll--
	m.running[tenant]--
	if m.running[tenant] == 0 {
		delete(m.running, tenant)
	}
	if m.inAll == 0 && m.closed {
		close(m.idle)
	}
}

// Running counts the turns that run.
func (m *Manager) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.inAll
}

// Committed takes the store's changes: a conversation that is gone takes its turn along.
// It does not block.
func (m *Manager) Committed(changes []store.Change) {
	for i := range changes {
		if changes[i].Kind != parleyv1.ChangeKind_CHANGE_KIND_DELETED {
			continue
		}
		m.mu.Lock()
		t := m.live[conversation{changes[i].Tenant, changes[i].ConversationID}]
		m.mu.Unlock()
		if t != nil && t.uid == changes[i].UID {
			t.cancel(ErrConversationGone)
		}
	}
}

// Stop takes no more turns, waits for those that run until ctx ends, then cuts them off
// and returns when their answers, as far as they had come, are durable.
func (m *Manager) Stop(ctx context.Context) {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		if m.inAll == 0 {
			close(m.idle)
		}
	}
	m.mu.Unlock()
	select {
	case <-m.idle:
	case <-ctx.Done():
		m.stopped(ErrShuttingDown)
		<-m.idle
	}
	m.stopped(ErrShuttingDown)
}

// Recover ends the turns that a crash left running, with what had been saved of their
// answers. Call it before serving.
func (m *Manager) Recover(ctx context.Context) error {
	abandoned, err := m.o.Store.Abandoned(ctx)
	if err != nil {
		return fmt.Errorf("find abandoned turns: %w", err)
	}
	for i := range abandoned {
		p := &abandoned[i]
		for _, message := range p.Messages {
			if message.GetId() == "" {
				message.Id = uuid.NewString()
			}
		}
		_, err := m.o.Store.Append(ctx, &store.Append{
			Tenant: p.Tenant, ConversationID: p.ConversationID, Messages: p.Messages,
			End: &parleyv1.Turn{Id: p.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED, Error: crashed()},
		})
		log := m.o.Log.With("conversation_id", p.ConversationID, "turn_id", p.TurnID)
		switch {
		case err == nil:
			log.Warn("turn interrupted by a stop of the server", "saved_messages", len(p.Messages))
		case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
		case errors.Is(err, store.ErrCorrupt): // Its conversation can only be deleted, the others served.
			log.Error("turn of a damaged conversation could not be ended", "error", err)
		default:
			return fmt.Errorf("end turn %s of conversation %q: %w", p.TurnID, p.ConversationID, err)
		}
	}
	return nil
}
