package agent_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
)

// TestNetworkErrors: the messages for network errors that tests cannot cause.
func TestNetworkErrors(t *testing.T) {
	p := newProvider(t, agent.Model{BaseURL: "https://ann:password@models.test:8443/v1?token=hidden"})
	failing := func(op string, err error) error {
		return &url.Error{Op: "Post", URL: p.Base.String(), Err: &net.OpError{Op: op, Net: "tcp", Err: err}}
	}
	for _, test := range []struct {
		err  error
		want agent.Error
	}{
		{
			failing("dial", &net.DNSError{Err: "no such host", Name: "models.test", Server: "10.0.0.2:53", IsNotFound: true}),
			agent.Error{Message: "cannot connect to the provider", Detail: "https://models.test:8443: no such host"},
		},
		{
			failing("dial", &net.DNSError{Err: "i/o timeout", Name: "models.test", Server: "10.0.0.2:53", IsTimeout: true}),
			agent.Error{
				Message: "cannot connect to the provider", Detail: "https://models.test:8443: i/o timeout", Retryable: true,
			},
		},
		{
			failing("dial", errors.New("no route to host")),
			agent.Error{
				Message: "cannot connect to the provider", Detail: "https://models.test:8443: no route to host", Retryable: true,
			},
		},
		{
			failing("proxyconnect", errors.New("refused by proxy")),
			agent.Error{
				Message: "cannot connect to the proxy for the provider", Detail: "https://models.test:8443: refused by proxy",
				Retryable: true,
			},
		},
		{
			failing("read", errors.New("connection reset by peer")),
			agent.Error{
				Message: "no response from the provider", Detail: "https://models.test:8443: connection reset by peer",
				Retryable: true,
			},
		},
		{
			io.EOF,
			agent.Error{
				Message: "no response from the provider", Detail: "https://models.test:8443: the connection was closed",
				Retryable: true,
			},
		},
		{
			&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
			agent.Error{
				Message: "cannot connect to the provider",
				Detail:  "https://models.test:8443: tls: failed to verify certificate: x509: certificate signed by unknown authority",
			},
		},
		{
			errors.New("odd " + p.Base.String()),
			agent.Error{
				Message: "no response from the provider",
				Detail:  "https://models.test:8443: odd https://[redacted]@models.test:8443/v1/?[redacted]", Retryable: true,
			},
		},
	} {
		if diff := cmp.Diff(test.want, *p.ResponseError(nil, test.err)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

// TestStatuses: the message for each status, with the provider's text.
func TestStatuses(t *testing.T) {
	const tooLong = "the conversation is too long for the model; configure a smaller window for the agent"
	for _, test := range []struct {
		status int
		body   string
		want   agent.Error
	}{
		{
			401, `{"error":{"message":"No key"}}`,
			agent.Error{Message: "the provider requires a key, and none is configured (401 Unauthorized): No key"},
		},
		{
			403, `{"error":{"message":"Country not supported"}}`,
			agent.Error{Message: "the provider refused the key or its use (403 Forbidden): Country not supported"},
		},
		{
			402, `{"error":{"message":"Pay first","code":402}}`,
			agent.Error{Message: "the provider's quota is used up (402 Payment Required): Pay first"},
		},
		{
			429, `{"error":{"message":"too many tokens a minute"}}`,
			agent.Error{
				Message:   "the provider's quota or rate limit is used up (429 Too Many Requests): too many tokens a minute",
				Retryable: true,
			},
		},
		{
			404, "404 page not found",
			agent.Error{
				Message: `the provider does not know the model "m", or base_url is not the address of its API (404 Not Found): 404 page not found`,
			},
		},
		{
			400, `{"error":{"message":"too much","code":"context_length_exceeded"}}`,
			agent.Error{Message: tooLong + " (400 Bad Request): too much"},
		},
		{
			400, `{"error":{"message":"it exceeds","type":"exceed_context_size_error"}}`,
			agent.Error{Message: tooLong + " (400 Bad Request): it exceeds"},
		},
		{400, `"beyond the context limit"`, agent.Error{Message: tooLong + " (400 Bad Request): beyond the context limit"}},
		{400, `{"message":"Prompt is too long"}`, agent.Error{Message: tooLong + " (400 Bad Request): Prompt is too long"}},
		{413, "", agent.Error{Message: tooLong + " (413 Request Entity Too Large)"}},
		{
			400, `[{"error":{"code":400,"message":"Invalid value"}}]`,
			agent.Error{Message: "the provider refused the request (400 Bad Request): Invalid value"},
		},
		{
			422, `{"detail":[{"msg":"extra"}]}`,
			agent.Error{Message: `the provider refused the request (422 Unprocessable Entity): [{"msg":"extra"}]`},
		},
		{408, `{"error":"late"}`, agent.Error{Message: "the provider failed (408 Request Timeout): late", Retryable: true}},
		{409, "", agent.Error{Message: "the provider failed (409 Conflict)", Retryable: true}},
		{
			500, `{"error":{"message":null,"type":"server_error"}}`,
			agent.Error{
				Message: `the provider failed (500 Internal Server Error): {"message":null,"type":"server_error"}`, Retryable: true,
			},
		},
		{
			502, "<html><h1>502 Bad Gateway</h1></html>",
			agent.Error{Message: "the provider failed (502 Bad Gateway)", Retryable: true},
		},
		{529, `"busy\u0000\n now"`, agent.Error{Message: "the provider is overloaded (529): busy now", Retryable: true}},
		// The body may have been truncated.
		{418, strings.Repeat("x", 64<<10), agent.Error{Message: "the provider refused the request (418 I'm a teapot)"}},
		{
			302, "",
			agent.Error{
				Message: "the provider redirects to another address, which is not followed; set base_url to the address of the API",
			},
		},
	} {
		response := &http.Response{StatusCode: test.status, Body: io.NopCloser(strings.NewReader(test.body))}
		if diff := cmp.Diff(test.want, *newProvider(t, agent.Model{}).ResponseError(response, nil)); diff != "" {
			t.Errorf("%d %.80s (-want +got):\n%s", test.status, test.body, diff)
		}
	}
}

// TestEventError: the messages for failures in an event, whose type may imply a status.
func TestEventError(t *testing.T) {
	for event, want := range map[string]agent.Error{
		`{"error":{"message":"Oops","type":"server_error"}}`: {
			Message: "the provider failed during the answer: Oops", Retryable: true,
		},
		`{"error":{"message":"Slow down","code":429}}`: {
			Message: "the provider's quota or rate limit is used up (429 Too Many Requests): Slow down", Retryable: true,
		},
		`{"error":{"message":"Odd","code":"200"}}`: {
			Message: "the provider failed during the answer: Odd", Retryable: true,
		},
		`{"error":{"message":"its context length is 4096"}}`: {
			Message: "the conversation is too long for the model; configure a smaller window for the agent (400 Bad Request): " +
				"its context length is 4096",
		},
		`{"error":{"message":"No","type":"invalid_request_error"}}`: {
			Message: "the provider refused the request (400 Bad Request): No",
		},
		`{"error":{"message":"No","type":"authentication_error"}}`: {
			Message: "the provider requires a key, and none is configured (401 Unauthorized): No",
		},
		`{"error":{"message":"No","type":"billing_error"}}`: {
			Message: "the provider's quota is used up (402 Payment Required): No",
		},
		`{"error":{"message":"No","type":"permission_error"}}`: {
			Message: "the provider refused the key or its use (403 Forbidden): No",
		},
		`{"error":{"message":"No","type":"not_found_error"}}`: {
			Message: `the provider does not know the model "m", or base_url is not the address of its API (404 Not Found): No`,
		},
		`{"error":{"message":"No","type":"request_too_large"}}`: {
			Message: "the conversation is too long for the model; configure a smaller window for the agent (413 Request " +
				"Entity Too Large): No",
		},
		`{"error":{"message":"No","type":"rate_limit_error"}}`: {
			Message: "the provider's quota or rate limit is used up (429 Too Many Requests): No", Retryable: true,
		},
		`{"error":{"message":"No","type":"timeout_error"}}`: {
			Message: "the provider failed (504 Gateway Timeout): No", Retryable: true,
		},
		`{"type":"error","error":{"message":"No","type":"overloaded_error"}}`: {
			Message: "the provider is overloaded (529): No", Retryable: true,
		},
		`[{"error":{"error":{"message":"here","code":7,"type":"t"}}}]`: {
			Message: "the provider failed during the answer: here", Retryable: true,
		},
		`{"error":{"error":{"error":{"error":{"error":"too deep"}}}}}`: {
			Message: `the provider failed during the answer: {"error":"too deep"}`, Retryable: true,
		},
		"": {Message: "the provider failed during the answer", Retryable: true},
	} {
		if diff := cmp.Diff(want, *newProvider(t, agent.Model{}).EventError([]byte(event))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", event, diff)
		}
	}
	const levels = 5000 // Nested deeply enough to be slow if all levels were parsed.
	deep := strings.Repeat(`{"error":`, levels) + `"bottom"` + strings.Repeat("}", levels)
	if got := newProvider(t, agent.Model{}).EventError([]byte(deep)).Message; strings.Contains(got, "bottom") ||
		len(got) < 1<<10 {
		t.Errorf("EventError of a deep event = %.80q, want no more than the upper levels", got)
	}
}

// TestShown: text of a provider is redacted, cleaned and truncated.
func TestShown(t *testing.T) {
	shown := func(p *agent.Provider, text string) string {
		const prefix = "the provider sent an event that is not a JSON object"
		return strings.TrimPrefix(strings.TrimPrefix(p.MalformedEvent(text).Message, prefix), ": ")
	}
	p := newProvider(t, agent.Model{Key: "abcdef", Headers: map[string]string{"A": "abcdefgh", "B": "1", "C": ""}})
	for text, want := range map[string]string{
		"":                             "",
		"abcdef abcdefgh abcde 1":      "[redacted] [redacted] abcde 1",
		" a\n\tb\x00\u0085c\xff ":      "a b c\uFFFD",
		strings.Repeat("x", 1024):      strings.Repeat("x", 1024),
		strings.Repeat("x", 1025):      strings.Repeat("x", 1021) + "…",
		strings.Repeat("é", 513):       strings.Repeat("é", 510) + "…",
		strings.Repeat("abcdef ", 200): strings.Repeat("[redacted] ", 92) + "[redacted…",
	} {
		if got := shown(p, text); got != want {
			t.Errorf("shown(%.40q) = %q, want %q", text, got, want)
		}
	}
	base := url.URL{Scheme: "http", Host: "host", User: url.UserPassword("ann", "p&ssé"), RawQuery: "k=v%2Fwxyz&short=1"}
	p = newProvider(t, agent.Model{BaseURL: base.String(), Headers: map[string]string{"A": " Bearer tok/en é&b"}})
	for _, form := range []string{
		"Bearer tok/en é&b", "tok/en é&b", "tok%2Fen+%C3%A9%26b", "tok/en%20%C3%A9&b", `tok/en \u00e9&b`, `tok\/en é&b`,
		`tok/en é\u0026b`, "tok/en é&amp;b",
		"p&ssé", "ann:p&ss%C3%A9", "YW5uOnAmc3PDqQ==", "k=v%2Fwxyz&short=1", "v/wxyz",
	} {
		if got := shown(p, "<"+form+">"); got != "<[redacted]>" {
			t.Errorf("shown(<%s>) = %s, want <[redacted]>", form, got)
		}
	}
	if got := shown(newProvider(t, agent.Model{}), "all of it"); got != "all of it" {
		t.Errorf("shown without secrets = %q, want the text", got)
	}
}

func TestStreamError(t *testing.T) {
	p := newProvider(t, agent.Model{})
	body := func(text string) error {
		_, err := readEvents(text)
		return fmt.Errorf("reading: %w", err)
	}
	const notStream = "the provider did not answer with a stream; "
	for _, test := range []struct {
		err  error
		want agent.Error
	}{
		{io.EOF, agent.Error{Message: "the answer was cut off: the stream ended before the answer", Retryable: true}},
		{
			io.ErrUnexpectedEOF,
			agent.Error{Message: "the answer broke off", Detail: "the connection was closed", Retryable: true},
		},
		{
			body(strings.Repeat("data: x\n", 1<<20)),
			agent.Error{Message: "the provider sent an event of more than 4194304 bytes"},
		},
		{body(`{"error":"not loaded"}`), agent.Error{Message: notStream + "check base_url and model: not loaded"}},
		{
			body("<html>Welcome"),
			agent.Error{
				Message: notStream + `check that base_url is the address of its API, in the form "https://api.provider.test/v1"`,
			},
		},
		{
			body(strings.Repeat("x", 64<<10)),
			agent.Error{
				Message: notStream + `check that base_url is the address of its API, in the form "https://api.provider.test/v1"`,
			},
		},
	} {
		if diff := cmp.Diff(test.want, *p.StreamError(test.err)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestCallLimits(t *testing.T) {
	var many, large agent.CallLimits
	for range 1000 {
		if err := errors.Join(many.Add(1, 0), large.Add(0, 4<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := many.Add(1, 0); fmt.Sprint(err) != "the model made more than 1000 tool calls in one answer" {
		t.Error(err)
	}
	if err := errors.Join(large.Add(0, 24<<12), large.Add(0, 1)); fmt.Sprint(err) != "the model's tool calls are larger "+
		"than 4194304 bytes" {
		t.Error(err)
	}
}

func TestTruncate(t *testing.T) {
	for n, want := range []string{"", "a", "a", "aü", "aü", "aü", "aü", "aü🍬", "aü🍬"} {
		if got := agent.Truncate("aü🍬", n); got != want {
			t.Errorf("truncate(%d) = %q, want %q", n, got, want)
		}
	}
}
