package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// stopWithin is the longest time from the end of the grace period to the end of the process: the
// server's 5 s, and 3 s for a busy machine.
const stopWithin = 5*time.Second + 3*time.Second

// TestGracefulStopOfMany stops a server that runs 40 turns, of which 8 have clients that do not read. It does not run
// beside other tests of this package: the server has 5 s for its stop, whatever else the machine does.
func TestGracefulStopOfMany(t *testing.T) { //nolint:paralleltest // See above.
	if testing.Short() {
		t.Skip("takes long")
	}
	const grace = 2 * time.Second
	dataDir, config := t.TempDir(), agents(t, stubbornAgents)
	s := startServer(t, dataDir, config, fmt.Sprint("--stop-grace=", grace))
	running := startTurns(t, s, 32, "slow", 8, "flood")
	var waiting []*caller
	for i := range 10 {
		c := newCaller(running[i%5].id, fmt.Sprint("waits ", i), parleyv1.OnBusy_ON_BUSY_QUEUE)
		if err := c.start(t, s); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, c)
	}
	leaver := &stoppedTurn{id: "leaves", agent: "slow", cancel: true}
	if err := leaver.start(t, s, s); err != nil {
		t.Fatal(err)
	}

	stopped := time.Now()
	s.terminate()
	s.await(t, "stopping", "running_turns=41")
	// Queued turns end at once, while running turns have their grace period. During that period,
	// on_disconnect still applies.
	for _, c := range waiting {
		wantError(t, c.drain(), codes.Unavailable, "SHUTTING_DOWN")
	}
	leaver.disconnect()
	wantStopped(t, s, running, stopped.Add(grace+stopWithin))

	s = startServer(t, dataDir, config)
	for _, c := range running {
		c.wantStored(t, s, parleyv1.TurnState_TURN_STATE_INTERRUPTED, "SHUTTING_DOWN")
	}
	leaver.wantStored(t, s, parleyv1.TurnState_TURN_STATE_CANCELLED, "CANCELLED")
	if found, _ := s.log.Find("turn interrupted by a stop of the server"); len(found) > 0 {
		t.Errorf("turns interrupted by the start instead of the stop: %v, want none", found)
	}
}

// TestGracefulStopOfAgentsThatIgnoreSIGTERM stops a server with agents that use nearly all the time of a
// stop. If a busy machine makes it too short, the process ends without an orderly stop, and the next
// start interrupts the turns.
func TestGracefulStopOfAgentsThatIgnoreSIGTERM(t *testing.T) {
	t.Parallel()
	const grace = 100 * time.Millisecond
	dataDir, config := t.TempDir(), agents(t, stubbornAgents)
	s := startServer(t, dataDir, config, fmt.Sprint("--stop-grace=", grace))
	running := startTurns(t, s, 3, "deaf", 2, "deaf-flood")
	latest := time.Now().Add(grace + stopWithin)
	s.terminate()
	<-s.process.Ended()
	if late := time.Since(latest); late > 0 {
		t.Errorf("the process ended %s after the latest time", late)
	}
	if code := s.process.ProcessState.ExitCode(); code != 0 && code != exitIO {
		t.Errorf("exit code = %d, want 0 or %d", code, exitIO)
	}
	for _, c := range running {
		_ = c.stream.drain() // The client may receive the end of the turn or not.
	}
	s = startServer(t, dataDir, config)
	for _, c := range running {
		c.wantStored(t, s, parleyv1.TurnState_TURN_STATE_INTERRUPTED, "SHUTTING_DOWN")
	}
}

// floodZeros is the number of zeros that some agents send after their text.
const floodZeros = 512 << 10

// The agents run until they are stopped.
const stubbornAgents = `
agents:
  slow: {kind: command, command: [sh, testdata/agents/stubborn.sh]}
  flood: {kind: command, command: [sh, testdata/agents/stubborn.sh, "524288"]}
  deaf: {kind: command, command: [sh, -c, "trap '' TERM; . testdata/agents/stubborn.sh"]}
  deaf-flood: {kind: command, command: [sh, -c, "trap '' TERM; . testdata/agents/stubborn.sh", sh, "524288"]}
`

// stoppedTurn is a turn that runs when the server stops.
type stoppedTurn struct {
	id, agent  string
	zeros      int  // number of zeros at the end of the answer
	cancel     bool // the turn is cancelled when the client disconnects
	stream     *eventStream
	disconnect context.CancelFunc
	turnID     string
	finished   *parleyv1.TurnFinished // the client's last event, if it received one
}

// partialAnswer returns the partial answer.
func (c *stoppedTurn) partialAnswer() string {
	return c.id + ": half an " + strings.Repeat("0", c.zeros)
}

// startTurns begins turns of two agents. The clients of the first read their streams. The clients of flood
// do not, and its answers are larger than the buffers of a stream. It returns when all agents have sent
// their partial answers; the agents then wait.
func startTurns(t *testing.T, s *server, read int, agent string, unread int, flood string) []*stoppedTurn {
	t.Helper()
	lazy := smallWindowClient(t, s)
	all := make([]*stoppedTurn, read+unread)
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i := range all {
		c, by := &stoppedTurn{id: fmt.Sprint("c", i), agent: agent, cancel: i%4 == 0}, s.ConversationServiceClient
		if i >= read {
			c.agent, c.zeros, by = flood, floodZeros, lazy
		}
		all[i] = c
		group.Go(func() { errs[i] = c.start(t, s, by) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return all
}

// smallWindowClient returns a client with the smallest flow-control windows.
func smallWindowClient(t *testing.T, s *server) parleyv1.ConversationServiceClient {
	t.Helper()
	const least = 64 << 10
	conn, err := grpc.NewClient(s.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(least), grpc.WithStaticConnWindowSize(least))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return parleyv1.NewConversationServiceClient(conn)
}

// start begins the turn with a client, and returns when the agent has sent its partial answer.
func (c *stoppedTurn) start(t *testing.T, s *server, by parleyv1.ConversationServiceClient) error {
	t.Helper()
	r := &parleyv1.ChatRequest{ConversationId: c.id, Content: c.id, Agent: c.agent}
	if c.cancel {
		r.OnDisconnect = parleyv1.OnDisconnect_ON_DISCONNECT_CANCEL
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := by.Chat(ctx, r)
	c.stream, c.disconnect = streamOf(stream, err), cancel
	read := c.stream
	if c.zeros > 0 && err == nil {
		_, err = stream.Header() // The header comes with the first event, which is not read.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		read = streamOf(s.ResumeTurn(ctx, &parleyv1.ResumeTurnRequest{ConversationId: c.id}))
	}
	for got := ""; err == nil && got != c.partialAnswer(); {
		var event *parleyv1.TurnEvent
		event, err = read.next()
		c.turnID, got = event.GetTurnId(), got+event.GetTextDelta().GetText()
	}
	return err
}

// wantStopped waits for the process to end in time with exit code 0. Clients that read receive the end of
// their turns; the others do not.
func wantStopped(t *testing.T, s *server, all []*stoppedTurn, latest time.Time) {
	t.Helper()
	var group sync.WaitGroup
	for _, c := range all {
		if c.zeros > 0 {
			continue
		}
		group.Go(func() {
			if err := c.stream.drain(); err != nil {
				t.Errorf("stream of %s = %v, want EOF", c.id, err)
				return
			}
			c.finished = c.stream.events[len(c.stream.events)-1].GetFinished()
		})
	}
	s.wantStop(t)
	if late := time.Since(latest); late > 0 {
		t.Errorf("the process ended %s after the latest time", late)
	}
	group.Wait()
	for _, c := range all {
		if c.zeros == 0 {
			continue
		}
		err := c.stream.drain()
		if status.Code(err) != codes.Unavailable || len(textOf(c.stream.events)) == len(c.partialAnswer()) {
			t.Errorf("the client of %s, which did not read, received %d bytes and %v, want a part and UNAVAILABLE", c.id,
				len(textOf(c.stream.events)), err)
		}
	}
}

// wantStored checks the stored conversation and turn after the restart.
func (c *stoppedTurn) wantStored(t *testing.T, s *server, state parleyv1.TurnState, reason string) {
	t.Helper()
	stored := history(t, s, c.id)
	messages := stored.GetMessages()
	if got, want := contents(messages), "USER "+c.id+"\nASSISTANT "+c.partialAnswer()+"\n"; got != want ||
		stored.GetConversation().GetActiveTurnId() != "" {
		t.Fatalf("header of %s after the stop = %v, with the history\n%.200q, want\n%.200q", c.id, stored.GetConversation(),
			got, want)
	}
	if m := messages[1]; m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE || m.GetTurnId() != c.turnID {
		t.Errorf("the answer in %s is %v of turn %s, want INCOMPLETE of %s", c.id, m.GetStatus(), m.GetTurnId(), c.turnID)
	}
	list, err := s.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: c.id})
	if err != nil {
		t.Fatal(err)
	}
	turn := list.GetTurns()[0]
	if len(list.GetTurns()) != 1 || turn.GetId() != c.turnID || turn.GetState() != state ||
		turn.GetError().GetReason() != reason || turn.GetLastAnswerSequence() != 2 {
		t.Errorf("ListTurns of %s = %v, want only %s as %v with %s", c.id, list, c.turnID, state, reason)
	}
	if c.finished == nil {
		return
	}
	if d := cmp.Diff(&parleyv1.TurnFinished{
		Turn: turn, Messages: messages[1:], ConversationVersion: stored.GetConversation().GetVersion(),
	}, c.finished, protocmp.Transform()); d != "" {
		t.Errorf("the end of %s as stored (-) and as sent (+):\n%s", c.id, d)
	}
}
