package turn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/turn/replay"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// serversTest is two servers on one engine, of which one may be killed, and their clients.
type serversTest struct {
	servers []*testServer

	mu         sync.Mutex
	agentCalls map[string]int // by question
	turns      []startedTurn
}

type startedTurn struct{ conversation, id string }

// TestServersRandom: clients send requests with each on_busy to two servers, some to both, resume and cancel turns, and
// one server is killed. A client forwards a call that ends with ElsewhereError to the other server, as package peer does,
// and continues from the store if that server is killed. Each request is carried out once, and each stream has the text
// of the stored answer, or as much as was sent before the kill and the stored end.
func TestServersRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			engine := redistest.Start(t)
			s := &serversTest{agentCalls: make(map[string]int)}
			for _, name := range []string{"a", "b"} {
				s.servers = append(s.servers, newServer(t, engine, name, agentFunc(s.respond)))
			}
			s.servers[0].keepRecovering(t)
			var clients sync.WaitGroup
			for client := range uint64(8) {
				clients.Go(func() {
					random := rand.New(rand.NewPCG(seed, client))
					for i := range 12 {
						if client == 0 && i == 6 {
							s.servers[1].kill(t, engine)
						}
						s.step(t, random, fmt.Sprintf("%d/%d", client, i))
					}
				})
			}
			clients.Wait()
			s.check(t)
		})
	}
}

// respond is the agent of both servers.
func (s *serversTest) respond(
	ctx context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool,
) {
	question := r.GetMessages()[len(r.GetMessages())-1].GetContent()
	s.mu.Lock()
	s.agentCalls[question]++
	s.mu.Unlock()
	slow := strings.HasSuffix(question, "7") || strings.HasSuffix(question, "5") // So that parts are saved.
	for i, piece := range []string{"about ", question, ": ", "no", "thing"} {
		if slow && i == 3 {
			select {
			case <-time.After(2 * saveInterval):
			case <-ctx.Done():
			}
		}
		runtime.Gosched()
		if ctx.Err() != nil {
			yield(nil, context.Cause(ctx))
			return
		}
		if !yield(text(piece), nil) {
			return
		}
	}
}

// step makes a random call.
func (s *serversTest) step(t *testing.T, random *rand.Rand, question string) {
	t.Helper()
	s.mu.Lock()
	var some startedTurn
	if n := len(s.turns); n > 0 {
		some = s.turns[n-1-random.IntN(min(4, n))]
	}
	s.mu.Unlock()
	at := random.IntN(2)
	switch kind := random.IntN(6); {
	case kind == 0 && some.id != "":
		s.cancel(t, at, some)
	case kind == 1 && some.id != "":
		s.follow(t, at, func(ctx context.Context, m *testServer) eventSeq {
			return m.Resume(ctx, tenant, some.conversation, some.id, 0)
		}, some.conversation, some.id, "")
	default:
		request := &parleyv1.ChatRequest{
			ConversationId: []string{"x", "y"}[random.IntN(2)], Content: question, RequestId: question,
			OnBusy: parleyv1.OnBusy(random.IntN(4)),
		}
		chat := func(ctx context.Context, m *testServer) eventSeq {
			return m.Chat(ctx, tenant, request, storeRequest(request))
		}
		var twin sync.WaitGroup
		if random.IntN(4) == 0 {
			twin.Go(func() { s.follow(t, 1-at, chat, request.GetConversationId(), "", question) })
		}
		s.follow(t, at, chat, request.GetConversationId(), "", question)
		twin.Wait()
	}
}

// cancel cancels a turn at a server, or at the other one if that runs it.
func (s *serversTest) cancel(t *testing.T, at int, turn startedTurn) {
	t.Helper()
	for range 200 {
		m := s.servers[at]
		got, err := m.Cancel(m.dead, tenant, turn.conversation, turn.id)
		switch {
		case m.dead.Err() != nil:
			at = 0
		case errors.As(err, new(*ElsewhereError)):
			if s.servers[1-at].dead.Err() == nil {
				at = 1 - at
			} else {
				<-time.After(10 * time.Millisecond) // The turn is abandoned.
			}
		case err == nil && got.GetFinishTime() != nil, isMissingTurn(err):
			return
		default:
			t.Errorf("Cancel = %v, %v, want a turn that has ended", got, err)
			return
		}
	}
	t.Errorf("Cancel of %v did not return", turn)
}

// follow makes a call at a server and follows the turn to its end, at the other server or from the store if needed.
func (s *serversTest) follow(
	t *testing.T, at int, call func(ctx context.Context, m *testServer) eventSeq, conversation, turnID, question string,
) {
	t.Helper()
	var received Received
	var all []*parleyv1.TurnEvent
	open := call
	for range 500 {
		m := s.servers[at]
		var failed error
		for event, err := range open(m.dead, m) {
			if failed = err; err != nil {
				break
			}
			if m.dead.Err() != nil {
				break // A process that was killed sends nothing more.
			}
			if event.GetQueued() == nil && (event.GetProgress() == nil || event.GetIndex() > received.Index()) {
				all = append(all, event)
			}
			received.Add(event)
			if turnID = event.GetTurnId(); event.GetStarted() != nil {
				s.mu.Lock()
				s.turns = append(s.turns, startedTurn{conversation, turnID})
				s.mu.Unlock()
			}
		}
		if len(all) > 0 && all[len(all)-1].GetFinished() != nil {
			s.checkStream(t, all)
			return
		}
		elsewhere, isElsewhere := errors.AsType[*ElsewhereError](failed)
		switch {
		case m.dead.Err() != nil && len(all) > 0: // A stream that was forwarded continues from the store.
			at, open = 0, func(ctx context.Context, m *testServer) eventSeq {
				return m.FollowStored(ctx, tenant, conversation, turnID, received)
			}
		case m.dead.Err() != nil:
			at, open, received = 0, call, Received{}
		case isElsewhere && len(all) > 0:
			t.Errorf("ElsewhereError about %s after %q", elsewhere.TurnID, describeAll(all))
			return
		case isElsewhere && s.servers[1-at].dead.Err() == nil:
			at = 1 - at
		case isElsewhere:
			<-time.After(10 * time.Millisecond) // The turn is abandoned.
		case question != "" && (errors.As(failed, new(*store.BusyError)) || errors.Is(failed, ErrQueueFull)), isMissingTurn(failed):
			return
		default:
			t.Errorf("call about %q %s: %q, then %v", question, turnID, describeAll(all), failed)
			return
		}
	}
	t.Errorf("call about %q %s did not end: %q", question, turnID, describeAll(all))
}

// checkStream checks that a stream has the stored answer, or that it was cut off.
func (s *serversTest) checkStream(t *testing.T, all []*parleyv1.TurnEvent) {
	t.Helper()
	if all[0].GetFinished() != nil {
		return // It was cancelled before its start.
	}
	end := all[len(all)-1]
	err := checkAnswer(all, end.GetFinished().GetMessages())
	if err == nil {
		return
	}
	got, want := textOf(all), ""
	for _, m := range end.GetFinished().GetMessages() {
		want += m.GetContent()
	}
	if end.GetIndex() < replay.LostIndexGap || !strings.HasPrefix(got, want) {
		t.Errorf("stream %q with the end %v: %v", describeAll(all), end.GetFinished(), err)
	}
}

// textOf returns the text of events.
func textOf(events []*parleyv1.TurnEvent) (all string) {
	for _, e := range events {
		all += e.GetTextDelta().GetText()
	}
	return all
}

// check checks what is stored in the end.
func (s *serversTest) check(t *testing.T) {
	t.Helper()
	for _, id := range []string{"x", "y"} {
		var questions []string
		for _, line := range s.servers[0].history(t, id) {
			question, isQuestion := strings.CutPrefix(line, "user: ")
			switch {
			case isQuestion && slices.Contains(questions, question):
				t.Errorf("%q is stored twice in %s", question, id)
			case isQuestion:
				questions = append(questions, question)
			case len(questions) == 0 || !strings.HasPrefix("assistant: about "+questions[len(questions)-1]+": nothing",
				strings.TrimSuffix(line, " …")):
				t.Errorf("%q follows %q in %s", line, questions, id)
			}
		}
		if len(questions) < 2 {
			t.Errorf("%s has %d questions, too few for a test", id, len(questions))
		}
		for _, question := range questions {
			if n := s.agentCalls[question]; n > 1 {
				t.Errorf("%d agent calls for %q, want at most 1", n, question)
			}
		}
	}
}
