package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// The server is killed this number of times, each time while this number of conversations is answered.
const (
	kills               = 20
	killedConversations = 6
)

// The agents send a piece every pieceEvery. When the server is killed, the newest agent has sent
// minPieces, and morePieces more in each round. Each other agent has sent piecesApart more than the
// next one.
const (
	pieceEvery  = 10 * time.Millisecond
	minPieces   = 50
	morePieces  = 2
	piecesApart = 12
)

// maxLoss is the age of the text that a crash may lose. A round that loses more while the machine
// stalled for a quarter of that time is repeated, at most maxStalls times.
const (
	maxLoss   = time.Second
	stall     = maxLoss / 4
	maxStalls = 3
)

func TestKilledInMidAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long")
	}
	t.Parallel()
	dataDir, flags := t.TempDir(), []string{agents(t, puppetAgents), "--max-messages=1000"}
	all := make([]*survivor, killedConversations)
	for i := range all {
		all[i] = &survivor{id: fmt.Sprint("c", i)}
	}
	var slowest, most time.Duration
	exact, later, stalls := 0, 0, 0
	s := startServer(t, dataDir, flags...)
	for round, good := 0, 0; good < kills; round++ {
		r := runUntilKilled(t, s, all, minPieces+round*morePieces)
		s = startServer(t, dataDir, flags...)
		if found, _ := s.log.Find("turn interrupted by a stop of the server"); len(found) != len(all) {
			t.Errorf("round %d: the start interrupted %d turns, want %d", round, len(found), len(all))
		}
		var missing time.Duration
		for _, c := range all {
			missing = max(missing, c.wantSaved(t, s, r.killed))
			atCut, afterCut := c.wantResumes(t, s)
			exact, later = exact+atCut, later+afterCut
			// A new turn succeeds.
			c.want = append(c.want, "USER continue", "ASSISTANT "+ask(t, s, c.id, "continue"))
		}
		switch {
		case missing <= maxLoss:
			good++
		case max(r.pause, r.slowest) >= stall && stalls < maxStalls:
			stalls++
		default:
			good++
			t.Errorf("round %d: %s of text lost; the machine stalled for %s, a commit took %s", round, missing, r.pause,
				r.slowest)
		}
		most, slowest = max(most, missing), max(slowest, r.slowest)
	}
	for _, c := range all {
		c.wantStored(t, s)
	}
	t.Logf("at most %s of text lost; slowest commit %s; %d rounds repeated", most, slowest, stalls)
	if exact == 0 || later == 0 {
		t.Errorf("clients resumed %d times at the end of the saved text and %d times after it, want both", exact, later)
	}
}

// survivor is a conversation that continues after every crash.
type survivor struct {
	id   string
	want []string // its expected history, as roles and contents

	// The fields below describe the interrupted turn.

	puppet   *puppet
	turnID   string
	received []receipt // events in order
	written  strings.Builder
	saved    string
}

// receipt records when a client received an event.
type receipt struct {
	index int32
	bytes int // length of the text up to the event
	at    time.Time
}

// crash describes the time before a kill.
type crash struct {
	killed  time.Time
	pause   time.Duration // longest time between two pieces, which the test writes
	slowest time.Duration // time of the slowest commit
}

// runUntilKilled begins a turn in every conversation, and kills the server when the agent of the last
// one has sent enough pieces.
func runUntilKilled(t *testing.T, s *server, all []*survivor, enough int) *crash {
	t.Helper()
	var clients, machine sync.WaitGroup
	dir, feed, r := t.TempDir(), make(chan *survivor), new(crash)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	machine.Go(func() { r.pause = writePieces(ctx, feed) })
	machine.Go(func() { r.slowest = measureCommits(ctx, s) })
	for i, c := range all {
		c.puppet = newPuppet(t, dir, c.id)
		c.received, c.saved = nil, ""
		c.written.Reset()
		stream := streamOf(s.Chat(t.Context(), &parleyv1.ChatRequest{
			ConversationId: c.id, Content: c.puppet.path, Agent: "puppet",
			Window: &parleyv1.ContextWindow{MaxMessages: 1}, // A short window, because the agent reads slowly.
		}))
		c.receiveEvents(t, stream, 0)
		c.want = append(c.want, "USER "+c.puppet.path)
		c.puppet.start(t)
		feed <- c
		pieces := piecesApart
		if i == len(all)-1 {
			pieces = enough
		}
		c.receiveEvents(t, stream, pieces)
		clients.Go(func() {
			// The loop ends when the connection breaks.
			for event, err := stream.next(); err == nil; event, err = stream.next() {
				c.record(event)
			}
		})
	}
	// A queued turn is not stored.
	waits := newCaller(all[0].id, "waits", parleyv1.OnBusy_ON_BUSY_QUEUE)
	if err := waits.start(t, s); err != nil {
		t.Fatal(err)
	}
	r.killed = time.Now()
	s.kill()
	stop()
	waits.disconnect()
	clients.Wait()
	machine.Wait()
	for _, c := range all {
		c.puppet.finish()
	}
	return r
}

// writePieces writes pieces for all agents at intervals, and returns the longest time between two.
func writePieces(ctx context.Context, more <-chan *survivor) (pause time.Duration) {
	ticker := time.NewTicker(pieceEvery)
	defer ticker.Stop()
	var all []*survivor
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return pause
		case c := <-more:
			all = append(all, c)
			continue
		case <-ticker.C:
		}
		now := time.Now()
		pause, last = max(pause, now.Sub(last)), now
		for i, c := range all {
			piece := fmt.Sprintf("%s %d %s… ", c.id, i, now.Format("05.000"))
			c.written.WriteString(piece)
			_, _ = c.puppet.pipe.WriteString(piece) // After the kill the pipe has no reader.
		}
	}
}

// measureCommits appends messages at intervals until the server is killed, and returns the longest time of an
// append.
func measureCommits(ctx context.Context, s *server) (slowest time.Duration) {
	ticker := time.NewTicker(pieceEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		start := time.Now()
		_, err := s.AppendMessages(ctx, &parleyv1.AppendMessagesRequest{
			ConversationId: "others", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
		})
		slowest = max(slowest, time.Since(start))
		if err != nil {
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return slowest
}

// record records an event.
func (c *survivor) record(event *parleyv1.TurnEvent) {
	bytes := len(event.GetTextDelta().GetText())
	if n := len(c.received); n > 0 {
		bytes += c.received[n-1].bytes
	}
	c.turnID = event.GetTurnId()
	c.received = append(c.received, receipt{event.GetIndex(), bytes, time.Now()})
}

// receiveEvents receives the event started and a number of others.
func (c *survivor) receiveEvents(t *testing.T, stream *eventStream, others int) {
	t.Helper()
	for len(c.received) <= others {
		event, err := stream.next()
		if err != nil {
			t.Fatalf("%s, after %d events: %v", c.id, len(c.received), err)
		}
		c.record(event)
	}
}

// wantSaved checks the stored part of the interrupted turn. It returns how long before the kill the
// client received the first missing text, or 0 if none is missing.
func (c *survivor) wantSaved(t *testing.T, s *server, killed time.Time) (missing time.Duration) {
	t.Helper()
	messages := history(t, s, c.id).GetMessages()
	input, answer := int32(len(c.want)), int32(0)
	if m := messages[len(messages)-1]; m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
		answer, c.saved = input+1, m.GetContent()
		c.want = append(c.want, "ASSISTANT "+c.saved)
		if m.GetTurnId() != c.turnID || m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE ||
			!strings.HasPrefix(c.written.String(), c.saved) {
			t.Errorf("the answer in %s of turn %s = %v, want an incomplete beginning of %q", c.id, c.turnID, m,
				c.written.String())
		}
	}
	c.wantStored(t, s)
	reply, err := s.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: c.id, TurnId: c.turnID})
	turn := reply.GetTurn()
	if err != nil || turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED || turn.GetFinishTime() == nil ||
		turn.GetError().GetReason() != "SHUTTING_DOWN" || turn.GetError().GetCode() != int32(codes.Unavailable) ||
		turn.GetInputSequence() != input || turn.GetFirstAnswerSequence() != answer ||
		turn.GetLastAnswerSequence() != answer {
		t.Errorf("GetTurn in %s = %v, %v; want INTERRUPTED with input %d and answer %d", c.id, turn, err, input, answer)
	}
	for _, r := range c.received {
		if r.bytes > len(c.saved) {
			return killed.Sub(r.at)
		}
	}
	return 0
}

// wantStored checks the complete history.
func (c *survivor) wantStored(t *testing.T, s *server) {
	t.Helper()
	reply := history(t, s, c.id)
	var got []string
	for i, m := range reply.GetMessages() {
		got = append(got, strings.TrimPrefix(m.GetRole().String(), "ROLE_")+" "+m.GetContent())
		if int(m.GetSequence()) != i+1 {
			t.Errorf("message %d of %s = %v, want that sequence", i+1, c.id, m)
		}
	}
	if d := cmp.Diff(c.want, got); d != "" {
		t.Errorf("history of %s (-want +got):\n%s", c.id, d)
	}
	if running := reply.GetConversation().GetActiveTurnId(); running != "" {
		t.Errorf("conversation %s has the active turn %s, want none", c.id, running)
	}
}

// wantResumes resumes at the place where the connection broke and at others. The client's text and the
// resumed text must form the saved text, or the call must fail with EVENTS_GONE. It returns how often
// the client had exactly the saved text, and how often it had more.
func (c *survivor) wantResumes(t *testing.T, s *server) (exact, later int) {
	t.Helper()
	places := []receipt{{}, c.received[0], c.received[1], c.received[len(c.received)/2]}
	for i, r := range c.received[1:] {
		if r.bytes > len(c.saved) { // the saved text ends between the two
			places = append(places, c.received[i], r, c.received[len(c.received)-1])
			break
		}
	}
	for _, r := range places {
		rest := streamOf(s.ResumeTurn(t.Context(), &parleyv1.ResumeTurnRequest{
			ConversationId: c.id, TurnId: c.turnID, AfterIndex: r.index,
		}))
		err := rest.drain()
		atEdge := r.bytes == 0 || r.bytes == len(c.saved)
		switch {
		case r.bytes > len(c.saved):
			later++
		case atEdge && r.bytes > 0:
			exact++
		}
		if err != nil && !atEdge {
			wantError(t, err, codes.OutOfRange, "EVENTS_GONE")
			continue
		}
		var state parleyv1.TurnState
		for _, e := range rest.events {
			state = e.GetFinished().GetTurn().GetState() // state in the last event
		}
		if got := c.written.String()[:r.bytes] + textOf(rest.events); err != nil || got != c.saved ||
			state != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
			t.Errorf("ResumeTurn after event %d of turn %s in %s = %v, %v;\ntext\n%q, want\n%q", r.index, c.turnID, c.id,
				rest.events, err, got, c.saved)
		}
	}
	return exact, later
}
