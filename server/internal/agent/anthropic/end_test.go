package anthropic_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// once begins an answer with that text.
func once() providertest.Reply {
	return providertest.Parts(anthropictest.Message{}.Start(), anthropictest.TextDelta(0, "Once"))
}

// status sends the header of a refusal and no body yet.
func status(code int, header ...string) providertest.Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		if err := http.NewResponseController(w).Flush(); err != nil {
			providertest.Break(w, r)
		}
	}
}

// TestEarlyStop has the consumer break off, and the provider see that.
func TestEarlyStop(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	fake := anthropictest.New(t, providertest.Sequence(once(), providertest.Stall, func(http.ResponseWriter, *http.Request) { close(gone) }))
	for piece, err := range made(t, agent.Model{BaseURL: fake.URL}).Respond(t.Context(), saying("Hi.")) {
		if err != nil || piece.GetText() != "Once" {
			t.Fatalf("piece %v, error %v", piece, err)
		}
		break
	}
	<-gone
}

// TestEndOfContext ends the context with the first text, or as the reply says.
func TestEndOfContext(t *testing.T) {
	t.Parallel()
	over := errors.New("the turn is over")
	for name, reply := range map[string]func(end providertest.Reply) providertest.Reply{
		"before an answer": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(end, providertest.Stall)
		},
		"in mid-answer": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Stall)
		},
		"in mid-event": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Parts("event: content_blo"), providertest.Stall)
		},
		"among pings": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Endless(event("ping", nil)))
		},
		"in an endless answer": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Endless(anthropictest.TextDelta(0, "and ")))
		},
		"in mid-refusal": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(status(http.StatusBadRequest), end, providertest.Stall)
		},
		"before another try": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(status(http.StatusTooManyRequests, "Retry-After", "9"), end)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			fake := anthropictest.New(t, reply(func(http.ResponseWriter, *http.Request) { cancel(over) }))
			var got error
			for piece, err := range made(t, agent.Model{BaseURL: fake.URL}).Respond(ctx, saying("Hi.")) {
				if got = err; piece.GetText() != "" {
					cancel(over)
				}
			}
			if !errors.Is(got, over) {
				t.Errorf("error %v, want the cause of the context's end", got)
			}
			if n := len(fake.Requests()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// TestNothingIsThere: an answer of which nothing is there is a failure where its end tells why.
// What it cost is told all the same.
func TestNothingIsThere(t *testing.T) {
	t.Parallel()
	cutOff := []anthropictest.Call{{ID: "toolu_1", Name: "look_up", Arguments: `{"product": "Su`}}
	for name, test := range map[string]struct {
		message anthropictest.Message
		fails   bool
	}{
		"max_tokens":                    {anthropictest.Message{StopReason: "max_tokens"}, true},
		"max_tokens behind white space": {anthropictest.Message{Words: []string{" \n"}, StopReason: "max_tokens"}, true},
		"max_tokens in the only call":   {anthropictest.Message{Calls: cutOff, StopReason: "max_tokens"}, true},
		"max_tokens behind a call":      {anthropictest.Message{Calls: []anthropictest.Call{{ID: "toolu_1", Name: "list"}}, StopReason: "max_tokens"}, false},
		"context":                       {anthropictest.Message{StopReason: "model_context_window_exceeded"}, true},
		"refusal":                       {anthropictest.Message{StopReason: "refusal"}, true},
		"end_turn":                      {anthropictest.Message{StopReason: "end_turn"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pieces, err := told(t, anthropictest.Answer(test.message))
			e, ok := errors.AsType[*agent.Error](err)
			if ok != test.fails || ok && (!strings.HasPrefix(e.Message, "the answer is empty: ") || !strings.Contains(e.Message, test.message.StopReason) || e.Retryable) {
				t.Errorf("error %+v", err)
			}
			if n := len(pieces); n < 2 || pieces[n-2].GetUsage() == nil || pieces[n-1].GetFinishReason() != test.message.StopReason {
				t.Errorf("pieces %v", pieces)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()
	overloaded := providertest.Fail(529, anthropictest.Failure("overloaded_error", "Overloaded"))
	for name, test := range map[string]struct {
		replies  []providertest.Reply
		requests int
		fails    bool
	}{
		"overloaded, then not": {[]providertest.Reply{overloaded, overloaded, anthropictest.Text("Hello.")}, 3, false},
		"no answer, then one":  {[]providertest.Reply{providertest.Break, anthropictest.Text("Hello.")}, 2, false},
		"rate limit, then not": {[]providertest.Reply{providertest.Fail(429, ""), anthropictest.Text("Hello.")}, 2, false},
		"failed, then not":     {[]providertest.Reply{providertest.Fail(500, ""), anthropictest.Text("Hello.")}, 2, false},
		"overloaded for ever":  {[]providertest.Reply{overloaded, overloaded, overloaded}, 3, true},
		"a key that is wrong":  {[]providertest.Reply{providertest.Fail(401, "")}, 1, true},
		"a long wait wanted":   {[]providertest.Reply{status(429, "Retry-After", "60")}, 1, true},
		"a wait until a date":  {[]providertest.Reply{status(429, "Retry-After", "Fri, 31 Dec 2100 23:59:59 GMT")}, 1, true},
		"a wait in many ms":    {[]providertest.Reply{status(503, "Retry-After-Ms", "60000")}, 1, true},
		"cut off after a piece": {[]providertest.Reply{
			providertest.Sequence(once(), providertest.Break),
		}, 1, true},
		"overloaded after a piece": {[]providertest.Reply{
			providertest.Sequence(once(), providertest.Parts(anthropictest.Error("overloaded_error", "Overloaded"))),
		}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := anthropictest.New(t, test.replies...)
			_, err := answer(t, made(t, agent.Model{BaseURL: fake.URL}), saying("Hi."))
			if (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			if n := len(fake.Requests()); n != test.requests {
				t.Errorf("%d requests, want %d", n, test.requests)
			}
		})
	}
}

// TestMemory has the provider send without end what the client has to gather.
func TestMemory(t *testing.T) {
	t.Parallel()
	const bound = 32 << 20 // what the agent gathers, and what is on the way in buffers
	input := event("content_block_delta", object{"index": 0, "delta": object{"type": "input_json_delta", "partial_json": strings.Repeat("1", 8<<10)}})
	begin := event("content_block_start", object{"index": 0, "content_block": object{"type": "tool_use", "id": "toolu_1", "name": "list"}})
	for name, reply := range map[string]struct {
		begin providertest.Reply
		part  string
	}{
		"a line":     {once(), strings.Repeat("x", 64<<10)},
		"an event":   {once(), "data: " + strings.Repeat("x", 1<<10) + "\n"},
		"a comment":  {once(), ": " + strings.Repeat("x", 1<<10) + "\r\n"},
		"arguments":  {providertest.Parts(begin), input},
		"calls":      {once(), strings.Replace(begin, "toolu_1", strings.Repeat("1", 100), 1)},
		"a refusal":  {status(http.StatusBadRequest), strings.Repeat("x", 64<<10)},
		"a web page": {status(http.StatusOK, "Content-Type", "text/html"), strings.Repeat("x", 64<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			_, err := told(t, providertest.Sequence(reply.begin, func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil && sent.Add(int64(len(reply.part))) < bound {
					providertest.Parts(reply.part)(w, r)
				}
			}))
			if e, ok := errors.AsType[*agent.Error](err); !ok || e.Retryable {
				t.Errorf("error %v, want one of the agent's that lasts", err)
			}
			if sent.Load() >= bound {
				t.Errorf("the agent took %d bytes", sent.Load())
			}
		})
	}
}
