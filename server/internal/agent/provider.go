package agent

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ProviderRetries is how often a request is repeated before an answer has begun: after a connection
// error, or status 408, 409, 429 or 5xx. With the waits in between, all attempts fit in the time
// that a turn may be silent.
const ProviderRetries = 2

// connectTimeout limits each step of a connection: TCP and TLS.
const connectTimeout = 10 * time.Second

// Provider is the HTTP API of a [Model], independent of the protocol: its address, a client that
// limits responses, and descriptions of failures for people. Use [NewProvider] to create it. It is
// safe for concurrent use.
//
// Errors contain no secret of the configuration, and at most 1 KiB of a provider's own text.
type Provider struct {
	// Base is the address of the API. Its path ends in a slash.
	Base *url.URL
	// Client sends the requests. It does not follow redirects, so that a key is sent only to Base.
	// The body of a response with status 400 or more is limited to 64 KiB, and is marked as not
	// retryable if the provider asks for a wait of more than 10 s. All other bodies must be event
	// streams with events of at most 4 MiB. Of the environment, only the proxy is used.
	// CloseIdleConnections closes the connections.
	Client *http.Client

	model      Model
	ownBaseURL string
	secrets    []string
}

// NewProvider checks the complete configuration of the model and does not connect yet. ownBaseURL
// is the provider's own base URL; it is used if BaseURL is empty, and as an example in errors. The
// error lists all faults by their keys in the configuration, without secrets.
func NewProvider(model Model, ownBaseURL string) (*Provider, error) {
	base, err := model.parseBaseURL(ownBaseURL)
	if err := errors.Join(err, model.check()); err != nil {
		return nil, err
	}
	// The transport is not shared, so closing its idle connections affects no other agent.
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		// Compression would delay the events of a stream.
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return &Provider{
		Base: base,
		Client: &http.Client{
			Transport:     boundedTransport{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		model:      model,
		ownBaseURL: ownBaseURL,
		secrets:    model.secrets(base),
	}, nil
}

// WorkingProgress returns the Progress piece for a model that is silent while it reasons or writes the
// arguments of a call. It is sent every [ProgressInterval], so that the agent is not treated as hung.
func WorkingProgress() *parleyv1.RespondResponse { return progress("the model is still working") }
