package agent

import (
	"net/http"
	"time"
)

// SetTransport replaces the transport of a provider.
func SetTransport(p *Provider, transport http.RoundTripper) { p.client.Transport = transport }

// SetNow replaces the clock of a provider.
func SetNow(p *Provider, now func() time.Time) { p.native.now = now }
