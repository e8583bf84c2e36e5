package agent

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// report is a provider's description of a failure.
type report struct {
	message string // Text for a person. It is never HTML and may be empty.
	code    string // An HTTP status or an identifier.
	kind    string // An identifier.
}

// maxReportLevels is the maximum depth at which parseReport searches for the message.
const maxReportLevels = 4

// parseReport parses {"error": {"message", "code", "type"}}, which is the form of the APIs, and the
// variants of other servers: {"error": "…"}, {"message"}, {"detail"}, one of these in a list, or
// plain text. HTML comes from a proxy and adds nothing to the status. A truncated body is ignored,
// because it may end with a part of a secret.
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
	var fields struct{ Message, Detail, Code, Type any }
	if err := json.Unmarshal(body, &fields); err == nil {
		message := cmp.Or(textOf(fields.Message), textOf(fields.Detail), string(body))
		return report{message: message, code: textOf(fields.Code), kind: textOf(fields.Type)}
	}
	var message string
	if json.Unmarshal(body, &message) == nil || bytes.HasPrefix(body, []byte("<")) {
		return report{message: message}
	}
	return report{message: string(body)}
}

// textOf returns a JSON value as text: a string as it is, and "" for null.
func textOf(value any) string {
	switch value := value.(type) {
	case nil:
		return ""
	case string:
		return value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "" // It cannot fail: the value was decoded from JSON.
	}
	return string(text)
}

// tooLong reports whether the context does not fit the model. There is a code for this, but few
// servers except OpenAI's send it.
func (r report) tooLong() bool {
	if r.code == "context_length_exceeded" || strings.Contains(r.kind, "exceed_context") {
		return true
	}
	message := strings.ToLower(r.message)
	for _, phrase := range []string{
		"context length", "context limit", "context size", "context window", "prompt is too long", "input is too long",
		"too many tokens",
	} {
		if strings.Contains(message, phrase) {
			return true
		}
	}
	return false
}

// status returns the HTTP status for the failure, or 0 if it is unknown.
func (r report) status() int {
	if status, err := strconv.Atoi(r.code); err == nil && status >= 400 && status <= 599 {
		return status
	}
	if r.tooLong() {
		return http.StatusBadRequest
	}
	switch r.kind { // Anthropic's types; OpenAI uses some of them too.
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
