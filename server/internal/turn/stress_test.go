package turn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/store"
)

// stressTest is a fixture for many concurrent clients with random calls.
type stressTest struct {
	*fixture

	mu           sync.Mutex
	agentCalls   map[string]int // number of agent calls, by conversation and question
	activeAgents map[string]int // number of active agents, by conversation
	ids          []string       // of known turns
}

// TestStress performs steps like those of TestModel concurrently. Each client receives complete
// turns, the history is a sequence of exchanges, no agent receives the same question twice, and
// nothing remains afterwards.
func TestStress(t *testing.T) {
	s := &stressTest{agentCalls: make(map[string]int), activeAgents: make(map[string]int)}
	s.fixture = newFixture(t, map[string]agent.Agent{"main": agentFunc(
		func(ctx context.Context, r *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool) {
			question := r.GetMessages()[len(r.GetMessages())-1].GetContent()
			defer s.trackAgent(t, r.GetConversation().GetUid(), question)()
			for _, piece := range []string{"about ", question, ": ", "no", "thing"} {
				runtime.Gosched()
				if ctx.Err() != nil {
					yield(nil, context.Cause(ctx))
					return
				}
				yield(text(piece), nil)
			}
		})}, func(o *Options) { o.MaxTurns = 2 })
	const clients, steps = 12, 60
	var all sync.WaitGroup
	for client := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(client), 1))
			for i := range steps {
				s.step(t, random, fmt.Sprintf("%d/%d", client, i))
			}
		})
	}
	all.Wait()
	s.check(t)
	s.Stop(t.Context())
	if n := len(s.turns) + len(s.queues) + len(s.runningQueues) + s.retained.Len() + s.retainedBytes +
		s.runningTotal + s.waitingBytes + len(s.waitingBytesByTenant); n != 0 {
		t.Errorf("turns %v, queues %v, running %v, %d retained bytes, want none", s.turns, s.queues, s.runningQueues,
			s.retainedBytes)
	}
}

// trackAgent records an active agent until the returned function is called.
func (s *stressTest) trackAgent(t *testing.T, uid, question string) (done func()) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agentCalls[uid+question]++
	if s.agentCalls[uid+question] > 1 {
		t.Errorf("second agent call for %q", question)
	}
	s.activeAgents[uid]++
	if s.activeAgents[uid] > 1 {
		t.Errorf("%d active agents in one conversation, want 1", s.activeAgents[uid])
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.activeAgents[uid]--
	}
}

func (s *stressTest) step(t *testing.T, random *rand.Rand, question string) {
	t.Helper()
	id := []string{"a", "b", "c"}[random.IntN(3)]
	switch random.IntN(40) {
	case 0:
		err := s.store.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: id})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Error(err)
		}
	case 1:
		s.releaseAll()
	case 2, 3, 4, 5, 6:
		s.mu.Lock()
		turnID := ""
		if len(s.ids) > 0 {
			turnID = s.ids[len(s.ids)-1-random.IntN(min(5, len(s.ids)))]
		}
		s.mu.Unlock()
		if turn, err := s.Cancel(t.Context(), tenant, id, turnID); err == nil && turn.GetFinishTime() == nil ||
			err != nil && !isMissingTurn(err) {
			t.Errorf("Cancel = %v, %v, want a turn that has ended", turn, err)
		}
	default:
		request := &parleyv1.ChatRequest{
			ConversationId: id, Content: question, OnBusy: parleyv1.OnBusy(random.IntN(4)),
			OnDisconnect: parleyv1.OnDisconnect(random.IntN(3)),
		}
		if random.IntN(3) == 0 {
			request.RequestId = fmt.Sprint("r", random.IntN(8))
			request.Content = fmt.Sprintf("%s in %s", request.GetRequestId(), id)
		}
		s.chatAndReconnect(t, random, request)
	}
}

// chatAndReconnect starts a Chat. It may disconnect and resume.
func (s *stressTest) chatAndReconnect(t *testing.T, random *rand.Rand, request *parleyv1.ChatRequest) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var read []*parleyv1.TurnEvent
	turnID, last, eventsToRead := "", int32(0), random.IntN(8)
	events := s.Chat(ctx, tenant, request, storeRequest(request))
	for range 100 {
		var failed error
		for event, err := range events {
			if err != nil {
				failed = err
				break
			}
			if turnID == "" {
				turnID = event.GetTurnId()
				s.mu.Lock()
				s.ids = append(s.ids, turnID)
				s.mu.Unlock()
			}
			if event.GetTurnId() != turnID {
				// A retry that waited in the queue joins the first turn, which has ended.
				if request.GetRequestId() == "" || len(read) > 0 {
					t.Errorf("event of turn %s in the stream of turn %s", event.GetTurnId(), turnID)
				}
				turnID = event.GetTurnId()
			}
			last = event.GetIndex()
			if event.GetQueued() == nil {
				read = append(read, event)
			}
			eventsToRead--
			if eventsToRead == 0 {
				leave()
			}
		}
		switch finished := len(read) > 0 && read[len(read)-1].GetFinished() != nil; {
		case finished && read[0].GetFinished() != nil: // The turn was cancelled before its start.
			return
		case finished:
			if err := checkAnswer(read, read[len(read)-1].GetFinished().GetMessages()); err != nil {
				t.Errorf("turn %s: %v", turnID, err)
			}
			return
		case errors.Is(failed, context.Canceled) && turnID != "":
			events = s.Resume(t.Context(), tenant, request.GetConversationId(), turnID, last)
		case errors.As(failed, new(*EventsGoneError)) && turnID != "":
			read, last = nil, 0
			events = s.Resume(t.Context(), tenant, request.GetConversationId(), turnID, 0)
		case isExpected(failed):
			return
		default:
			t.Errorf("turn %s, after %d events: %v", turnID, len(read), failed)
			return
		}
	}
	t.Errorf("turn %s: no end after 100 streams", turnID)
}

// isExpected reports whether a client may receive this error in TestStress.
func isExpected(err error) bool {
	for _, known := range []error{ErrQueueFull, ErrTooManyTurns, ErrConversationDeleted, context.Canceled} {
		if errors.Is(err, known) {
			return true
		}
	}
	return isMissingTurn(err) || errors.As(err, new(*store.BusyError)) || errors.As(err, new(*EventsGoneError))
}

func (s *stressTest) check(t *testing.T) {
	t.Helper()
	for _, id := range []string{"a", "b", "c"} {
		questions, before := make(map[string]bool), ""
		for _, line := range s.history(t, id) {
			question, isQuestion := strings.CutPrefix(line, "user: ")
			switch {
			case isQuestion && questions[question]:
				t.Errorf("%q is stored twice in %s", question, id)
			case isQuestion:
				questions[question], before = true, question
			case !strings.HasPrefix(fmt.Sprintf("assistant: about %s: nothing", before), strings.TrimSuffix(line, " …")):
				t.Errorf("%q follows %q in %s", line, before, id)
			default:
				before = "nothing"
			}
		}
	}
	if n := s.Running(); n > 2 {
		t.Errorf("Running() = %d, limit 2", n)
	}
}
