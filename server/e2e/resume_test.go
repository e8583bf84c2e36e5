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
	broken := make([]*brokenTurn, 2*lastIndex)
	for i := range broken {
		broken[i] = &brokenTurn{s: s, p: newPuppet(t, pipes, fmt.Sprint(i)), id: fmt.Sprint("c", i), seen: i / 2, ends: i%2 == 1}
	}
	inParallel(len(broken), func(i int) {
		t.Run(fmt.Sprintf("cut after %d, ends meanwhile: %t", i/2, i%2 == 1), broken[i].test)
	})
	if t.Failed() {
		return
	}
	paced := broken[0] // None of its pieces are merged.
	inParallel(lastIndex+1, func(seen int) {
		t.Run(fmt.Sprintf("ended and cut after %d", seen), func(t *testing.T) {
			w := newWire(t, s)
			first := resume(t, w, paced.id, "", 0)
			first.take(t, seen)
			w.cut()
			second := resume(t, newWire(t, s), paced.id, turnOf(first.events), seen)
			if err := second.end(); err != nil || len(second.events) != lastIndex-seen {
				t.Errorf("there are %d events after %d: %v", len(second.events), seen, err)
			}
			wantWhole(t, s, paced.id, paced.p, append(first.events, second.events...))
		})
	})
	wantGone(t, resume(t, s, paced.id, "", lastIndex+1), 1)

	s.kill()
	s = startServer(t, dataDir, config)
	t.Run("after a restart", func(t *testing.T) {
		for _, b := range broken {
			b.goOnAfterRestart(t, s)
		}
		wantReplay(t, s, paced)
	})
}

// inParallel does something for each number below n, a few at once.
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

// brokenTurn is a turn whose connection is cut.
type brokenTurn struct {
	s    *server
	p    *puppet
	id   string // of the conversation
	seen int    // events that come before the cut
	ends bool   // before anybody listens again

	all []*parleyv1.TurnEvent // those seen, and what was resumed
}

// test cuts the connection and goes on from there.
func (b *brokenTurn) test(t *testing.T) {
	s, seen := b.s, b.seen
	w := newWire(t, s)
	first := streamOf(w.Chat(patient(t), &parleyv1.ChatRequest{ConversationId: b.id, Content: b.p.path, Agent: "puppet"}))
	b.p.start(t)
	first.take(t, min(seen, 1))
	first.hear(t, b.p, 1, seen-1)
	w.cut()
	if err := first.end(); status.Code(err) != codes.Unavailable {
		t.Errorf("after the cut: %v", err)
	}
	b.all = first.events[:seen]
	said := max(0, seen-1)
	if b.ends {
		b.p.say(t, said+1, answerPieces)
		b.p.end()
		s.await(t, "answer appended", "conversation_id="+b.id)
	}
	second := resume(t, newWire(t, s), b.id, turnOf(b.all), seen)
	if !b.ends {
		wantGone(t, resume(t, s, b.id, "", seen+2), 1)
		second.take(t, 1-min(seen, 1))
		second.hear(t, b.p, said+1, answerPieces)
		b.p.end()
	}
	if err := second.end(); err != nil {
		t.Errorf("after %d events: %v", seen+len(second.events), err)
	}
	b.all = append(b.all, second.events...)
	wantWhole(t, s, b.id, b.p, b.all)
}

// hear has the agent say the pieces from one to another, each when the one before was heard.
func (e *eventStream) hear(t *testing.T, p *puppet, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		p.say(t, i, i)
		e.take(t, 1)
	}
}

// turnOf is the id of the turn, empty as long as it is not known.
func turnOf(events []*parleyv1.TurnEvent) string {
	if len(events) == 0 {
		return ""
	}
	return events[0].GetTurnId()
}

// wantGone checks that there are no events to go on with, and from which index there are.
func wantGone(t *testing.T, e *eventStream, oldest int) {
	t.Helper()
	err := e.end()
	if told := wantError(t, err, codes.OutOfRange, "EVENTS_GONE"); told["oldest_index"] != fmt.Sprint(oldest) || len(e.events) > 0 {
		t.Errorf("after %d events: %v with %v, want oldest_index %d", len(e.events), err, told, oldest)
	}
}

// goOnAfterRestart goes on with what was seen before the cut, as a client does: what is
// no longer kept one by one it takes from the beginning, without what it has.
func (b *brokenTurn) goOnAfterRestart(t *testing.T, s *server) {
	t.Helper()
	events := b.all[:b.seen]
	rest := resume(t, s, b.id, turnOf(events), b.seen)
	if err := rest.end(); err != nil {
		wantError(t, err, codes.OutOfRange, "EVENTS_GONE")
		events, rest = nil, resume(t, s, b.id, turnOf(events), 0)
		if err := rest.end(); err != nil {
			t.Errorf("after 0: %v", err)
		}
		if got := textOf(rest.events); !strings.HasPrefix(got, textOf(b.all[:b.seen])) {
			t.Errorf("%q does not begin with what was seen before %d", got, b.seen)
		}
	}
	wantAnswer(t, s, b.id, b.p, append(events, rest.events...))
}

// wantReplay checks what the store has of a turn, behind every index.
func wantReplay(t *testing.T, s *server, b *brokenTurn) {
	t.Helper()
	const merged = lastIndex - 1
	for after := range lastIndex + 2 {
		e := resume(t, s, b.id, "", after)
		if after > 1 && after < merged || after > lastIndex {
			wantGone(t, e, 1)
			continue
		}
		if err := e.end(); err != nil {
			t.Errorf("after %d: %v", after, err)
		}
		var got, want []int
		for _, event := range e.events {
			got = append(got, int(event.GetIndex()))
			if delta := event.GetTextDelta(); delta != nil && (delta.GetText() != wholeAnswer() || delta.GetOffset() != 0) {
				t.Errorf("after %d: %v", after, delta)
			}
		}
		for _, index := range []int{1, merged, lastIndex} {
			if index > after {
				want = append(want, index)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("after %d there are the events %v, want %v", after, got, want)
		}
	}
	e := resume(t, s, b.id, "", 0)
	if err := e.end(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(b.all[lastIndex-1], e.events[len(e.events)-1], protocmp.Transform()); d != "" {
		t.Errorf("finished before and after the restart:\n%s", d)
	}
	if d := cmp.Diff(b.all[0].GetStarted().GetUserMessage(), e.events[0].GetStarted().GetUserMessage(), protocmp.Transform()); d != "" || !e.events[0].GetStarted().GetReplayed() {
		t.Errorf("started after the restart is %v:\n%s", e.events[0], d)
	}
}
