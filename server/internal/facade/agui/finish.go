package agui

import (
	"cmp"
	"context"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// finish ends the stream of a turn.
func (t *translation) finish(ctx context.Context, finished *parleyv1.TurnFinished) error {
	t.closeMessage()
	for i := range t.at.calls {
		if !t.at.calls[i].ended {
			t.at.cutOff = true
			t.endCall(i)
		}
	}
	if t.at.cutOff || !t.isStored(finished.GetMessages()) {
		if err := t.sendMessages(ctx, nil); err != nil {
			return err
		}
	}
	t.send(t.end(finished.GetTurn(), finished.GetMessages()))
	return nil
}

// isStored reports whether the messages of an answer are those that were sent. They are not if the answer could not be
// stored, or if the server was killed.
func (t *translation) isStored(messages []*parleyv1.Message) bool {
	count, content := 0, ""
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			count, content = count+1, m.GetContent()
		}
	}
	sent := t.at.number
	if !t.at.hasContent {
		return count == sent
	}
	return count == sent+1 && len(content) == t.at.text
}

// end returns the last event of a turn with this answer.
func (t *translation) end(turn *parleyv1.Turn, answer []*parleyv1.Message) *event {
	end := &event{
		Type: "RUN_FINISHED", ThreadID: t.threadID, RunID: cmp.Or(t.runID, runIDOf(turn)), Usage: usageOf(answer),
	}
	switch turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_COMPLETED:
		end.Outcome = &outcome{Type: "success"}
	case parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		end.Outcome = &outcome{Type: "success", PendingToolCallIDs: openCalls(answer)}
	case parleyv1.TurnState_TURN_STATE_CANCELLED:
		end.Outcome = &outcome{Type: "cancelled"}
	default:
		return &event{
			Type: "RUN_ERROR", Message: cmp.Or(turn.GetError().GetMessage(), "the run failed"),
			Code: turn.GetError().GetReason(), Usage: end.Usage,
		}
	}
	return end
}

// openCalls returns the ids in AG-UI of the calls in an answer that have no result there.
func openCalls(answer []*parleyv1.Message) []string {
	messages, _ := fromStored(answer)
	var open []string
	for _, m := range messages {
		for _, call := range m.ToolCalls {
			open = append(open, call.ID)
		}
		open = slices.DeleteFunc(open, func(id string) bool { return id == m.ToolCallID })
	}
	return open
}

// usageOf returns the tokens that the models of messages used.
func usageOf(messages []*parleyv1.Message) []usage {
	var all []usage
	for _, m := range messages {
		u := m.GetUsage()
		if u == nil {
			continue
		}
		i := slices.IndexFunc(all, func(other usage) bool { return other.Model == u.GetModel() })
		if i < 0 {
			i, all = len(all), append(all, usage{Model: u.GetModel()})
		}
		all[i].InputTokens += u.GetInputTokens()
		all[i].OutputTokens += u.GetOutputTokens()
		all[i].ReasoningTokens += u.GetReasoningTokens()
		all[i].CachedInputTokens += u.GetCachedInputTokens()
	}
	return all
}

// ended sends a turn that has ended: the messages of the thread, which contain its answer, and its end.
func (t *translation) ended(ctx context.Context, turn *parleyv1.Turn) error {
	t.at.turnID = turn.GetId()
	stored, err := t.request.history(ctx, t.threadID, nil)
	if err != nil {
		return err
	}
	var answer []*parleyv1.Message
	for _, m := range stored {
		if m.GetTurnId() == turn.GetId() && m.GetSequence() > turn.GetInputSequence() {
			answer = append(answer, m)
		}
	}
	t.sendAll(stored, t.end(turn, answer))
	return nil
}

// idle sends the messages of a thread in which no turn runs.
func (t *translation) idle(ctx context.Context) error {
	stored, err := t.request.history(ctx, t.threadID, nil)
	if err != nil {
		return err
	}
	t.sendAll(stored, &event{
		Type: "RUN_FINISHED", ThreadID: t.threadID, RunID: t.runID, Outcome: &outcome{Type: "success"},
	})
	return nil
}

// sendAll sends a run that has only messages and an end. The events have no ids: a client reads all of them again.
func (t *translation) sendAll(stored []*parleyv1.Message, end *event) {
	messages, state := fromStored(stored)
	out := t.request.out
	out.add(&event{Type: "RUN_STARTED", ThreadID: t.threadID, RunID: t.runID, ProtocolVersion: protocolVersion}, "")
	out.add(&event{Type: "MESSAGES_SNAPSHOT", Messages: messages}, "")
	if state != nil {
		out.add(&event{Type: "STATE_SNAPSHOT", Snapshot: &state}, "")
	}
	out.add(end, "")
	out.flush()
}
