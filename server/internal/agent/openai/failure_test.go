package openai

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// failed returns the agent's error.
func failed(t *testing.T, a *Agent) *agent.Error {
	t.Helper()
	pieces, err := answer(t.Context(), a, newRequest("Hi"))
	failure, ok := errors.AsType[*agent.Error](err)
	if !ok || len(pieces) != 0 {
		t.Fatalf("Respond = %v, %v, want an *agent.Error", pieces, err)
	}
	return failure
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		status   int
		body     string
		requests int
		want     agent.Error
	}{
		{
			401, `{"error":{"message":"Incorrect API key provided: ` + testKey + `.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}`, 1,
			agent.Error{Message: "the provider refused the key (401 Unauthorized): Incorrect API key provided: [redacted]."},
		},
		{
			403, `{"error":{"message":"Country not supported"}}`, 1,
			agent.Error{Message: "the provider refused the key or its use (403 Forbidden): Country not supported"},
		},
		{
			402, `{"error":{"message":"Insufficient credits","code":402}}`, 1,
			agent.Error{Message: "the provider's quota is used up (402 Payment Required): Insufficient credits"},
		},
		{
			429,
			`{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}`, 3,
			agent.Error{
				Message:   "the provider's quota or rate limit is used up (429 Too Many Requests): You exceeded your current quota",
				Retryable: true,
			},
		},
		{
			404, `{"error":"model \"test-model\" not found, try pulling it first"}`, 1,
			agent.Error{
				Message: `the provider does not know the model "test-model", or base_url is not the address of its API (404 Not Found): model "test-model" not found, try pulling it first`,
			},
		},
		{
			404, "404 page not found", 1,
			agent.Error{
				Message: `the provider does not know the model "test-model", or base_url is not the address of its API (404 Not Found): 404 page not found`,
			},
		},
		{
			400, `{"error":{"message":"too much","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`, 1,
			agent.Error{
				Message: "the conversation is too long for the model; configure a smaller window for the agent (400 Bad " +
					"Request): too much",
			},
		},
		{
			400, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}`, 1,
			agent.Error{
				Message: "the conversation is too long for the model; configure a smaller window for the agent (400 Bad " +
					"Request): the request exceeds the available context size",
			},
		},
		{
			413, "", 1,
			agent.Error{
				Message: "the conversation is too long for the model; configure a smaller window for the agent (413 Request " +
					"Entity Too Large)",
			},
		},
		{
			400, `[{"error":{"code":400,"message":"Invalid value","status":"INVALID_ARGUMENT"}}]`, 1,
			agent.Error{Message: "the provider refused the request (400 Bad Request): Invalid value"},
		},
		{
			422, `{"detail":[{"loc":["body","x"],"msg":"extra"}]}`, 1,
			agent.Error{
				Message: `the provider refused the request (422 Unprocessable Entity): [{"loc":["body","x"],"msg":"extra"}]`,
			},
		},
		{
			500, `{"error":{"message":null,"type":"server_error"}}`, 3,
			agent.Error{
				Message: `the provider failed (500 Internal Server Error): {"message":null,"type":"server_error"}`, Retryable: true,
			},
		},
		{
			502, "<html><h1>502 Bad Gateway</h1></html>", 3,
			agent.Error{Message: "the provider failed (502 Bad Gateway)", Retryable: true},
		},
		{503, "", 3, agent.Error{Message: "the provider failed (503 Service Unavailable)", Retryable: true}},
		{529, `"busy\u0000\n now"`, 3, agent.Error{Message: "the provider is overloaded (529): busy now", Retryable: true}},
		{
			503, strings.Repeat("é", 1000), 3,
			agent.Error{
				Message: "the provider failed (503 Service Unavailable): " + strings.Repeat("é", 510) + "…", Retryable: true,
			},
		},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.status), func(t *testing.T) {
			s := openaitest.New(t)
			s.Always(providertest.Fail(test.status, test.body))
			if diff := cmp.Diff(test.want, *failed(t, agentOf(t, s))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := len(s.Requests()); got != test.requests {
				t.Errorf("%d requests, want %d", got, test.requests)
			}
		})
	}
	t.Run("no key", func(t *testing.T) {
		s := openaitest.New(t, providertest.Fail(401, ""))
		if got := failed(t, newAgent(t, agent.Model{BaseURL: s.URL})).Message; got != "the provider requires a key, and "+
			"none is configured (401 Unauthorized)" {
			t.Error(got)
		}
	})
}

// TestRetries: a failure before the answer is retried.
func TestRetries(t *testing.T) {
	s := openaitest.New(t, providertest.Fail(503, ""), providertest.Fail(429, ""), openaitest.Text("At last."))
	pieces, err := answer(t.Context(), agentOf(t, s), newRequest("Hi"))
	if texts(pieces) != "At last." || err != nil {
		t.Errorf("Respond = %v, %v, want the third reply", pieces, err)
	}
	bodies := s.Requests()
	if len(bodies) != 3 || !bytes.Equal(bodies[0].Body, bodies[2].Body) {
		t.Errorf("%d requests with the last body %s, want 3 equal ones", len(bodies), bodies[len(bodies)-1].Body)
	}
}

// TestLongRetryAfter: if the provider asks for a long wait, the request is not repeated.
func TestLongRetryAfter(t *testing.T) {
	s := openaitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if got := failed(t, agentOf(t, s)); got.Message != "the provider's quota or rate limit is used up (429 Too Many "+
		"Requests)" || !got.Retryable {
		t.Errorf("error = %+v, want the rate limit", got)
	}
}

func TestUnreachable(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // A handshake error is expected.
	secure.StartTLS()
	t.Cleanup(secure.Close)
	breaking := openaitest.New(t)
	breaking.Always(providertest.Break)
	tests := []struct {
		name, address string
		want          agent.Error
	}{
		{
			"refused", withSecrets(closed.URL),
			agent.Error{
				Message: "cannot connect to the provider", Detail: closed.URL + ": connect: connection refused", Retryable: true,
			},
		},
		{
			"closed", withSecrets(breaking.URL),
			agent.Error{
				Message: "no response from the provider",
				Detail:  strings.TrimSuffix(breaking.URL, "/v1") + ": the connection was closed", Retryable: true,
			},
		},
		{"not trusted", withSecrets(secure.URL), agent.Error{
			Message: "cannot connect to the provider",
			Detail:  secure.URL + ": tls: failed to verify certificate: x509: certificate signed by unknown authority",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, *failed(t, newAgent(t, agent.Model{BaseURL: test.address, Key: testKey}))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// withSecrets adds a user, a password and a query to an address.
func withSecrets(address string) string {
	return strings.Replace(address, "://", "://ann:p%40ssword@", 1) + "?token=t-hidden"
}

// TestRedirectsAreNotFollowed: a redirect is not followed, even to the same provider.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := openaitest.New(t) // It fails the test if it receives a request.
	for _, status := range []int{301, 302, 307, 308} {
		for _, to := range []string{withSecrets(other.URL), "/v1/other?token=t-hidden", ""} {
			s := openaitest.New(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", to)
				w.WriteHeader(status)
			})
			const want = "the provider redirects to another address, which is not followed; set base_url to the address of the API"
			detail := ""
			switch {
			case strings.HasPrefix(to, "/"):
				detail = s.URL + "/other"
			case to != "":
				detail = other.URL
			}
			if got := failed(t, agentOf(t, s)); got.Message != want || got.Detail != detail || got.Retryable {
				t.Errorf("%d to %s: error = %+v, want %s and the detail %s", status, to, got, want, detail)
			}
		}
	}
}

// TestNoSecretIsShown: errors contain no secret that the provider sends back, in any form and at
// any place.
func TestNoSecretIsShown(t *testing.T) {
	const marked, odd = "marked-secret-1", `marked "secret"/2&é`
	echo := func(r *http.Request) string {
		name, password, _ := r.BasicAuth()
		all := fmt.Sprint(r.Header, r.URL, name, " ", password, " ", r.URL.Query())
		return all + url.QueryEscape(all) + url.PathEscape(all) + fmt.Sprintf("%q", r.Header.Get("X-Odd"))
	}
	quoted := func(r *http.Request) string { return openaitest.Delta(map[string]any{"echo": echo(r)}) }
	replies := map[string]providertest.Reply{
		"refusal as JSON": func(w http.ResponseWriter, r *http.Request) {
			providertest.Fail(401, `{"error":{"message":`+quoted(r)+`}}`)(w, r)
		},
		"refusal as text": func(w http.ResponseWriter, r *http.Request) { providertest.Fail(400, echo(r))(w, r) },
		"error in the stream": func(w http.ResponseWriter, r *http.Request) {
			providertest.Parts(data(`{"error":`+quoted(r)+`}`))(w, r)
		},
		"not JSON":     func(w http.ResponseWriter, r *http.Request) { providertest.Parts(data(echo(r)))(w, r) },
		"not a stream": func(w http.ResponseWriter, r *http.Request) { providertest.Fail(200, echo(r))(w, r) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://ann:marked-password@other/"+marked+"/"+url.PathEscape(odd)+"?"+r.URL.RawQuery)
			w.WriteHeader(http.StatusFound)
		},
	}
	for name, reply := range replies {
		t.Run(name, func(t *testing.T) {
			s := openaitest.New(t, reply)
			base := strings.Replace(s.URL, "://", "://marked-user:marked-password@", 1) + "?api-key=marked-query&x=" + url.QueryEscape(odd)
			for _, key := range []string{"marked-key", ""} {
				a := newAgent(t, agent.Model{BaseURL: base, Key: key, Headers: map[string]string{
					"X-Marked": marked, "X-Odd": odd, "X-Token": "Bearer marked-token", "X-Short": "1",
				}})
				failure := failed(t, a)
				got := failure.Message + " " + failure.Detail
				if strings.Contains(strings.ToLower(got), "marked-") || strings.Contains(got, "secret") ||
					!strings.Contains(got, "[redacted]") {
					t.Errorf("error = %s, want redacted secrets", got)
				}
				if len(got) > 2<<10 {
					t.Errorf("error has %d bytes, want at most 2 KiB", len(got))
				}
				s.Then(reply)
			}
		})
	}
}
