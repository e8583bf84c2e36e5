package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestExplain(t *testing.T) {
	parley := func(code codes.Code, reason, message string) error {
		s, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "parley"})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	unavailable := func(message string) error {
		return fmt.Errorf("max retries exhausted: %w", status.Error(codes.Unavailable, message))
	}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{
			"an error of the server", parley(codes.NotFound, "CONVERSATION_NOT_FOUND", `conversation "x" does not exist`),
			`conversation "x" does not exist (CONVERSATION_NOT_FOUND)`,
		},
		{
			"a closing server", parley(codes.Unavailable, "SHUTTING_DOWN", "the server is closing"),
			"the server is closing (SHUTTING_DOWN)",
		},
		{
			"wrapped", errors.Join(fmt.Errorf("call: %w", parley(codes.Aborted, "CONVERSATION_BUSY", "a turn runs"))),
			"a turn runs (CONVERSATION_BUSY)",
		},
		{"a status without reason", status.Error(codes.Unimplemented, "unknown method"), "unknown method (Unimplemented)"},
		{
			"no listener",
			unavailable(`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`),
			"no server at 127.0.0.1:1: start one",
		},
		{
			"no socket",
			unavailable(`connection error: desc = "transport: Error while dialing: dial unix x: connect: no such file or directory"`),
			"no server at 127.0.0.1:1: start one",
		},
		{
			"not TLS",
			unavailable(`connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`),
			"the server at 127.0.0.1:1 does not use TLS: set --tls=false",
		},
		{
			"no such host", unavailable(`dns: A record lookup error: lookup nowhere.invalid: no such host`),
			"no such host: 127.0.0.1:1",
		},
		{
			"another connection error", unavailable("error reading from server: EOF"),
			"cannot reach 127.0.0.1:1: error reading from server: EOF",
		},
		{
			"TLS without its flag", unavailable(`connection error: desc = "error reading server preface: EOF"`),
			"cannot reach 127.0.0.1:1: if the server uses TLS, set --tls or --tls-ca-file; if it requires",
		},
		{
			"no client certificate", unavailable("error reading from server: remote error: tls: certificate required"),
			"cannot reach 127.0.0.1:1: if the server uses TLS, set --tls or --tls-ca-file; if it requires",
		},
		{
			"no client certificate, noticed late", unavailable("write tcp 127.0.0.1:2->127.0.0.1:1: write: broken pipe"),
			"cannot reach 127.0.0.1:1: if the server uses TLS, set --tls or --tls-ca-file; if it requires",
		},
		{
			"a client certificate of another authority",
			unavailable("error reading from server: remote error: tls: unknown certificate authority"),
			`the server at 127.0.0.1:1 does not accept the client certificate "": use another --tls-cert-file`,
		},
		{
			"an unknown authority",
			unavailable("tls: failed to verify certificate: x509: certificate signed by unknown authority"),
			"the certificate of the server at 127.0.0.1:1 is signed by an unknown authority: name",
		},
		{
			"a deadline", status.Error(codes.DeadlineExceeded, "context deadline exceeded"),
			"no reply from 127.0.0.1:1 within 5s: --timeout",
		},
		{"cancelled", status.Error(codes.Canceled, "context canceled"), "stopped before the reply arrived"},
		{"no status", errors.New("write /dev/stdout: no space left on device"), "write /dev/stdout: no space left on device"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := &app{address: "127.0.0.1:1", timeout: 5 * time.Second}
			if got := a.explain(test.err); !strings.HasPrefix(got, test.want) {
				t.Errorf("explain() = %q, want prefix %q", got, test.want)
			}
		})
	}
}
