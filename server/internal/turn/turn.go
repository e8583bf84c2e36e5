// Package turn runs Chat turns from the request to the durable answer. Begin with
// [Manager.Chat].
//
// A turn runs in a goroutine of its own, whoever reads it: it outlives the stream that
// began it. Readers follow its list of events; the store holds what must not be lost.
package turn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
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
	live    map[string]*live // by turn id, from before the store knows it until it has ended there
	running map[string]int   // of live, by tenant
	idle    chan struct{}    // closed when closed and nothing is live

	stop    context.Context //nolint:containedctx // the manager's own life, not a call's
	stopped context.CancelCauseFunc
}

// New returns a manager without turns. Ctx is the manager's life: when it ends, so do the
// turns.
func New(ctx context.Context, o Options) *Manager {
	stop, stopped := context.WithCancelCause(ctx)
	return &Manager{
		o: o, live: make(map[string]*live), running: make(map[string]int),
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
	switch {
	case err != nil:
		return nil, err
	case found.Seen != nil:
		return m.replay(ctx, tenant, id, found.Seen)
	case !m.known(request.GetAgent()):
		return nil, &UnknownAgentError{Agent: request.GetAgent(), Known: m.o.Agents.Names()}
	case found.Conversation.GetActiveTurnId() != "":
		// The store would say so too, but a full house must not speak first.
		return nil, &store.BusyError{TurnID: found.Conversation.GetActiveTurnId()}
	}
	entry, err := m.choose(request, found.Conversation)
	if err != nil {
		return nil, err
	}
	t, err := m.enter(ctx, tenant, request, entry)
	if err != nil {
		return nil, err
	}
	result, err := m.o.Store.Append(ctx, &store.Append{
		Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{t.input},
		Request: q, MustExist: request.GetMustExist(), IfVersion: request.IfVersion,
		Begin: &parleyv1.Turn{Id: t.id, RequestId: request.GetRequestId(), Agent: entry.Name},
	})
	if err != nil {
		m.leave(t)
		return nil, err
	}
	if result.Replayed {
		m.leave(t)
		return m.replay(ctx, tenant, id, &store.Seen{Created: result.Created, TurnID: result.Turn.GetId()})
	}
	m.begin(t, result)
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

// known reports whether a request may name this agent, or none.
func (m *Manager) known(name string) bool {
	_, ok := m.o.Agents.Get(name)
	return ok || name == ""
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
	name := cmp.Or(request.GetAgent(), c.GetActiveAgent().GetAgent(), c.GetAgent())
	if name == "" {
		return m.o.Agents.Default(), nil
	}
	if entry, ok := m.o.Agents.Get(name); ok {
		return entry, nil
	}
	return nil, &AgentNotConfiguredError{Agent: name, Known: m.o.Agents.Names()}
}

// enter makes a turn that is about to begin a live one, if there is a place for it.
func (m *Manager) enter(ctx context.Context, tenant string, request *parleyv1.ChatRequest, entry *agent.Entry) (*live, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, ErrShuttingDown
	case m.running[tenant] >= m.o.MaxTurns:
		return nil, fmt.Errorf("%w: %d of this tenant, the limit is %d", ErrTooManyTurns, m.running[tenant], m.o.MaxTurns)
	case len(m.live) >= maxTurnsInAll:
		return nil, fmt.Errorf("%w: %d in all", ErrTooManyTurns, len(m.live))
	}
	t := newLive(ctx, m, tenant, request, entry)
	m.live[t.id] = t
	m.running[tenant]++
	return t, nil
}

// begin notes what the store gave the turn.
func (m *Manager) begin(t *live, begun *store.Result) {
	number(t.input, begun.Appended[0])
	t.begun = begun
	m.mu.Lock()
	defer m.mu.Unlock()
	t.uid = begun.Conversation.GetUid()
	if slices.Contains(t.gone, t.uid) {
		t.cancel(ErrConversationGone)
	}
}

// leave gives the turn's place back.
func (m *Manager) leave(t *live) {
	t.unhook()
	t.cancel(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.live, t.id)
	m.running[t.tenant]--
	if m.running[t.tenant] == 0 {
		delete(m.running, t.tenant)
	}
	if len(m.live) == 0 && m.closed {
		close(m.idle)
	}
}

// Running counts the turns that run.
func (m *Manager) Running() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.live)
}

// Committed takes the store's changes: a conversation that is gone takes its turn along.
// It does not block.
func (m *Manager) Committed(changes []store.Change) {
	for i := range changes {
		if changes[i].Kind == parleyv1.ChangeKind_CHANGE_KIND_DELETED {
			m.deleted(&changes[i])
		}
	}
}

func (m *Manager) deleted(c *store.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.live {
		if t.tenant != c.Tenant || t.request.GetConversationId() != c.ConversationID {
			continue
		}
		switch t.uid {
		case "": // The store is still being asked; begin will know.
			t.gone = append(t.gone, c.UID)
		case c.UID:
			t.cancel(ErrConversationGone)
		default:
			if c.UID == "" { // A damaged one has none.
				t.cancel(ErrConversationGone)
			}
		}
	}
}

// Stop takes no more turns, waits for those that run until ctx ends, then cuts them off
// and returns when their answers, as far as they had come, are durable.
func (m *Manager) Stop(ctx context.Context) {
	m.mu.Lock()
	if !m.closed {
		m.closed = true
		if len(m.live) == 0 {
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
			End: &parleyv1.Turn{Id: p.TurnID, State: parleyv1.TurnState_TURN_STATE_INTERRUPTED, Error: stopped()},
		})
		log := m.o.Log.With("tenant", p.Tenant, "conversation_id", p.ConversationID, "turn_id", p.TurnID)
		switch {
		case err == nil:
			log.Warn("turn interrupted by a stop of the server", "saved_messages", len(p.Messages))
		case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
		case errors.Is(err, store.ErrCorrupt), errors.Is(err, store.ErrNoSpace):
			// The others can be served, and conversations deleted to make room.
			log.Error("turn could not be ended", "error", err)
		default:
			return fmt.Errorf("end turn %s of conversation %q: %w", p.TurnID, p.ConversationID, err)
		}
	}
	return nil
}
