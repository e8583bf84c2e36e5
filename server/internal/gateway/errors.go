package gateway

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/server/internal/rules"
)

// domain is the ErrorInfo domain of every error.
const domain = "parley"

// Reasons of errors that only this package returns. Package rpc defines the others.
const (
	reasonPathNotFound     = "PATH_NOT_FOUND"
	reasonMethodNotAllowed = "METHOD_NOT_ALLOWED"
	reasonBodyTooLarge     = "BODY_TOO_LARGE"
	reasonBodyTooSlow      = "BODY_TOO_SLOW"
	reasonTooManyBodies    = "TOO_MANY_BODIES"
	reasonReplyTooLarge    = "REPLY_TOO_LARGE"
)

// retryDelay is the retry delay of errors that a retry may resolve.
const retryDelay = time.Second

// NewStatus returns a status with an ErrorInfo of Parley that contains the reason. A text that is longer than
// [rules.MaxTextBytes] is cut.
func NewStatus(code codes.Code, reason, text string, details ...protoadapt.MessageV1) *status.Status {
	st := status.New(code, rules.Clip(text, rules.MaxTextBytes))
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain}
	if detailed, err := st.WithDetails(append([]protoadapt.MessageV1{info}, details...)...); err == nil {
		return detailed
	}
	return st
}

// writeStatus writes a status as an error response, in the JSON form of google.rpc.Status.
func writeStatus(w http.ResponseWriter, st *status.Status) {
	body, err := protojson.Marshal(st.Proto())
	if err != nil {
		body = []byte(`{"code": 13, "message": "internal error"}`)
	}
	body = append(body, '\n')
	header := w.Header()
	header.Del("Transfer-Encoding") // The library may have set it for a stream.
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	SetErrorHeaders(header, st)
	w.WriteHeader(HTTPStatus(st))
	// The text quotes the request, but nosniff keeps browsers from reading JSON as HTML.
	_, _ = w.Write(body) //nolint:gosec // See above.
}

// SetErrorHeaders sets the headers that HTTP has for what a status says: Retry-After and WWW-Authenticate.
func SetErrorHeaders(header http.Header, st *status.Status) {
	for _, detail := range st.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			// Retry-After is in seconds, rounded up.
			seconds := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
			header.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
		}
	}
	if st.Code() == codes.Unauthenticated {
		header.Set("WWW-Authenticate", "Bearer")
	}
}

// HTTPStatus returns the HTTP status of the code of a status, or a more specific one if HTTP defines it.
func HTTPStatus(st *status.Status) int {
	switch Reason(st) {
	case reasonMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case reasonBodyTooLarge, "MESSAGE_TOO_LARGE", "REQUEST_TOO_LARGE":
		return http.StatusRequestEntityTooLarge
	case reasonBodyTooSlow:
		return http.StatusRequestTimeout
	case reasonReplyTooLarge:
		return http.StatusInternalServerError // A retry cannot succeed.
	}
	return runtime.HTTPStatusFromCode(st.Code())
}

// Reason returns the reason of a status, or "" if the status has no ErrorInfo of Parley.
func Reason(st *status.Status) string {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info.GetReason()
		}
	}
	return ""
}

// handleError writes the response of a call that failed before its response began.
func handleError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request,
	err error,
) {
	if call := httpCallOf(ctx); call.probing {
		call.method, _ = runtime.RPCMethod(ctx)
		return
	}
	if hasLines(r.URL.Path) { // The client may still be sending the body.
		w.Header().Set("Connection", "close")
	}
	st := StatusOf(ctx, err)
	if call := httpCallOf(ctx); !call.sent && call.refused != nil {
		call.refused(st.Err())
	}
	writeStatus(w, st)
}

// StatusOf returns the status that a client receives for err. A status of the server is returned as
// it is. Others get a reason and a text, because the texts of libraries are not meant for users of
// the API.
func StatusOf(ctx context.Context, err error) *status.Status {
	st := status.Convert(err)
	if Reason(st) != "" {
		return st
	}
	call := httpCallOf(ctx)
	if st.Code() == codes.InvalidArgument && call != nil && !call.sent {
		return call.faults(ctx, st).status()
	}
	switch st.Code() {
	case codes.Canceled:
		if ctx.Err() != nil {
			return NewStatus(st.Code(), "CANCELLED", "the client cancelled the call")
		}
		fallthrough // This server closed its own in-process connection.
	case codes.Unavailable:
		return NewStatus(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down; try again",
			&errdetails.RetryInfo{RetryDelay: durationpb.New(retryDelay)})
	case codes.DeadlineExceeded:
		return NewStatus(st.Code(), "DEADLINE_EXCEEDED", "the call did not end within its Grpc-Timeout")
	case codes.Unimplemented:
		return NewStatus(st.Code(), "UNIMPLEMENTED", "this server does not support the call: "+st.Message())
	case codes.ResourceExhausted:
		// Too large requests are refused earlier, in checkedConn.checkSize.
		return NewStatus(st.Code(), reasonReplyTooLarge,
			fmt.Sprintf("the reply is larger than %d bytes as a message; request less, for example a smaller page",
				maxBodyBytes))
	}
	return NewStatus(codes.Internal, "INTERNAL", "internal error")
}

// handleRoutingError answers a request whose path or method is unknown.
func (h *handler) handleRoutingError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler,
	w http.ResponseWriter, r *http.Request, _ int,
) {
	call := httpCallOf(ctx)
	if call.probing {
		return
	}
	path := rawPath(call.request.URL)
	if allowed := h.allowedMethods(r, path); len(allowed) > 0 {
		h.refuseMethod(w, call, allowed)
		return
	}
	hint := ""
	for _, other := range []string{strings.TrimRight(path, "/"), "/v1" + path, "/v1" + strings.TrimRight(path, "/")} {
		if other != path && len(h.allowedMethods(r, other)) > 0 {
			hint = fmt.Sprintf("; did you mean %.80q?", other)
			break
		}
	}
	writeStatus(w, NewStatus(codes.NotFound, reasonPathNotFound,
		fmt.Sprintf("path %.80q does not exist%s; %s lists all paths", path, hint, documentPath)))
}

// refuseMethod answers a request with a method that its path does not allow.
func (h *handler) refuseMethod(w http.ResponseWriter, call *httpCall, allowed []string) {
	all := strings.Join(allowed, ", ")
	w.Header().Set("Allow", all)
	writeStatus(w, NewStatus(codes.Unimplemented, reasonMethodNotAllowed,
		fmt.Sprintf("path %.80q does not allow %.16s; use %s; %s lists all paths", rawPath(call.request.URL),
			call.request.Method, all, documentPath)))
}
