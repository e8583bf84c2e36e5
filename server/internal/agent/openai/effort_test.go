package openai

import (
	"encoding/json"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
)

// TestReasoningEffort: the effort is sent as it is configured, and then without a temperature, which reasoning models
// refuse.
func TestReasoningEffort(t *testing.T) {
	t.Parallel()
	half := 0.5
	for _, effort := range []string{"", "low", "any text"} {
		s := openaitest.New(t, openaitest.Text("Hello."))
		a := newAgent(t, agent.Model{BaseURL: s.URL, ReasoningEffort: effort, Temperature: &half})
		if _, err := answer(t.Context(), a, newRequest("Hi.")); err != nil {
			t.Fatal(err)
		}
		var body struct {
			Effort      *string `json:"reasoning_effort"`
			Temperature *float64
		}
		if err := json.Unmarshal(s.Requests()[0].Body, &body); err != nil {
			t.Fatal(err)
		}
		if (body.Effort == nil) != (effort == "") || effort != "" && *body.Effort != effort ||
			(body.Temperature == nil) != (effort != "") {
			t.Errorf("request with effort %q = %s", effort, s.Requests()[0].Body)
		}
	}
}
