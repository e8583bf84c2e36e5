package agent

import "net/http"

// SetTransport replaces the transport of a provider.
func SetTransport(p *Provider, transport http.RoundTripper) { p.client.Transport = transport }
