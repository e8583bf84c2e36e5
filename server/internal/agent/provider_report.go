package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// report is what a provider says of a failure.
type report struct {
	message string // never HTML; empty: nothing
	code    string // a status, or a word
	kind    string // a word
}

// maxReportLevels is how deep parseReport looks for the message.
const maxReportLevels = 4

// parseReport understands {"error": {"message", "code", "type"}}, which is the APIs' own,
// and what servers make of it: {"error": "…"}, {"message"}, {"detail"}, one of these in a
// list, plain text. HTML, the word of a proxy, tells no more than the status. A body that
// has been cut tells nothing: its last words may be half a secret.
func parseReport(body []byte) report {
	if len(body) >= maxRefusalBytes {
		return report{}
	}
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

// tooLong reports whether the provider means that the context does not fit the model.
// There is a code for it, which few servers besides OpenAI's own send.
func (r report) tooLong() bool {
	if r.code == "context_length_exceeded" || strings.Contains(r.kind, "exceed_context") {
		return true
	}
	message := strings.ToLower(r.message)
	for _, words := range []string{
		"context length", "context limit", "context size", "context window", "prompt is too long", "input is too long", "too many tokens",
	} {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// status is the one that the failure has where it is a response; 0 where that is not known.
func (r report) status() int {
	if status, err := strconv.Atoi(r.code); err == nil && status >= 400 && status <= 599 {
		return status
	}
	if r.tooLong() {
		return http.StatusBadRequest
	}
	switch r.kind { // in the words of Anthropic's API, some of which are OpenAI's
	case "invalid_request_error", "invalid_request":
		return http.StatusBadRequest
	case "authentication_error":
		return http.StatusUnauthorized
	case "billing_error":
		return http.StatusPaymentRequired
	case "permission_error":
		return http.StatusForbidden
	case "not_found_error":
		return http.StatusNotFound
	case "request_too_large":
		return http.StatusRequestEntityTooLarge
	case "rate_limit_error":
		return http.StatusTooManyRequests
	case "timeout_error":
		return http.StatusGatewayTimeout
	case "overloaded_error":
		return statusOverloaded
	}
	return 0
}
