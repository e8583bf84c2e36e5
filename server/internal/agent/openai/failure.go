package openai

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/parleyhq/parley/server/internal/agent"
)

// failure makes an error of words and what the provider or the network said, which is made
// fit to be shown.
func (a *Agent) failure(retryable bool, format string, said ...any) *agent.Error {
	for i, value := range said {
		said[i] = a.secrets.shown(fmt.Sprintf("%s", value))
	}
	return &agent.Error{Message: fmt.Sprintf(format, said...), Retryable: retryable}
}

// unreachable is why there is no answer at all.
func (a *Agent) unreachable(err error) error {
	// The URL in the error has the query, and the server's address is told anyway.
	if fault, ok := errors.AsType[*url.Error](err); ok {
		err = fault.Err
	}
	server := a.base.Scheme + "://" + a.base.Host
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	unknown, isDNS := errors.AsType[*net.DNSError](err)
	operation, isNet := errors.AsType[*net.OpError](err)
	switch {
	case untrusted:
		return a.failure(false, "cannot connect to %s: %s", server, reason(err))
	case isDNS:
		return a.failure(!unknown.IsNotFound, "cannot connect to %s: %s", server, reason(err))
	case isNet && operation.Op == "proxyconnect":
		return a.failure(true, "cannot connect to the proxy for %s: %s", server, reason(err))
	case isNet && operation.Op == "dial":
		return a.failure(true, "cannot connect to %s: %s", server, reason(err))
	}
	return a.failure(true, "no answer from %s: %s", server, reason(err))
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

// refused is why the provider answered with another status than 2xx.
func (a *Agent) refused(response *http.Response) error {
	defer response.Body.Close()
	if response.StatusCode < 400 {
		to := "another address"
		if location, err := response.Location(); err == nil {
			to = (&url.URL{Scheme: location.Scheme, Host: location.Host, Path: location.Path}).String()
		}
		return a.failure(false, "the provider redirects to %s, which is not followed; set base_url to where the API is", to)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		body = nil // The status says enough.
	}
	return a.explained(response.StatusCode, parseReport(body))
}

// faulted is why the provider gave up in the middle of its answer.
func (a *Agent) faulted(event []byte) error {
	r := parseReport(event)
	if status, err := strconv.Atoi(r.code); err == nil && status >= 400 && status <= 599 {
		return a.explained(status, r)
	}
	if r.tooLong() {
		return a.explained(http.StatusBadRequest, r)
	}
	return a.failure(!strings.Contains(r.kind, "invalid_request"), "the provider failed in the middle of the answer: %s", r.message)
}

// noStream is why an answer is none of which the API could make sense.
func (a *Agent) noStream(body []byte) error {
	r := parseReport(body)
	if r.message == "" {
		return a.failure(false, "the provider did not answer with a stream; check that base_url is where its API is, most often it ends in /v1")
	}
	return a.failure(false, "the provider did not answer with a stream; check base_url and model: %s", r.message)
}

// explained says for a person what the status means.
func (a *Agent) explained(status int, r report) error {
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
	case r.tooLong() || status == http.StatusRequestEntityTooLarge:
		words = "the conversation is too long for the model; give the agent a smaller window"
	case status == http.StatusNotFound:
		words = fmt.Sprintf("the provider does not know the model %q, or base_url is not where its API is", a.config.Model)
	case status == http.StatusRequestTimeout || status == http.StatusConflict || status >= 500:
		words, retryable = "the provider failed", true
	default:
		words = "the provider refused the request"
	}
	words = strings.TrimSpace(fmt.Sprintf("%s (%d %s", words, status, http.StatusText(status))) + ")"
	if r.message == "" {
		return a.failure(retryable, "%s", words)
	}
	return a.failure(retryable, "%s: %s", words, r.message)
}

// report is what a provider says of a failure.
type report struct {
	message string // never HTML; empty: nothing
	code    string // a status, or a word
	kind    string // a word
}

// tooLong reports whether the provider means that the context does not fit the model.
// There is a code for it, which few servers besides OpenAI's own send.
func (r report) tooLong() bool {
	if r.code == "context_length_exceeded" || strings.Contains(r.kind, "exceed_context") {
		return true
	}
	message := strings.ToLower(r.message)
	for _, words := range []string{"context length", "context size", "context window", "prompt is too long", "input is too long", "too many tokens"} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// maxReportLevels is how deep parseReport looks for the message.
const maxReportLevels = 4

// parseReport understands {"error": {"message", "code", "type"}}, which is the API's own,
// and what servers make of it: {"error": "…"}, {"message"}, {"detail"}, one of these in a
// list, plain text. HTML, the word of a proxy, tells no more than the status.
func parseReport(body []byte) report {
	body = bytes.TrimSpace(body)
	for range maxReportLevels {
		var list []json.RawMessage
		if json.Unmarshal(body, &list) == nil && len(list) > 0 {
			body = list[0]
		}
		var outer struct{ Error json.RawMessage }
		if json.Unmarshal(body, &outer) != nil || len(outer.Error) == 0 || string(outer.Error) == "null" {
			break
		}
		body = outer.Error
	}
	var told struct{ Message, Detail, Code, Type any }
	if err := json.Unmarshal(body, &told); err == nil {
		message := cmp.Or(word(told.Message), word(told.Detail), string(body))
		return report{message: message, code: word(told.Code), kind: word(told.Type)}
	}
	var message string
	if json.Unmarshal(body, &message) == nil || bytes.HasPrefix(body, []byte("<")) {
		return report{message: message}
	}
	return report{message: string(body)}
}

// word is a JSON value as text: strings as they are, nothing of null.
func word(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "" // it was read from JSON
	}
	return string(text)
}
