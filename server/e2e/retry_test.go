package e2e

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestOneRequestOfManyClients: an agent runs once for one request_id, however many clients send it.
func TestOneRequestOfManyClients(t *testing.T) {
	t.Parallel()
	t.Run("in every mode", new(manyClients).test)
	t.Run("queued after another turn", behindRunningTurn)
	t.Run("killed in mid-answer", killedInMidAnswer)
}

// quickAgent is another agent that records its runs. It answers at once.
const quickAgent = `
  quick:
    kind: command
    command: [sh, -c, 'while read -r line; do last=$line; done; echo run >>"${last#\[USER\]: }.runs"; printf %s "$0"', '` + quickAnswer + `']
`

const quickAnswer = "at once"

// clientGroup is 64 clients, or 16 with -short, each with its own connection.
type clientGroup []*singleConn

func newClientGroup(t *testing.T, s *server) clientGroup {
	t.Helper()
	count := 64
	if testing.Short() {
		count = 16
	}
	var c clientGroup
	for range count {
		c = append(c, newSingleConn(t, s))
	}
	return c
}

// chatAll sends the same request from all clients at once. It calls onReached when all have received an
// event for which to returns true. It returns the streams and how each ended, nil for EOF.
func (c clientGroup) chatAll(
	t *testing.T, r *parleyv1.ChatRequest, to func(*parleyv1.TurnEvent) bool, onReached func(),
) ([]*eventStream, []error) {
	t.Helper()
	reached := make(chan error, len(c))
	wait := c.startAll(t, func(int) *parleyv1.ChatRequest { return r }, func(e *eventStream) error {
		err := e.receiveUntil(to)
		reached <- err
		return err
	})
	for range c {
		if err := <-reached; err != nil {
			t.Fatal(err)
		}
	}
	onReached()
	return wait()
}

// startAll sends each client's request at once. Each client calls first and, if it returns no error,
// receives all further events.
func (c clientGroup) startAll(
	t *testing.T, request func(int) *parleyv1.ChatRequest, first func(*eventStream) error,
) (wait func() ([]*eventStream, []error)) {
	t.Helper()
	var (
		ctx     = timeLimited(t)
		start   = make(chan struct{})
		streams = make([]*eventStream, len(c))
		ends    = make([]error, len(c))
		group   sync.WaitGroup
	)
	for i, w := range c {
		group.Go(func() {
			<-start
			streams[i] = streamOf(w.Chat(ctx, request(i)))
			if ends[i] = first(streams[i]); ends[i] == nil {
				ends[i] = streams[i].drain()
			}
		})
	}
	close(start)
	return func() ([]*eventStream, []error) {
		group.Wait()
		return streams, ends
	}
}

// receiveUntil receives events up to one for which of returns true.
func (e *eventStream) receiveUntil(of func(*parleyv1.TurnEvent) bool) error {
	for {
		event, err := e.next()
		switch {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		}
		if e.events = append(e.events, event); of(event) {
			return nil
		}
	}
}

func isStarted(e *parleyv1.TurnEvent) bool { return e.GetStarted() != nil }

func isQueued(e *parleyv1.TurnEvent) bool { return e.GetQueued() != nil }

// wantSameTurn checks that all clients received the same turn, the given number of them as its first reader,
// and returns its events.
func wantSameTurn(t *testing.T, streams []*eventStream, ends []error, first int) []*parleyv1.TurnEvent {
	t.Helper()
	one, firsts := mergeTexts(streams[0].events), 0
	for i, e := range streams {
		events := mergeTexts(e.events)
		if ends[i] != nil || len(events) != len(one) {
			t.Fatalf("client %d has %d events, %v; want %d as client 0", i, len(events), ends[i], len(one))
		}
		for j, event := range events {
			if started := event.GetStarted(); started != nil {
				if !started.GetReplayed() {
					firsts++
				}
				started.Replayed = true
			}
			if !proto.Equal(event, one[j]) {
				t.Fatalf("client %d has %v, want %v as client 0", i, event, one[j])
			}
		}
	}
	if firsts != first {
		t.Errorf("%d clients received replayed = false, want %d", firsts, first)
	}
	return one
}

// manyClients is a server with --max-turns=1 and its clients. A client that joins a turn does not count
// as another turn.
type manyClients struct {
	pipes string
	s     *server
	c     clientGroup
}

func (m *manyClients) test(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, puppetAgents+quickAgent)
	m.pipes, m.s = t.TempDir(), startServer(t, dataDir, config, "--max-turns=1")
	m.c = newClientGroup(t, m.s)
	var all []*repeatedRequest
	for _, mode := range []parleyv1.OnBusy{parleyv1.OnBusy_ON_BUSY_UNSPECIFIED, parleyv1.OnBusy_ON_BUSY_QUEUE, parleyv1.OnBusy_ON_BUSY_INTERRUPT} {
		for _, agent := range []string{"puppet", "quick"} {
			for _, id := range []string{"", fmt.Sprintf("c-%v-%s", mode, agent)} {
				name := fmt.Sprintf("%v-%s-%t", mode, agent, id == "")
				r := &repeatedRequest{m: m, p: newPuppet(t, m.pipes, name)}
				r.request = &parleyv1.ChatRequest{
					ConversationId: id, RequestId: name, Agent: agent, OnBusy: mode, Content: r.p.path,
				}
				t.Run(name, r.ask)
				all = append(all, r)
			}
		}
	}
	t.Run("two contents", m.twoContents)
	m.s.terminate()
	m.s.wantStop(t)
	m.s = startServer(t, dataDir, config, "--max-turns=1")
	m.c = newClientGroup(t, m.s)
	for _, r := range all {
		t.Run("after a restart "+r.request.GetRequestId(), r.askAfterRestart)
	}
	if found, _ := m.s.log.Find("conversation history"); len(found) > 0 {
		t.Errorf("agents ran after the restart: %v, want none", found)
	}
}

// twoContents sends two contents under the same request_id at once, in all modes. Only one is answered.
func (m *manyClients) twoContents(t *testing.T) {
	for round := range 5 {
		id := fmt.Sprint("two-contents-", round)
		p := []*puppet{newPuppet(t, m.pipes, id+"-0"), newPuppet(t, m.pipes, id+"-1")}
		streams, ends := m.c.startAll(t, func(i int) *parleyv1.ChatRequest {
			return &parleyv1.ChatRequest{
				ConversationId: id, RequestId: id, Content: p[i%2].path, Agent: "quick",
				OnBusy: parleyv1.OnBusy(i / 2 % len(parleyv1.OnBusy_name)),
			}
		}, func(*eventStream) error { return nil })()
		winner := 0
		if ends[0] != nil {
			winner = 1
		}
		var (
			answered []*eventStream
			oks      []error
		)
		for i := range m.c {
			if i%2 == winner {
				answered, oks = append(answered, streams[i]), append(oks, ends[i])
			} else {
				wantError(t, ends[i], codes.AlreadyExists, "REQUEST_ID_REUSED")
			}
		}
		r := &repeatedRequest{m: m, id: id, p: p[winner], answer: quickAnswer}
		r.wantAnswered(t, wantSameTurn(t, answered, oks, 1))
		p[1-winner].wantRuns(t, 0)
	}
}

// repeatedRequest is a request that many clients send.
type repeatedRequest struct {
	m       *manyClients
	request *parleyv1.ChatRequest
	p       *puppet
	id      string // id of the conversation
	answer  string
	events  []*parleyv1.TurnEvent
}

// ask sends the request from all clients, and again when the turn has ended.
func (r *repeatedRequest) ask(t *testing.T) {
	onReached := func() {}
	r.answer = quickAnswer
	if r.request.GetAgent() == "puppet" {
		r.answer = completeAnswer()
		onReached = func() {
			r.wantReuseRefused(t)
			other := &parleyv1.ChatRequest{ConversationId: "other", Content: "hello", RequestId: r.request.GetRequestId()}
			wantError(t, firstError(r.m.s.Chat(timeLimited(t), other)), codes.ResourceExhausted, "TOO_MANY_TURNS")
			r.p.start(t)
			r.p.send(t, 1, answerPieces)
			r.p.finish()
		}
	}
	streams, ends := r.m.c.chatAll(t, r.request, isStarted, onReached)
	r.events = wantSameTurn(t, streams, ends, 1)
	r.id = r.events[0].GetStarted().GetConversation().GetId()
	r.wantAnswered(t, r.events)

	streams, ends = r.m.c.chatAll(t, r.request, isStarted, func() {})
	r.wantAnswered(t, wantSameTurn(t, append(streams, &eventStream{events: r.events}), append(ends, nil), 0))
	r.wantReuseRefused(t)
}

// askAfterRestart sends the request from all clients after a restart, when only the store has the turn.
func (r *repeatedRequest) askAfterRestart(t *testing.T) {
	streams, ends := r.m.c.chatAll(t, r.request, isStarted, func() {})
	again := wantSameTurn(t, streams, ends, 0)
	r.wantAnswered(t, again)
	if first, last := r.events[len(r.events)-1], again[len(again)-1]; !proto.Equal(first, last) {
		t.Errorf("finished = %v, want %v as before the restart", last, first)
	}
	r.wantReuseRefused(t)
}

// wantAnswered checks the events of the turn, that its messages are stored once, and that the agent ran
// once.
func (r *repeatedRequest) wantAnswered(t *testing.T, events []*parleyv1.TurnEvent) {
	t.Helper()
	finished := events[len(events)-1].GetFinished()
	if got := textOf(events); got != r.answer || finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("answer = %q of %v, want %q of a completed turn", got, finished, r.answer)
	}
	if got := contents(history(t, r.m.s, r.id).GetMessages()); got != "USER "+r.p.path+"\nASSISTANT "+r.answer+"\n" {
		t.Errorf("history =\n%s, want the question and the answer", got)
	}
	r.p.wantRuns(t, 1)
}

// wantReuseRefused checks that the same request_id with any other field is refused.
func (r *repeatedRequest) wantReuseRefused(t *testing.T) {
	t.Helper()
	for _, change := range []func(*parleyv1.ChatRequest){
		func(other *parleyv1.ChatRequest) { other.Content += " " },
		func(other *parleyv1.ChatRequest) { other.Agent = "echo" },
		func(other *parleyv1.ChatRequest) { other.SystemPrompt = new("Be brief.") },
		func(other *parleyv1.ChatRequest) { other.Metadata = map[string]string{"key": "value"} },
	} {
		other := proto.CloneOf(r.request)
		change(other)
		wantError(t, firstError(r.m.s.Chat(timeLimited(t), other)), codes.AlreadyExists, "REQUEST_ID_REUSED")
	}
}

// Many clients with one request take one position in the queue, which has 16, and interrupt the running
// turn once.
func behindRunningTurn(t *testing.T) {
	t.Parallel()
	pipes := t.TempDir()
	s := startServer(t, t.TempDir(), agents(t, puppetAgents), "--max-turns=1")
	c := newClientGroup(t, s)
	for mode, state := range map[parleyv1.OnBusy]parleyv1.TurnState{
		parleyv1.OnBusy_ON_BUSY_QUEUE:     parleyv1.TurnState_TURN_STATE_COMPLETED,
		parleyv1.OnBusy_ON_BUSY_INTERRUPT: parleyv1.TurnState_TURN_STATE_INTERRUPTED,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			id, running, p := mode.String(), newPuppet(t, pipes, mode.String()+"-running"), newPuppet(t, pipes, mode.String())
			first := streamOf(s.Chat(timeLimited(t), &parleyv1.ChatRequest{
				ConversationId: id, Content: running.path, Agent: "puppet",
			}))
			running.start(t)
			first.receive(t, 1)
			first.sendAndReceive(t, running, 1, 1)
			r := &parleyv1.ChatRequest{ConversationId: id, Content: p.path, Agent: "puppet", RequestId: "second", OnBusy: mode}
			streams, ends := c.chatAll(t, r, isQueued, func() {
				if mode == parleyv1.OnBusy_ON_BUSY_QUEUE {
					running.finish()
				}
				p.start(t)
				p.send(t, 1, answerPieces)
				p.finish()
			})
			if err := first.drain(); err != nil ||
				first.events[len(first.events)-1].GetFinished().GetTurn().GetState() != state {
				t.Errorf("the running turn = %v, %v; want it to end as %v", first.events, err, state)
			}
			one := wantSameTurn(t, streams, ends, 1)
			if got := textOf(one); got != completeAnswer() {
				t.Errorf("answer = %q, want %q", got, completeAnswer())
			}
			want := "USER " + running.path + "\nASSISTANT " + answerPiece(1) + "\nUSER " + p.path + "\nASSISTANT " + completeAnswer() + "\n"
			if got := contents(history(t, s, id).GetMessages()); got != want {
				t.Errorf("history =\n%s, want\n%s", got, want)
			}
			running.wantRuns(t, 1)
			p.wantRuns(t, 1)
		})
	}
}

func killedInMidAnswer(t *testing.T) {
	t.Parallel()
	dataDir, pipes, config := t.TempDir(), t.TempDir(), agents(t, puppetAgents)
	s := startServer(t, dataDir, config)
	r := &repeatedRequest{m: &manyClients{s: s}, p: newPuppet(t, pipes, "running")}
	r.request = &parleyv1.ChatRequest{Content: r.p.path, Agent: "puppet", RequestId: "running"}
	waiting := newPuppet(t, pipes, "waiting")
	later := &parleyv1.ChatRequest{
		Content: waiting.path, Agent: "puppet", RequestId: "waiting", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	}
	streams, ends := newClientGroup(t, s).chatAll(t, r.request, isStarted, func() {
		reply, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
		if err != nil || len(reply.GetConversations()) != 1 {
			t.Fatalf("ListConversations = %v, %v; want one", reply, err)
		}
		r.id = reply.GetConversations()[0].GetConversation().GetId()
		later.ConversationId = r.id
		if err := streamOf(s.Chat(timeLimited(t), later)).receiveUntil(isQueued); err != nil {
			t.Fatal(err)
		}
		r.p.start(t)
		r.p.send(t, 1, 1)
		waitForText(t, filepath.Join(dataDir, "parley.db"), answerPiece(1))
		add(t, s, "other", &parleyv1.Message{Content: "hello"})
		s.kill()
	})
	for i, e := range streams {
		if got := textOf(e.events); got != answerPiece(1) || status.Code(ends[i]) != codes.Unavailable {
			t.Errorf("client %d received %q, %v; want the first piece and UNAVAILABLE", i, got, ends[i])
		}
	}

	s = startServer(t, dataDir, config)
	r.m.s = s
	streams, ends = newClientGroup(t, s).chatAll(t, r.request, isStarted, func() {})
	one := wantSameTurn(t, streams, ends, 0)
	turn := one[len(one)-1].GetFinished().GetTurn()
	if got := textOf(one); got != answerPiece(1) || turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED ||
		turn.GetError().GetReason() != "SHUTTING_DOWN" {
		t.Errorf("answer = %q of %v, want the saved piece of an interrupted turn", got, turn)
	}
	stored := history(t, s, r.id).GetMessages()
	if got := contents(stored); got != "USER "+r.p.path+"\nASSISTANT "+answerPiece(1)+"\n" ||
		stored[1].GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		t.Errorf("history = %v, want the question and an incomplete answer", stored)
	}
	r.wantReuseRefused(t)
	r.p.wantRuns(t, 1)

	// The queued turn had not started, so the request starts it now.
	waiting.wantRuns(t, 0)
	next := streamOf(s.Chat(timeLimited(t), later))
	waiting.start(t)
	waiting.finish()
	if err := next.drain(); err != nil || next.events[0].GetStarted() == nil || next.events[0].GetStarted().GetReplayed() {
		t.Errorf("the queued turn = %v, %v; want a new start", next.events, err)
	}
	waiting.wantRuns(t, 1)
}
