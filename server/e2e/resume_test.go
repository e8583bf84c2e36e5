package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestResumeFromEveryIndex(t *testing.T) {
	t.Parallel()
	dataDir, pipes, config := t.TempDir(), t.TempDir(), agents(t, puppetAgents)
	s := startServer(t, dataDir, config, "--log-level=debug")
	var broken []*brokenTurn
	for _, seen := range cutPoints(0, lastIndex-1) {
		for _, ends := range []bool{false, true} {
			id := fmt.Sprintf("c%d-%t", seen, ends)
			broken = append(broken, &brokenTurn{s: s, p: newPuppet(t, pipes, id), id: id, seen: seen, ends: ends})
		}
	}
	inParallel(len(broken), func(i int) {
		b := broken[i]
		t.Run(fmt.Sprintf("cut after %d, ends before the resumption: %t", b.seen, b.ends), b.test)
	})
	if t.Failed() {
		return
	}
	paced := broken[0] // Its client received each piece as an event of its own.
	if len(paced.all) != lastIndex {
		t.Fatalf("the turn of %s has %d events, want %d", paced.id, len(paced.all), lastIndex)
	}
	points := cutPoints(0, lastIndex)
	inParallel(len(points), func(i int) {
		seen := points[i]
		t.Run(fmt.Sprintf("ended and cut after %d", seen), func(t *testing.T) {
			rest := resume(t, newSingleConn(t, s), paced.id, turnOf(paced.all), seen)
			want := len(mergeTexts(paced.all[seen:]))
			if err := rest.drain(); err != nil || len(rest.events) != want {
				t.Errorf("ResumeTurn after %d = %d events, %v; want %d", seen, len(rest.events), err, want)
			}
			wantCompleteTurn(t, s, paced.id, paced.p, slices.Concat(paced.all[:seen], rest.events))
		})
	})
	wantEventsGone(t, resume(t, s, paced.id, "", lastIndex+1), 1)

	s.kill()
	s = startServer(t, dataDir, config)
	t.Run("after a restart", func(t *testing.T) {
		for _, b := range broken {
			b.resumeAfterRestart(t, s)
		}
		wantReplay(t, s, paced)
	})
}

// cutPoints returns the numbers of events after which a test breaks a connection. These are all from first to
// last, or with -short the three at each end and one in ten of the others.
func cutPoints(first, last int) (points []int) {
	const ends, step = 3, 10
	for n := first; n <= last; n++ {
		if !testing.Short() || n < first+ends || n > last-ends || n%step == 0 {
			points = append(points, n)
		}
	}
	return points
}

// inParallel calls do for each number below n, in 8 goroutines.
func inParallel(n int, do func(i int)) {
	var (
		group sync.WaitGroup
		next  atomic.Int64
	)
	for range 8 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	group.Wait()
}

// brokenTurn is a turn whose connection breaks.
type brokenTurn struct {
	s    *server
	p    *puppet
	id   string // id of the conversation
	seen int    // number of events received before the connection breaks
	ends bool   // the turn ends before the client resumes

	all []*parleyv1.TurnEvent // events received before and after the resumption
}

// test breaks the connection and resumes after the events received.
func (b *brokenTurn) test(t *testing.T) {
	s, seen := b.s, b.seen
	w := newSingleConn(t, s)
	first := streamOf(w.Chat(timeLimited(t), &parleyv1.ChatRequest{
		ConversationId: b.id, Content: b.p.path, Agent: "puppet",
	}))
	b.p.start(t)
	first.receive(t, min(seen, 1))
	first.sendAndReceive(t, b.p, 1, seen-1)
	w.breakConn()
	if err := first.drain(); status.Code(err) != codes.Unavailable {
		t.Errorf("stream after the cut = %v, want UNAVAILABLE", err)
	}
	b.all = first.events[:seen]
	sent := max(0, seen-1)
	if b.ends {
		b.p.send(t, sent+1, answerPieces)
		b.p.finish()
		s.await(t, "answer appended", "conversation_id="+b.id)
	}
	second := resume(t, newSingleConn(t, s), b.id, turnOf(b.all), seen)
	if !b.ends {
		wantEventsGone(t, resume(t, s, b.id, "", seen+2), 1)
		second.receive(t, 1-min(seen, 1))
		second.sendAndReceive(t, b.p, sent+1, answerPieces)
		b.p.finish()
	}
	if err := second.drain(); err != nil {
		t.Errorf("stream after %d events: %v, want EOF", seen+len(second.events), err)
	}
	b.all = append(b.all, second.events...)
	wantCompleteTurn(t, s, b.id, b.p, b.all)
}

// sendAndReceive makes the agent send the pieces from one number to another, each after the event of the one before.
func (e *eventStream) sendAndReceive(t *testing.T, p *puppet, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		p.send(t, i, i)
		e.receive(t, 1)
	}
}

// turnOf returns the id of the turn, or "" if there is no event.
func turnOf(events []*parleyv1.TurnEvent) string {
	if len(events) == 0 {
		return ""
	}
	return events[0].GetTurnId()
}

// wantEventsGone checks that the stream fails with EVENTS_GONE and this oldest index.
func wantEventsGone(t *testing.T, e *eventStream, oldest int) {
	t.Helper()
	err := e.drain()
	if metadata := wantError(t, err, codes.OutOfRange, "EVENTS_GONE"); metadata["oldest_index"] != fmt.Sprint(oldest) ||
		len(e.events) > 0 {
		t.Errorf("stream ended after %d events with %v and %v, want oldest_index %d", len(e.events), err, metadata, oldest)
	}
}

// resumeAfterRestart resumes after a restart like a client: if separate events are no longer stored, it
// resumes from the beginning and drops the events received before.
func (b *brokenTurn) resumeAfterRestart(t *testing.T, s *server) {
	t.Helper()
	events := b.all[:b.seen]
	rest := resume(t, s, b.id, turnOf(events), b.seen)
	if err := rest.drain(); err != nil {
		wantError(t, err, codes.OutOfRange, "EVENTS_GONE")
		events, rest = nil, resume(t, s, b.id, turnOf(events), 0)
		if err := rest.drain(); err != nil {
			t.Errorf("ResumeTurn after 0 = %v, want EOF", err)
		}
		if got := textOf(rest.events); !strings.HasPrefix(got, textOf(b.all[:b.seen])) {
			t.Errorf("text = %q, want it to begin with the text of the first %d events", got, b.seen)
		}
	}
	wantAnswer(t, s, b.id, b.p, append(events, rest.events...))
}

// wantReplay resumes after every index and checks which events the store replays.
func wantReplay(t *testing.T, s *server, b *brokenTurn) {
	t.Helper()
	const merged = lastIndex - 1
	for after := range lastIndex + 2 {
		e := resume(t, s, b.id, "", after)
		if after > 1 && after < merged || after > lastIndex {
			wantEventsGone(t, e, 1)
			continue
		}
		if err := e.drain(); err != nil {
			t.Errorf("ResumeTurn after %d = %v, want EOF", after, err)
		}
		var got, want []int
		for _, event := range e.events {
			got = append(got, int(event.GetIndex()))
			if delta := event.GetTextDelta(); delta != nil && (delta.GetText() != completeAnswer() || delta.GetOffset() != 0) {
				t.Errorf("ResumeTurn after %d: text delta = %v, want the complete answer", after, delta)
			}
		}
		for _, index := range []int{1, merged, lastIndex} {
			if index > after {
				want = append(want, index)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("ResumeTurn after %d: events %v, want %v", after, got, want)
		}
	}
	e := resume(t, s, b.id, "", 0)
	if err := e.drain(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.all[lastIndex-1], e.events[len(e.events)-1], protocmp.Transform()); d != "" {
		t.Errorf("finished before (-) and after (+) the restart:\n%s", d)
	}
	if d := cmp.Diff(b.all[0].GetStarted().GetUserMessage(), e.events[0].GetStarted().GetUserMessage(),
		protocmp.Transform()); d != "" || !e.events[0].GetStarted().GetReplayed() {
		t.Errorf("started after the restart = %v, want it replayed with the user's message (-want +got):\n%s", e.events[0], d)
	}
}
