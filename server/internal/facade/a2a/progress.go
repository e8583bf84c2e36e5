package a2a

import (
	"context"
	"iter"

	"github.com/a2aproject/a2a-go/v2/a2a"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// progress turns the events of a turn into events of its task. The first one is the task, without the artifacts of the
// turn. Each artifact begins with an event that does not append, and ends with one that has lastChunk.
type progress struct {
	task    string // id; "" until the first event of a new task
	history *int   // maximum number of messages in the task; nil: all

	begun bool
	first *a2a.Task

	turn   string
	answer int  // number of the current answer message, from 0
	filled bool // The answer message has content, so that it is stored.
	open   bool // Its artifact has begun.
	calls  []*parleyv1.ToolCall
}

// begin makes the task that is the first event. event is the first one of the turn.
func (t *tasks) begin(ctx context.Context, p *progress, event *parleyv1.TurnEvent) error {
	p.begun, p.turn = true, event.GetTurnId()
	if started := event.GetStarted(); p.task == "" && started.GetUserMessage() != nil {
		p.task = p.turn
		p.first = newTask(p.turn, started, p.history) // It needs no further calls, which would delay the answer.
		return nil
	}
	if p.task == "" {
		p.task = p.turn
	}
	turns, err := t.turnsOf(ctx, p.task)
	if err != nil {
		return err
	}
	turns = until(turns, p.turn) // Later ones follow as events, too.
	messages, err := t.messages(ctx, turns)
	if err != nil {
		return err
	}
	// What the turn itself has answered follows as events.
	var before []*parleyv1.Message
	for _, m := range messages {
		if m.GetTurnId() != p.turn || m.GetSequence() <= turns[len(turns)-1].GetInputSequence() {
			before = append(before, m)
		}
	}
	p.first = taskOf(turns, before, p.history)
	state := a2a.TaskStateWorking
	if event.GetQueued() != nil {
		state = a2a.TaskStateSubmitted
	}
	at := turns[len(turns)-1].GetCreateTime().AsTime()
	p.first.Status = a2a.TaskStatus{State: state, Timestamp: &at}
	return nil
}

// newTask returns a task that has just begun.
func newTask(turn string, started *parleyv1.TurnStarted, history *int) *a2a.Task {
	at := started.GetUserMessage().GetCreateTime().AsTime()
	task := &a2a.Task{
		ID: a2a.TaskID(turn), ContextID: started.GetConversation().GetId(),
		Status: a2a.TaskStatus{State: a2a.TaskStateWorking, Timestamp: &at},
	}
	if history == nil || *history > 0 {
		task.History = []*a2a.Message{messageOf(task, started.GetUserMessage())}
	}
	return task
}

// next returns the events of the task for an event of the turn.
func (p *progress) next(event *parleyv1.TurnEvent) iter.Seq[a2a.Event] {
	return func(yield func(a2a.Event) bool) {
		if event.GetTurnId() != p.turn { // Another turn has continued the task.
			if !p.nextAnswer(yield) {
				return
			}
			p.turn, p.answer, p.calls = event.GetTurnId(), 0, nil
		}
		switch e := event.GetEvent().(type) {
		case *parleyv1.TurnEvent_Started:
			if p.first.Status.State != a2a.TaskStateWorking {
				yield(p.update(a2a.TaskStatus{State: a2a.TaskStateWorking, Timestamp: p.first.Status.Timestamp}))
			}
		case *parleyv1.TurnEvent_TextDelta:
			if e.TextDelta.GetText() != "" {
				yield(p.piece(a2a.NewTextPart(e.TextDelta.GetText())))
			}
		case *parleyv1.TurnEvent_StructuredData:
			yield(p.piece(a2aparts.OfAnswer(e.StructuredData)))
		case *parleyv1.TurnEvent_ToolCall:
			p.filled, p.calls = true, append(p.calls, e.ToolCall)
		case *parleyv1.TurnEvent_ToolResult:
			p.calls = withoutCall(p.calls, e.ToolResult.GetCallId())
			p.nextAnswer(yield)
		case *parleyv1.TurnEvent_AnswerStarted:
			p.nextAnswer(yield)
		case *parleyv1.TurnEvent_ReasoningDelta:
			p.filled = true
		case *parleyv1.TurnEvent_Progress:
			if e.Progress.GetText() != "" {
				yield(p.update(a2a.TaskStatus{State: a2a.TaskStateWorking, Message: p.note(e.Progress.GetText())}))
			}
		case *parleyv1.TurnEvent_Finished:
			p.finish(yield, e.Finished)
		}
	}
}

// piece returns the event that adds a part to the artifact of the current answer message.
func (p *progress) piece(part *a2a.Part) a2a.Event {
	event := p.artifact(p.answer, part)
	event.Append, p.open, p.filled = p.open, true, true
	return event
}

// artifact returns an event for the artifact of an answer message.
func (p *progress) artifact(answer int, parts ...*a2a.Part) *a2a.TaskArtifactUpdateEvent {
	return &a2a.TaskArtifactUpdateEvent{
		TaskID: p.first.ID, ContextID: p.first.ContextID,
		Artifact: &a2a.Artifact{ID: artifactID(p.turn, answer), Parts: parts},
	}
}

// nextAnswer ends the current answer message, if it has content.
func (p *progress) nextAnswer(yield func(a2a.Event) bool) bool {
	if !p.filled {
		return true
	}
	open, answer := p.open, p.answer
	p.open, p.filled, p.answer = false, false, answer+1
	return !open || yield(p.last(answer))
}

// last returns the last event of an artifact that has begun. Its part is an empty text: the protocol requires one.
func (p *progress) last(answer int) a2a.Event {
	event := p.artifact(answer, a2a.NewTextPart(""))
	event.Append, event.LastChunk = true, true
	return event
}

// finish ends the last artifact and the task.
func (p *progress) finish(yield func(a2a.Event) bool, finished *parleyv1.TurnFinished) {
	if p.nextAnswer(yield) {
		yield(p.update(statusOf(string(p.first.ID), finished.GetTurn(), p.calls)))
	}
}

// update returns the event of a new status. All streams of a task have the same events, so the time is one of the turn.
func (p *progress) update(status a2a.TaskStatus) a2a.Event {
	return &a2a.TaskStatusUpdateEvent{TaskID: p.first.ID, ContextID: p.first.ContextID, Status: status}
}

// note returns the message of a progress note.
func (p *progress) note(text string) *a2a.Message {
	return &a2a.Message{
		ID: p.turn + ".progress", Role: a2a.MessageRoleAgent, TaskID: p.first.ID, ContextID: p.first.ContextID,
		Parts: a2a.ContentParts{a2a.NewTextPart(text)},
	}
}
