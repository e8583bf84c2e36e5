package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"
)

// headers are sent with each call of a connection. The keys are lower-case names. As credentials
// instead of metadata of a call, they are sent with health checks too.
type headers map[string]string

var _ credentials.PerRPCCredentials = headers(nil)

// newHeaders checks the configured headers. Its errors contain names, never values.
func newHeaders(configured map[string]string) (headers, error) {
	h := make(headers, len(configured))
	var faults []error
	for _, configuredName := range slices.Sorted(maps.Keys(configured)) {
		name, value := strings.ToLower(configuredName), configured[configuredName]
		_, duplicate := h[name]
		switch {
		case !isName(name):
			faults = append(faults, fmt.Errorf("headers: %q is not a valid name; use letters, digits, '-', '_' and '.' only",
				configuredName))
		case isReserved(name):
			faults = append(faults, fmt.Errorf("headers: %q is reserved for gRPC", configuredName))
		case duplicate:
			faults = append(faults, fmt.Errorf("headers: %q is configured twice; names are not case-sensitive", name))
		case !strings.HasSuffix(name, "-bin") && !isPrintable(value):
			faults = append(faults, fmt.Errorf("headers: the value of %q is not printable ASCII; only the value of a name "+
				"that ends with -bin may be binary", configuredName))
		}
		h[name] = value
	}
	return h, errors.Join(faults...)
}

// GetRequestMetadata returns the headers. gRPC calls it before each call.
func (h headers) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return h, nil
}

// RequireTransportSecurity returns false: the configuration may choose a connection without TLS.
func (h headers) RequireTransportSecurity() bool { return false }

// secrets returns the values, which must not be shown.
func (h headers) secrets() []string { return slices.Collect(maps.Values(h)) }

func isName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-_.", r)
	})
}

func isReserved(name string) bool {
	return strings.HasPrefix(name, "grpc-") ||
		slices.Contains([]string{"connection", "content-type", "host", "te", "user-agent"}, name)
}

func isPrintable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}
