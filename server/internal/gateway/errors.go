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
)

// domain is the ErrorInfo.domain of every status that leaves.
const domain = "parley"

// The reasons of what only this door answers, beside those of package rpc.
const (
	reasonPathNotFound     = "PATH_NOT_FOUND"
	reasonMethodNotAllowed = "METHOD_NOT_ALLOWED"
	reasonBodyTooLarge     = "BODY_TOO_LARGE"
	reasonBodyTooSlow      = "BODY_TOO_SLOW"
	reasonTooManyBodies    = "TOO_MANY_BODIES"
	reasonReplyTooLarge    = "REPLY_TOO_LARGE"
)

// retrySoon is when to try again what waiting helps.
const retrySoon = time.Second

// newStatus makes a status with a reason.
func newStatus(code codes.Code, reason, text string, details ...protoadapt.MessageV1) *status.Status {
	st := status.New(code, clip(text, maxTextBytes))
	info := &errdetails.ErrorInfo{Reason: reason, Domain: domain}
	if detailed, err := st.WithDetails(append([]protoadapt.MessageV1{info}, details...)...); err == nil {
		return detailed
	}
	return st
}

// writeStatus answers with a status as JSON, in the form of google.rpc.Status.
func writeStatus(w http.ResponseWriter, st *status.Status) {
	body, err := protojson.Marshal(st.Proto())
	if err != nil {
		body = []byte(`{"code": 13, "message": "internal error"}`)
	}
	body = append(body, '\n')
	header := w.Header()
	header.Del("Transfer-Encoding") // It may have been a stream that was to be written.
	header.Set("Content-Type", "application/json")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	for _, detail := range st.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			// In whole seconds, and never too soon.
			seconds := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
			header.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
		}
	}
	if st.Code() == codes.Unauthenticated {
		header.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(httpStatus(st))
	_, _ = w.Write(body) //nolint:gosec // It quotes the request, but is JSON, and no browser guesses at that.
}

// httpStatus is that of the code, but where HTTP has a name for the very thing.
func httpStatus(st *status.Status) int {
	switch reasonOf(st) {
	case reasonMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case reasonBodyTooLarge, "MESSAGE_TOO_LARGE":
		return http.StatusRequestEntityTooLarge
	case reasonBodyTooSlow:
		return http.StatusRequestTimeout
	case reasonReplyTooLarge:
		return http.StatusInternalServerError // To try again later is of no use.
	}
	return runtime.HTTPStatusFromCode(st.Code())
}

// reasonOf is the reason of a status, empty when it is not one of ours.
func reasonOf(st *status.Status) string {
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == domain {
			return info.GetReason()
		}
	}
	return ""
}

// handleError answers a call that failed before its answer began.
func handleError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if r.URL.Path == importPath { // The rest of its body is on the way.
		w.Header().Set("Connection", "close")
	}
	writeStatus(w, statusOf(ctx, err))
}

// statusOf is what a client is told of an error: statuses of the server as they are, others
// with a reason. The texts of libraries are for the programmers of this server.
func statusOf(ctx context.Context, err error) *status.Status {
	st := status.Convert(err)
	if reasonOf(st) != "" {
		return st
	}
	x := exchangeOf(ctx)
	if st.Code() == codes.InvalidArgument && !x.sent {
		return x.faults(ctx, st).status()
	}
	switch st.Code() {
	case codes.Canceled:
		if ctx.Err() != nil {
			return newStatus(st.Code(), "CANCELLED", "the caller cancelled the call")
		}
		fallthrough // It was this server that closed the connection to itself.
	case codes.Unavailable:
		return newStatus(codes.Unavailable, "SHUTTING_DOWN", "the server is shutting down: try again",
			&errdetails.RetryInfo{RetryDelay: durationpb.New(retrySoon)})
	case codes.DeadlineExceeded:
		return newStatus(st.Code(), "DEADLINE_EXCEEDED", "the call did not end within its Grpc-Timeout")
	case codes.Unimplemented:
		return newStatus(st.Code(), "UNIMPLEMENTED", "this server cannot do that yet: "+st.Message())
	case codes.ResourceExhausted:
		// Requests that are too large do not come that far; see conn.look.
		return newStatus(st.Code(), reasonReplyTooLarge,
			fmt.Sprintf("the reply is larger than %d bytes as a message: ask for less at once, as with a smaller page", maxBodyBytes))
	}
	return newStatus(codes.Internal, "INTERNAL", "internal error")
}

// handleRoutingError answers a request that is none of the API.
func (d *door) handleRoutingError(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, _ int) {
	x := exchangeOf(ctx)
	if x.asking {
		return
	}
	path := r.URL.Path
	if allowed := d.methods(r, path); len(allowed) > 0 {
		d.refuseMethod(w, x, allowed)
		return
	}
	near := ""
	for _, other := range []string{strings.TrimRight(path, "/"), "/v1" + path, "/v1" + strings.TrimRight(path, "/")} {
		if other != path && len(d.methods(r, other)) > 0 {
			near = fmt.Sprintf(": is it %.80q?", other)
			break
		}
	}
	writeStatus(w, newStatus(codes.NotFound, reasonPathNotFound,
		fmt.Sprintf("%.80q is no path of this server%s; %s lists all paths", path, near, documentPath)))
}

// refuseMethod answers a request with a method that its path does not have.
func (d *door) refuseMethod(w http.ResponseWriter, x *exchange, allowed []string) {
	all := strings.Join(allowed, ", ")
	w.Header().Set("Allow", all)
	writeStatus(w, newStatus(codes.Unimplemented, reasonMethodNotAllowed,
		fmt.Sprintf("%.80q has no %.16s: it has %s; %s lists all paths", x.request.URL.Path, x.request.Method, all, documentPath)))
}
