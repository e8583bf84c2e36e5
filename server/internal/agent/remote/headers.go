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

// headers are sent with every call of a connection, by lower-case name. As credentials rather
// than as metadata of a call they go with health checks, too.
type headers map[string]string

var _ credentials.PerRPCCredentials = headers(nil)

// newHeaders checks what is configured. Its errors name headers, never values.
func newHeaders(configured map[string]string) (headers, error) {
	h := make(headers, len(configured))
	var faults []error
	for _, configuredName := range slices.Sorted(maps.Keys(configured)) {
		name, value := strings.ToLower(configuredName), configured[configuredName]
		_, double := h[name]
		switch {
		case !isName(name):
			faults = append(faults, fmt.Errorf("headers: %q is not a name: one has letters, digits, '-', '_' and '.' only", configuredName))
		case isReserved(name):
			faults = append(faults, fmt.Errorf("headers: %q is for gRPC to set", configuredName))
		case double:
			faults = append(faults, fmt.Errorf("headers: %q is there twice; names do not differ by case", name))
		case !strings.HasSuffix(name, "-bin") && !isPrintable(value):
			faults = append(faults, fmt.Errorf("headers: the value of %q is not printable ASCII; only that of a name that ends with -bin may be", configuredName))
		}
		h[name] = value
	}
	return h, errors.Join(faults...)
}

// GetRequestMetadata is what gRPC asks before each call.
func (h headers) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return h, nil
}

// RequireTransportSecurity says that the headers may go over plaintext: where there is none
// else, the configuration says so.
func (h headers) RequireTransportSecurity() bool { return false }

// secrets are the values: nobody is shown any of them.
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
