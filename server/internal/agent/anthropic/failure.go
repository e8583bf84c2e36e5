package anthropic

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	sdk "github.com/anthropics/anthropic-sdk-go"

	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// maxShownBytes bounds what a person is told.
	maxShownBytes = 1 << 10

	// statusOverloaded is the provider's own.
	statusOverloaded = 529
)

// errCutOff ends a stream that just ends.
var errCutOff = errors.New("the stream has no end")

// failure is what a person is told of the error. The response is the one that came, or nil.
func (a *Agent) failure(err error, response *http.Response) *agent.Error {
	e, ok := errors.AsType[*agent.Error](err)
	switch {
	case ok:
	case response == nil:
		e = a.unreachable(err)
	case response.StatusCode >= http.StatusBadRequest:
		e = a.refused(response.StatusCode, bodyOf(response))
	default:
		e = a.faulted(err)
	}
	// The secrets go first: cut in two, one would not be found.
	message := agent.Redact(strings.ToValidUTF8(e.Message, "\uFFFD"), a.secrets...)
	return &agent.Error{Message: clipped(message, maxShownBytes), Retryable: e.Retryable}
}

// unreachable is why there is no answer at all.
func (a *Agent) unreachable(err error) *agent.Error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL, which has the query
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &agent.Error{Message: fmt.Sprintf("cannot connect to %s: %v", a.host, e)}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Op == "dial" {
		return &agent.Error{Message: fmt.Sprintf("cannot connect to %s: %v", a.host, e.Err), Retryable: true}
	}
	return &agent.Error{Message: fmt.Sprintf("no answer from %s: %v", a.host, err), Retryable: true}
}

// misplaced is why a response without a status of a failure is no answer; nil if it is one.
func (a *Agent) misplaced(response *http.Response) error {
	if response.StatusCode >= http.StatusMultipleChoices {
		return &agent.Error{Message: fmt.Sprintf("%s redirects to another address (%s), which is not followed; set base_url to where the API is",
			a.host, statusText(response.StatusCode))}
	}
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err == nil && media != "text/event-stream" {
		return &agent.Error{Message: fmt.Sprintf("%s answered with %s, not with a stream of events; check that base_url is where the API is", a.host, media)}
	}
	return nil
}

// faulted is why an answer that had begun is not whole.
func (a *Agent) faulted(err error) *agent.Error {
	if e, ok := errors.AsType[*sdk.Error](err); ok { // an event that says so
		return a.refused(statusOf(e.Type()), []byte(e.RawJSON()))
	}
	if _, ok := errors.AsType[*json.SyntaxError](err); ok || errors.Is(err, errEventTooLarge) {
		return &agent.Error{Message: fmt.Sprintf("%s sent an event that cannot be read: %v", a.host, err)}
	}
	return &agent.Error{Message: fmt.Sprintf("the answer of %s was cut off: %v", a.host, err), Retryable: true}
}

// refused says for a person what the status means, and what the provider said beside it.
func (a *Agent) refused(status int, body []byte) *agent.Error {
	said := saidIn(body)
	var words string
	retryable := false
	switch {
	case status == http.StatusUnauthorized && a.config.Key == "" && len(a.config.Headers) == 0:
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
	case status == http.StatusRequestEntityTooLarge, status == http.StatusBadRequest && isTooLong(said):
		words = "the conversation is too long for the model; give the agent a smaller window"
	case status == http.StatusNotFound:
		words = fmt.Sprintf("the provider does not know the model %q, or base_url is not where its API is", a.config.Model)
	case status == http.StatusRequestTimeout || status == http.StatusConflict || status >= http.StatusInternalServerError:
		words, retryable = "the provider failed", true
	default:
		words = "the provider refused the request"
	}
	words += " (" + statusText(status) + ")"
	if said != "" {
		words += ": " + said
	}
	return &agent.Error{Message: words, Retryable: retryable}
}

func statusText(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// statusOf is the status that the kind of failure has where it is no event of a stream.
func statusOf(kind sdk.ErrorType) int {
	switch kind {
	case sdk.ErrorTypeInvalidRequestError:
		return http.StatusBadRequest
	case sdk.ErrorTypeAuthenticationError:
		return http.StatusUnauthorized
	case sdk.ErrorTypeBillingError:
		return http.StatusPaymentRequired
	case sdk.ErrorTypePermissionError:
		return http.StatusForbidden
	case sdk.ErrorTypeNotFoundError:
		return http.StatusNotFound
	case "request_too_large":
		return http.StatusRequestEntityTooLarge
	case sdk.ErrorTypeRateLimitError:
		return http.StatusTooManyRequests
	case sdk.ErrorTypeTimeoutError:
		return http.StatusGatewayTimeout
	case sdk.ErrorTypeOverloadedError:
		return statusOverloaded
	}
	return http.StatusInternalServerError
}

// isTooLong reports whether the provider means the conversation: it has no kind for that.
func isTooLong(said string) bool {
	said = strings.ToLower(said)
	for _, words := range []string{"prompt is too long", "input is too long", "context limit", "context window", "context length"} {
		if strings.Contains(said, words) {
			return true
		}
	}
	return false
}

// bodyOf is that of a refusal, which the SDK has read and put back; nothing where that
// failed, or where there was more than is read: its last words may be half a secret.
func bodyOf(response *http.Response) []byte {
	body, err := io.ReadAll(response.Body)
	if err != nil || len(body) >= maxErrorBytes {
		return nil
	}
	return body
}

// saidIn is what a body tells a person: the message of {"error": {"message"}}, which is the
// API's own, or of {"error": "…"} and {"message"}, which gateways make of it, or plain text.
// HTML, the word of a proxy, tells no more than the status.
func saidIn(body []byte) string {
	body = bytes.TrimSpace(body)
	if !json.Valid(body) {
		if bytes.HasPrefix(body, []byte("<")) {
			return ""
		}
		return string(body)
	}
	var outer struct {
		Error   json.RawMessage
		Message string
	}
	var inner struct{ Message string }
	var text string
	// What is of another form leaves its field empty.
	_ = json.Unmarshal(body, &outer)
	_ = json.Unmarshal(outer.Error, &inner)
	_ = json.Unmarshal(outer.Error, &text)
	return strings.TrimSpace(inner.Message + text + outer.Message)
}

// clipped is at most the first n bytes of s, cut at a rune.
func clipped(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
