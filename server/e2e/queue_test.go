package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// queueServer is a server on which turns wait for each other.
type queueServer struct {
	*server
	oneTurn bool // with --max-turns=1
	// pipe releases agents that have sent half of their answer: each reads one line from it.
	pipe *os.File
}

func newQueueServer(t *testing.T, flags ...string) *queueServer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0) // Open for reading too, so that agents do not block in open.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	config := agents(t, fmt.Sprintf(`
default_agent: slow
agents:
  slow: {kind: command, command: [sh, testdata/agents/slow.sh, %q]}
`, path))
	return &queueServer{
		server:  startServer(t, t.TempDir(), append(flags, config, "--max-messages=1000")...),
		oneTurn: slices.Contains(flags, "--max-turns=1"), pipe: pipe,
	}
}

// call starts a Chat call of a new caller.
func (f *queueServer) call(t *testing.T, id, content string, mode parleyv1.OnBusy) *caller {
	t.Helper()
	c := newCaller(id, content, mode)
	if err := c.call(t, f.server); err != nil {
		t.Fatal(err)
	}
	return c
}

// callAtOnce starts the Chat calls of all callers at the same time. It returns when each caller has its
// first event or its error.
func (f *queueServer) callAtOnce(t *testing.T, id string, mode func(i int) parleyv1.OnBusy) []*caller {
	t.Helper()
	var group sync.WaitGroup
	callers := make([]*caller, callerCount)
	for i := range callers {
		c := newCaller(id, fmt.Sprint("caller ", i), mode(i))
		callers[i] = c
		group.Go(func() { c.err = c.start(t, f.server) })
	}
	group.Wait()
	return callers
}

// queueFive starts five turns: the turn of a runs, and the others are queued in this order.
func (f *queueServer) queueFive(t *testing.T, id string) (a, b, c, d, e *caller) {
	t.Helper()
	queue := make([]*caller, 5)
	for i := range queue {
		queue[i] = f.call(t, id, string(rune('a'+i)), parleyv1.OnBusy_ON_BUSY_QUEUE)
		if i > 0 {
			queue[i].wantPosition(t, i)
		} else {
			queue[i].wantStarted(t)
		}
	}
	return queue[0], queue[1], queue[2], queue[3], queue[4]
}

// releaseAgent releases one agent, the next one if none waits at the pipe.
func (f *queueServer) releaseAgent(t *testing.T) {
	t.Helper()
	if _, err := f.pipe.WriteString("answer\n"); err != nil {
		t.Fatal(err)
	}
}

// answer releases the agent of a caller's turn and waits for the end of the turn.
func (f *queueServer) answer(t *testing.T, c *caller) {
	t.Helper()
	f.releaseAgent(t)
	c.wantEnd(t, parleyv1.TurnState_TURN_STATE_COMPLETED)
}

// answerAll answers all turns of a queue, of which the first runs, and returns their exchanges.
func (f *queueServer) answerAll(t *testing.T, queue ...*caller) []exchange {
	t.Helper()
	var all []exchange
	for i, c := range queue {
		f.answer(t, c)
		all = append(all, c.exchange())
		wantAdvanced(t, queue[i+1:]...)
	}
	return all
}

// wantAdvanced checks that the first turn starts and that the others have the next positions.
func wantAdvanced(t *testing.T, queue ...*caller) {
	t.Helper()
	for i, c := range queue {
		if i == 0 {
			c.wantStarted(t)
		} else {
			c.wantPosition(t, i)
		}
	}
}

// wantTurnLimit checks that with --max-turns=1 a turn of another conversation is refused.
func (f *queueServer) wantTurnLimit(t *testing.T) {
	t.Helper()
	other := newCaller("other", "hello", parleyv1.OnBusy_ON_BUSY_QUEUE)
	other.request.Agent = "echo"
	err := other.start(t, f.server)
	if f.oneTurn {
		wantError(t, err, codes.ResourceExhausted, "TOO_MANY_TURNS")
	} else if err != nil {
		t.Error(err)
	}
}

// states returns the state and id of each turn, newest first. GetTurn must return the same turns.
func (f *queueServer) states(t *testing.T, id string) []string {
	t.Helper()
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, turn := range list.GetTurns() {
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: turn.GetId()})
		if d := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || d != "" || turn.GetCreateTime() == nil {
			t.Errorf("turn %v in ListTurns and GetTurn: %v\n%s", turn, err, d)
		}
		states = append(states, strings.TrimPrefix(turn.GetState().String(), "TURN_STATE_")+" "+turn.GetId())
	}
	return states
}

// exchange is the expected question, answer and turn in the history.
type exchange struct {
	question, answer string // answer is "" if no message is stored
	turn             *parleyv1.Turn
}

// wantExchanges checks that these exchanges are the complete history and their turns are the newest turns, in order.
func (f *queueServer) wantExchanges(t *testing.T, id string, all []exchange) {
	t.Helper()
	var wantMessages, messages []string
	var wantTurns []*parleyv1.Turn
	for _, e := range all {
		status := parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE
		input, answer := int32(len(wantMessages))+1, int32(0)
		wantMessages = append(wantMessages, fmt.Sprintf("%d %s ROLE_USER %s", input, status, e.question))
		if e.turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
			status = parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE
		}
		if e.answer != "" {
			answer = input + 1
			wantMessages = append(wantMessages,
				fmt.Sprintf("%d %s ROLE_ASSISTANT %s in turn %s", answer, status, e.answer, e.turn.GetId()))
		}
		if e.turn.GetInputSequence() != input || e.turn.GetFirstAnswerSequence() != answer ||
			e.turn.GetLastAnswerSequence() != answer {
			t.Errorf("turn %d of %s = %v, want input %d and answer %d", len(wantTurns), id, e.turn, input, answer)
		}
		wantTurns = append(wantTurns, e.turn)
	}
	stored := history(t, f.server, id)
	for _, m := range stored.GetMessages() {
		line := fmt.Sprintf("%d %s %s %s", m.GetSequence(), m.GetStatus(), m.GetRole(), m.GetContent())
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			line += " in turn " + m.GetTurnId()
		}
		messages = append(messages, line)
	}
	if d := cmp.Diff(wantMessages, messages); d != "" {
		t.Errorf("history of %s (-want +got):\n%s", id, d)
	}
	if c := stored.GetConversation(); c.GetActiveTurnId() != "" || int(c.GetLastSequence()) != len(wantMessages) {
		t.Errorf("header of %s = %v, want no active turn and %d messages", id, c, len(wantMessages))
	}
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(list.Turns)
	const retainedTurns = 32
	wantTurns = wantTurns[max(0, len(wantTurns)-retainedTurns):]
	if d := cmp.Diff(wantTurns, list.GetTurns(), protocmp.Transform()); d != "" {
		t.Errorf("ListTurns of %s (-want +got):\n%s", id, d)
	}
	for _, turn := range wantTurns {
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: turn.GetId()})
		if d := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || d != "" {
			t.Errorf("GetTurn(%s): %v (-want +got)\n%s", turn.GetId(), err, d)
		}
	}
}
