package anthropic_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// failure returns the agent's error if the provider sends reply to each request.
func failure(t *testing.T, config agent.Model, reply providertest.Reply) *agent.Error {
	t.Helper()
	fake := anthropictest.New(t)
	fake.Always(reply)
	config.BaseURL = fake.URL
	_, err := answer(t, newAgent(t, config), newRequest("Hi."))
	e, ok := errors.AsType[*agent.Error](err)
	if !ok {
		t.Fatalf("Respond = %v, want an *agent.Error", err)
	}
	return e
}

func TestFailures(t *testing.T) {
	t.Parallel()
	refusal := func(code int, kind, message string) providertest.Reply {
		return providertest.Fail(code, anthropictest.Failure(kind, message))
	}
	inStream := func(parts ...string) providertest.Reply {
		return providertest.Sequence(once(), providertest.Parts(parts...))
	}
	const (
		cutOff    = "the answer was cut off: the stream ended before the answer"
		notStream = `the provider did not answer with a stream; check that base_url is the address of its API, in the form "https://api.anthropic.com"`
	)
	for name, test := range map[string]struct {
		reply     providertest.Reply
		want      string
		retryable bool
	}{
		"key refused": {
			refusal(401, "authentication_error", "invalid x-api-key"),
			"the provider refused the key (401 Unauthorized): invalid x-api-key", false,
		},
		"not allowed": {
			refusal(403, "permission_error", "not your workspace"),
			"the provider refused the key or its use (403 Forbidden): not your workspace", false,
		},
		"unknown model": {
			refusal(404, "not_found_error", "model: claude-test"),
			`the provider does not know the model "claude-test", or base_url is not the address of its API (404 Not Found): model: claude-test`,
			false,
		},
		"quota": {
			refusal(402, "billing_error", "pay first"), "the provider's quota is used up (402 Payment Required): pay first",
			false,
		},
		"rate limit": {
			refusal(429, "rate_limit_error", "slow down"),
			"the provider's quota or rate limit is used up (429 Too Many Requests): slow down", true,
		},
		"overloaded": {
			refusal(529, "overloaded_error", "Overloaded"), "the provider is overloaded (529): Overloaded", true,
		},
		"failed": {
			refusal(500, "api_error", "Internal server error"),
			"the provider failed (500 Internal Server Error): Internal server error", true,
		},
		"prompt too long": {
			refusal(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
			"the conversation is too long for the model; configure a smaller window for the agent (400 Bad Request): prompt " +
				"is too long: 210000 tokens > 200000 maximum",
			false,
		},
		"request too large": {
			refusal(413, "request_too_large", "too many bytes"),
			"the conversation is too long for the model; configure a smaller window for the agent (413 Request Entity Too " +
				"Large): too many bytes",
			false,
		},
		"refused": {
			refusal(400, "invalid_request_error", "temperature: too hot"),
			"the provider refused the request (400 Bad Request): temperature: too hot", false,
		},
		"text of a gateway": {
			providertest.Fail(502, `{"error":"no upstream"}`), "the provider failed (502 Bad Gateway): no upstream", true,
		},
		"message of a gateway": {
			providertest.Fail(400, `{"message":"no route"}`), "the provider refused the request (400 Bad Request): no route",
			false,
		},
		"plain text": {
			providertest.Fail(503, "upstream connect error\n"),
			"the provider failed (503 Service Unavailable): upstream connect error", true,
		},
		"HTML": {
			providertest.Fail(502, "<html>Bad gateway</html>"), "the provider failed (502 Bad Gateway)", true,
		},
		"JSON without a message": {
			providertest.Fail(400, `[]`), "the provider refused the request (400 Bad Request): []", false,
		},
		"no body": {providertest.Fail(400, ""), "the provider refused the request (400 Bad Request)", false},
		"a body cut off": {
			providertest.Sequence(status(400), providertest.Break), "the provider refused the request (400 Bad Request)", false,
		},
		"not at this address": {providertest.Fail(200, "<html>Welcome</html>"), notStream, false},
		"answer without a stream": {
			providertest.Fail(200, `{"type":"message","content":[]}`),
			`the provider did not answer with a stream; check base_url and model: {"type":"message","content":[]}`, false,
		},
		"no response": {providertest.Break, "no response from the provider", true},

		"overloaded during the answer": {
			inStream(anthropictest.Error("overloaded_error", "Overloaded")), "the provider is overloaded (529): Overloaded",
			true,
		},
		"failed during the answer": {
			inStream(anthropictest.Error("api_error", "Oops")), "the provider failed during the answer: Oops", true,
		},
		"refused during the answer": {
			inStream(anthropictest.Error("invalid_request_error", "No")),
			"the provider refused the request (400 Bad Request): No", false,
		},
		"unknown error during the answer": {
			inStream(anthropictest.Error("flat_tire_error", "Pff")), "the provider failed during the answer: Pff", true,
		},
		"error event that is not JSON": {
			inStream("event: error\ndata: Pff\n\n"), "the provider failed during the answer: Pff", true,
		},
		"error event without a message": {
			inStream("event: error\ndata: 7\n\n"), "the provider failed during the answer: 7", true,
		},
		"connection cut off": {providertest.Sequence(once(), providertest.Break), "the answer broke off", true},
		"ended early":        {once(), cutOff, true},
		"ended without the last event": {
			inStream(event("message_delta", object{"delta": object{"stop_reason": "end_turn"}, "usage": object{}})),
			cutOff, true,
		},
		"ended in the last event": {inStream(strings.TrimSuffix(event("message_stop", nil), "\n")), cutOff, true},
		"event that is not JSON": {
			inStream("event: message_delta\ndata: {\"type\":\n\n"),
			"the provider sent an event that is not a JSON object: {\"type\":", true,
		},
		"a call without an id": {
			inStream(event("content_block_start", object{
				"index": 0, "content_block": object{"type": "tool_use", "name": "list"},
			})),
			"the model made a tool call with an id of 0 bytes, want 1 to 256", false,
		},
		"a call with a long id": {
			inStream(event("content_block_start", object{
				"index": 0, "content_block": object{"type": "tool_use", "id": strings.Repeat("x", 257), "name": "list"},
			})),
			"the model made a tool call with an id of 257 bytes, want 1 to 256", false,
		},
		"a call without a name": {
			inStream(event("content_block_start", object{
				"index": 0, "content_block": object{"type": "tool_use", "id": "toolu_1"},
			})),
			"the model called a tool with a name of 0 bytes, want 1 to 128", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := failure(t, agent.Model{Key: "sk-test-key"}, test.reply)
			if got.Message != test.want || got.Retryable != test.retryable {
				t.Errorf("error = %q, retryable = %t, want %q, %t", got.Message, got.Retryable, test.want, test.retryable)
			}
		})
	}
}

func TestNoKey(t *testing.T) {
	t.Parallel()
	got := failure(t, agent.Model{},
		providertest.Fail(401, anthropictest.Failure("authentication_error", "x-api-key header is required")))
	if want := "the provider requires a key, and none is configured (401 Unauthorized): x-api-key header is required"; got.Message != want {
		t.Errorf("error = %q, want %q", got.Message, want)
	}
}

func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	_, err = answer(t, newAgent(t, agent.Model{BaseURL: "http://someone:password@" + address + "/?token=querysecret"}),
		newRequest("Hi."))
	e, ok := errors.AsType[*agent.Error](err)
	const want = "cannot connect to the provider"
	if detail := "http://" + address + ": connect: connection refused"; !ok || e.Message != want || e.Detail != detail ||
		!e.Retryable {
		t.Errorf("Respond = %v, want %q, retryable", err, want)
	}
}

func TestUntrustedCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	_, err := answer(t, newAgent(t, agent.Model{BaseURL: server.URL}), newRequest("Hi."))
	e, ok := errors.AsType[*agent.Error](err)
	if !ok || e.Retryable || !strings.Contains(e.Detail, "certificate") {
		t.Errorf("Respond = %v, want an error about the certificate that is not retryable", err)
	}
}

// TestRedirect: a redirect is not followed, and the other host receives nothing.
func TestRedirect(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 302, 303, 307, 308} {
		other := anthropictest.New(t) // It fails the test if it receives a request.
		got := failure(t, agent.Model{Key: "sk-test-key"}, status(code, "Location", other.URL+"/v1/messages"))
		const want = "the provider redirects to another address, which is not followed; set base_url to the address of the API"
		if got.Message != want || got.Detail != other.URL+"/v1/messages" || got.Retryable {
			t.Errorf("status %d: error = %+v, want %s", code, got, want)
		}
	}
}

// TestSecrets: errors contain no secret that the provider sends back, in any form.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const key, header, token, name, password, query = "sk-marked-key", "marked-header", "marked-token", "marked-name", "marked/pass word", "marked&query"
	echo := "key " + key + ", " + header + ", Bearer " + token + ", " + token + ", " + name + ":" + password + "?k=marked%26query " + query +
		" marked%2Fpass%20word bWFya2VkLW5hbWU6bWFya2VkL3Bhc3Mgd29yZA=="
	for kind, reply := range map[string]providertest.Reply{
		"JSON":          providertest.Fail(401, anthropictest.Failure("authentication_error", echo)),
		"a string":      providertest.Fail(400, `{"error":"`+echo+`"}`),
		"text":          providertest.Fail(400, echo),
		"a large text":  providertest.Fail(400, strings.Repeat(key, 10_000)),
		"an event":      providertest.Sequence(once(), providertest.Parts(anthropictest.Error("api_error", echo))),
		"text in event": providertest.Sequence(once(), providertest.Parts("event: error\ndata: "+echo+"\n\n")),
		"media type":    status(200, "Content-Type", "text/"+key),
		"its address":   status(307, "Location", "http://127.0.0.1/"+key),
		"not HTTP": func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = connection.Write([]byte(echo + "\r\n\r\n"))
				connection.Close()
			}
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			fake := anthropictest.New(t)
			fake.Always(reply)
			base := strings.Replace(fake.URL, "http://", "http://marked-name:marked%2Fpass%20word@", 1) + "/?k=marked%26query"
			_, err := answer(t, newAgent(t, agent.Model{
				BaseURL: base, Key: key, Headers: map[string]string{
					"X-Team": " " + header + " ", "Authorization": "Bearer " + token,
				},
			}), newRequest("Hi."))
			if _, ok := errors.AsType[*agent.Error](err); !ok || strings.Contains(err.Error(), "marked") ||
				strings.Contains(err.Error(), "bWFya2Vk") {
				t.Errorf("Respond = %v, want an *agent.Error without secrets", err)
			}
			if sent := fake.Requests()[0]; sent.Header.Get("X-Api-Key") != key || sent.Header.Get("X-Team") != header ||
				sent.URI != "/v1/messages?k=marked%26query" {
				t.Errorf("request = %s with header %v", sent.URI, sent.Header)
			}
		})
	}
}

func TestLongMessage(t *testing.T) {
	t.Parallel()
	for cut := range 3 {
		got := failure(t, agent.Model{}, providertest.Fail(400,
			anthropictest.Failure("invalid_request_error", strings.Repeat("x", cut)+strings.Repeat("€", 2000))))
		text, ok := strings.CutPrefix(got.Message, "the provider refused the request (400 Bad Request): ")
		if n := len(text); !ok || n > 1<<10 || n < 1<<10-3 || !utf8.ValidString(text) {
			t.Errorf("message has %d bytes of the provider, want about 1 KiB: %q", n, got.Message)
		}
	}
}

// TestConfiguration: New returns the faults that agent.NewProvider finds.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	_, err := anthropic.New(agent.Model{
		BaseURL: "http://secret@ host", Key: "secret\n", Tools: []agent.Tool{{Name: "look up"}},
	})
	want := []string{
		`base_url: is not a URL; use the form "https://api.anthropic.com"`,
		"model: is required",
		"key: contains a line feed or another control character",
		`tools: "look up" is not a valid tool name; use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'`,
	}
	if diff := cmp.Diff(want, strings.Split(fmt.Sprint(err), "\n")); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}
