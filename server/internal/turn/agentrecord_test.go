package turn

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestAgentReadsRecord: an agent that names a record reads it as its last answer wrote it. Other agents, and records of
// the tenant with the same key, do not matter.
func TestAgentReadsRecord(t *testing.T) {
	var read []string
	answers := 0
	respond := agentFunc(func(
		ctx context.Context, request *parleyv1.RespondRequest, yield func(*parleyv1.RespondResponse, error) bool,
	) {
		r := agent.Record(ctx)
		read = append(read, fmt.Sprintf("%t %s", r != nil, r.GetValue()))
		answers++
		respondWith(text("ok"), putRecord("state", fmt.Sprint("answer ", answers)),
			record(&parleyv1.RecordWrite{Key: "state", Value: []byte("tenant"), TenantScope: true}))(ctx, request, yield)
	})
	set, err := agent.NewSet("main", []agent.Entry{
		{Name: "main", Kind: "test", Record: "state", Agent: respond}, {Name: "other", Kind: "test", Agent: respond},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, map[string]agent.Agent{"main": respond}, func(o *Options) { o.Agents = set })
	for _, name := range []string{"main", "main", "other", "main"} {
		finished := readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Agent: name}))
		if state := finished.GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_COMPLETED {
			t.Fatalf("turn = %v, want COMPLETED", finished.GetTurn())
		}
	}
	if diff := cmp.Diff([]string{"false ", "true answer 1", "false ", "true answer 3"}, read); diff != "" {
		t.Errorf("records that the agents read (-want +got):\n%s", diff)
	}
}
