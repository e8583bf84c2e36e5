package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// fault is the error of a call of the API in the form of the protocol. The SDK writes the a2a.Error.
type fault struct {
	err    *a2a.Error
	status *status.Status
}

// Error returns the text of the status.
func (f *fault) Error() string { return f.err.Error() }

// Unwrap returns the error of the protocol.
func (f *fault) Unwrap() error { return f.err }

// GRPCStatus returns the status of the API, which is also the answer over gRPC.
func (f *fault) GRPCStatus() *status.Status { return f.status }

// faultOf returns the error of a call as an error of the protocol. It contains the reason of the API, and the time
// after which to try again.
func (t *tasks) faultOf(ctx context.Context, err error) error {
	st := gateway.StatusOf(ctx, err)
	details := map[string]any{"reason": gateway.Reason(st), "status": rpccode.Code(st.Code()).String()}
	for _, detail := range st.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			details["retryDelay"] = retry.GetRetryDelay().AsDuration().String()
		}
	}
	return &fault{err: a2a.NewError(t.kindOf(st), st.Message()).WithDetails(details), status: st}
}

// kindOf returns the error of the protocol for a status.
func (t *tasks) kindOf(st *status.Status) error {
	switch st.Code() {
	case codes.InvalidArgument, codes.OutOfRange, codes.FailedPrecondition: // The same request cannot succeed later.
		return t.invalid()
	case codes.NotFound:
		return a2a.ErrTaskNotFound
	case codes.Unimplemented:
		return a2a.ErrUnsupportedOperation
	case codes.Unauthenticated:
		return a2a.ErrUnauthenticated
	case codes.PermissionDenied:
		return a2a.ErrUnauthorized
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return a2a.ErrInternalError
	}
	return a2a.ErrServerError
}

// invalid returns the error for a request with faulty parameters. HTTP+JSON has only one for faulty requests.
func (t *tasks) invalid() error {
	if t.overREST {
		return a2a.ErrInvalidRequest
	}
	return a2a.ErrInvalidParams
}

// exchangeKey is the key of the exchange in the context of a request.
type exchangeKey struct{}

// exchange is a request over HTTP with what its operation failed with. The SDK has other HTTP statuses for errors than
// the protocol, none for most errors of the API, and writes those of a stream as an event that its own client does not
// know; see restWriter.
type exchange struct {
	query url.Values // of HTTP+JSON
	err   error
}

func withExchange(ctx context.Context) (context.Context, *exchange) {
	e := new(exchange)
	return context.WithValue(ctx, exchangeKey{}, e), e
}

// reportFailure records the error with which the operation of a request fails, before the SDK writes it.
type reportFailure struct {
	a2asrv.PassthroughCallInterceptor
}

// After records the error.
func (reportFailure) After(ctx context.Context, _ *a2asrv.CallContext, r *a2asrv.Response) error {
	if to, ok := ctx.Value(exchangeKey{}).(*exchange); ok && r.Err != nil {
		to.err = r.Err
	}
	return nil
}

// refuse answers a request that is refused before it becomes an operation.
func (h *handler) refuse(w http.ResponseWriter, r *http.Request, rest string, err error) {
	gateway.RefuseUnread(w, r, func() { writeRefusal(w, rest, err) })
}

// writeRefusal writes an error in the form of the binding to which a path belongs.
func writeRefusal(w http.ResponseWriter, rest string, err error) {
	if rest == "/" && !errors.Is(err, errNoPath) {
		writeRPC(w, http.StatusOK, err)
		return
	}
	writeREST(w, err)
}

// Errors of requests that are no operation.
var (
	errNoPath     = errors.New("no such path")
	errNotAllowed = errors.New("method not allowed")
)

// refuseCall answers a request whose caller or body is refused with a status.
func (h *handler) refuseCall(w http.ResponseWriter, r *http.Request, rest string, err error) {
	t := &tasks{overREST: rest != "/"}
	var f *fault
	if !errors.As(t.faultOf(r.Context(), err), &f) {
		return
	}
	if rest == "/" {
		gateway.SetErrorHeaders(w.Header(), f.status)
		writeRPC(w, gateway.HTTPStatus(f.status), f)
		return
	}
	writeREST(w, f)
}

// rpcCode returns the code of JSON-RPC for an error with which requests are refused: A2A 1.0, 5.4.
func rpcCode(err error) int {
	for _, c := range []struct {
		err  error
		code int
	}{
		{a2a.ErrParseError, -32700},
		{a2a.ErrInvalidRequest, -32600},
		{a2a.ErrInvalidParams, -32602},
		{a2a.ErrVersionNotSupported, -32009},
		{a2a.ErrUnsupportedContentType, -32005},
		{a2a.ErrServerError, -32000},
		{a2a.ErrUnauthenticated, -31401},
		{a2a.ErrUnauthorized, -31403},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return -32603
}

// writeRPC writes an error as a response of JSON-RPC to a request whose id is not known.
func writeRPC(w http.ResponseWriter, code int, err error) {
	type body struct {
		Code    int              `json:"code"`
		Message string           `json:"message"`
		Data    []map[string]any `json:"data,omitempty"`
	}
	writeJSON(w, code, struct {
		JSONRPC string `json:"jsonrpc"`
		ID      any    `json:"id"`
		Error   body   `json:"error"`
	}{"2.0", nil, body{rpcCode(err), err.Error(), detailsOf(err)}})
}

// errorInfo is a detail of an error of HTTP+JSON: A2A 1.0, 5.6.
type errorInfo struct {
	Type     string            `json:"@type"`
	Reason   string            `json:"reason"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func newErrorInfo(reason, domain string, metadata map[string]string) errorInfo {
	return errorInfo{"type.googleapis.com/google.rpc.ErrorInfo", reason, domain, metadata}
}

// restError is how HTTP+JSON has an error: A2A 1.0, 5.4.
type restError struct {
	err    error
	http   int
	code   rpccode.Code
	reason string
}

// restErrorOf returns how HTTP+JSON has an error.
func restErrorOf(err error) restError {
	if errors.Is(err, errNoPath) {
		return restError{err, http.StatusNotFound, rpccode.Code_NOT_FOUND, "PATH_NOT_FOUND"}
	}
	if errors.Is(err, errNotAllowed) {
		return restError{err, http.StatusMethodNotAllowed, rpccode.Code_UNIMPLEMENTED, "METHOD_NOT_ALLOWED"}
	}
	for _, e := range []restError{
		{a2a.ErrTaskNotFound, http.StatusNotFound, rpccode.Code_NOT_FOUND, "TASK_NOT_FOUND"},
		{a2a.ErrTaskNotCancelable, http.StatusConflict, rpccode.Code_FAILED_PRECONDITION, "TASK_NOT_CANCELABLE"},
		{a2a.ErrUnsupportedOperation, http.StatusBadRequest, rpccode.Code_UNIMPLEMENTED, "UNSUPPORTED_OPERATION"},
		{a2a.ErrVersionNotSupported, http.StatusBadRequest, rpccode.Code_UNIMPLEMENTED, "VERSION_NOT_SUPPORTED"},
		{
			a2a.ErrPushNotificationNotSupported, http.StatusBadRequest, rpccode.Code_UNIMPLEMENTED,
			"PUSH_NOTIFICATION_NOT_SUPPORTED",
		},
		{
			a2a.ErrUnsupportedContentType, http.StatusUnsupportedMediaType, rpccode.Code_INVALID_ARGUMENT,
			"CONTENT_TYPE_NOT_SUPPORTED",
		},
		{
			a2a.ErrExtendedCardNotConfigured, http.StatusBadRequest, rpccode.Code_FAILED_PRECONDITION,
			"EXTENDED_AGENT_CARD_NOT_CONFIGURED",
		},
		{a2a.ErrInvalidRequest, http.StatusBadRequest, rpccode.Code_INVALID_ARGUMENT, "INVALID_REQUEST"},
		{a2a.ErrParseError, http.StatusBadRequest, rpccode.Code_INVALID_ARGUMENT, "PARSE_ERROR"},
	} {
		if errors.Is(err, e.err) {
			return e
		}
	}
	return restError{err, http.StatusInternalServerError, rpccode.Code_INTERNAL, a2a.ErrorReason(err)}
}

// writeREST writes an error as a response of HTTP+JSON. A fault of the API also has the reason of the API.
func writeREST(w http.ResponseWriter, err error) {
	e, at := restErrorOf(err), time.Now().UTC().Format(time.RFC3339)
	details := []any{newErrorInfo(e.reason, "a2a-protocol.org", map[string]string{"timestamp": at})}
	if f := new(fault); errors.As(err, &f) {
		e.http, e.code = gateway.HTTPStatus(f.status), rpccode.Code(f.status.Code())
		var metadata map[string]string
		if delay, ok := f.err.Details["retryDelay"].(string); ok {
			metadata = map[string]string{"retryDelay": delay}
		}
		details = append(details, newErrorInfo(gateway.Reason(f.status), "parley", metadata))
		gateway.SetErrorHeaders(w.Header(), f.status)
	}
	type body struct {
		Code    int    `json:"code"`
		Status  string `json:"status"`
		Message string `json:"message"`
		Details []any  `json:"details"`
	}
	writeJSON(w, e.http, struct {
		Error body `json:"error"`
	}{body{e.http, e.code.String(), err.Error(), details}})
}

// detailsOf returns the details of an error of the protocol in the form of JSON-RPC, in which the SDK writes those of
// operations.
func detailsOf(err error) []map[string]any {
	e, ok := errors.AsType[*a2a.Error](err)
	if !ok || len(e.Details) == 0 {
		return nil
	}
	details := maps.Clone(e.Details)
	details["@type"] = "type.googleapis.com/google.protobuf.Struct"
	return []map[string]any{details}
}

// writeJSON writes a value as a response.
func writeJSON(w http.ResponseWriter, code int, value any) {
	text, err := json.Marshal(value)
	if err != nil { // Its parts are strings and numbers.
		text, code = []byte("{}"), http.StatusInternalServerError
	}
	header := w.Header()
	header.Del("Cache-Control")
	header.Del("Connection")
	header.Del("X-Accel-Buffering")
	header.Set("Content-Type", mediaJSON)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	_, _ = w.Write(text)
}
