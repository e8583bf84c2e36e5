package hostile

import (
	"strings"
	"testing"
)

// TestTLS attacks the handshakes of both listeners.
func TestTLS(t *testing.T) {
	t.Parallel()
	skipShort(t)
	// The start of a ClientHello of 512 bytes.
	const hello = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
	open := func(address func(*server) string, text string) func(*testing.T, *server) string {
		return func(t *testing.T, s *server) string {
			t.Helper()
			return openMany(t, address(s), text)
		}
	}
	grpc := func(s *server) string { return s.grpcAddr }
	http := func(s *server) string { return s.http }
	for _, a := range []attack{
		{"slow handshake on gRPC", open(grpc, hello), "200 x closed"},
		{"slow handshake on HTTP", open(http, hello), "200 x closed"},
		{"no handshake on gRPC", open(grpc, ""), "200 x closed"},
		{"no handshake on HTTP", open(http, ""), "200 x closed"},
		{"garbage on gRPC", open(grpc, strings.Repeat("\x00\xff", 1000)), "200 x closed"},
		{"garbage on HTTP", open(http, strings.Repeat("\x00\xff", 1000)), "200 x closed"},
		{"invalid hello on gRPC", open(grpc, hello+strings.Repeat("x", 505)), "200 x closed"},
		{"invalid hello on HTTP", open(http, hello+strings.Repeat("x", 505)), "200 x closed"},
	} {
		t.Run(a.name, func(t *testing.T) { a.test(t, true) })
	}
}
