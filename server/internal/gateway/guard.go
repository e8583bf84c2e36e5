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

// Guard lets next answer only whom it is meant for. A server on a loopback address has no
// other protection against the pages that a browser on the same machine shows: any of them
// can send requests there, and with a name of its own that leads to 127.0.0.1 it can read
// the answers as well.
//
// Requests of pages of other origins are refused unless their origin is one of origins, such
// as "https://app.example"; those get the headers of CORS. Reads are refused too, since a
// watch may delete. Unless anyHost, the Host header must be a loopback name or address, or
// the host of one of origins. Programs that are no browsers send no Origin and notice
// nothing. An error means that one of origins is none.
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
		ExposedHeaders: []string{"Retry-After", "Mcp-Session-Id"},
		MaxAge:         600,
	}).Handler(next)
	if len(origins) == 0 {
		shared = next // The library takes an empty list for all.
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !anyHost && !isLoopback(r.Host) && !slices.Contains(hosts, r.Host) {
			writeStatus(w, newStatus(codes.PermissionDenied, "HOST_NOT_ALLOWED", fmt.Sprintf("the host %.80q is not this server's: call it by a loopback address, "+
				"or name the origin of a proxy ahead of it in --http-allowed-origins", r.Host)))
			return
		}
		asWrite := *r // The library lets reads pass.
		asWrite.Method = http.MethodPost
		if err := protection.Check(&asWrite); err != nil {
			writeStatus(w, newStatus(codes.PermissionDenied, "ORIGIN_NOT_ALLOWED", fmt.Sprintf("pages of the origin %.80q may not call this server: "+
				"name it in --http-allowed-origins", r.Header.Get("Origin"))))
			return
		}
		shared.ServeHTTP(w, r)
	}), nil
}

// isLoopback reports whether a Host header names this machine, whatever its network does.
func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.Trim(hostPort, "[]") // It has no port.
	}
	address, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && address.IsLoopback()
}
