package a2a

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// Limits of a page of tasks: A2A 1.0, 3.1.4.
const (
	maxTasksPage     = 100
	defaultTasksPage = 50
)

// maxListBytes is the size of the messages and artifacts on a page after which the page ends. Clients of gRPC receive
// at most 4 MiB at a time.
const maxListBytes = 3 << 20

// maxListCalls is how many pages of turns a page of tasks reads at most: tasks of other agents and tasks that the
// request does not select are read, too. So a page reads at most maxListCalls turns for each task that it may have.
const maxListCalls = 10

// tasksPage collects the tasks of a page.
type tasksPage struct {
	request *a2a.ListTasksRequest
	size    int
	tasks   []*a2a.Task
	bytes   int
}

// ListTasks returns a page of the tasks of this agent that the caller's tenant has, in one context or in all. Pages
// follow the order of the turns, the turn that was accepted last first; on a page, the task whose state is the newest
// comes first. A page may have fewer tasks than it could, or none, and have a token for the next page. The total size
// is that of this page and the pages before it, and one more if there is a token: to count all tasks would read all
// turns.
func (t *tasks) ListTasks(ctx context.Context, r *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	if err := t.addQuery(ctx, r); err != nil {
		return nil, err
	}
	page := &tasksPage{request: r, tasks: []*a2a.Task{}}
	var err error
	if page.size, err = t.checkList(r); err != nil {
		return nil, err
	}
	before, token, err := t.parseToken(r.PageToken)
	if err != nil {
		return nil, err
	}
	token, more, err := t.fill(ctx, page, token)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(page.tasks, func(a, b *a2a.Task) int { return b.Status.Timestamp.Compare(*a.Status.Timestamp) })
	reply := &a2a.ListTasksResponse{Tasks: page.tasks, PageSize: page.size, TotalSize: before + len(page.tasks)}
	if more {
		reply.NextPageToken = strconv.Itoa(reply.TotalSize) + tokenSeparator + token
		reply.TotalSize++
	}
	return reply, nil
}

// tokenSeparator separates the parts of a page token: the number of tasks on the pages before, and the token of the
// page of turns, which is empty if that page begins with the newest turn.
const tokenSeparator = "."

// parseToken returns the parts of a page token.
func (t *tasks) parseToken(token string) (before int, turns string, err error) {
	if token == "" {
		return 0, "", nil
	}
	number, turns, separated := strings.Cut(token, tokenSeparator)
	before, err = strconv.Atoi(number)
	if err != nil || !separated || before < 0 || before >= math.MaxInt32-maxTasksPage {
		return 0, "", t.badToken()
	}
	return before, turns, nil
}

func (t *tasks) badToken() error {
	return a2a.NewError(t.invalid(),
		"pageToken: must be the nextPageToken of the previous page, with the same contextId and status")
}

// fill adds tasks to a page, and returns the token of the turns after them. Its first turns are those after token. more
// reports whether there may be a next page: the token of one that begins with the newest turn is "".
func (t *tasks) fill(ctx context.Context, page *tasksPage, token string) (next string, more bool, err error) {
	r := page.request
	request := &parleyv1.ListTurnsRequest{ConversationId: r.ContextID, States: turnStates(r.Status), PageToken: token}
	if r.Status != "" && len(request.GetStates()) == 0 {
		return "", false, nil // No task of this server has that state.
	}
	for range maxListCalls {
		request.PageSize = int32(page.size - len(page.tasks))
		reply, err := t.api.ListTurns(ctx, request)
		if err != nil {
			return "", false, t.listFault(ctx, request, err)
		}
		for i, turn := range reply.GetTurns() {
			fits, err := t.addTurn(ctx, page, turn)
			if err != nil {
				return "", false, err
			}
			if !fits {
				return t.tokenBefore(ctx, request, reply.GetTurns(), i)
			}
		}
		request.PageToken = reply.GetNextPageToken()
		if request.GetPageToken() == "" || len(page.tasks) == page.size {
			break
		}
	}
	return request.GetPageToken(), request.GetPageToken() != "", nil
}

// listFault returns the error of ListTasks for an error of a list of turns. It is nil if the context does not exist,
// because then it has no tasks.
func (t *tasks) listFault(ctx context.Context, request *parleyv1.ListTurnsRequest, err error) error {
	st := status.Convert(err)
	switch {
	case request.GetConversationId() != "" && st.Code() == codes.NotFound:
		return nil
	case st.Code() == codes.InvalidArgument && strings.Contains(st.Message(), "page_token"):
		return t.badToken()
	}
	return t.faultOf(ctx, err)
}

// tokenBefore returns the token of the page that begins with turn i of a page of turns, or before it: the next page may
// repeat tasks. It misses none that the page of turns has and that the request still selects. Turns are accepted and
// deleted, and change their state, while the server reads the page. So a second list may have other turns, and its
// token is used only if all of them precede turn i.
func (t *tasks) tokenBefore(
	ctx context.Context, page *parleyv1.ListTurnsRequest, turns []*parleyv1.Turn, i int,
) (token string, more bool, err error) {
	places := make(map[string]int, len(turns))
	for place, turn := range turns {
		places[turn.GetId()] = place
	}
	accepted := turns[i].GetCreateTime().AsTime()
	follows := func(turn *parleyv1.Turn) bool {
		if place, known := places[turn.GetId()]; known {
			return place >= i
		}
		return !turn.GetCreateTime().AsTime().After(accepted)
	}
	for count := i; count > 0; {
		page.PageSize = int32(count)
		reply, err := t.api.ListTurns(ctx, page)
		if err != nil {
			return "", false, t.listFault(ctx, page, err)
		}
		if count = slices.IndexFunc(reply.GetTurns(), follows); count < 0 {
			return reply.GetNextPageToken(), reply.GetNextPageToken() != "", nil
		}
	}
	return page.GetPageToken(), true, nil
}

// addTurn adds the task whose newest turn is turn to a page, if the request selects it. It does not add the task of an
// older turn. It returns false if the task does not fit on the page.
func (t *tasks) addTurn(ctx context.Context, page *tasksPage, turn *parleyv1.Turn) (fits bool, err error) {
	r := page.request
	// A turn that waits for input may have been continued, or its task may have been cancelled.
	waits := turn.GetState() == parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED
	if turn.GetAgent() != t.agent || !waits && !selects(r, turn) {
		return true, nil
	}
	turns := []*parleyv1.Turn{turn}
	if id := cmp.Or(continued(turn), turn.GetId()); waits || id != turn.GetId() {
		turns, err = t.turnsOf(ctx, id)
		if errors.Is(err, a2a.ErrTaskNotFound) { // It was deleted since the turn was listed.
			return true, nil
		}
		if err != nil {
			return false, err
		}
		newest := turns[len(turns)-1]
		if newest.GetId() != turn.GetId() || !selects(r, newest) {
			return true, nil
		}
	}
	messages, err := t.messages(ctx, turns)
	if err != nil {
		return false, err
	}
	task := taskOf(turns, messages, r.HistoryLength)
	size := sizeOf(messages[len(messages)-len(task.History):])
	if r.IncludeArtifacts {
		size += sizeOf(messages)
	} else {
		task.Artifacts = nil
	}
	if page.bytes += size; page.bytes > maxListBytes && len(page.tasks) > 0 {
		return false, nil
	}
	page.tasks = append(page.tasks, task)
	return true, nil
}

// sizeOf returns the size of messages in bytes.
func sizeOf(messages []*parleyv1.Message) int {
	size := 0
	for _, m := range messages {
		size += proto.Size(m)
	}
	return size
}

// addQuery sets the fields of a request of HTTP+JSON that serve takes out of its query.
func (t *tasks) addQuery(ctx context.Context, r *a2a.ListTasksRequest) error {
	e, ok := ctx.Value(exchangeKey{}).(*exchange)
	if !ok {
		return nil
	}
	if text := e.query.Get("historyLength"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return a2a.NewError(t.invalid(), fmt.Sprintf("historyLength: is %.40q, must be a number", text))
		}
		r.HistoryLength = &n
	}
	// The client of the SDK has an older name for it.
	if text := cmp.Or(e.query.Get("statusTimestampAfter"), e.query.Get("lastUpdatedAfter")); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return a2a.NewError(t.invalid(), fmt.Sprintf(
				"statusTimestampAfter: is %.60q, must be a time such as 2026-01-31T12:00:00Z", text))
		}
		r.StatusTimestampAfter = &at
	}
	return nil
}

// checkList returns the size of the page.
func (t *tasks) checkList(r *a2a.ListTasksRequest) (size int, err error) {
	size = cmp.Or(r.PageSize, defaultTasksPage)
	switch {
	case size < 1 || size > maxTasksPage:
		return 0, a2a.NewError(t.invalid(), fmt.Sprintf("pageSize: is %d, must be 1 to %d", r.PageSize, maxTasksPage))
	case r.HistoryLength != nil && *r.HistoryLength < 0:
		return 0, a2a.NewError(t.invalid(), fmt.Sprintf("historyLength: is %d, must be at least 0", *r.HistoryLength))
	case r.Status != "" && !slices.Contains(knownStates(), r.Status):
		return 0, a2a.NewError(t.invalid(), fmt.Sprintf(
			"status: %.60q is not a state of a task; use one such as TASK_STATE_WORKING", r.Status))
	}
	return size, nil
}

// knownStates returns the states of the protocol.
func knownStates() []a2a.TaskState {
	return []a2a.TaskState{
		a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled,
		a2a.TaskStateInputRequired, a2a.TaskStateRejected, a2a.TaskStateAuthRequired,
	}
}

// turnStates returns the states that the newest turn of a task with a state may have. A turn that waits for input may
// be one of a task that was cancelled. It returns none for a state that no task has, and for "".
func turnStates(of a2a.TaskState) []parleyv1.TurnState {
	switch of {
	case a2a.TaskStateSubmitted:
		return []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_QUEUED}
	case a2a.TaskStateWorking:
		return []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_RUNNING}
	case a2a.TaskStateCompleted:
		return []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_COMPLETED}
	case a2a.TaskStateFailed:
		return []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_FAILED, parleyv1.TurnState_TURN_STATE_INTERRUPTED}
	case a2a.TaskStateInputRequired:
		return []parleyv1.TurnState{parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED}
	case a2a.TaskStateCanceled:
		return []parleyv1.TurnState{
			parleyv1.TurnState_TURN_STATE_CANCELLED, parleyv1.TurnState_TURN_STATE_INPUT_REQUIRED,
		}
	}
	return nil
}

// selects reports whether a request selects a task whose newest turn is turn.
func selects(r *a2a.ListTasksRequest, turn *parleyv1.Turn) bool {
	return (r.Status == "" || stateOf(turn) == r.Status) &&
		(r.StatusTimestampAfter == nil || changed(turn).After(*r.StatusTimestampAfter))
}
