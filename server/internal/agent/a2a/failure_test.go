package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// TestFailedTasks: a task that fails ends the turn with an error that has the text of the remote agent, without secrets
// and with at most 1 KiB of it. What had arrived before is kept.
func TestFailedTasks(t *testing.T) {
	for _, binding := range bindings {
		for state, test := range map[sdk.TaskState]struct {
			want      string
			retryable bool
		}{
			sdk.TaskStateFailed:   {"the agent failed: ", true},
			sdk.TaskStateRejected: {"the agent rejected the request: ", false},
			sdk.TaskStateCanceled: {"the task of the agent was canceled: ", true},
			sdk.TaskStateAuthRequired: {
				"the agent requires more authentication; change the key or the headers of the agent: ", false,
			},
		} {
			t.Run(fmt.Sprint(binding, " ", state), func(t *testing.T) {
				s := serve(t, binding, &service{streaming: true, scripts: []execute{
					func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
						yield(sdk.NewSubmittedTask(on, on.Message))
						yield(sdk.NewArtifactEvent(on, textPart("part")))
						why := textPart("no sugar, " + testKey + strings.Repeat("x", 2000))
						yield(sdk.NewStatusUpdateEvent(on, state, agentMessage(why)))
						return nil
					},
				}})
				c := newConversation(open(t, s))
				got := c.ask(t.Context(), userMessage("q"))
				failure := failureOf(t, got)
				if !strings.HasPrefix(failure.Message, test.want+"no sugar, [redacted]xxx") || failure.Retryable != test.retryable ||
					len(failure.Message) > 1200 {
					t.Errorf("error = %q, retryable %t, want %q, %t", failure.Message, failure.Retryable, test.want, test.retryable)
				}
				if got.text != "part" || c.record != nil {
					t.Errorf("text = %q, record %v, want the part and no record", got.text, c.record)
				}
			})
		}
	}
}

// TestRetryableFailure: the metadata of a failed task says whether a new attempt may succeed.
func TestRetryableFailure(t *testing.T) {
	s := serve(t, sdk.TransportProtocolGRPC, &service{streaming: true, scripts: []execute{
		func(_ context.Context, on *a2asrv.ExecutorContext, yield func(sdk.Event) bool) error {
			why := agentMessage(textPart("no"))
			why.SetMeta("parley.retryable", false)
			yield(sdk.NewSubmittedTask(on, on.Message))
			yield(sdk.NewStatusUpdateEvent(on, sdk.TaskStateFailed, why))
			return nil
		},
	}})
	failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
	if failure.Message != "the agent failed: no" || failure.Retryable {
		t.Errorf("error = %+v, want one that is not retryable", failure)
	}
}

// TestRefusedRequests: errors of the remote agent and of what is before it are explained in words.
func TestRefusedRequests(t *testing.T) {
	const noInterface = "the agent card names no interface of A2A 1.0 that can be used"
	isCard := func(r *http.Request) bool {
		return r.URL.Path == "/.well-known/agent-card.json"
	}
	respond := func(status int, media, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.Header().Set("Location", "https://elsewhere.example/")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	for name, test := range map[string]struct {
		reply     http.HandlerFunc
		ofCard    bool
		want      string
		retryable bool
	}{
		"card missing": {
			respond(404, "text/html", "<p>"), true, "the server of the agent card was not found; check url (404 Not Found)", false,
		},
		"card is text": {
			respond(200, "text/plain", "hello"), true, "the server of the agent card violated the protocol", false,
		},
		"card is null": {respond(200, mediaJSON, "null"), true, noInterface, false},
		"card of 0.3": {
			respond(200, mediaJSON, `{"url":"http://h","protocolVersion":"0.3.0","preferredTransport":"JSONRPC"}`), true,
			noInterface, false,
		},
		"card too large": {
			respond(200, mediaJSON, `{"name":"`+strings.Repeat("x", maxMessageBytes)+`"}`), true,
			"the server of the agent card sent a message of more than 4194304 bytes", false,
		},
		"redirect": {
			respond(307, "text/html", ""), false, "the agent redirects to another address, which is not followed; set url to the " +
				"address of the agent (307 Temporary Redirect)", false,
		},
		"key": {
			respond(401, mediaJSON, `{"error":{"message":"bad key `+testKey+`"}}`), false,
			"the agent refused the key (401 Unauthorized): bad key [redacted]", false,
		},
		"forbidden": {
			respond(403, "text/html", "<p>"), false, "the agent refused the key or its use (403 Forbidden)", false,
		},
		"rate limit": {
			respond(429, mediaJSON, `{"message":"slow"}`), false,
			"the agent has reached a limit of requests (429 Too Many Requests): slow", true,
		},
		"gateway":   {respond(502, "text/html", "<p>"), false, "the agent failed (502 Bad Gateway)", true},
		"server":    {respond(500, "text/html", "<p>"), false, "the agent failed (500 Internal Server Error)", true},
		"no stream": {respond(200, "text/html", "<p>"), false, "the agent ended the stream without an answer", true},
		"error as JSON": {
			respond(200, mediaJSON, `{"jsonrpc":"2.0","id":"1","error":{"code":-32602,"message":"bad part"}}`), false,
			"the agent refused the request: bad part", false,
		},
		"garbage": {respond(200, mediaEvents, "data: hello\n\n"), false, "the agent violated the protocol", false},
		"event too large": {
			respond(200, mediaEvents, "data: "+strings.Repeat("x", maxMessageBytes)), false,
			"the agent sent a message of more than 4194304 bytes", false,
		},
		"no task id": {
			respond(200, mediaEvents, `data: {"jsonrpc":"2.0","id":"1","result":{"task":{}}}`+"\n\n"), false,
			"the agent sent an event without the id of its task", false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service{streaming: true}
			s.wrap = func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if isCard(r) != test.ofCard {
						next.ServeHTTP(w, r)
						return
					}
					test.reply(w, r)
				})
			}
			serve(t, sdk.TransportProtocolJSONRPC, s)
			failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
			if failure.Message != test.want || failure.Retryable != test.retryable {
				t.Errorf("error = %q, retryable %t (%s), want %q, %t", failure.Message, failure.Retryable, failure.Detail, test.want,
					test.retryable)
			}
		})
	}
}

// TestRedirectsAreRefused: the key is not sent to the address that a redirect names.
func TestRedirectsAreRefused(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("request to %s with %q, want none", r.URL, r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, media := range []string{"text/html", mediaJSON, mediaEvents} {
		s := &service{streaming: true}
		s.wrap = func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", media)
				http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			})
		}
		serve(t, sdk.TransportProtocolJSONRPC, s)
		failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
		if !strings.Contains(failure.Message, "redirects") {
			t.Errorf("%s: error = %q, want the redirect", media, failure.Message)
		}
	}
}

// TestInterfacesOfCard: an interface is used only if it is at the host of the card, or at a configured one, with a
// binding and a version that are supported, and not without encryption if the card has it.
func TestInterfacesOfCard(t *testing.T) {
	for _, test := range []struct {
		url, address string
		binding      sdk.TransportProtocol
		version      sdk.ProtocolVersion
		hosts        []string
		want         string
	}{
		{"https://h", "https://h/rpc", "JSONRPC", "1.0", nil, ""},
		{"https://h", "https://H:8443/rpc", "HTTP+JSON", "1.1", nil, ""},
		{"https://h", "h:443", "GRPC", "1.0", nil, ""},
		{"https://h", "dns:///h:443", "GRPC", "1.0", nil, ""},
		{"https://h", "https://h", "GRPC", "1.0", nil, ""},
		{"http://h", "grpcs://h:1", "GRPC", "1.0", nil, ""},
		{"https://h", "https://api.h/rpc", "JSONRPC", "1.0", []string{"API.h"}, ""},
		{
			"https://h", "https://api.h/rpc", "JSONRPC", "1.0", nil,
			`is at the host "api.h", not at that of url; add it to hosts if it belongs to the agent`,
		},
		{
			"https://h", "169.254.169.254:80", "GRPC", "1.0", nil,
			`is at the host "169.254.169.254", not at that of url; add it to hosts if it belongs to the agent`,
		},
		{"https://h", "http://h/rpc", "JSONRPC", "1.0", nil, "has no encryption, although url has"},
		{"https://h", "grpc://h:1", "GRPC", "1.0", nil, "has no encryption, although url has"},
		{"https://h", "https://h/rpc", "JSONRPC", "0.3", nil, `has the version "0.3", want 1.0`},
		{"https://h", "https://h/rpc", "SOAP", "1.0", nil, "is not a binding that is supported"},
		{"https://h", "/rpc", "JSONRPC", "1.0", nil, "has no valid URL"},
		{"https://h", "ftp://h/rpc", "JSONRPC", "1.0", nil, "has no http or https URL"},
		{"https://h", "https://user:password@h/rpc", "JSONRPC", "1.0", nil, "has no valid URL"},
	} {
		a, err := New(Config{URL: test.url, Hosts: test.hosts})
		if err != nil {
			t.Fatal(err)
		}
		at := &sdk.AgentInterface{URL: test.address, ProtocolBinding: test.binding, ProtocolVersion: test.version}
		if got := a.refusal(at); got != test.want {
			t.Errorf("refusal(%s, %v) = %q, want %q", test.url, at, got, test.want)
		}
	}
}

// TestOtherHostOfCard: a card cannot direct the agent and its key to another host.
func TestOtherHostOfCard(t *testing.T) {
	s := &service{streaming: true, change: func(card *sdk.AgentCard) {
		card.SupportedInterfaces = []*sdk.AgentInterface{
			sdk.NewAgentInterface("http://elsewhere.example/", sdk.TransportProtocolJSONRPC),
		}
	}}
	serve(t, sdk.TransportProtocolJSONRPC, s)
	failure := failureOf(t, newConversation(open(t, s)).ask(t.Context(), userMessage("q")))
	if want := `JSONRPC is at the host "elsewhere.example", not at that of url`; !strings.Contains(failure.Message, want) {
		t.Errorf("error = %q, want %q", failure.Message, want)
	}
}

// TestUnreachable: a remote agent that is not there fails the turn with an error that may be retried. Its address is
// only in the detail.
func TestUnreachable(t *testing.T) {
	for _, binding := range bindings {
		s := serve(t, binding, &service{streaming: true, scripts: []execute{completed("ok")}})
		a := open(t, s)
		if _, err := a.connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.http.Close()
		if s.grpc != nil {
			s.grpc.Stop()
		}
		failure := failureOf(t, newConversation(a).ask(t.Context(), userMessage("q")))
		const host = "127.0.0.1"
		if !failure.Retryable || strings.Contains(failure.Message, host) || !strings.Contains(failure.Detail, host) {
			t.Errorf("%s: error %+v, want a retryable one with the address in the detail", binding, failure)
		}
	}
}

// TestTurnsFailTogether: turns that wait for a card fail when it cannot be read for one of them. A later turn reads it
// again, and a turn that was cancelled fails no other one.
func TestTurnsFailTogether(t *testing.T) {
	var reads, status atomic.Int32
	status.Store(http.StatusServiceUnavailable)
	s := &service{streaming: true}
	s.wrap = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			reads.Add(1)
			if code := int(status.Load()); code != http.StatusOK {
				w.WriteHeader(code)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	serve(t, sdk.TransportProtocolJSONRPC, s)
	a := open(t, s)
	since := time.Now()
	if _, err := a.connect(t.Context()); err == nil || reads.Load() != 1 {
		t.Fatalf("connect = %v after %d reads, want an error", err, reads.Load())
	}
	if _, err := a.connectSince(t.Context(), since); err == nil || reads.Load() != 1 {
		t.Errorf("connect of a turn that has waited = %v after %d reads, want the same error", err, reads.Load())
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	since = time.Now()
	if _, err := a.connect(cancelled); err == nil {
		t.Error("connect of a turn that was cancelled = nil, want an error")
	}
	status.Store(http.StatusOK)
	if _, err := a.connectSince(t.Context(), since); err != nil || reads.Load() != 2 {
		t.Errorf("connect of a later turn = %v after %d reads, want that the card is read again", err, reads.Load())
	}
}

// TestConfigFaults: New reports all faults by the names of their keys.
func TestConfigFaults(t *testing.T) {
	_, err := New(Config{
		URL: "https://user:s3cret@h", Hosts: []string{"h:1"}, Key: "k",
		Headers: map[string]string{"Authorization": "s3cret", "authorization": "s3cret"},
	})
	want := "url: must not contain a user, a query or a fragment; use api_key_env, api_key_file or headers\n" +
		`hosts: "h:1" is not the name of a host; leave out scheme, port and path` + "\n" +
		`headers: "authorization" is configured twice; names are not case-sensitive` + "\n" +
		"headers: authorization is the header of the key; remove it, or remove the key"
	if err == nil || err.Error() != want {
		t.Errorf("New = %v, want %s", err, want)
	}
	for url, want := range map[string]string{
		"": "url: is required", "h:1": "url: must be an http or https URL, as in https://agent.example.com",
	} {
		if _, err := New(Config{URL: url}); err == nil || err.Error() != want {
			t.Errorf("New(%q) = %v, want %s", url, err, want)
		}
	}
	for url, want := range map[string]string{
		"https://h": "https://h/.well-known/agent-card.json", "https://h/a/": "https://h/a/.well-known/agent-card.json",
		"https://h/card.json": "https://h/card.json",
	} {
		if got, err := cardURL(url); err != nil || got.String() != want {
			t.Errorf("cardURL(%s) = %v, %v, want %s", url, got, err, want)
		}
	}
}

// TestForeignRecords: a record that a client has written cannot make the agent fail.
func TestForeignRecords(t *testing.T) {
	for _, value := range []string{
		``, `null`, `[]`, `{"uid":"uid-1","contextId":5}`, `{"uid":"uid-1","contextId":"c","artifacts":{"a":{"bytes":-1}}}`,
		`{"uid":"uid-2","contextId":"c"}`,
	} {
		c := newConversation(nil)
		c.messages = []*parleyMessage{userMessage("a"), userMessage("b")}
		got := readState(recordOf(value), requestOf(c))
		if encoded, err := json.Marshal(got); err != nil || string(encoded) != `{"uid":"","contextId":""}` {
			t.Errorf("state of %s = %s, %v, want none", value, encoded, err)
		}
	}
}
