package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// Types of errors.
const (
	typeInvalid    = "invalid_request_error"
	typePermission = "permission_error"
	typeConflict   = "conflict_error"
	typeRateLimit  = "rate_limit_error"
	typeServer     = "server_error"
)

// The status of requests that this package refuses.
const (
	invalidCode   = codes.InvalidArgument
	invalidReason = "INVALID_REQUEST"
)

// Codes of errors that this package makes.
const (
	codeInvalid     = "invalid_value"
	codeMissing     = "missing_required_parameter"
	codeUnknown     = "unknown_parameter"
	codeUnsupported = "unsupported_parameter"
)

// fault is an error in the form of OpenAI.
type fault struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`

	status int
	local  bool           // This package refused the request; no call was made for it.
	cause  *status.Status // Nil if local.
	retry  string         // Value of X-Should-Retry, which clients of OpenAI follow. Empty if they may decide.
}

// Error returns the message.
func (f *fault) Error() string { return f.Message }

// refuse returns the error for a parameter.
func refuse(code, param, format string, args ...any) *fault {
	f := &fault{
		Message: fmt.Sprintf(format, args...), Type: typeInvalid, Code: code, status: http.StatusBadRequest, local: true,
	}
	if param != "" {
		f.Param = &param
		f.Message = param + " " + f.Message
	}
	return f
}

// invalid returns the error for a parameter with a wrong value. The format continues a sentence that begins with the
// name of the parameter.
func invalid(param, format string, args ...any) *fault {
	return refuse(codeInvalid, param, format, args...)
}

// notFound returns the error for an object that does not exist.
func notFound(param, what, id string) *fault {
	return &fault{
		Message: fmt.Sprintf("%s %.300q was not found", what, id), Type: typeInvalid, Param: &param, Code: "not_found",
		status: http.StatusNotFound,
	}
}

// notRouted returns the error for a path that does not exist, or does not allow the method.
func notRouted(r *http.Request, allowed []string) *fault {
	f := &fault{
		Message: fmt.Sprintf("path %.100q does not exist; server/http.md lists all paths of this API", r.URL.Path),
		Type:    typeInvalid, Code: "unknown_url", status: http.StatusNotFound, local: true,
	}
	if len(allowed) > 0 {
		f.Message = fmt.Sprintf("path %.100q does not allow %.16s; use %s", r.URL.Path, r.Method,
			strings.Join(allowed, ", "))
		f.Code, f.status = "method_not_allowed", http.StatusMethodNotAllowed
	}
	return f
}

// codesOf maps the reasons for which OpenAI has a code of its own. Other codes are the reason in lower case.
var codesOf = map[string]string{ //nolint:gochecknoglobals // A constant table.
	"CONVERSATION_BUSY": "conversation_locked",
	"UNKNOWN_AGENT":     "model_not_found",
	"UNAUTHENTICATED":   "invalid_api_key",
	"TURN_NOT_FOUND":    "response_not_found",
	"INVALID_REQUEST":   codeInvalid,
}

// faultOf returns an error of a handler in the form of OpenAI.
func faultOf(ctx context.Context, err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	st := gateway.StatusOf(ctx, err)
	reason := gateway.Reason(st)
	f := &fault{Message: withClientIDs(st.Message()), status: gateway.HTTPStatus(st), cause: st, Code: codesOf[reason]}
	if f.Code == "" {
		f.Code = strings.ToLower(reason)
	}
	switch {
	case f.status == http.StatusForbidden:
		f.Type = typePermission
	case f.status == http.StatusConflict:
		f.Type = typeConflict
	case f.status == http.StatusTooManyRequests:
		f.Type = typeRateLimit
	case f.status >= http.StatusInternalServerError:
		f.Type = typeServer
	default:
		f.Type = typeInvalid
	}
	waits := false
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.BadRequest:
			var texts []string
			for _, v := range d.GetFieldViolations() {
				texts = append(texts, paramOf(v.GetField())+": "+withClientIDs(v.GetDescription()))
			}
			if len(texts) > 0 {
				f.Param, f.Message = new(paramOf(d.GetFieldViolations()[0].GetField())), strings.Join(texts, "; ")
			}
		case *errdetails.ResourceInfo:
			if reason == "TURN_NOT_FOUND" && d.GetOwner() != "" {
				f.Message = notFound("", "response", turnRef{d.GetOwner(), d.GetResourceName()}.responseID()).Message
			}
		case *errdetails.RetryInfo:
			waits = true
		}
	}
	if f.status == http.StatusTooManyRequests && !waits {
		f.retry = "false" // Waiting does not help, for example if a conversation is full.
	}
	switch reason { // The texts of these calls name fields and metadata of gRPC.
	case "UNAUTHENTICATED":
		f.Message = "the request has no valid API key; send a token of this server in the header Authorization, as in " +
			`"Authorization: Bearer TOKEN", or use a client certificate`
	case "REQUEST_ID_REUSED":
		f.Message = idempotencyKey + " was already used with a different request; use a new key"
	case "VERSION_MISMATCH":
		f.Code, f.Message = "conversation_locked", "another request has changed the conversation; send this one again"
	case "CONVERSATION_BUSY":
		f.Message = errLocked().Message // That of the call names a parameter of the call.
	case "NOTHING_TO_ANSWER", "HISTORY_TOO_SMALL":
		if text, ok := strings.CutPrefix(f.Message, "tool_results: "); ok {
			f.Param, f.Message = new("input"), "input: "+text
		}
	}
	return f
}

// storedID matches the id of a conversation in the text of an error of a call.
var storedID = regexp.MustCompile(`conversation "[0-9a-f-]{36}"`)

// withClientIDs returns the text of an error with the ids of conversations as clients of OpenAI know them.
func withClientIDs(text string) string {
	return storedID.ReplaceAllStringFunc(text, func(found string) string {
		id := strings.TrimSuffix(strings.TrimPrefix(found, `conversation "`), `"`)
		return fmt.Sprintf("conversation %q", conversationID(id))
	})
}

// paramOf returns the parameter from which a field of a call was made.
func paramOf(field string) string {
	name, rest, _ := strings.Cut(field, ".")
	base, index, _ := strings.Cut(name, "[")
	switch base {
	case "agent":
		return "model"
	case "system_prompt":
		return "instructions"
	case "content", "attachments", "tool_results":
		return "input"
	case "labels":
		return "metadata"
	case "conversation", "create_with":
		if rest != "" {
			return paramOf(rest)
		}
	case "messages":
		return "items[" + index
	case "conversation_id":
		return "conversation"
	}
	return field
}

// mayHaveStarted reports whether the call that failed may have changed something nevertheless.
func (f *fault) mayHaveStarted() bool {
	if f.cause == nil {
		return false
	}
	switch f.cause.Code() {
	case codes.Unknown, codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Internal:
		return true
	}
	return false
}

// protectRetry tells clients not to repeat a request by themselves if a repetition could do its work twice.
func (f *fault) protectRetry(r *http.Request) {
	if r.Method == http.MethodPost && r.Header.Get(idempotencyKey) == "" && f.mayHaveStarted() {
		f.retry = "false"
	}
}

// write writes the error as a response.
func (f *fault) write(w http.ResponseWriter) {
	header := w.Header()
	if f.cause != nil {
		gateway.SetErrorHeaders(header, f.cause)
	}
	if f.retry != "" {
		header.Set("X-Should-Retry", f.retry)
	}
	writeJSON(w, f.status, map[string]*fault{"error": f})
}

// writeJSON writes a value as a response.
func writeJSON(w http.ResponseWriter, code int, value any) { writeBody(w, code, toJSON(value)) }

func writeBody(w http.ResponseWriter, code int, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n'))
}

// toJSON returns a value of this package as JSON.
func toJSON(value any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		panic(err) // All values of this package can be encoded.
	}
	return bytes.TrimSuffix(b.Bytes(), []byte{'\n'})
}
