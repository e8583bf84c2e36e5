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
	// maxShownBytes is how much of others' words is shown.
	maxShownBytes = 1 << 10

	// statusOverloaded is no standard's, but understood by many.
	statusOverloaded = 529
)

// NoAnswer is why there is no answer: the response of another status than 2xx, whose body
// it reads and closes, or the error where there is no such response.
func (p *Provider) NoAnswer(response *http.Response, err error) *Error {
	if response == nil || response.StatusCode < http.StatusMultipleChoices {
		return p.unreachable(err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusBadRequest {
		to := ""
		if location, err := response.Location(); err == nil {
			to = (&url.URL{Scheme: location.Scheme, Host: location.Host, Path: location.Path}).String()
		}
		return p.broken(false, "the provider redirects to another address, which is not followed; set base_url to where the API is", to)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		body = nil // the status says enough
	}
	return p.refused(response.StatusCode, parseReport(body))
}

// GaveUp is why the provider ended its answer with the event that says so.
func (p *Provider) GaveUp(event []byte) *Error {
	r := parseReport(event)
	if status := r.status(); status != 0 {
		return p.refused(status, r)
	}
	return p.failure(true, "the provider failed in the middle of the answer", r.message)
}

// Malformed is why an event cannot be read; what is the event or what is wrong with it.
func (p *Provider) Malformed(what string) *Error {
	return p.failure(true, "the provider sent an event that is not a JSON object", what)
}

// CutOff is why the stream ended before the answer did; err is what reading it ended with,
// nil at its end.
func (p *Provider) CutOff(err error) *Error {
	notStream, isNoStream := errors.AsType[*notStreamError](err)
	switch {
	case err == nil:
		return &Error{Message: "the answer was cut off: the stream ended before the answer did", Retryable: true}
	case errors.Is(err, errEventTooLarge):
		return &Error{Message: fmt.Sprintf("the provider sent an event of more than %d bytes", maxEventBytes)}
	case !isNoStream:
		return p.broken(true, "the answer broke off", reason(err))
	}
	if r := parseReport(notStream.head); r.message != "" {
		return p.failure(false, "the provider did not answer with a stream; check base_url and model", r.message)
	}
	return &Error{Message: fmt.Sprintf("the provider did not answer with a stream; check that base_url is where its API is, written like %q", p.ownBaseURL)}
}

// unreachable is why there is no response at all.
func (p *Provider) unreachable(err error) *Error {
	// The URL in the error contains the query. The log gets only the scheme and the host.
	if fault, ok := errors.AsType[*url.Error](err); ok {
		err = fault.Err
	}
	detail := p.Base.Scheme + "://" + p.Base.Host + ": " + reason(err)
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
	return p.broken(true, "no answer from the provider", detail)
}

// reason is the error without the addresses of this machine and its resolver.
func reason(err error) string {
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

// refused says for a person what the status means.
func (p *Provider) refused(status int, r report) *Error {
	var words string
	retryable := false
	switch {
	case status == http.StatusUnauthorized && p.model.Key == "" && len(p.model.Headers) == 0:
		words = "the provider wants a key, and none is configured"
	case status == http.StatusUnauthorized:
		words = "the provider refused the key"
	case status == http.StatusForbidden:
		words = "the provider refused the key, or what it was used for"
	case status == http.StatusPaymentRequired:
		words = "the provider's quota is used up"
	case status == http.StatusTooManyRequests:
		words, retryable = "the provider's quota or rate limit is used up", true
	case status == statusOverloaded:
		words, retryable = "the provider is overloaded", true
	case r.tooLong() || status == http.StatusRequestEntityTooLarge:
		words = "the conversation is too long for the model; give the agent a smaller window"
	case status == http.StatusNotFound:
		words = fmt.Sprintf("the provider does not know the model %q, or base_url is not where its API is", p.model.Model)
	case status == http.StatusRequestTimeout || status == http.StatusConflict || status >= http.StatusInternalServerError:
		words, retryable = "the provider failed", true
	default:
		words = "the provider refused the request"
	}
	words = strings.TrimSpace(fmt.Sprintf("%s (%d %s", words, status, http.StatusText(status))) + ")"
	return p.failure(retryable, words, r.message)
}

// broken returns an error with a message of the server and a detail that is for the log only.
func (p *Provider) broken(retryable bool, words, detail string) *Error {
	return &Error{Message: words, Detail: p.shown(detail), Retryable: retryable}
}

// failure returns an error with a message of the server followed by the provider's message, without
// secrets and control characters.
func (p *Provider) failure(retryable bool, words, said string) *Error {
	if said = p.shown(said); said != "" {
		words += ": " + said
	}
	return &Error{Message: words, Retryable: retryable}
}

// shown is the text without secrets, line breaks and other control characters, cut to
// maxShownBytes.
func (p *Provider) shown(text string) string {
	// The secrets go first: cut in two, one would not be found.
	text = Redact(text, p.secrets...)
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) > maxShownBytes {
		text = Clipped(text, maxShownBytes-len("…")) + "…"
	}
	return text
}

// Clipped is valid UTF-8, at most the first n bytes of s.
func Clipped(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
