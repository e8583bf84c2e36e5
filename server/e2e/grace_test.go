package e2e

import (
	"testing"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestCallsDuringTheGracePeriod checks that while a stop waits for running turns, clients can read,
// resume and cancel them, also over new connections. New turns are refused.
func TestCallsDuringTheGracePeriod(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, stubbornAgents))
	running := startTurns(t, s, 1, "slow", 0, "")[0]
	queued := streamOf(s.Chat(timeLimited(t), &parleyv1.ChatRequest{
		ConversationId: running.id, Content: "q", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	}))
	if event, err := queued.next(); event.GetQueued() == nil {
		t.Fatalf("first event of a queued turn = %v, %v; want queued", event, err)
	}
	s.terminate()
	_, err := queued.next() // The error comes when the server accepts no more turns.
	wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")

	another := smallWindowClient(t, s)
	wantError(t, firstError(another.Chat(timeLimited(t), &parleyv1.ChatRequest{ConversationId: "other", Content: "q"})),
		codes.Unavailable, "SHUTTING_DOWN")
	resumed := resume(t, another, running.id, running.turnID, 0)
	for got := ""; got != running.partialAnswer(); {
		event, err := resumed.next()
		if err != nil {
			t.Fatal(err)
		}
		got += event.GetTextDelta().GetText()
	}
	cancelled, err := another.CancelTurn(timeLimited(t), &parleyv1.CancelTurnRequest{
		ConversationId: running.id, TurnId: running.turnID,
	})
	if err != nil || cancelled.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("CancelTurn during the grace period = %v, %v; want CANCELLED", cancelled, err)
	}
	s.wantStop(t) // No turn is left, so the server stops before the end of the grace period.
}
