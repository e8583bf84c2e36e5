package e2e

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestResumeThroughAProxyThatResets checks that the Go client returns one unbroken stream through a
// proxy that resets connections at random. The test runs 50 turns, 15 with -short, or 1000 with PARLEY_LONG=1
// in the environment.
func TestResumeThroughAProxyThatResets(t *testing.T) {
	t.Parallel()
	runs := 50
	switch {
	case os.Getenv("PARLEY_LONG") != "":
		runs = 1000
	case testing.Short():
		runs = 15
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	pipes := t.TempDir()
	s := startServer(t, t.TempDir(), "--max-conversations=2000", agents(t, puppetAgents))
	var counts resets
	inParallel(runs, func(run int) {
		t.Run(fmt.Sprint(run), throughProxy{s, pipes, seed, uint64(run), &counts}.test)
	})
	t.Logf("%d turns, %d connections; %d resets in the handshake, %d later, %d while the server was silent",
		runs, counts.connections.Load(), counts.early.Load(), counts.late.Load(), counts.silent.Load())
	if !t.Failed() && min(counts.early.Load(), counts.late.Load(), counts.silent.Load()) == 0 {
		t.Error("a kind of reset never happened, want each at least once")
	}
	stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil || stats.GetActiveTurnCount() != 0 {
		t.Errorf("GetStats after all turns = %v, %v; want no active turns", stats, err)
	}
	s.terminate()
	s.wantStop(t)
	for _, line := range s.log.Entries() {
		if level := line["level"]; level != "INFO" {
			t.Errorf("log entry %v, want only level INFO", line)
		}
	}
}

type throughProxy struct {
	s         *server
	pipes     string
	seed, run uint64
	counts    *resets
}

// test runs a turn of 50 pieces through a proxy, and compares its events with those that a reader on an
// unbroken connection receives.
func (r throughProxy) test(t *testing.T) {
	id, s, random := fmt.Sprint("c", r.run), r.s, rand.New(rand.NewPCG(r.seed, r.run))
	p, proxy := newPuppet(t, r.pipes, id), startProxy(t, s.conn.Target(), randomResetPoints(random), r.counts)
	c, err := client.Dial(proxy.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	shown := &eventStream{
		next: chatEvents(timeLimited(t), c, &parleyv1.ChatRequest{ConversationId: id, Content: p.path, Agent: "puppet"}),
	}
	silent := map[int]bool{}
	for range random.IntN(3) {
		silent[random.IntN(answerPieces+1)] = true
	}
	p.start(t)
	seen := resume(t, s, id, "", 0)
	seen.receive(t, 1)
	for i := range answerPieces + 1 {
		seen.sendAndReceive(t, p, max(1, i), i) // no piece if i is 0
		if silent[i] {
			// When the client has all events, no data is in transit.
			shown.receive(t, int(seen.lastIndex()-shown.lastIndex()))
			proxy.resetSilent()
		}
	}
	p.finish()
	if err := seen.drain(); err != nil {
		t.Fatal(err)
	}
	if err := shown.drain(); err != nil {
		t.Fatalf("stream through the proxy after %d events: %v, want EOF", len(shown.events), err)
	}
	wantCompleteTurn(t, s, id, p, shown.events)
	replayed := protocmp.IgnoreFields(&parleyv1.TurnStarted{}, "replayed")
	if d := cmp.Diff(mergeTexts(seen.events), mergeTexts(shown.events), protocmp.Transform(), replayed); d != "" {
		t.Errorf("events without (-) and with (+) the proxy:\n%s", d)
	}
	if shown.events[0].GetStarted().GetReplayed() {
		t.Error("started.replayed = true after a reset, want false for the client's own turn")
	}
}

// TestClientSurvivesARestart checks that if the server is killed during an answer and started again, the
// client receives the end of the turn, and no text twice.
func TestClientSurvivesARestart(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, puppetAgents)
	s := startServer(t, dataDir, config)
	proxy := startProxy(t, s.conn.Target(), nil, new(resets))
	c, err := client.Dial(proxy.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	p := newPuppet(t, t.TempDir(), "pipe")
	shown := &eventStream{
		next: chatEvents(timeLimited(t), c, &parleyv1.ChatRequest{ConversationId: "c", Content: p.path, Agent: "puppet"}),
	}
	p.start(t)
	shown.receive(t, 1)
	shown.sendAndReceive(t, p, 1, 10)
	saved := textOf(shown.events)
	waitForText(t, filepath.Join(dataDir, "parley.db"), saved)
	add(t, s, "other", &parleyv1.Message{Content: "hello"})
	shown.sendAndReceive(t, p, 11, 11) // This piece may be saved or not.
	before := len(shown.events)
	s.kill()
	s = startServer(t, dataDir, config)
	proxy.setTarget(s.conn.Target())
	if err := shown.drain(); err != nil {
		t.Fatalf("stream after %v: %v, want EOF", shown.events, err)
	}
	if got := textOf(shown.events); got != saved+answerPiece(11) {
		t.Errorf("text = %q, want %q", got, saved+answerPiece(11))
	}
	last := shown.events[len(shown.events)-1]
	if finished := last.GetFinished(); len(shown.events) != before+1 || last.GetIndex() <= int32(before) ||
		finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Errorf("events after the restart = %v, want only finished with INTERRUPTED", shown.events[before:])
	}
	stored := history(t, s, "c").GetMessages()
	if d := cmp.Diff(stored[1:], last.GetFinished().GetMessages(), protocmp.Transform()); d != "" || len(stored) != 2 ||
		!strings.HasPrefix(stored[1].GetContent(), saved) {
		t.Errorf("stored messages = %v, differ from those in finished (-stored +finished):\n%s", stored, d)
	}
	p.wantRuns(t, 1)
}

// chatEvents begins a turn with the Go client and returns a function that returns its events one at a time.
func chatEvents(
	ctx context.Context, c *client.Client, r *parleyv1.ChatRequest,
) (next func() (*parleyv1.TurnEvent, error)) {
	type item struct {
		event *parleyv1.TurnEvent
		err   error
	}
	items := make(chan item, 2*lastIndex) // more than there are events, so that the client never waits for the test
	go func() {
		defer close(items)
		for event, err := range c.Chat(ctx, r) {
			items <- item{event, err}
		}
	}()
	return func() (*parleyv1.TurnEvent, error) {
		i, ok := <-items
		if !ok {
			return nil, io.EOF
		}
		return i.event, i.err
	}
}

// resets counts the resets of all proxies.
type resets struct{ connections, early, late, silent atomic.Int64 }

// resetPoint is the number of bytes to the server (up) or from it (down) after which a connection is reset.
type resetPoint struct{ up, down int64 }

// handshakeBytes is about the number of bytes that the peers exchange before the first call.
const handshakeBytes = 60

// randomResetPoints returns the reset points of a proxy's first connections. At most two are in the handshake,
// since a client that never had a connection stops after a few attempts.
func randomResetPoints(random *rand.Rand) []resetPoint {
	var fates []resetPoint
	within := func(up, down int64) {
		if random.IntN(2) == 0 {
			fates = append(fates, resetPoint{up, math.MaxInt64})
		} else {
			fates = append(fates, resetPoint{math.MaxInt64, down})
		}
	}
	for range random.IntN(3) {
		within(random.Int64N(handshakeBytes), random.Int64N(handshakeBytes))
	}
	for range random.IntN(5) {
		within(handshakeBytes+random.Int64N(600), handshakeBytes+random.Int64N(6000))
	}
	random.Shuffle(len(fates), func(i, j int) { fates[i], fates[j] = fates[j], fates[i] })
	return fates
}

// proxy forwards connections from clients to a server, and resets some of them.
type proxy struct {
	listener net.Listener
	counts   *resets
	group    sync.WaitGroup

	mu          sync.Mutex
	target      string
	resetPoints []resetPoint // of the next connections; later ones are not reset
	open        map[net.Conn]bool
}

func startProxy(t *testing.T, target string, fates []resetPoint, counts *resets) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: target, counts: counts, resetPoints: fates, open: make(map[net.Conn]bool)}
	p.group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.group.Go(func() { p.forward(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.reset()
		p.group.Wait()
	})
	return p
}

// forward forwards bytes in both directions until the connection reaches its reset point.
func (p *proxy) forward(c net.Conn) {
	f, target := p.register(c)
	defer p.remove(c)
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer reset(server)
	reached := make(chan bool, 2)
	pass := func(to io.Writer, from io.Reader, bytes int64) {
		_, err := io.CopyN(to, from, bytes)
		reached <- err == nil
	}
	p.group.Go(func() { pass(server, c, f.up) })
	p.group.Go(func() { pass(c, server, f.down) })
	if <-reached {
		if min(f.up, f.down) < handshakeBytes {
			p.counts.early.Add(1)
		} else {
			p.counts.late.Add(1)
		}
	}
}

// setTarget directs new connections to another server.
func (p *proxy) setTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// register registers a connection, and returns its reset point and its target.
func (p *proxy) register(c net.Conn) (resetPoint, string) {
	p.counts.connections.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
	f := resetPoint{math.MaxInt64, math.MaxInt64}
	if len(p.resetPoints) > 0 {
		f, p.resetPoints = p.resetPoints[0], p.resetPoints[1:]
	}
	return f, p.target
}

func (p *proxy) remove(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reset(c)
	delete(p.open, c)
}

// resetSilent resets all open connections while the server sends nothing.
func (p *proxy) resetSilent() { p.counts.silent.Add(int64(p.reset())) }

// reset resets all open connections and returns their number.
func (p *proxy) reset() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		reset(c)
	}
	n := len(p.open)
	clear(p.open)
	return n
}
