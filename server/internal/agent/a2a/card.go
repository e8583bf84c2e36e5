package a2a

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"

	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// cardTTL is how long a card is used before it is read again.
	cardTTL = 5 * time.Minute
	// cardTimeout limits the time to read a card.
	cardTimeout = 20 * time.Second

	cardPath = ".well-known/agent-card.json"

	schemeHTTP, schemeHTTPS = "http", "https"
)

// cardURL returns the address of the card for the configured address. Its errors do not quote the address, into which
// users may put a secret.
func cardURL(configured string) (*url.URL, error) {
	u, err := url.Parse(configured)
	switch {
	case configured == "":
		return nil, errors.New("url: is required")
	case err != nil || u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS || u.Hostname() == "":
		return nil, errors.New("url: must be an http or https URL, as in https://agent.example.com")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New(
			"url: must not contain a user, a query or a fragment; use api_key_env, api_key_file or headers")
	}
	if !strings.HasSuffix(u.Path, ".json") {
		u = u.JoinPath(cardPath)
	}
	return u, nil
}

// connect returns the remote agent as its card describes it. It reads the card, unless that was done in the last
// cardTTL. If the card cannot be read again, the old one is used.
func (a *Agent) connect(ctx context.Context) (*remote, error) { return a.connectSince(ctx, time.Now()) }

// connectSince is connect for a turn that needs the card since a time. If the card could not be read for another turn
// since then, the error is the same: turns that wait for a server that does not respond fail together, not one after
// another.
func (a *Agent) connectSince(ctx context.Context, since time.Time) (*remote, error) {
	select {
	case a.lock <- struct{}{}:
		defer func() { <-a.lock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.closed {
		return nil, errors.New("the agent is closed")
	}
	if a.remote != nil && time.Now().Before(a.expires) {
		return a.remote, nil
	}
	if a.remote == nil && a.failedAt.After(since) {
		return nil, a.failed
	}
	found, err := a.readCard(ctx)
	if err != nil && a.remote == nil {
		if ctx.Err() == nil {
			a.failed, a.failedAt = err, time.Now()
		}
		return nil, err
	}
	if err == nil {
		a.remote = found
	}
	a.expires = time.Now().Add(cardTTL)
	return a.remote, nil
}

// forget makes the next turn read the card again, because the remote agent could not be reached.
func (a *Agent) forget() {
	a.lock <- struct{}{}
	defer func() { <-a.lock }()
	a.expires = time.Time{}
}

// readCard reads the card and returns the remote agent that it describes.
func (a *Agent) readCard(ctx context.Context) (*remote, error) {
	limited, cancel := context.WithTimeout(ctx, cardTimeout)
	defer cancel()
	card, err := agentcard.NewResolver(a.http).Resolve(limited, a.card.String(), agentcard.WithPath(""))
	if status, ok := errors.AsType[*agentcard.ErrStatusNotOK](err); ok {
		err = &statusError{status: status.StatusCode}
	}
	if err != nil {
		return nil, &cardError{err}
	}
	if card == nil {
		return nil, &agent.Error{Message: "the agent card is empty; check url"}
	}
	allowed := *card
	allowed.SupportedInterfaces = nil
	var refused []string
	for _, at := range card.SupportedInterfaces {
		if at == nil {
			continue
		}
		if reason := a.refusal(at); reason != "" {
			refused = append(refused, agent.Shown(fmt.Sprintf("%s %s", at.ProtocolBinding, reason), a.secrets...))
			continue
		}
		allowed.SupportedInterfaces = append(allowed.SupportedInterfaces, at)
	}
	if len(allowed.SupportedInterfaces) == 0 {
		message := "the agent card names no interface of A2A 1.0 that can be used"
		if len(refused) > 0 {
			message += ": " + strings.Join(refused[:min(len(refused), 8)], "; ")
		}
		return nil, &agent.Error{Message: message}
	}
	client, err := a2aclient.NewFromCard(ctx, &allowed,
		a2aclient.WithConfig(a2aclient.Config{DisableTenantPropagation: true}),
		a2aclient.WithDefaultsDisabled(),
		a2aclient.WithJSONRPCTransport(a.http),
		a2aclient.WithRESTTransport(a.http),
		a2aclient.WithTransport(sdk.TransportProtocolGRPC, a2aclient.TransportFactoryFn(a.grpcTransport)),
	)
	if err != nil {
		return nil, &agent.Error{
			Message: "the agent card names no interface that can be used", Detail: agent.Shown(err.Error(), a.secrets...),
		}
	}
	return &remote{client: client, streams: card.Capabilities.Streaming}, nil
}

// refusal returns why an interface of the card is not used, or "".
func (a *Agent) refusal(at *sdk.AgentInterface) string {
	switch at.ProtocolBinding {
	case sdk.TransportProtocolJSONRPC, sdk.TransportProtocolHTTPJSON, sdk.TransportProtocolGRPC:
	default:
		return "is not a binding that is supported"
	}
	if version, _, _ := strings.Cut(string(at.ProtocolVersion), "."); version != "1" {
		return fmt.Sprintf("has the version %q, want 1.0", at.ProtocolVersion)
	}
	place, err := placeOf(at, a.card.Scheme == schemeHTTPS)
	switch {
	case err != nil:
		return err.Error()
	case !slices.Contains(a.hosts, strings.ToLower(place.host)):
		return fmt.Sprintf("is at the host %q, not at that of url; add it to hosts if it belongs to the agent", place.host)
	case a.card.Scheme == schemeHTTPS && !place.secure:
		return "has no encryption, although url has"
	}
	return ""
}

// place is where an interface is.
type place struct {
	host    string // without the port
	address string // host:port
	secure  bool   // with TLS
}

// placeOf returns where an interface of a card is. For gRPC, the protocol has no form of URLs: cards contain host:port
// or a URL with any scheme. Without a scheme, the connection is secure if the card was read over a secure one.
func placeOf(at *sdk.AgentInterface, secure bool) (place, error) {
	text := at.URL
	if at.ProtocolBinding == sdk.TransportProtocolGRPC {
		text = strings.TrimPrefix(text, "dns:///")
		if !strings.Contains(text, "://") {
			text = map[bool]string{true: "grpcs://", false: "grpc://"}[secure] + text
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.User != nil {
		return place{}, errors.New("has no valid URL")
	}
	p := place{host: u.Hostname(), secure: u.Scheme == schemeHTTPS || u.Scheme == "grpcs"}
	switch {
	case at.ProtocolBinding != sdk.TransportProtocolGRPC && u.Scheme != schemeHTTP && u.Scheme != schemeHTTPS:
		return place{}, errors.New("has no http or https URL")
	case u.Port() != "":
		p.address = u.Host
	case p.secure:
		p.address = net.JoinHostPort(p.host, "443")
	default:
		p.address = net.JoinHostPort(p.host, "80")
	}
	return p, nil
}

// cardError is an error while the card was read.
type cardError struct{ err error }

// Error returns the text of the cause.
func (e *cardError) Error() string { return "agent card: " + e.err.Error() }

// Unwrap returns the cause.
func (e *cardError) Unwrap() error { return e.err }

// statusError is a response with a status that is no answer.
type statusError struct {
	status int
	text   string // of the remote agent; may be empty
}

// Error returns the status.
func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%d %s %s", e.status, http.StatusText(e.status), e.text))
}
