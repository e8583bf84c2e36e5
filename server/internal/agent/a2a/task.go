package a2a

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/log"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// maxFailures is how often in a row the state of a task may be unavailable. With the waits in between, this is
	// about 15 s.
	maxFailures = 6
	// maxSends is how often a message to a waiting task is sent again, and firstSendWait the first wait, which is
	// doubled each time: 3 s in all.
	maxSends      = 5
	firstSendWait = 100 * time.Millisecond
	// readTimeout limits the time to read a task.
	readTimeout = 15 * time.Second
)

// waits are those before a task is read again. The first one is doubled up to the last while nothing new arrives.
type waits struct {
	first, last time.Duration
	report      time.Duration // between two notes for readers
}

// task is the answer of the remote agent to one turn. Most remote agents create a task for it; some answer with a
// message only.
type task struct {
	agent   *Agent
	request *parleyv1.RespondRequest
	earlier state
	answer  *answer
	remote  *remote // nil before the card was read

	id        sdk.TaskID // empty: the remote agent has named none
	contextID string
	ended     bool   // no more events are needed
	waiting   string // not empty: the task waits for input since this status
	isNews    bool   // an event has arrived since the last wait
}

// run sends the message and passes on the answer, until the task has ended or waits for input.
func (t *task) run(ctx context.Context) error {
	var err error
	if t.remote, err = t.agent.connect(ctx); err != nil {
		return err
	}
	message := newMessage(t.request, t.earlier)
	err = t.send(ctx, message)
	if isReported(err) && message.TaskID != "" && t.id == "" {
		err = t.sendAgain(ctx, message, err)
	}
	if t.id == "" || isFinal(err) {
		if err == nil && !t.ended {
			err = &agent.Error{Message: "the agent ended the stream without an answer", Retryable: true}
		}
		if isUnreachable(err) && ctx.Err() == nil {
			t.agent.forget()
		}
		if err != nil {
			return err
		}
	}
	if err := t.resume(ctx, err); err != nil {
		return err
	}
	return t.writeRecord()
}

// sendAgain sends a message again that a waiting task has refused. Errors do not say why in all bindings, so it reads
// the task:
//
//   - If the task has ended or was deleted, a text begins a new task in the same context.
//   - If the task still waits, it has not received the message. Servers refuse a message while they end the call in
//     which the task began to wait.
func (t *task) sendAgain(ctx context.Context, message *sdk.Message, refused error) error {
	wait := firstSendWait
	for range maxSends {
		found, err := t.read(ctx, sdk.TaskID(t.earlier.TaskID))
		switch {
		case err != nil && !isRefusal(err):
			return refused
		case err != nil || found.Status.State.Terminal():
			if !hasText(message) {
				return &agent.Error{Message: "the task that waited for this tool result has ended; send a message of the user"}
			}
			t.earlier = state{UID: t.earlier.UID, ContextID: t.earlier.ContextID}
			t.answer = newAnswer(t.answer.yield, t.earlier)
			message.TaskID = ""
			return t.send(ctx, message)
		case found.Status.State != sdk.TaskStateInputRequired || mark(found.Status) != t.earlier.Status:
			return refused
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		wait *= 2
		if refused = t.send(ctx, message); !isReported(refused) || t.id != "" {
			break
		}
	}
	return refused
}

// read returns a task with the last message of its history.
func (t *task) read(ctx context.Context, id sdk.TaskID) (*sdk.Task, error) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	last := 1
	found, err := t.remote.client.GetTask(limited, &sdk.GetTaskRequest{ID: id, HistoryLength: &last})
	if err == nil && found == nil {
		err = sdk.ErrInvalidAgentResponse
	}
	return found, err
}

// send sends the message and passes on what arrives.
func (t *task) send(ctx context.Context, message *sdk.Message) error {
	request := &sdk.SendMessageRequest{Message: message}
	if t.remote.streams {
		for event, err := range t.remote.client.SendStreamingMessage(ctx, request) {
			if err == nil {
				err = t.handle(event, false)
			}
			if err != nil || t.ended {
				return err
			}
		}
		return nil
	}
	request.Config = &sdk.SendMessageConfig{ReturnImmediately: true}
	event, err := t.remote.client.SendMessage(ctx, request)
	if err != nil {
		return err
	}
	return t.handle(event, true)
}

// resume follows a task until it ends. lost is why its stream was lost; nil if there was none or if it only ended.
func (t *task) resume(ctx context.Context, lost error) error {
	wait, failures, reported := t.agent.waits.first, 0, time.Now()
	for !t.ended {
		if isFinal(lost) {
			return lost
		}
		if lost != nil {
			failures++
			if failures > maxFailures {
				return &agent.Error{
					Message: "the connection to the agent was lost during its answer", Retryable: true,
					Detail: t.agent.detail(lost),
				}
			}
		} else {
			failures = 0
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		t.isNews = false
		lost = t.follow(ctx)
		if wait = min(2*wait, t.agent.waits.last); t.isNews {
			wait = t.agent.waits.first
		}
		if lost == nil && !t.ended && time.Since(reported) >= t.agent.waits.report {
			// The remote agent says that it works, so it must not be treated as hung.
			if err := t.answer.sendProgress("the agent is still working"); err != nil {
				return err
			}
			reported = time.Now()
		}
	}
	return nil
}

// follow subscribes to the task, or reads it once if that is not possible. It returns nil if it has received the state
// of the task.
func (t *task) follow(ctx context.Context) error {
	if t.remote.streams {
		isFirst := true
		for event, err := range t.remote.client.SubscribeToTask(ctx, &sdk.SubscribeToTaskRequest{ID: t.id}) {
			if _, isTask := event.(*sdk.Task); err == nil && isFirst && !isTask {
				break // What happened before this event is unknown.
			}
			if err == nil {
				err = t.handle(event, true)
			}
			if isFirst && err != nil && !isFinal(err) {
				break // A task that has ended has no subscription.
			}
			if isFirst = false; err != nil || t.ended {
				return err
			}
		}
		if !isFirst {
			return nil
		}
	}
	found, err := t.read(ctx, t.id)
	if err != nil {
		return err
	}
	return t.handle(found, true)
}

// sleep waits for about d.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d - rand.N(d/4)) //nolint:gosec // It only keeps turns that failed together apart.
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// handle passes on an event. isRead says that the event may be older than what has arrived. If the task has failed,
// the result is an *agent.Error.
func (t *task) handle(event sdk.Event, isRead bool) error {
	if event == nil {
		return nil
	}
	if err := t.identify(event); err != nil {
		return err
	}
	switch e := event.(type) {
	case *sdk.Message:
		t.isNews = true
		t.ended = t.id == "" // Otherwise the task continues.
		return t.answer.addMessage(e, false)
	case *sdk.TaskArtifactUpdateEvent:
		t.isNews = true
		return t.answer.addArtifact(e.Artifact, e.Append, false)
	case *sdk.TaskStatusUpdateEvent:
		t.isNews = true
		return t.status(e.Status)
	case *sdk.Task:
		for _, artifact := range e.Artifacts {
			if err := t.answer.addArtifact(artifact, false, isRead); err != nil {
				return err
			}
		}
		if waiting := mark(e.Status); e.Status.State == sdk.TaskStateInputRequired && e.ID == sdk.TaskID(t.earlier.TaskID) &&
			waiting != "" && waiting == t.earlier.Status {
			return nil // The remote agent has not begun to process the message.
		}
		if err := t.status(e.Status); err != nil || e.Status.State != sdk.TaskStateCompleted || t.answer.hasOutput ||
			len(e.History) == 0 {
			return err
		}
		// Some agents answer in the history only.
		last := e.History[len(e.History)-1]
		if last == nil || last.Role != sdk.MessageRoleAgent || textOf(last) == t.answer.progress {
			return nil
		}
		return t.answer.addMessage(last, false)
	}
	return nil
}

// identify records the ids of the task and the context of an event.
func (t *task) identify(event sdk.Event) error {
	info := event.TaskInfo()
	_, isMessage := event.(*sdk.Message)
	switch {
	case len(info.TaskID) > maxIDBytes || len(info.ContextID) > maxIDBytes:
		return &agent.Error{Message: fmt.Sprintf("the agent sent an id of more than %d bytes", maxIDBytes)}
	case info.TaskID == "" && !isMessage:
		return &agent.Error{Message: "the agent sent an event without the id of its task"}
	case t.id != "" && info.TaskID != "" && info.TaskID != t.id:
		return &agent.Error{Message: "the agent sent an event of another task"}
	}
	if t.id == "" && !isMessage {
		t.id = info.TaskID
	}
	if info.ContextID != "" {
		t.contextID = info.ContextID
	}
	return nil
}

// status passes on the status of the task.
func (t *task) status(s sdk.TaskStatus) error {
	text := textOf(s.Message)
	switch s.State {
	case sdk.TaskStateCompleted:
		t.ended = true
		return t.answer.addMessage(s.Message, false)
	case sdk.TaskStateInputRequired:
		if t.waiting = mark(s); t.waiting == "" {
			t.waiting = "unknown"
		}
		t.ended = true
		return t.answer.addMessage(s.Message, true)
	case sdk.TaskStateFailed:
		t.ended = true
		retryable := true
		if s.Message != nil {
			if of, ok := s.Message.Metadata[a2aparts.RetryableKey].(bool); ok {
				retryable = of
			}
		}
		return t.agent.reported("the agent failed", text, retryable)
	case sdk.TaskStateRejected:
		t.ended = true
		return t.agent.reported("the agent rejected the request", text, false)
	case sdk.TaskStateCanceled:
		t.ended = true
		return t.agent.reported("the task of the agent was canceled", text, true)
	case sdk.TaskStateAuthRequired:
		return t.agent.reported(
			"the agent requires more authentication; change the key or the headers of the agent", text, false)
	default: // Also states that are unknown, because the remote agent may be newer.
		if text == t.answer.progress {
			return nil
		}
		return t.answer.addProgress(text)
	}
}

// writeRecord writes the state of the conversation with the answer.
func (t *task) writeRecord() error {
	s := state{UID: t.request.GetConversation().GetUid(), ContextID: t.contextID}
	if s.ContextID == "" {
		s.ContextID = t.earlier.ContextID
	}
	if t.waiting != "" {
		s.TaskID, s.Status, s.Artifacts = string(t.id), t.waiting, maps.Clone(t.answer.artifacts)
	}
	if s.ContextID == "" && s.TaskID == "" {
		return nil // There is nothing to continue.
	}
	piece, err := s.piece(t.request.GetAgent(), t.earlier)
	if err != nil || piece == nil {
		return err
	}
	return t.answer.send(piece)
}

// cancelUnlessEnded cancels a task that still runs although its turn ends. It does not wait for that. ctx is the
// context of the turn.
func (t *task) cancelUnlessEnded(ctx context.Context) {
	id := t.id
	if id == "" && ctx.Err() != nil {
		id = sdk.TaskID(t.earlier.TaskID) // The message may have reached it.
	}
	if t.ended || id == "" || t.remote == nil {
		return
	}
	client := t.remote.client
	t.agent.cancels.Go(func() {
		limited, cancel := context.WithTimeout(log.AttachLogger(context.WithoutCancel(ctx), t.agent.log), cancelTimeout)
		defer cancel()
		// It is a courtesy: a failure changes nothing for the turn, which has ended.
		_, _ = client.CancelTask(limited, &sdk.CancelTaskRequest{ID: id})
	})
}

// isFinal reports whether an error says more than that a call has failed.
func isFinal(err error) bool {
	_, own := errors.AsType[*agent.Error](err)
	return own || errors.Is(err, errStopped) || errors.Is(err, errTooLarge)
}
