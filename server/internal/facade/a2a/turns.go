package a2a

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/a2aparts"
)

// requestPrefix begins the request_id of every turn that this package starts.
const requestPrefix = "a2a/"

// requestID returns the request_id of the turn for a message: "a2a/", the task that the message continues or nothing,
// "/" and a hash of the message's id and of the request, which has no request_id yet. So the turns of a task are found
// by the request_ids alone, and a repetition of a message joins its turn. Another message with the same messageId is
// not a repetition: some clients count from 1 in each context, and the server cannot know the context of a message
// without one.
func requestID(m *a2a.Message, request *parleyv1.ChatRequest) (string, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend([]byte(strconv.Quote(m.ID)), request)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return requestPrefix + string(m.TaskID) + "/" + hex.EncodeToString(sum[:]), nil
}

// continued returns the task that a turn continues, "" if the turn is the first one of a task.
func continued(turn *parleyv1.Turn) string {
	rest, ok := strings.CutPrefix(turn.GetRequestId(), requestPrefix)
	if !ok {
		return ""
	}
	task, _, _ := strings.Cut(rest, "/")
	return task
}

// turnsOf returns the turns of a task, oldest first; at least one. The id of a task is that of its first turn.
func (t *tasks) turnsOf(ctx context.Context, id string) ([]*parleyv1.Turn, error) {
	if id == "" {
		return nil, a2a.NewError(t.invalid(), "the id of the task is required")
	}
	reply, err := t.api.GetTurn(ctx, &parleyv1.GetTurnRequest{TurnId: id})
	switch st := status.Convert(err); {
	case st.Code() == codes.NotFound, st.Code() == codes.InvalidArgument, err == nil && continued(reply.GetTurn()) != "":
		return nil, a2a.NewError(a2a.ErrTaskNotFound, fmt.Sprintf(
			"task %.80q does not exist, or was deleted: a conversation keeps only its newest turns", id))
	case err != nil:
		return nil, t.faultOf(ctx, err)
	}
	turns := []*parleyv1.Turn{reply.GetTurn()}
	if turns[0].GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
		return turns, nil
	}
	token := ""
	for {
		page, err := t.api.ListTurns(ctx, &parleyv1.ListTurnsRequest{
			ConversationId: turns[0].GetConversationId(), PageSize: turnsPage, PageToken: token,
		})
		if err != nil {
			return nil, t.faultOf(ctx, err)
		}
		for _, turn := range page.GetTurns() {
			if continued(turn) == id {
				turns = slices.Insert(turns, 1, turn) // Pages are newest first.
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return turns, t.findAbandoned(ctx, turns)
		}
	}
}

// load returns the turns of a task and its messages.
func (t *tasks) load(ctx context.Context, id string) ([]*parleyv1.Turn, []*parleyv1.Message, error) {
	turns, err := t.turnsOf(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	messages, err := t.messages(ctx, turns)
	return turns, messages, err
}

// after returns a task as it was after one of its turns.
func (t *tasks) after(ctx context.Context, id, turn string) (*a2a.Task, error) {
	turns, err := t.turnsOf(ctx, id)
	if err != nil {
		return nil, err
	}
	turns = until(turns, turn)
	messages, err := t.messages(ctx, turns)
	if err != nil {
		return nil, err
	}
	return taskOf(turns, messages, nil), nil
}

// until returns turns until the one with an id, or all if there is none.
func until(turns []*parleyv1.Turn, id string) []*parleyv1.Turn {
	if i := slices.IndexFunc(turns, func(turn *parleyv1.Turn) bool { return turn.GetId() == id }); i >= 0 {
		return turns[:i+1]
	}
	return turns
}

// abandonedKey is the key of the record of the conversation that says that a task was cancelled while it waited for
// input. The value is the time.
func abandonedKey(task string) string { return "a2a/cancelled/" + task }

// abandon cancels a task that waits for input. No message continues it then.
func (t *tasks) abandon(ctx context.Context, turns []*parleyv1.Turn) error {
	now, err := proto.Marshal(timestamppb.Now())
	if err != nil {
		return err
	}
	return t.write(ctx, turns[0], &parleyv1.RecordWrite{Key: abandonedKey(turns[0].GetId()), Value: now})
}

// findAbandoned changes the newest turn of a task that waits for input to a cancelled one if the task was cancelled.
func (t *tasks) findAbandoned(ctx context.Context, turns []*parleyv1.Turn) error {
	newest := turns[len(turns)-1]
	if newest.GetState() != parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED {
		return nil
	}
	found, err := t.records.GetRecords(ctx, &parleyv1.GetRecordsRequest{
		ConversationId: newest.GetConversationId(), Keys: []string{abandonedKey(turns[0].GetId())},
	})
	if err != nil {
		return t.faultOf(ctx, err)
	}
	for _, record := range found.GetRecords() {
		at := new(timestamppb.Timestamp)
		if proto.Unmarshal(record.GetValue(), at) == nil {
			newest.State, newest.FinishTime = parleyv1.TurnState_TURN_STATE_CANCELLED, at
		}
	}
	return nil
}

// write writes a record of the conversation of a turn.
func (t *tasks) write(ctx context.Context, turn *parleyv1.Turn, write *parleyv1.RecordWrite) error {
	_, err := t.records.WriteRecords(ctx, &parleyv1.WriteRecordsRequest{
		ConversationId: turn.GetConversationId(), Writes: []*parleyv1.RecordWrite{write},
	})
	if err != nil {
		return t.faultOf(ctx, err)
	}
	return nil
}

const (
	turnsPage    = 1000
	messagesPage = 1000
)

// messages returns the kept messages of turns, oldest first: their questions, tool results and answers.
func (t *tasks) messages(ctx context.Context, turns []*parleyv1.Turn) ([]*parleyv1.Message, error) {
	first, last := turns[0], int32(0)
	if first.GetInputSequence() == 0 { // It waits in the queue.
		return nil, nil
	}
	for _, turn := range turns { // The newest one may wait in the queue.
		last = max(last, turn.GetInputSequence(), turn.GetLastAnswerSequence())
	}
	size := min(messagesPage, last-first.GetInputSequence()+1) // The messages after the task are not read.
	var kept []*parleyv1.Message
	token := ""
	for {
		page, err := t.api.ListMessages(ctx, &parleyv1.ListMessagesRequest{
			ConversationId: first.GetConversationId(), AfterSequence: first.GetInputSequence() - 1, Ascending: true,
			PageSize: size, PageToken: token,
		})
		if err != nil {
			return nil, t.faultOf(ctx, err)
		}
		for _, m := range page.GetMessages() {
			if m.GetSequence() > last {
				return kept, nil
			}
			if belongs(turns, m) {
				kept = append(kept, m)
			}
			if m.GetSequence() == last {
				return kept, nil
			}
		}
		if token = page.GetNextPageToken(); token == "" {
			return kept, nil
		}
	}
}

// belongs reports whether a message is part of a task: an answer of one of its turns, or what a turn answers. Others
// may append messages between those.
func belongs(turns []*parleyv1.Turn, m *parleyv1.Message) bool {
	after := int32(0) // last answer of the turn before
	for i, turn := range turns {
		isInput := m.GetSequence() == turn.GetInputSequence()
		isResult := i > 0 && m.GetRole() == parleyv1.Role_ROLE_TOOL && after < m.GetSequence() &&
			m.GetSequence() < turn.GetInputSequence()
		if isInput || isResult || m.GetTurnId() == turn.GetId() {
			return true
		}
		after = turn.GetLastAnswerSequence()
	}
	return false
}

// stateOf returns the state of a task whose newest turn is turn.
func stateOf(turn *parleyv1.Turn) a2a.TaskState {
	switch turn.GetState() {
	case parleyv1.TurnState_TURN_STATE_QUEUED:
		return a2a.TaskStateSubmitted
	case parleyv1.TurnState_TURN_STATE_RUNNING:
		return a2a.TaskStateWorking
	case parleyv1.TurnState_TURN_STATE_COMPLETED:
		return a2a.TaskStateCompleted
	case parleyv1.TurnState_TURN_STATE_CANCELLED:
		return a2a.TaskStateCanceled
	case parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED:
		return a2a.TaskStateInputRequired
	case parleyv1.TurnState_TURN_STATE_FAILED, parleyv1.TurnState_TURN_STATE_INTERRUPTED:
		return a2a.TaskStateFailed
	}
	return a2a.TaskStateUnspecified
}

// changed returns when a turn got its state, as exactly as the API says.
func changed(turn *parleyv1.Turn) time.Time {
	if turn.GetFinishTime() != nil {
		return turn.GetFinishTime().AsTime()
	}
	return turn.GetCreateTime().AsTime()
}

// statusOf returns the status of a task whose newest turn is turn. calls are its open tool calls.
func statusOf(task string, turn *parleyv1.Turn, calls []*parleyv1.ToolCall) a2a.TaskStatus {
	at := changed(turn)
	s := a2a.TaskStatus{State: stateOf(turn), Timestamp: &at}
	var parts a2a.ContentParts
	switch {
	case s.State == a2a.TaskStateInputRequired:
		for _, call := range calls {
			parts = append(parts, a2aparts.OfCall(call))
		}
	case turn.GetError() != nil:
		parts = a2a.ContentParts{a2a.NewTextPart(turn.GetError().GetMessage())}
	}
	if len(parts) == 0 {
		return s
	}
	s.Message = &a2a.Message{
		ID: turn.GetId() + ".status", Role: a2a.MessageRoleAgent, TaskID: a2a.TaskID(task),
		ContextID: turn.GetConversationId(), Parts: parts,
	}
	if e := turn.GetError(); e != nil {
		s.Message.Metadata = map[string]any{a2aparts.ReasonKey: e.GetReason(), a2aparts.RetryableKey: e.GetRetryable()}
	}
	return s
}

// taskOf returns a task with at most this many messages, newest ones; nil means all.
func taskOf(turns []*parleyv1.Turn, messages []*parleyv1.Message, history *int) *a2a.Task {
	first, newest := turns[0], turns[len(turns)-1]
	task := &a2a.Task{
		ID: a2a.TaskID(first.GetId()), ContextID: first.GetConversationId(),
		Status: statusOf(first.GetId(), newest, openCalls(messages)),
	}
	answers := make(map[string]int)
	for _, m := range messages {
		task.History = append(task.History, messageOf(task, m))
		if m.GetRole() != parleyv1.Role_ROLE_ASSISTANT {
			continue
		}
		if parts := answerParts(m); len(parts) > 0 {
			task.Artifacts = append(task.Artifacts, &a2a.Artifact{
				ID: artifactID(m.GetTurnId(), answers[m.GetTurnId()]), Name: m.GetAgent(), Parts: parts,
			})
		}
		answers[m.GetTurnId()]++
	}
	if history != nil && len(task.History) > *history {
		task.History = task.History[len(task.History)-*history:]
	}
	return task
}

// artifactID returns the id of the artifact that has the content of the n-th answer message of a turn, from 0.
func artifactID(turn string, n int) a2a.ArtifactID {
	return a2a.ArtifactID(fmt.Sprintf("%s.%d", turn, n))
}

// openCalls returns the tool calls of messages that have no result.
func openCalls(messages []*parleyv1.Message) []*parleyv1.ToolCall {
	var calls []*parleyv1.ToolCall
	for _, m := range messages {
		calls = append(calls, m.GetToolCalls()...)
		if result := m.GetToolResult(); result != nil {
			calls = withoutCall(calls, result.GetCallId())
		}
	}
	return calls
}

// withoutCall removes the first call with an id.
func withoutCall(calls []*parleyv1.ToolCall, id string) []*parleyv1.ToolCall {
	if i := slices.IndexFunc(calls, func(c *parleyv1.ToolCall) bool { return c.GetId() == id }); i >= 0 {
		return slices.Delete(calls, i, i+1)
	}
	return calls
}

// callIDs returns the ids of calls for an error text.
func callIDs(calls []*parleyv1.ToolCall) string {
	all := make([]string, len(calls))
	for i, call := range calls {
		all[i] = fmt.Sprintf("%q", call.GetId())
	}
	return strings.Join(all, ", ")
}
