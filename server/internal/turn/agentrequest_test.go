package turn

import (
	"context"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// TestCacheStable: the request to the agent has cache_stable if the window in use has it.
func TestCacheStable(t *testing.T) {
	stable, bound := &parleyv1.ContextWindow{MaxExchanges: 3, CacheStable: true}, &parleyv1.ContextWindow{MaxExchanges: 3}
	tests := []struct {
		name           string
		agent, request *parleyv1.ContextWindow
		want           bool
	}{
		{"none", nil, nil, false},
		{"the agent's", stable, nil, true},
		{"the request's", nil, stable, true},
		{"the request's instead of the agent's", bound, stable, true},
		{"not the request's", stable, bound, false},
	}
	for _, test := range tests {
		var got *parleyv1.RespondRequest
		main := agentFunc(func(_ context.Context, r *parleyv1.RespondRequest, _ func(*parleyv1.RespondResponse, error) bool) {
			got = r
		})
		set, err := agent.NewSet("main", []agent.Entry{{Name: "main", Window: test.agent, Agent: main}})
		if err != nil {
			t.Fatal(err)
		}
		f := newFixture(t, map[string]agent.Agent{"main": main}, func(o *Options) { o.Agents = set })
		readFinished(t, f.chat(t, &parleyv1.ChatRequest{ConversationId: "c", Content: "q", Window: test.request}))
		if got.GetCacheStable() != test.want {
			t.Errorf("%s: cache_stable = %t, want %t", test.name, got.GetCacheStable(), test.want)
		}
	}
}
