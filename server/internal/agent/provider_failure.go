package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// maxShownBytes is the maximum length of a text of the provider in an error.
	maxShownBytes = 1 << 10

	// statusOverloaded is not a standard status, but is in common use.
	statusOverloaded = 529
)

// ResponseError returns the error for a response that is not an answer: err if there is no
// response, or the status and body of a response outside 2xx. It closes the body.
func (p *Provider) ResponseError(response *http.Response, err error) *Error {
	if response == nil || response.StatusCode < http.StatusMultipleChoices {
		return p.unreachable(err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusBadRequest {
		to := ""
		if location, err := response.Location(); err == nil {
			to = (&url.URL{Scheme: location.Scheme, Host: location.Host, Path: location.Path}).String()
		}
		return p.broken(false, "the provider redirects to another address, which is not followed; set base_url to the "+
			"address of the API", to)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxRefusalBytes))
	if err != nil {
		body = nil // The status is sufficient.
	}
	return p.refused(response.StatusCode, parseReport(body))
}

// EventError returns the error for an event in which the provider reports a failure.
func (p *Provider) EventError(event []byte) *Error {
	r := parseReport(event)
	if status := r.status(); status != 0 {
		return p.refused(status, r)
	}
	return p.failure(true, "the provider failed during the answer", r.message)
}

// MalformedEvent returns the error for an event that cannot be decoded. what is the event or a
// description.
func (p *Provider) MalformedEvent(what string) *Error {
	return p.failure(true, "the provider sent an event that is not a JSON object", what)
}

// StreamError returns the error for a stream that ended before the answer. err is the error of
// reading the stream; io.EOF is its end.
func (p *Provider) StreamError(err error) *Error {
	notStream, isNotStream := errors.AsType[*notStreamError](err)
	switch {
	case errors.Is(err, io.EOF):
		return &Error{Message: "the answer was cut off: the stream ended before the answer", Retryable: true}
	case errors.Is(err, errEventTooLarge):
		return &Error{Message: fmt.Sprintf("the provider sent an event of more than %d bytes", maxEventBytes)}
	case !isNotStream:
		return p.broken(true, "the answer broke off", NetworkReason(err))
	}
	if r := parseReport(notStream.head); r.message != "" {
		return p.failure(false, "the provider did not answer with a stream; check base_url and model", r.message)
	}
	return &Error{
		Message: fmt.Sprintf("the provider did not answer with a stream; check that base_url is the address of its API, in "+
			"the form %q", p.ownBaseURL),
	}
}

// unreachable returns the error for a request without a response.
func (p *Provider) unreachable(err error) *Error {
	// The URL in the error contains the query. The log gets only the scheme and the host.
	if fault, ok := errors.AsType[*url.Error](err); ok {
		err = fault.Err
	}
	detail := p.Base.Scheme + "://" + p.Base.Host + ": " + NetworkReason(err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	unknown, isDNS := errors.AsType[*net.DNSError](err)
	operation, isNet := errors.AsType[*net.OpError](err)
	switch {
	case untrusted:
		return p.broken(false, "cannot connect to the provider", detail)
	case isDNS:
		return p.broken(!unknown.IsNotFound, "cannot connect to the provider", detail)
	case isNet && operation.Op == "proxyconnect":
		return p.broken(true, "cannot connect to the proxy for the provider", detail)
	case isNet && operation.Op == "dial":
		return p.broken(true, "cannot connect to the provider", detail)
	}
	return p.broken(true, "no response from the provider", detail)
}

// NetworkReason returns the text of an error without addresses of this machine and its resolver.
func NetworkReason(err error) string {
	if fault, ok := errors.AsType[*net.DNSError](err); ok {
		return fault.Err
	}
	if fault, ok := errors.AsType[*net.OpError](err); ok {
		return fault.Err.Error()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "the connection was closed"
	}
	return err.Error()
}

// refused returns the error for a status, with the provider's message.
func (p *Provider) refused(status int, r report) *Error {
	var message string
	retryable := false
	switch {
	case status == http.StatusUnauthorized && p.model.Key == "" && len(p.model.Headers) == 0:
		message = "the provider requires a key, and none is configured"
	case status == http.StatusUnauthorized:
		message = "the provider refused the key"
	case status == http.StatusForbidden:
		message = "the provider refused the key or its use"
	case status == http.StatusPaymentRequired:
		message = "the provider's quota is used up"
	case status == http.StatusTooManyRequests:
		message, retryable = "the provider's quota or rate limit is used up", true
	case status == statusOverloaded:
		message, retryable = "the provider is overloaded", true
	case r.tooLong() || status == http.StatusRequestEntityTooLarge:
		message = "the conversation is too long for the model; configure a smaller window for the agent"
	case status == http.StatusNotFound:
		message = fmt.Sprintf("the provider does not know the model %q, or base_url is not the address of its API",
			p.model.Model)
	case status == http.StatusRequestTimeout || status == http.StatusConflict || status >= http.StatusInternalServerError:
		message, retryable = "the provider failed", true
	default:
		message = "the provider refused the request"
	}
	message = strings.TrimSpace(fmt.Sprintf("%s (%d %s", message, status, http.StatusText(status))) + ")"
	return p.failure(retryable, message, r.message)
}

// broken returns an error with a message, and a detail that is only for the log.
func (p *Provider) broken(retryable bool, message, detail string) *Error {
	return &Error{Message: message, Detail: p.shown(detail), Retryable: retryable}
}

// failure returns an error with a message, followed by the provider's own text.
func (p *Provider) failure(retryable bool, message, providerText string) *Error {
	if providerText = p.shown(providerText); providerText != "" {
		message += ": " + providerText
	}
	return &Error{Message: message, Retryable: retryable}
}

func (p *Provider) shown(text string) string { return Shown(text, p.secrets...) }

// Shown returns a text of a remote service for people: without secrets, line breaks and other control characters, with
// at most 1 KiB. See [Redact] about secrets.
func Shown(text string, secrets ...string) string {
	// Secrets are removed first, because a truncated secret would not be found.
	text = Redact(text, secrets...)
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if len(text) > maxShownBytes {
		text = Truncate(text, maxShownBytes-len("…")) + "…"
	}
	return text
}

// Truncate returns at most the first n bytes of s as valid UTF-8.
func Truncate(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
