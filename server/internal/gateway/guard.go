package gateway

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rs/cors"
	"google.golang.org/grpc/codes"
)

// Guard returns a handler that passes only permitted requests to next. It protects a server on a
// loopback address from the pages in a browser on the same machine. Any page can send requests to
// that address. A page whose host name resolves to 127.0.0.1 can also read the responses.
//
// Guard refuses requests from pages of other origins, except of origins, for example
// "https://app.example"; responses to those have CORS headers. Reads are refused too, because a
// watch may delete a conversation. Unless anyHost is true, the Host header must be a loopback name
// or address, or the host of one of origins. Programs that are not browsers send no Origin header
// and are not affected. Guard returns an error if one of origins is not an origin.
//
// Set anyHost if callers must sign in: a page whose host name resolves to the server has no token,
// and its name is not in the certificate of the server. The rule for other origins still applies,
// because a browser may present a client certificate with the requests of any page.
func Guard(next http.Handler, origins []string, anyHost bool) (http.Handler, error) {
	protection := http.NewCrossOriginProtection()
	hosts := make([]string, len(origins))
	for i, origin := range origins {
		if err := protection.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
		parsed, err := url.Parse(origin)
		if err != nil {
			return nil, err
		}
		hosts[i] = parsed.Host
	}
	shared := cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{"Retry-After", "Mcp-Session-Id", "Www-Authenticate"},
		MaxAge:         600,
	}).Handler(next)
	if len(origins) == 0 {
		shared = next // The library treats an empty list as all origins.
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !anyHost && !isLoopback(r.Host) && !slices.Contains(hosts, r.Host) {
			writeStatus(w, NewStatus(codes.PermissionDenied, "HOST_NOT_ALLOWED", fmt.Sprintf(
				"the host %.80q is not allowed: use a loopback address, "+
					"or add the origin of the proxy to --http-allowed-origins", r.Host)))
			return
		}
		asWrite := *r // The library permits all GET and HEAD requests.
		asWrite.Method = http.MethodPost
		if err := protection.Check(&asWrite); err != nil {
			writeStatus(w, NewStatus(codes.PermissionDenied, "ORIGIN_NOT_ALLOWED", fmt.Sprintf(
				"the origin %.80q is not allowed: add it to --http-allowed-origins", r.Header.Get("Origin"))))
			return
		}
		shared.ServeHTTP(w, r)
	}), nil
}

// isLoopback reports whether a Host header is a loopback name or address. It does not resolve
// names.
func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.Trim(hostPort, "[]") // It has no port.
	}
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}
