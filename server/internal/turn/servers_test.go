package turn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// maxWait is the time after which a test gives up waiting for an event of another server.
const maxWait = time.Minute

// testServer is a manager with a store of its own on an engine that it shares with others.
type testServer struct {
	*fixture
	agent  *controlledAgent
	shared *sharedStore
	net    *network

	name string
	dead context.Context    //nolint:containedctx // ends with kill
	die  context.CancelFunc // ends dead
}

// network is the network between a server and its engine.
type network struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

var errCut = errors.New("the network is cut")

func (n *network) dial(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut {
		return nil, &net.OpError{Op: "dial", Err: errCut}
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

// set cuts or repairs the network.
func (n *network) set(isCut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut = isCut; isCut {
		for _, conn := range n.conns {
			_ = conn.Close()
		}
		n.conns = nil
	}
}

// newServer returns a server with this name. If no agent is given, it has a controlled one.
func newServer(t *testing.T, engine *redistest.Server, name string, answers agent.Agent) *testServer {
	t.Helper()
	s := &testServer{name: name, net: new(network), shared: new(sharedStore)}
	s.dead, s.die = context.WithCancel(t.Context())
	client, err := redisstore.ParseURL(engine.URL(), redisstore.Access{})
	if err != nil {
		t.Fatal(err)
	}
	client.DialCtxFn = s.net.dial
	var f atomic.Pointer[fixture]
	opened, err := redisstore.Open(t.Context(), redisstore.Options{
		Client: client, Buckets: 1, Address: name, Timeout: 2 * time.Second,
		Options: store.Options{MaxMessages: 1000, Observe: func(changes []store.Change) {
			if f := f.Load(); f != nil {
				f.Committed(changes)
			}
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.shared.Store = opened
	inStore := func(o *Options) { o.Store = s.shared }
	if answers != nil {
		s.fixture = newFixture(t, map[string]agent.Agent{"main": answers}, inStore)
	} else {
		s.fixture, s.agent = newControlled(t, inStore)
	}
	s.store = s.shared
	f.Store(s.fixture)
	return s
}

// keepRecovering runs KeepRecovering until the end of the test.
func (s *testServer) keepRecovering(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.KeepRecovering(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// kill ends a server as a kill of its process does, and its lease as time does.
func (s *testServer) kill(t *testing.T, engine *redistest.Server) {
	t.Helper()
	s.die()
	s.net.set(true)
	s.endLease(t, engine)
}

// endLease ends the lease of a server. If the server lives, it renews the lease after some seconds.
func (s *testServer) endLease(t *testing.T, engine *redistest.Server) {
	t.Helper()
	const script = `
		local names, n = redis.call('HGETALL', redis.call('KEYS', '*}la')[1]), 0
		for i = 1, #names, 2 do
			local named = names[i + 1]:match(' (.*)$') == ARGV[1] -- after the key
			n = n + (named and redis.call('ZREM', redis.call('KEYS', '*}ls')[1], names[i]) or 0)
		end
		return n`
	if n, err := engine.Do("EVAL", script, "0", s.name); err != nil || n != "1" {
		t.Errorf("end of the lease of %s = %s, %v, want 1", s.name, n, err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(maxWait); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// run returns the nth run of the agent, from 0.
func (s *testServer) run(t *testing.T, n int) *agentRun {
	t.Helper()
	eventually(t, fmt.Sprintf("agent call %d", n), func() bool { return s.agent.runCount() > n })
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	return s.agent.runs[n]
}

// take makes a run take a step, unless it has ended.
func (r *agentRun) take(s step) {
	select {
	case r.steps <- s:
	case <-r.ended:
	}
}

// stream is a reader in its own goroutine, for tests without a bubble.
type stream struct {
	mu     sync.Mutex
	events []*parleyv1.TurnEvent
	done   chan struct{}
	err    error // after done
}

func read(t *testing.T, open func(ctx context.Context) eventSeq) *stream {
	t.Helper()
	s := &stream{done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer close(s.done)
		for event, err := range open(ctx) {
			if s.err = err; err != nil {
				return
			}
			s.mu.Lock()
			s.events = append(s.events, event)
			s.mu.Unlock()
		}
	}()
	t.Cleanup(func() { stop(); <-s.done })
	return s
}

func (s *testServer) readChat(t *testing.T, request *parleyv1.ChatRequest) *stream {
	t.Helper()
	return read(t, func(ctx context.Context) eventSeq { return s.Chat(ctx, tenant, request, storeRequest(request)) })
}

// received returns the events so far.
func (s *stream) received() []*parleyv1.TurnEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// awaitEvents waits for this number of events.
func (s *stream) awaitEvents(t *testing.T, n int) []*parleyv1.TurnEvent {
	t.Helper()
	eventually(t, fmt.Sprintf("event %d", n), func() bool { return len(s.received()) >= n })
	return s.received()
}

// wait waits for the end of the stream.
func (s *stream) wait(t *testing.T) ([]*parleyv1.TurnEvent, error) {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(maxWait):
		t.Fatalf("stream has not ended after %q", describeAll(s.received()))
	}
	return s.events, s.err
}

// TestTwoServers: a call about a turn of another server ends with ElsewhereError. FollowStored at this server waits for
// the end of the turn, and so does the head of a queue, which then starts.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	a, b := newServer(t, engine, "a", nil), newServer(t, engine, "b", nil)
	request := &parleyv1.ChatRequest{ConversationId: "c", Content: "q", RequestId: "r", OnBusy: onBusyQueue}
	b.readChat(t, chatRequest("first", 0)).awaitEvents(t, 1)
	head := b.readChat(t, chatRequest("head", onBusyQueue))
	head.awaitEvents(t, 1)
	started := make(chan *stream, 1)
	b.shared.set(func() {
		b.shared.beforeBegin = func() {
			there := a.readChat(t, request)
			there.awaitEvents(t, 1)
			started <- there
		}
	})
	b.run(t, 0).take(step{end: true})
	there := <-started
	turnID := there.received()[0].GetTurnId()
	_, err := b.readChat(t, request).wait(t)
	wantElsewhere(t, "repeated Chat", err, turnID)
	_, err = read(t, func(ctx context.Context) eventSeq { return b.Resume(ctx, tenant, "c", "", 0) }).wait(t)
	wantElsewhere(t, "Resume", err, turnID)
	_, err = b.Cancel(t.Context(), tenant, "c", turnID)
	wantElsewhere(t, "Cancel", err, turnID)
	follower := read(t, func(ctx context.Context) eventSeq { return b.FollowStored(ctx, tenant, "c", turnID, Received{}) })
	a.run(t, 0).take(step{pieces: []*parleyv1.RespondResponse{text("one "), text("two")}, end: true})
	events, err := follower.wait(t)
	if err != nil || checkAnswer(events, events[len(events)-1].GetFinished().GetMessages()) != nil {
		t.Errorf("FollowStored = %q, %v, want the stored turn", describeAll(events), err)
	}
	b.run(t, 1).take(step{end: true})
	if events, err := head.wait(t); err != nil || events[len(events)-1].GetFinished() == nil {
		t.Errorf("head of the queue = %q, %v, want finished", describeAll(events), err)
	}
	want := []string{"user: first", "user: q", "assistant: one two", "user: head"}
	if diff := cmp.Diff(want, b.stored(t)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestKilledServer: a server without a lease, because it was killed or paused, has its turn ended by another one, with
// the saved part of the answer. A reader elsewhere continues from there. If the first server continues, its late writes
// are refused, its agent is cancelled, and its reader receives the stored end.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	a, b := newServer(t, engine, "a", nil), newServer(t, engine, "b", nil)
	a.keepRecovering(t)
	reader := a.readChat(t, chatRequest("q", 0))
	reader.awaitEvents(t, 1)
	run := a.run(t, 0)
	run.take(step{pieces: []*parleyv1.RespondResponse{text("saved "), text("too ")}})
	eventually(t, "the answer is saved", func() bool {
		n, err := engine.Do("EVAL", "return #redis.call('KEYS', '*}p:*')", "0")
		return err == nil && n == "1"
	})
	var received Received
	for _, event := range reader.awaitEvents(t, 2)[:2] {
		received.Add(event)
	}
	turnID := reader.received()[0].GetTurnId()
	a.kill(t, engine)
	follower := read(t, func(ctx context.Context) eventSeq { return b.FollowStored(ctx, tenant, "c", turnID, received) })
	b.keepRecovering(t)
	events, err := follower.wait(t)
	end := events[len(events)-1].GetFinished()
	if err != nil || stateName(end.GetTurn().GetState()) != "INTERRUPTED" {
		t.Fatalf("FollowStored = %q, %v, want INTERRUPTED", describeAll(events), err)
	}
	all := slices.Concat(reader.received()[:2], events)
	if err := checkAnswer(all, end.GetMessages()); err != nil || end.GetMessages()[0].GetContent() != "saved too " {
		t.Errorf("text = %q, %v, want the saved answer", describeAll(all), err)
	}
	a.net.set(false)
	run.take(step{pieces: []*parleyv1.RespondResponse{text("lost")}})
	events, err = reader.wait(t)
	if last := events[len(events)-1]; err != nil || !proto.Equal(last.GetFinished().GetTurn(), end.GetTurn()) {
		t.Errorf("reader of the first server = %q, %v, want the stored end", describeAll(events), err)
	}
	<-run.ended
	if diff := cmp.Diff([]string{"user: q", "assistant: saved too  …"}, b.stored(t)); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
}

// TestOwnTurnWithoutLease: a server whose lease has ended does not end its own turns, as long as no other server does.
func TestOwnTurnWithoutLease(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	a := newServer(t, engine, "a", nil)
	reader := a.readChat(t, chatRequest("q", 0))
	reader.awaitEvents(t, 1)
	a.endLease(t, engine)
	if abandoned, _, err := a.store.Abandoned(t.Context(), ""); err != nil || len(abandoned) > 0 {
		t.Fatalf("Abandoned = %v, %v, want no turn: a server without a lease does not judge others", abandoned, err)
	}
	if err := a.Recover(t.Context()); err != nil {
		t.Errorf("Recover: error = %v, want nil", err)
	}
	if r := a.readChat(t, chatRequest("q", 0)); r != nil {
		if _, err := r.wait(t); !errors.As(err, new(*store.BusyError)) {
			t.Errorf("Chat: error = %v, want BusyError", err)
		}
	}
	a.run(t, 0).take(step{end: true})
	if events, err := reader.wait(t); err != nil || stateName(events[len(events)-1].GetFinished().GetTurn().GetState()) != "COMPLETED" {
		t.Errorf("events = %q, %v, want COMPLETED", describeAll(events), err)
	}
}
