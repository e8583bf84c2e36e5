package turn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/google/uuid"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/window"
	"github.com/parleyhq/parley/store"
	"google.golang.org/protobuf/proto"
)

// Why a running turn is cut off, as the cause of its context's end.
var (
	errIdle = errors.New("the agent was silent for too long")
	errLate = errors.New("the agent took too long")
)

// silence is how long an agent may say nothing before readers are told that the turn still
// runs, with a note without words: see TurnProgress.
const silence = 15 * time.Second

// storeRetry is how long a turn waits before it offers its answer to a store again that
// was overloaded or out of space.
const storeRetry = 100 * time.Millisecond

// live is a turn that runs, or is about to.
type live struct {
	m       *Manager
	id      string
	log     *slog.Logger
	tenant  string
	request *parleyv1.ChatRequest
	entry   *agent.Entry
	input   *parleyv1.Message // the user's message, numbered once it is stored
	begun   *store.Result     // what the store said when the turn began
	events  *events
	answer  *answer

	uid  string   // of the conversation, empty until the turn has begun; guarded by m.mu
	gone []string // uids of conversations of that id deleted meanwhile; guarded by m.mu

	ctx    context.Context //nolint:containedctx // the turn's own life, which outlives the call
	cancel context.CancelCauseFunc
	unhook func() bool // from the manager's end
}

// newLive makes a turn of which the store does not know yet.
func newLive(ctx context.Context, m *Manager, tenant string, request *parleyv1.ChatRequest, entry *agent.Entry) *live {
	t := &live{
		m: m, id: uuid.NewString(), tenant: tenant, request: proto.CloneOf(request), entry: entry, events: newEvents(),
	}
	t.input = UserMessage(t.request)
	t.input.Id = uuid.NewString()
	t.log = m.o.Log.With("tenant", tenant, "conversation_id", request.GetConversationId(), "turn_id", t.id, "agent", entry.Name)
	t.answer = newAnswer(t.id, entry.Name, m.o.MaxAnswerBytes, t.events)
	// The values of the call, but not its end: leaving is not cancelling.
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	t.unhook = context.AfterFunc(m.stop, func() { t.cancel(ErrShuttingDown) })
	return t
}

// run takes the turn to its end.
func (t *live) run() {
	request, err := t.prepare()
	if err == nil {
		err = t.respond(request)
	}
	finished, err := t.finish(err)
	// Ahead of the last event: whoever has seen it may begin the next turn at once.
	t.m.leave(t)
	if err == nil {
		t.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Finished{Finished: finished}})
	}
	t.events.end(err)
}

// prepare reads the history, tells readers that the turn has started, and makes the
// agent's request.
func (t *live) prepare() (*parleyv1.RespondRequest, error) {
	snapshot, err := t.m.o.Store.Read(context.WithoutCancel(t.ctx), &store.Read{
		Tenant: t.tenant, ConversationID: t.request.GetConversationId(), Newest: -1,
	})
	if err != nil {
		return nil, err
	}
	if snapshot.Conversation.GetUid() != t.begun.Conversation.GetUid() {
		return nil, ErrConversationGone
	}
	history, err := snapshot.Messages.Messages()
	if err != nil {
		return nil, err
	}
	// The input and what others have appended since are not history.
	history = slices.DeleteFunc(history, func(m *parleyv1.Message) bool { return m.GetSequence() >= t.input.GetSequence() })
	bounds := t.request.GetWindow()
	if bounds == nil {
		bounds = t.entry.Window
	}
	history = history[window.Start(history, bounds):]
	t.log.Info("conversation history", "message_count", len(history))
	t.begun.Conversation.SystemPrompt = "" // The event only reports a change.
	t.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Started{Started: &parleyv1.TurnStarted{
		Conversation: t.begun.Conversation, UserMessage: t.input, Agent: t.entry.Name,
		HistoryCount: int32(len(history)), Created: t.begun.Created,
	}}})
	t.log.Debug("stream started")
	return &parleyv1.RespondRequest{
		Conversation: snapshot.Conversation, Messages: append(history, t.input),
		SystemPrompt: t.systemPrompt(snapshot.Conversation), Agent: t.entry.Name, TurnId: t.id,
	}, nil
}

// systemPrompt is the request's, else the conversation's, else the agent's.
func (t *live) systemPrompt(c *parleyv1.Conversation) string {
	switch {
	case t.request.SystemPrompt != nil:
		return t.request.GetSystemPrompt()
	case c.GetSystemPrompt() != "":
		return c.GetSystemPrompt()
	}
	return t.entry.SystemPrompt
}

// respond has the agent answer and returns why it ended; nil when the answer is whole.
func (t *live) respond(request *parleyv1.RespondRequest) (err error) {
	defer func() {
		// An agent's fault is not to end the other turns.
		if fault := recover(); fault != nil {
			err = fmt.Errorf("agent panicked: %v\n%s", fault, debug.Stack())
		}
	}()
	stop := t.accompany()
	defer stop()
	late := time.AfterFunc(t.m.o.TurnTimeout, func() { t.cancel(errLate) })
	defer late.Stop()
	idle := time.AfterFunc(t.m.o.IdleTimeout, func() { t.cancel(errIdle) })
	defer idle.Stop()
	for piece, err := range t.entry.Agent.Respond(t.ctx, request) {
		idle.Reset(t.m.o.IdleTimeout)
		if err == nil {
			err = t.answer.add(piece)
		}
		if err != nil {
			if cause := context.Cause(t.ctx); cause != nil {
				return cause
			}
			return err
		}
	}
	return context.Cause(t.ctx)
}

// accompany keeps what has arrived, and tells readers in a long silence that the turn still
// runs, until the returned function is called, which waits for the last of it to be done.
func (t *live) accompany() (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(saveEvery)
		defer ticker.Stop()
		saved, heard, last := 0, 0, time.Now()
		for {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
			saved = t.save(saved)
			switch n := t.answer.heard(); {
			case n != heard:
				heard, last = n, time.Now()
			case time.Since(last) >= silence:
				t.add(&parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_Progress{Progress: &parleyv1.TurnProgress{}}})
				last = time.Now()
			}
		}
	}()
	return func() { close(done); <-stopped }
}

// save stores what has arrived if anything has since that many pieces.
func (t *live) save(since int) int {
	messages, pieces := t.answer.progress(since)
	if pieces == since {
		return since
	}
	err := t.m.o.Store.SaveProgress(t.ctx, &store.Progress{
		Tenant: t.tenant, ConversationID: t.request.GetConversationId(), TurnID: t.id, Messages: messages,
	})
	if err != nil {
		if t.ctx.Err() == nil && !errors.Is(err, store.ErrTurnEnded) {
			t.log.Warn("answer so far could not be saved", "error", err)
		}
		return since
	}
	return pieces
}

// finish makes the answer durable. It returns what to tell readers, or why their streams
// end without.
func (t *live) finish(cause error) (*parleyv1.TurnFinished, error) {
	if errors.Is(cause, ErrConversationGone) || errors.Is(cause, store.ErrNotFound) {
		t.log.Info("turn ended with its conversation")
		return nil, ErrConversationGone
	}
	messages := t.answer.finish(cause == nil)
	for _, m := range messages {
		m.Id = uuid.NewString()
	}
	end := &parleyv1.Turn{Id: t.id}
	end.State, end.Error = t.outcome(cause)
	if cause == nil && unanswered(messages) {
		end.State = parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
	}
	result, err := t.commit(messages, end)
	if err != nil && ofTheAnswer(err) {
		// The text is kept, and the conversation is usable again.
		t.log.Error("answer could not be stored as it is", "error", err)
		messages, end.State, end.Error = plain(messages), parleyv1.TurnState_TURN_STATE_FAILED, unstorable()
		result, err = t.commit(messages, end)
	}
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrTurnEnded):
		t.log.Info("turn ended with its conversation")
		return nil, ErrConversationGone
	case err != nil:
		t.log.Error("answer could not be stored", "error", err)
		return nil, fmt.Errorf("store the answer: %w", err)
	}
	for i, n := range result.Appended {
		number(messages[i], n)
	}
	t.log.Debug("answer appended", "pieces", t.answer.pieces, "messages", len(messages))
	if e := end.GetError(); e != nil {
		t.log.Warn("turn did not complete", "state", end.GetState().String(), "reason", e.GetReason(), "error", e.GetMessage())
	}
	return &parleyv1.TurnFinished{
		Turn: result.Turn, Messages: messages, ConversationVersion: result.Conversation.GetVersion(),
	}, nil
}

// ofTheAnswer reports whether the store may take another answer where this one failed. It
// knows its own errors; what else there is says that a message cannot be encoded.
func ofTheAnswer(err error) bool {
	for _, known := range []error{
		store.ErrNotFound, store.ErrTurnEnded, store.ErrNoSpace, store.ErrOverloaded, store.ErrCorrupt, store.ErrFailed, store.ErrClosed,
	} {
		if errors.Is(err, known) {
			return false
		}
	}
	return true
}

// commit ends the turn in the store, and tries again while the store cannot take it: too
// many writes wait, or the disk is full. On a full disk the server's stop ends the trying;
// the turn is then left to the next start, with what was saved of it.
func (t *live) commit(messages []*parleyv1.Message, end *parleyv1.Turn) (*store.Result, error) {
	for {
		result, err := t.m.o.Store.Append(context.WithoutCancel(t.ctx), &store.Append{
			Tenant: t.tenant, ConversationID: t.request.GetConversationId(), Messages: messages, End: end,
		})
		full := errors.Is(err, store.ErrNoSpace)
		if !full && !errors.Is(err, store.ErrOverloaded) || full && t.m.stop.Err() != nil {
			return result, err
		}
		var stop <-chan struct{}
		if full {
			stop = t.m.stop.Done()
		}
		select {
		case <-time.After(storeRetry):
		case <-stop:
		}
	}
}

// number gives a message what the store gave it.
func number(m *parleyv1.Message, n *parleyv1.AppendedMessage) {
	m.Sequence, m.Exchange, m.CreateTime = n.GetSequence(), n.GetExchange(), n.GetCreateTime()
	if m.GetStatus() == parleyv1.MessageStatus_MESSAGE_STATUS_UNSPECIFIED {
		m.Status = parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
	}
}

func (t *live) add(event *parleyv1.TurnEvent) {
	event.TurnId = t.id
	t.events.add(event)
}
