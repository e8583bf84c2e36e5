package main

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestExplainPlaintextServer checks that the error of a real TLS handshake with a server without TLS is
// recognized.
func TestExplainPlaintextServer(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		_, _ = server.Read(make([]byte, 4096))
		_, _ = io.WriteString(server, "HTTP/1.1 400 Bad Request\r\n\r\n")
	}()
	err := tls.Client(client, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context())
	if err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("Handshake() = %v, want an error about the first record", err)
	}
	a := &app{address: "127.0.0.1:1"}
	const want = "the server at 127.0.0.1:1 does not use TLS: set --tls=false"
	if got := a.explain(status.Error(codes.Unavailable, err.Error())); got != want {
		t.Errorf("explain(%v) = %q, want %q", err, got, want)
	}
}
