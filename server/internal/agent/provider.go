package agent

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// ProviderRetries is how often a request is made again before an answer has begun, where
// there was no response, or one of 408, 409, 429 and 5xx. With the waits between them, all
// tries end well within the time that a turn may be silent.
const ProviderRetries = 2

// connectTimeout bounds each step to a connection.
const connectTimeout = 10 * time.Second

// Provider is the HTTP API that a [Model] is behind, without the protocol: where it is, a
// client whose responses have bounds, and words for a person of what fails. Begin with
// [NewProvider]. Many goroutines may use it.
//
// No error has a secret of the model's configuration in it. What is quoted of others is at
// most 1 KiB.
type Provider struct {
	// Base is where the API is. Its path ends in a slash.
	Base *url.URL
	// Client makes the requests. Redirects are responses, so that no key goes anywhere but
	// to Base. Of a refusal, which is a status of 400 or more, 64 KiB can be read, and none
	// is to be tried again that wants a wait of over 10 s. All other bodies have to be
	// streams of events, each of 4 MiB at most. The client uses the proxy that the
	// environment names, and nothing else of it. CloseIdleConnections ends it.
	Client *http.Client

	model      Model
	ownBaseURL string
	secrets    []string
}

// NewProvider checks the model's whole configuration and connects to nothing yet. The
// provider's own base URL is used where BaseURL is empty, and shows people how to write one.
// Every fault is in the one error, by its key in the configuration and without any secret.
func NewProvider(model Model, ownBaseURL string) (*Provider, error) {
	base, err := model.parseBaseURL(ownBaseURL)
	if err := errors.Join(err, model.check()); err != nil {
		return nil, err
	}
	// One that is nobody else's, so that closing it closes all it has.
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		// Compressed streams come in bursts, and nobody gains from them.
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	return &Provider{
		Base: base,
		Client: &http.Client{
			Transport:     bounded{transport},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		model:      model,
		ownBaseURL: ownBaseURL,
		secrets:    model.secrets(base),
	}, nil
}

// AtWork tells, every ReassureEvery of a model's silence, that it reasons or writes the
// arguments of a call: nobody is to take that for a hung agent.
func AtWork() *parleyv1.RespondResponse { return progress("the model is still at work") }
