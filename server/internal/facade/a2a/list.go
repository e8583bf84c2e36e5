package a2a

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
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
)

// Limits of a page of tasks: A2A 1.0, 3.1.4.
const (
	maxTasksPage     = 100
	defaultTasksPage = 50
)

// maxListBytes is the size of the messages and artifacts on a page after which the page ends. Clients of gRPC receive
// at most 4 MiB at a time.
const maxListBytes = 3 << 20

// listed is a task of a list.
type listed struct {
	id     string
	newest *parleyv1.Turn
}

// compare orders tasks by the time of their state, newest first.
func (l listed) compare(other listed) int {
	return cmp.Or(changed(other.newest).Compare(changed(l.newest)), strings.Compare(other.id, l.id))
}

// taskPage collects the tasks of a page from all tasks, which come in any order. It keeps no others.
type taskPage struct {
	size  int
	after *listed // that the page comes after; nil for the first page
	tasks []listed
	more  bool // There are tasks after those of the page.
	total int  // tasks that were added
}

// add adds a task to the page if it is one of the first ones after the task that the page comes after.
func (p *taskPage) add(l listed) {
	p.total++
	if p.after != nil && l.compare(*p.after) <= 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(p.tasks, l, listed.compare)
	p.tasks = slices.Insert(p.tasks, i, l)
	if len(p.tasks) > p.size {
		p.tasks, p.more = p.tasks[:p.size], true
	}
}

// ListTasks returns a page of the tasks of this agent that the caller's tenant has, in one context or in all. The task
// whose state is the newest comes first. Since the protocol wants their number, each page reads the turns of all tasks,
// or of those with the state that the request selects.
func (t *tasks) ListTasks(ctx context.Context, r *a2a.ListTasksRequest) (*a2a.ListTasksResponse, error) {
	if err := t.addQuery(r); err != nil {
		return nil, err
	}
	size, after, err := t.checkList(r)
	if err != nil {
		return nil, err
	}
	page := &taskPage{size: size, after: after}
	if err := t.list(ctx, r, page); err != nil {
		return nil, err
	}
	reply := &a2a.ListTasksResponse{Tasks: []*a2a.Task{}, TotalSize: page.total, PageSize: size}
	bytes := 0
	for i, l := range page.tasks {
		turns, messages, err := t.load(ctx, l.id)
		if errors.Is(err, a2a.ErrTaskNotFound) { // It was deleted since it was listed.
			continue
		}
		if err != nil {
			return nil, err
		}
		task := taskOf(turns, messages, r.HistoryLength)
		bytes += sizeOf(messages[len(messages)-len(task.History):])
		if r.IncludeArtifacts {
			bytes += sizeOf(messages)
		} else {
			task.Artifacts = nil
		}
		if bytes > maxListBytes && len(reply.Tasks) > 0 {
			reply.NextPageToken = tokenAfter(page.tasks[i-1])
			return reply, nil
		}
		reply.Tasks = append(reply.Tasks, task)
	}
	if page.more {
		reply.NextPageToken = tokenAfter(page.tasks[len(page.tasks)-1])
	}
	return reply, nil
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
func (t *tasks) addQuery(r *a2a.ListTasksRequest) error {
	if text := t.query.Get("historyLength"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return a2a.NewError(t.invalid(), fmt.Sprintf("historyLength: is %.40q, must be a number", text))
		}
		r.HistoryLength = &n
	}
	// The client of the SDK has an older name for it.
	if text := cmp.Or(t.query.Get("statusTimestampAfter"), t.query.Get("lastUpdatedAfter")); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return a2a.NewError(t.invalid(), fmt.Sprintf(
				"statusTimestampAfter: is %.60q, must be a time such as 2026-01-31T12:00:00Z", text))
		}
		r.StatusTimestampAfter = &at
	}
	return nil
}

// checkList returns the size of the page, and the task that it comes after, or nil for the first page.
func (t *tasks) checkList(r *a2a.ListTasksRequest) (size int, after *listed, err error) {
	size = cmp.Or(r.PageSize, defaultTasksPage)
	switch {
	case size < 1 || size > maxTasksPage:
		return 0, nil, a2a.NewError(t.invalid(), fmt.Sprintf("pageSize: is %d, must be 1 to %d", r.PageSize, maxTasksPage))
	case r.HistoryLength != nil && *r.HistoryLength < 0:
		return 0, nil, a2a.NewError(t.invalid(), fmt.Sprintf("historyLength: is %d, must be at least 0", *r.HistoryLength))
	case r.Status != "" && !slices.Contains(knownStates(), r.Status):
		return 0, nil, a2a.NewError(t.invalid(), fmt.Sprintf(
			"status: %.60q is not a state of a task; use one such as TASK_STATE_WORKING", r.Status))
	case r.PageToken == "":
		return size, nil, nil
	}
	if after = taskBefore(r.PageToken); after == nil {
		return 0, nil, a2a.NewError(t.invalid(), "pageToken: must be the nextPageToken of the previous page")
	}
	return size, after, nil
}

// knownStates returns the states of the protocol.
func knownStates() []a2a.TaskState {
	return []a2a.TaskState{
		a2a.TaskStateSubmitted, a2a.TaskStateWorking, a2a.TaskStateCompleted, a2a.TaskStateFailed, a2a.TaskStateCanceled,
		a2a.TaskStateInputRequired, a2a.TaskStateRejected, a2a.TaskStateAuthRequired,
	}
}

// list adds all tasks that a request selects to a page.
func (t *tasks) list(ctx context.Context, r *a2a.ListTasksRequest, page *taskPage) error {
	request := &parleyv1.ListTurnsRequest{ConversationId: r.ContextID, PageSize: turnsPage, States: turnStates(r.Status)}
	continuing := make(map[string]*parleyv1.Turn) // the newest turn of each task that is continued, until its first one
	for {
		reply, err := t.api.ListTurns(ctx, request)
		if r.ContextID != "" && status.Code(err) == codes.NotFound {
			return nil // A context that does not exist has no tasks.
		}
		if err != nil {
			return t.faultOf(ctx, err)
		}
		for _, turn := range reply.GetTurns() { // Newest first.
			if turn.GetAgent() != t.agent {
				continue
			}
			task := continued(turn)
			if len(request.GetStates()) > 0 { // It is the newest turn of its task.
				if l := (listed{cmp.Or(task, turn.GetId()), turn}); selects(r, l.newest) {
					page.add(l)
				}
				continue
			}
			if task != "" {
				if continuing[task] == nil {
					continuing[task] = turn
				}
				continue
			}
			l := listed{turn.GetId(), cmp.Or(continuing[turn.GetId()], turn)}
			delete(continuing, turn.GetId())
			if err := t.findAbandoned(ctx, []*parleyv1.Turn{turn, l.newest}); err != nil {
				return err
			}
			if selects(r, l.newest) {
				page.add(l)
			}
		}
		if request.PageToken = reply.GetNextPageToken(); request.GetPageToken() == "" {
			return nil
		}
	}
}

// turnStates returns the states of the newest turns of tasks with a state, if only such turns have them. A turn that
// waits for input may not be the newest one of its task, or the task may be cancelled; then it returns none.
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
	}
	return nil
}

// selects reports whether a request selects a task whose newest turn is turn.
func selects(r *a2a.ListTasksRequest, turn *parleyv1.Turn) bool {
	return (r.Status == "" || stateOf(turn) == r.Status) &&
		(r.StatusTimestampAfter == nil || changed(turn).After(*r.StatusTimestampAfter))
}

// tokenAfter returns the token of the page after a task.
func tokenAfter(l listed) string {
	return base64.RawURLEncoding.EncodeToString([]byte(changed(l.newest).Format(time.RFC3339Nano) + " " + l.id))
}

// taskBefore returns the task that a token names, with what compare needs. It returns nil if the token is malformed.
func taskBefore(token string) *listed {
	text, err := base64.RawURLEncoding.DecodeString(token)
	at, id, ok := strings.Cut(string(text), " ")
	if err != nil || !ok {
		return nil
	}
	when, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return nil
	}
	return &listed{id, &parleyv1.Turn{FinishTime: timestamppb.New(when)}}
}
