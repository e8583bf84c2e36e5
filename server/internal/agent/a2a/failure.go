package a2a

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	sdk "github.com/a2aproject/a2a-go/v2/a2a"
	"google.golang.org/grpc/codes"

	"github.com/parleyhq/parley/server/internal/agent"
)

// reported returns the error for a failure that the remote agent reports with a text.
func (a *Agent) reported(message, text string, retryable bool) *agent.Error {
	if text = agent.Shown(text, a.secrets...); text != "" {
		message += ": " + text
	}
	return &agent.Error{Message: message, Retryable: retryable}
}

// detail returns the text for the log: the host of the card and the reason, without addresses of this machine.
func (a *Agent) detail(err error) string {
	if fault, ok := errors.AsType[*url.Error](err); ok {
		err = fault.Err // The URL in the error is not needed.
	}
	return a.card.Host + ": " + agent.Shown(agent.NetworkReason(err), a.secrets...)
}

// failure returns the error of the agent for an error of a call.
func (a *Agent) failure(err error) *agent.Error {
	if own, ok := errors.AsType[*agent.Error](err); ok {
		return own
	}
	what := "the agent"
	if _, ok := errors.AsType[*cardError](err); ok {
		what = "the server of the agent card"
	}
	if s, ok := errors.AsType[*statusError](err); ok {
		return a.refused(what, s)
	}
	if c, ok := errors.AsType[*callError](err); ok {
		return a.broken(c)
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	unknown, isDNS := errors.AsType[*net.DNSError](err)
	operation, isNet := errors.AsType[*net.OpError](err)
	failure := &agent.Error{Detail: a.detail(err)}
	switch {
	case errors.Is(err, errTooLarge):
		failure.Message = fmt.Sprintf("%s sent a message of more than %d bytes", what, maxMessageBytes)
	case untrusted:
		failure.Message = "cannot connect to " + what
	case isDNS:
		failure.Message, failure.Retryable = "cannot connect to "+what, !unknown.IsNotFound
	case isNet && (operation.Op == "dial" || operation.Op == "proxyconnect"):
		failure.Message, failure.Retryable = "cannot connect to "+what, true
	case isNet, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		failure.Message, failure.Retryable = "the connection to "+what+" was lost before its answer", true
	case errors.Is(err, context.DeadlineExceeded):
		failure.Message, failure.Retryable = what+" did not respond in time", true
	default:
		return a.protocolFailure(what, err)
	}
	return failure
}

// protocolFailure returns the error for an error of the protocol, or for a response that does not follow it.
func (a *Agent) protocolFailure(what string, err error) *agent.Error {
	text := err.Error()
	if report, ok := errors.AsType[*sdk.Error](err); ok {
		text = report.Message
	}
	switch {
	case errors.Is(err, sdk.ErrUnauthenticated), errors.Is(err, sdk.ErrUnauthorized):
		return a.reported("the agent refused the key or its use", text, false)
	case errors.Is(err, sdk.ErrTaskNotFound):
		return a.reported("the agent does not know the task that waited for this input; send a new message", text, false)
	case errors.Is(err, sdk.ErrInternalError), errors.Is(err, sdk.ErrServerError):
		return a.reported("the agent reported an internal error", text, true)
	case isRefusal(err):
		return a.reported("the agent refused the request", text, false)
	}
	return &agent.Error{Message: what + " violated the protocol", Detail: a.detail(err)}
}

// isUnreachable reports whether an error says that the remote agent may be at another address.
func isUnreachable(err error) bool {
	if call, ok := errors.AsType[*callError](err); ok {
		return call.code == codes.Unavailable
	}
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.status == http.StatusNotFound || s.status < http.StatusBadRequest
	}
	_, isNet := errors.AsType[*net.OpError](err)
	return isNet
}

// isReported reports whether the remote agent itself has sent an error.
func isReported(err error) bool {
	_, ok := errors.AsType[*sdk.Error](err)
	return ok
}

// isRefusal reports whether the remote agent has refused a request because of its content.
func isRefusal(err error) bool {
	for _, of := range []error{
		sdk.ErrTaskNotFound, sdk.ErrInvalidParams, sdk.ErrInvalidRequest, sdk.ErrUnsupportedOperation, sdk.ErrMethodNotFound,
		sdk.ErrUnsupportedContentType, sdk.ErrVersionNotSupported, sdk.ErrExtensionSupportRequired, sdk.ErrParseError,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// refused returns the error for a status of HTTP.
func (a *Agent) refused(what string, s *statusError) *agent.Error {
	var message string
	retryable := false
	switch {
	case s.status < http.StatusBadRequest:
		message = what + " redirects to another address, which is not followed; set url to the address of the agent"
	case s.status == http.StatusUnauthorized && len(a.headers) == 0:
		message = what + " requires a key, and none is configured"
	case s.status == http.StatusUnauthorized:
		message = what + " refused the key"
	case s.status == http.StatusForbidden:
		message = what + " refused the key or its use"
	case s.status == http.StatusNotFound:
		message = what + " was not found; check url"
	case s.status == http.StatusTooManyRequests:
		message, retryable = what+" has reached a limit of requests", true
	case s.status >= http.StatusInternalServerError:
		message, retryable = what+" failed", true
	default:
		message = what + " refused the request"
	}
	message = strings.TrimSpace(fmt.Sprintf("%s (%d %s", message, s.status, http.StatusText(s.status))) + ")"
	return a.reported(message, s.text, retryable)
}

// broken returns the error for a status of gRPC that does not come from the A2A service.
func (a *Agent) broken(c *callError) *agent.Error {
	switch c.code {
	case codes.Unauthenticated:
		return a.reported("the agent refused the key", c.text, false)
	case codes.PermissionDenied:
		return a.reported("the agent refused the key or its use", c.text, false)
	case codes.ResourceExhausted:
		if strings.HasPrefix(c.text, "grpc: received message larger than max") {
			return &agent.Error{Message: fmt.Sprintf("the agent sent a message of more than %d bytes", maxMessageBytes)}
		}
		return a.reported("the agent has reached a limit of requests", c.text, true)
	case codes.Unavailable:
		return &agent.Error{Message: "the agent is not available", Detail: a.detail(c), Retryable: true}
	}
	return a.reported("the agent failed", c.text, true)
}
