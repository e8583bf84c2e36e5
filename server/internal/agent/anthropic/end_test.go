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

// once returns a reply that begins an answer with the text "Once".
func once() providertest.Reply {
	return providertest.Parts(anthropictest.Message{}.Start(), anthropictest.TextDelta(0, "Once"))
}

// status returns a reply that sends a status and headers, without a body.
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

// TestEarlyStop: when the consumer stops, the provider's connection is closed.
func TestEarlyStop(t *testing.T) {
	t.Parallel()
	disconnected := make(chan struct{})
	fake := anthropictest.New(t, providertest.Sequence(once(), providertest.Stall,
		func(http.ResponseWriter, *http.Request) { close(disconnected) }))
	for piece, err := range newAgent(t, agent.Model{BaseURL: fake.URL}).Respond(t.Context(), newRequest("Hi.")) {
		if err != nil || piece.GetText() != "Once" {
			t.Fatalf("Respond yields %v, %v, want Once", piece, err)
		}
		break
	}
	<-disconnected
}

// TestEndOfContext: ctx ends with the first text, or when the reply calls end.
func TestEndOfContext(t *testing.T) {
	t.Parallel()
	over := errors.New("the turn is over")
	for name, reply := range map[string]func(end providertest.Reply) providertest.Reply{
		"before an answer": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(end, providertest.Stall)
		},
		"during an answer": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Stall)
		},
		"during an event": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Parts("event: content_blo"), providertest.Stall)
		},
		"between pings": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Endless(event("ping", nil)))
		},
		"in an endless answer": func(providertest.Reply) providertest.Reply {
			return providertest.Sequence(once(), providertest.Endless(anthropictest.TextDelta(0, "and ")))
		},
		"during an error response": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(status(http.StatusBadRequest), end, providertest.Stall)
		},
		"before a retry": func(end providertest.Reply) providertest.Reply {
			return providertest.Sequence(status(http.StatusTooManyRequests, "Retry-After", "9"), end)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			fake := anthropictest.New(t, reply(func(http.ResponseWriter, *http.Request) { cancel(over) }))
			var got error
			for piece, err := range newAgent(t, agent.Model{BaseURL: fake.URL}).Respond(ctx, newRequest("Hi.")) {
				if got = err; piece.GetText() != "" {
					cancel(over)
				}
			}
			if !errors.Is(got, over) {
				t.Errorf("Respond = %v, want the cause of ctx", got)
			}
			if n := len(fake.Requests()); n != 1 {
				t.Errorf("%d requests, want 1", n)
			}
		})
	}
}

// TestEmptyAnswer: an empty answer is a failure if its stop reason explains it. The usage is
// reported anyway.
func TestEmptyAnswer(t *testing.T) {
	t.Parallel()
	cutOff := []anthropictest.Call{{ID: "toolu_1", Name: "look_up", Arguments: `{"product": "Su`}}
	for name, test := range map[string]struct {
		message anthropictest.Message
		fails   bool
	}{
		"max_tokens":                   {anthropictest.Message{StopReason: "max_tokens"}, true},
		"max_tokens after white space": {anthropictest.Message{Words: []string{" \n"}, StopReason: "max_tokens"}, true},
		"max_tokens in the only call":  {anthropictest.Message{Calls: cutOff, StopReason: "max_tokens"}, true},
		"max_tokens after a call": {
			anthropictest.Message{Calls: []anthropictest.Call{{ID: "toolu_1", Name: "list"}}, StopReason: "max_tokens"}, false,
		},
		"context":  {anthropictest.Message{StopReason: "model_context_window_exceeded"}, true},
		"refusal":  {anthropictest.Message{StopReason: "refusal"}, true},
		"end_turn": {anthropictest.Message{StopReason: "end_turn"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pieces, err := answerTo(t, anthropictest.Answer(test.message))
			e, ok := errors.AsType[*agent.Error](err)
			if ok != test.fails || ok &&
				(!strings.HasPrefix(e.Message, "the answer is empty: ") || !strings.Contains(e.Message, test.message.StopReason) || e.Retryable) {
				t.Errorf("Respond = %+v, want an error: %t", err, test.fails)
			}
			if n := len(pieces); n < 2 || pieces[n-2].GetUsage() == nil ||
				pieces[n-1].GetFinishReason() != test.message.StopReason {
				t.Errorf("pieces = %v, want usage and finish reason at the end", pieces)
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
		"overloaded, then not":  {[]providertest.Reply{overloaded, overloaded, anthropictest.Text("Hello.")}, 3, false},
		"no response, then one": {[]providertest.Reply{providertest.Break, anthropictest.Text("Hello.")}, 2, false},
		"rate limit, then not":  {[]providertest.Reply{providertest.Fail(429, ""), anthropictest.Text("Hello.")}, 2, false},
		"failed, then not":      {[]providertest.Reply{providertest.Fail(500, ""), anthropictest.Text("Hello.")}, 2, false},
		"always overloaded":     {[]providertest.Reply{overloaded, overloaded, overloaded}, 3, true},
		"wrong key":             {[]providertest.Reply{providertest.Fail(401, "")}, 1, true},
		"long wait":             {[]providertest.Reply{status(429, "Retry-After", "60")}, 1, true},
		"wait until a date":     {[]providertest.Reply{status(429, "Retry-After", "Fri, 31 Dec 2100 23:59:59 GMT")}, 1, true},
		"long wait in ms":       {[]providertest.Reply{status(503, "Retry-After-Ms", "60000")}, 1, true},
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
			_, err := answer(t, newAgent(t, agent.Model{BaseURL: fake.URL}), newRequest("Hi."))
			if (err != nil) != test.fails {
				t.Errorf("Respond = %v, want an error: %t", err, test.fails)
			}
			if n := len(fake.Requests()); n != test.requests {
				t.Errorf("%d requests, want %d", n, test.requests)
			}
		})
	}
}

// TestMemory: an endless response is refused before it uses much memory.
func TestMemory(t *testing.T) {
	t.Parallel()
	const bound = 32 << 20 // Limit of the agent, and data in buffers.
	input := event("content_block_delta", object{
		"index": 0, "delta": object{"type": "input_json_delta", "partial_json": strings.Repeat("1", 8<<10)},
	})
	begin := event("content_block_start", object{
		"index": 0, "content_block": object{"type": "tool_use", "id": "toolu_1", "name": "list"},
	})
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
			_, err := answerTo(t, providertest.Sequence(reply.begin, func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil && sent.Add(int64(len(reply.part))) < bound {
					providertest.Parts(reply.part)(w, r)
				}
			}))
			if e, ok := errors.AsType[*agent.Error](err); !ok || e.Retryable {
				t.Errorf("Respond = %v, want an *agent.Error that is not retryable", err)
			}
			if sent.Load() >= bound {
				t.Errorf("agent received %d bytes, want a limit", sent.Load())
			}
		})
	}
}
