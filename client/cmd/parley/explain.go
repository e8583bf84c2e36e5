package main

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
)

// explain returns the message for err and, if known, what to do about it.
func (a *app) explain(err error) string {
	var carrier interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &carrier) {
		return err.Error()
	}
	s := carrier.GRPCStatus()
	reason := client.Reason(err)
	advice := a.signIn.explain(s, reason)
	switch {
	case advice != "":
		return advice
	case reason != "":
		return s.Message() + " (" + reason + ")"
	case s.Code() == codes.Unavailable:
		return a.explainUnavailable(s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Sprintf("no reply from %s within %s: --timeout sets how long to wait", a.address, a.timeout)
	case s.Code() == codes.Canceled:
		return "stopped before the reply arrived"
	default:
		return s.Message() + " (" + s.Code().String() + ")"
	}
}

// explainUnavailable explains the errors of gRPC when it cannot connect.
func (a *app) explainUnavailable(message string) string {
	has := func(part string) bool { return strings.Contains(message, part) }
	switch {
	case has("connection refused"), has("connect: no such file"), has("actively refused"):
		return fmt.Sprintf("no server at %s: start one with `make run`, or name another with --address", a.address)
	case has("first record does not look like a TLS handshake"):
		return fmt.Sprintf("the server at %s does not use TLS: set --tls=false", a.address)
	case has("certificate signed by unknown authority"):
		return fmt.Sprintf("the certificate of the server at %s is signed by an unknown authority: "+
			"name the PEM file of the authority with --tls-ca-file", a.address)
	case has("error reading server preface"), has("tls: certificate required"), has("broken pipe"),
		has("connection reset"):
		return fmt.Sprintf("cannot reach %s: if the server uses TLS, set --tls or --tls-ca-file; if it requires a client "+
			"certificate, set --tls-cert-file and --tls-key-file: %s", a.address, message)
	case has("remote error: tls: bad certificate"), has("remote error: tls: unknown certificate authority"):
		return fmt.Sprintf("the server at %s does not accept the client certificate %q: use another --tls-cert-file",
			a.address, a.signIn.certFile)
	case has("no such host"), has("produced zero addresses"):
		return fmt.Sprintf("no such host: %s; --address takes host:port or unix:PATH", a.address)
	default:
		return fmt.Sprintf("cannot reach %s: %s", a.address, message)
	}
}
