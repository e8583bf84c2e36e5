package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// callerCount is the number of clients that call Chat in one conversation at the same time.
const callerCount = 20

func TestBusy(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"many turns run at once": nil,
		"one turn runs at once":  {"--max-turns=1"}, // Queued turns do not count.
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newQueueServer(t, flags...)
			t.Run("reject", f.rejectCallers)
			t.Run("queue", f.queueCallers)
			t.Run("queue, all at once", f.queueAtOnce)
			t.Run("interrupt", f.interruptCallers)
			t.Run("interrupt, all at once", f.interruptAtOnce)
			t.Run("any, all at once", f.anyAtOnce)
			t.Run("the queue advances", f.queueAdvances)
			t.Run("cancelled by another client", f.cancelledByAnotherClient)
		})
	}
}

// rejectCallers: one turn runs, and all other callers receive its id.
func (f *queueServer) rejectCallers(t *testing.T) {
	const id = "reject"
	modes := []parleyv1.OnBusy{parleyv1.OnBusy_ON_BUSY_UNSPECIFIED, parleyv1.OnBusy_ON_BUSY_REJECT}
	callers := f.callAtOnce(t, id, func(i int) parleyv1.OnBusy { return modes[i%2] })
	at := slices.IndexFunc(callers, func(c *caller) bool { return c.err == nil })
	if at < 0 {
		t.Fatalf("every call was refused, the first with %v; want one turn", callers[0].err)
	}
	runs := callers[at]
	for _, c := range slices.Concat(callers[:at], callers[at+1:]) {
		metadata := wantError(t, c.err, codes.Aborted, "CONVERSATION_BUSY")
		if metadata["active_turn_id"] != runs.turnID || runs.turnID == "" {
			t.Errorf("%s was refused with %v, want active_turn_id %s", c, metadata, runs.turnID)
		}
		wantRetry(t, c.err)
	}
	f.answer(t, runs)
	next := f.call(t, id, "next", parleyv1.OnBusy_ON_BUSY_REJECT)
	next.wantStarted(t)
	f.wantExchanges(t, id, append([]exchange{runs.exchange()}, f.answerAll(t, next)...))
}

// queueCallers: 16 turns wait and are answered in the order of their calls.
func (f *queueServer) queueCallers(t *testing.T) {
	const id, waiting = "queue", 16
	var queue []*caller
	for i := range callerCount {
		c := f.call(t, id, fmt.Sprint("caller ", i), parleyv1.OnBusy_ON_BUSY_QUEUE)
		switch {
		case i == 0:
			c.wantStarted(t)
		case i <= waiting:
			c.wantPosition(t, i)
		default:
			_, err := c.stream.Recv()
			wantError(t, err, codes.ResourceExhausted, "QUEUE_FULL")
			wantRetry(t, err)
			continue
		}
		queue = append(queue, c)
	}
	f.answerQueue(t, id, queue)
}

// queueAtOnce: the turns are answered in the order of their positions.
func (f *queueServer) queueAtOnce(t *testing.T) {
	const id = "queue-at-once"
	callers := f.callAtOnce(t, id, func(int) parleyv1.OnBusy { return parleyv1.OnBusy_ON_BUSY_QUEUE })
	queue := make([]*caller, 17)
	for _, c := range callers {
		if c.err != nil {
			wantError(t, c.err, codes.ResourceExhausted, "QUEUE_FULL")
			continue
		}
		if (c.position == 0) != (c.started != nil) || int(c.position) >= len(queue) || queue[c.position] != nil {
			t.Fatalf("%s has position %d, %v, which is impossible beside %v", c, c.position, c.started, queue)
		}
		queue[c.position] = c
	}
	if slices.Contains(queue, nil) {
		t.Fatalf("turns = %v, want 17", queue)
	}
	f.answerQueue(t, id, queue)
}

// answerQueue answers all turns of a new queue, of which the first turn runs.
func (f *queueServer) answerQueue(t *testing.T, id string, queue []*caller) {
	t.Helper()
	var want []string
	for _, c := range slices.Backward(queue[1:]) {
		want = append(want, "QUEUED "+c.turnID)
	}
	want = append(want, "RUNNING "+queue[0].turnID)
	if got := f.states(t, id); !slices.Equal(got, want) {
		t.Errorf("turns before the first answer =\n%q, want\n%q", got, want)
	}
	f.wantTurnLimit(t)
	f.wantExchanges(t, id, f.answerAll(t, queue...))
}

// interruptCallers: each call interrupts the turn before it, whose messages stay.
func (f *queueServer) interruptCallers(t *testing.T) {
	const id = "interrupt"
	var all []exchange
	var before *caller
	for i := range callerCount {
		c := f.call(t, id, fmt.Sprint("caller ", i), parleyv1.OnBusy_ON_BUSY_INTERRUPT)
		if before != nil {
			c.wantPosition(t, 1)
			before.wantEnd(t, parleyv1.TurnState_TURN_STATE_INTERRUPTED)
			all = append(all, before.exchange())
		}
		c.wantStarted(t)
		if err := c.nextEvent(); err != nil || c.text != c.String()+": half an " {
			t.Fatalf("%s has the answer %q, %v; want %q", c, c.text, err, c.String()+": half an ")
		}
		before = c
	}
	f.wantExchanges(t, id, append(all, f.answerAll(t, before)...))
}

// interruptAtOnce: all turns except one are interrupted, wherever they are.
func (f *queueServer) interruptAtOnce(t *testing.T) {
	const id = "interrupt-at-once"
	callers := f.callAtOnce(t, id, func(int) parleyv1.OnBusy { return parleyv1.OnBusy_ON_BUSY_INTERRUPT })
	ended := make(chan *caller, len(callers))
	for _, c := range callers {
		if c.err != nil {
			t.Fatalf("%s: %v", c, c.err)
		}
		go func() { c.err = c.drain(); ended <- c }()
	}
	for range len(callers) - 1 {
		c := <-ended
		if c.err != nil || c.finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
			t.Errorf("%s ends with %v, %v, want it interrupted", c, c.finished, c.err)
		}
	}
	f.releaseAgent(t) // the last turn
	if last := <-ended; last.err != nil || last.finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("%s, the last turn, ends with %v, %v; want it completed", last, last.finished, last.err)
	}
	f.wantExchanges(t, id, exchangesInOrder(t, callers))
}

// anyAtOnce: callers use all modes, agents answer at once, and some callers cancel their turns.
// Whatever the results, the history shows one turn after the other.
func (f *queueServer) anyAtOnce(t *testing.T) {
	const id = "any-at-once"
	modes := []parleyv1.OnBusy{
		parleyv1.OnBusy_ON_BUSY_QUEUE, parleyv1.OnBusy_ON_BUSY_INTERRUPT, parleyv1.OnBusy_ON_BUSY_REJECT,
	}
	var group sync.WaitGroup
	callers := make([]*caller, 3*callerCount)
	for i := range callers {
		c := newCaller(id, fmt.Sprintf("caller %d: %s", i, strings.Repeat("many texts ", 5)), modes[i%len(modes)])
		c.request.Agent, callers[i] = "echo", c
		group.Go(func() {
			if c.err = c.start(t, f.server); c.err != nil {
				return
			}
			if i%4 == 0 {
				_, c.err = f.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: c.turnID})
			}
			if c.err == nil {
				c.err = c.drain()
			}
		})
	}
	group.Wait()
	startedTurns := slices.DeleteFunc(callers, func(c *caller) bool {
		switch {
		case status.Code(c.err) == codes.Aborted:
			wantError(t, c.err, codes.Aborted, "CONVERSATION_BUSY")
		case status.Code(c.err) == codes.ResourceExhausted:
			wantError(t, c.err, codes.ResourceExhausted, "QUEUE_FULL")
		case c.err != nil:
			t.Errorf("%s: %v", c, c.err)
		case c.started == nil: // cancelled while it waited
			c.wantEnd(t, parleyv1.TurnState_TURN_STATE_CANCELLED)
		}
		return c.started == nil
	})
	f.wantExchanges(t, id, exchangesInOrder(t, startedTurns))
}

// queueAdvances: a turn whose caller disconnects leaves the queue, unless another caller waits for
// the same answer. An interrupting turn is placed first.
func (f *queueServer) queueAdvances(t *testing.T) {
	const id = "queue-advances"
	a, b, c, d, e := f.queueFive(t, id)
	joined := newCaller(id, "d", parleyv1.OnBusy_ON_BUSY_QUEUE)
	joined.joins = true
	if err := joined.start(t, f.server); err != nil || joined.turnID != d.turnID {
		t.Fatalf("the same request again joined turn %s, %v; want %s", joined.turnID, err, d.turnID)
	}
	c.disconnect()
	d.wantPosition(t, 2)
	joined.wantPosition(t, 2)
	e.wantPosition(t, 3)
	d.disconnect()

	first := f.call(t, id, "first", parleyv1.OnBusy_ON_BUSY_INTERRUPT)
	first.wantPosition(t, 1)
	b.wantPosition(t, 2)
	joined.wantPosition(t, 3)
	e.wantPosition(t, 4)
	a.wantEnd(t, parleyv1.TurnState_TURN_STATE_INTERRUPTED)
	wantAdvanced(t, first, b, joined, e)
	want := []string{
		"QUEUED " + e.turnID, "QUEUED " + d.turnID, "QUEUED " + b.turnID, "RUNNING " + first.turnID,
		"INTERRUPTED " + a.turnID,
	}
	if got := f.states(t, id); !slices.Equal(got, want) {
		t.Errorf("turns =\n%q, want\n%q", got, want)
	}
	f.wantExchanges(t, id, append([]exchange{a.exchange()}, f.answerAll(t, first, b, joined, e)...))
}

// cancelledByAnotherClient: any client may cancel a turn that waits, runs or has ended, and may
// repeat the call.
func (f *queueServer) cancelledByAnotherClient(t *testing.T) {
	const id = "cancel"
	conn, err := grpc.NewClient(f.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	elsewhere := parleyv1.NewConversationServiceClient(conn)
	wantCancel := func(c *caller, want parleyv1.TurnState) {
		t.Helper()
		var turns []*parleyv1.Turn // the ended turn, according to each reply
		for range 2 {
			reply, err := elsewhere.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: id, TurnId: c.turnID})
			if err != nil || reply.GetTurn().GetState() != want {
				t.Fatalf("CancelTurn of %s = %v, %v; want state %v", c, reply, err, want)
			}
			turns = append(turns, reply.GetTurn())
		}
		c.wantEnd(t, want)
		reply, err := f.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: id, TurnId: c.turnID})
		if err != nil {
			t.Fatal(err)
		}
		for _, turn := range append(turns, reply.GetTurn()) {
			if d := cmp.Diff(c.finished.GetTurn(), turn, protocmp.Transform()); d != "" {
				t.Errorf("the turn of %s in its own stream and in another client's reply (-own +other):\n%s", c, d)
			}
		}
	}

	a, b, c, d, e := f.queueFive(t, id)
	wantCancel(c, parleyv1.TurnState_TURN_STATE_CANCELLED)
	d.wantPosition(t, 2)
	e.wantPosition(t, 3)
	again := f.call(t, id, "c", parleyv1.OnBusy_ON_BUSY_QUEUE)
	again.wantEnd(t, parleyv1.TurnState_TURN_STATE_CANCELLED)
	if again.turnID != c.turnID || again.started != nil {
		t.Errorf("the same request again = turn %s, %v; want the cancelled turn %s", again.turnID, again.started, c.turnID)
	}
	wantCancel(a, parleyv1.TurnState_TURN_STATE_CANCELLED)
	wantAdvanced(t, b, d, e)
	all := append([]exchange{a.exchange()}, f.answerAll(t, b, d, e)...)
	wantCancel(b, parleyv1.TurnState_TURN_STATE_COMPLETED)
	f.wantExchanges(t, id, all)
	_, err = elsewhere.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{
		ConversationId: id, TurnId: "00000000-0000-4000-8000-000000000000",
	})
	wantError(t, err, codes.NotFound, "TURN_NOT_FOUND")
}

// exchangesInOrder returns the exchanges of ended turns in the order in which the turns started.
func exchangesInOrder(t *testing.T, callers []*caller) []exchange {
	t.Helper()
	slices.SortFunc(callers, func(a, b *caller) int {
		return int(a.finished.GetTurn().GetInputSequence() - b.finished.GetTurn().GetInputSequence())
	})
	all := make([]exchange, len(callers))
	for i, c := range callers {
		c.check(t)
		all[i] = c.exchange()
	}
	return all
}

// wantRetry checks that an error has a RetryInfo with a delay of at most a minute.
func wantRetry(t *testing.T, err error) {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok && retry.GetRetryDelay().AsDuration() > 0 &&
			retry.GetRetryDelay().AsDuration() <= time.Minute {
			return
		}
	}
	t.Errorf("%v has no RetryInfo with a delay", err)
}
