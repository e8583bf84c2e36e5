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

// floor is a server on which callers wait for each other.
type floor struct {
	*server
	one bool // turn at a time
	// pipe lets an agent go that has said half of its answer: it reads a line from it.
	pipe *os.File
}

func newFloor(t *testing.T, flags ...string) *floor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0) // No agent waits for a writer.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	config := agents(t, fmt.Sprintf(`
default_agent: slow
agents:
  slow: {kind: command, command: [sh, testdata/agents/slow.sh, %q]}
`, path))
	return &floor{
		server: startServer(t, t.TempDir(), append(flags, config, "--max-messages=1000")...),
		one:    slices.Contains(flags, "--max-turns=1"), pipe: pipe,
	}
}

// call has another caller ask.
func (f *floor) call(t *testing.T, id, content string, mode parleyv1.OnBusy) *caller {
	t.Helper()
	c := newCaller(id, content, mode)
	if err := c.call(t, f.server); err != nil {
		t.Fatal(err)
	}
	return c
}

// callAtOnce has all callers ask at the same time. It returns when each has its first event,
// or why there is none.
func (f *floor) callAtOnce(t *testing.T, id string, mode func(i int) parleyv1.OnBusy) []*caller {
	t.Helper()
	var group sync.WaitGroup
	callers := make([]*caller, callerCount)
	for i := range callers {
		c := newCaller(id, fmt.Sprint("caller ", i), mode(i))
		callers[i] = c
		group.Go(func() { c.err = c.begin(t, f.server) })
	}
	group.Wait()
	return callers
}

// line forms a line: the turn of a runs, the others wait in this order.
func (f *floor) line(t *testing.T, id string) (a, b, c, d, e *caller) {
	t.Helper()
	line := make([]*caller, 5)
	for i := range line {
		line[i] = f.call(t, id, string(rune('a'+i)), parleyv1.OnBusy_ON_BUSY_QUEUE)
		if i > 0 {
			line[i].wantPosition(t, i)
		} else {
			line[i].wantStarted(t)
		}
	}
	return line[0], line[1], line[2], line[3], line[4]
}

// letGo lets the agent that waits say the rest, or the next one that does.
func (f *floor) letGo(t *testing.T) {
	t.Helper()
	if _, err := f.pipe.WriteString("answer\n"); err != nil {
		t.Fatal(err)
	}
}

// answer lets the caller have the rest of the answer.
func (f *floor) answer(t *testing.T, c *caller) {
	t.Helper()
	f.letGo(t)
	c.wantEnd(t, parleyv1.TurnState_TURN_STATE_COMPLETED)
}

// answerAll has a line answered, whose first one runs.
func (f *floor) answerAll(t *testing.T, line ...*caller) []exchange {
	t.Helper()
	var all []exchange
	for i, c := range line {
		f.answer(t, c)
		all = append(all, c.kept())
		wantMoved(t, line[i+1:]...)
	}
	return all
}

// wantMoved: the first one has started, the others wait in this order.
func wantMoved(t *testing.T, line ...*caller) {
	t.Helper()
	for i, c := range line {
		if i == 0 {
			c.wantStarted(t)
		} else {
			c.wantPosition(t, i)
		}
	}
}

// wantNoOtherPlace: where one turn may run at a time, the one that does takes that place.
func (f *floor) wantNoOtherPlace(t *testing.T) {
	t.Helper()
	other := newCaller("other", "me too", parleyv1.OnBusy_ON_BUSY_QUEUE)
	other.request.Agent = "echo"
	err := other.begin(t, f.server)
	if f.one {
		wantError(t, err, codes.ResourceExhausted, "TOO_MANY_TURNS")
	} else if err != nil {
		t.Error(err)
	}
}

// states are those of the turns, newest first; GetTurn must say the same.
func (f *floor) states(t *testing.T, id string) []string {
	t.Helper()
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for _, turn := range list.GetTurns() {
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: turn.GetId()})
		if d := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || d != "" || turn.GetCreateTime() == nil {
			t.Errorf("turn %v: %v\n%s", turn, err, d)
		}
		states = append(states, strings.TrimPrefix(turn.GetState().String(), "TURN_STATE_")+" "+turn.GetId())
	}
	return states
}

// exchange is what is to be kept of a turn.
type exchange struct {
	question, answer string // no answer: no message
	turn             *parleyv1.Turn
}

// want checks that this is the whole history and these are the newest turns, in order.
func (f *floor) want(t *testing.T, id string, all []exchange) {
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
			wantMessages = append(wantMessages, fmt.Sprintf("%d %s ROLE_ASSISTANT %s in turn %s", answer, status, e.answer, e.turn.GetId()))
		}
		if e.turn.GetInputSequence() != input || e.turn.GetFirstAnswerSequence() != answer || e.turn.GetLastAnswerSequence() != answer {
			t.Errorf("the caller of turn %d of %s was told %v, want it to answer %d by %d", len(wantTurns), id, e.turn, input, answer)
		}
		wantTurns = append(wantTurns, e.turn)
	}
	kept := history(t, f.server, id)
	for _, m := range kept.GetMessages() {
		line := fmt.Sprintf("%d %s %s %s", m.GetSequence(), m.GetStatus(), m.GetRole(), m.GetContent())
		if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
			line += " in turn " + m.GetTurnId()
		}
		messages = append(messages, line)
	}
	if d := cmp.Diff(wantMessages, messages); d != "" {
		t.Errorf("the history of %s:\n%s", id, d)
	}
	if c := kept.GetConversation(); c.GetActiveTurnId() != "" || int(c.GetLastSequence()) != len(wantMessages) {
		t.Errorf("%s ends as %v, want no turn and %d messages", id, c, len(wantMessages))
	}
	list, err := f.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(list.Turns)
	const keptTurns = 32
	wantTurns = wantTurns[max(0, len(wantTurns)-keptTurns):]
	if d := cmp.Diff(wantTurns, list.GetTurns(), protocmp.Transform()); d != "" {
		t.Errorf("the turns of %s:\n%s", id, d)
	}
	for _, turn := range wantTurns {
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: turn.GetId()})
		if d := cmp.Diff(turn, reply.GetTurn(), protocmp.Transform()); err != nil || d != "" {
			t.Errorf("turn %s: %v\n%s", turn.GetId(), err, d)
		}
	}
}
