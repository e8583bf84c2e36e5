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
		{"the server's own word", parley(codes.NotFound, "CONVERSATION_NOT_FOUND", `conversation "x" does not exist`), `conversation "x" does not exist (CONVERSATION_NOT_FOUND)`},
		{"a closing server is there", parley(codes.Unavailable, "SHUTTING_DOWN", "the server is closing"), "the server is closing (SHUTTING_DOWN)"},
		{"through wrapping", errors.Join(fmt.Errorf("call: %w", parley(codes.Aborted, "CONVERSATION_BUSY", "a turn runs"))), "a turn runs (CONVERSATION_BUSY)"},
		{"another's status", status.Error(codes.Unimplemented, "unknown method"), "unknown method (Unimplemented)"},
		{"nobody listens", unavailable(`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`), "no server at 127.0.0.1:1: start one"},
		{"no socket", unavailable(`connection error: desc = "transport: Error while dialing: dial unix x: connect: no such file or directory"`), "no server at 127.0.0.1:1: start one"},
		{"not TLS", unavailable(`connection error: desc = "transport: authentication handshake failed: tls: first record does not look like a TLS handshake"`), "the server at 127.0.0.1:1 does not speak TLS: --tls=false"},
		{"no such host", unavailable(`dns: A record lookup error: lookup nowhere.invalid: no such host`), "no such host: 127.0.0.1:1"},
		{"out of reach in another way", unavailable("error reading from server: EOF"), "cannot reach 127.0.0.1:1: error reading from server: EOF"},
		{"too late", status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "no reply from 127.0.0.1:1 within 5s: --timeout"},
		{"stopped", status.Error(codes.Canceled, "context canceled"), "stopped before the reply came"},
		{"no status", errors.New("write /dev/stdout: no space left on device"), "write /dev/stdout: no space left on device"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := &app{address: "127.0.0.1:1", timeout: 5 * time.Second}
			if got := a.explain(test.err); !strings.HasPrefix(got, test.want) {
				t.Errorf("explained as %q, want %q", got, test.want)
			}
		})
	}
}
