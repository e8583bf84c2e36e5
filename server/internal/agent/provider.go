package agent

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// connectTimeout limits each step of a connection: TCP and TLS.
const connectTimeout = 10 * time.Second

// Provider is the HTTP API of a [Model], independent of the protocol: its address, requests with
// retries and limits, and descriptions of failures for people. Use [NewProvider] to create it. It is
// safe for concurrent use.
//
// Errors contain no secret of the configuration, and at most 1 KiB of a provider's own text.
type Provider struct {
	// Base is the address of the API. Its path ends in a slash.
	Base *url.URL
	// client does not follow redirects, so that a key is sent only to Base. Of the environment, only
	// the proxy is used.
	client     *http.Client
	model      Model
	ownBaseURL string
	secrets    []string
	native     nativeForms
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
		client: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		model:      model,
		ownBaseURL: ownBaseURL,
		secrets:    model.secrets(base),
		native:     nativeForms{now: time.Now},
	}, nil
}

// Close closes the idle connections.
func (p *Provider) Close() { p.client.CloseIdleConnections() }

// WorkingProgress returns the Progress piece for a model that is silent, for example while it reasons and
// does not report it. It is sent every [ProgressInterval], so that the agent is not treated as hung.
func WorkingProgress() *parleyv1.RespondResponse { return progress("the model is still working") }
