package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
	"github.com/parleyhq/parley/server/internal/rules"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		method, path string
		code         int
		allow, text  string
	}{
		{method: "GET", path: "/", code: 404, text: "/openapi.json"},
		{method: "GET", path: "/v1/conversation", code: 404},
		{method: "POST", path: "/v1/conversations/a:load", code: 405, allow: "DELETE, GET, HEAD, PATCH"},
		{method: "GET", path: "/v1/conversations/a/b", code: 404},
		{method: "POST", path: "/v1/conversations/a%2Fb", code: 405, allow: "DELETE, GET, HEAD, PATCH", text: "a%2Fb"},
		{method: "GET", path: "/v1/agents/", code: 404, text: `"/v1/agents"`},
		{method: "GET", path: "/agents", code: 404, text: `"/v1/agents"`},
		{method: "GET", path: "/" + strings.Repeat("long", 1000), code: 404},
		{method: "GET", path: "/v1/chat", code: 405, allow: "POST", text: "POST"},
		{method: "POST", path: "/v1/agents", code: 405, allow: "GET, HEAD"},
		{method: "POST", path: "/openapi.json", code: 405, allow: "GET, HEAD"},
		{method: "PUT", path: "/v1/conversations", code: 405, allow: "GET, HEAD, POST"},
		{method: "OPTIONS", path: "/v1/conversations:load", code: 405, allow: "POST"},
		{method: "BREW", path: "/v1/conversations/a/messages", code: 405, allow: "DELETE, GET, HEAD, POST"},
	} {
		a := f.do(t, test.method, test.path, "", "Content-Type: application/x-www-form-urlencoded",
			"X-HTTP-Method-Override: GET")
		reason := reasonPathNotFound
		if test.code == 405 {
			reason = reasonMethodNotAllowed
		}
		a.wantError(t, test.code, reason)
		if got := a.header.Get("Allow"); got != test.allow {
			t.Errorf("%s %s: Allow = %q, want %q", test.method, test.path, got, test.allow)
		}
		if message := a.status(t).Message(); !strings.Contains(message, test.text) || len(message) > rules.MaxTextBytes {
			t.Errorf("%s %s: message = %q, want one with %q", test.method, test.path, message, test.text)
		}
	}
}

func TestHead(t *testing.T) {
	f := newFixture(t)
	f.do(t, "POST", "/v1/conversations:load", `{"conversationId": "a:b"}`).wantOK(t)
	for path, code := range map[string]int{
		"/v1/conversations/a:b": 200, "/v1/conversations/c": 404, "/v1/chat": 405, "/v1/nothing": 404, "/v1/agents?x=1": 400,
		documentPath: 200,
	} {
		if a := f.do(t, "HEAD", path, ""); a.code != code || a.body != "" {
			t.Errorf("HEAD %s = %d %q, want %d and no body", path, a.code, a.body, code)
		}
	}
}

// TestStreamsHaveNoHead: a stream has effects by being called, so HEAD is refused for it.
func TestStreamsHaveNoHead(t *testing.T) {
	reached := false
	f := serveStub(t, func(context.Context, string) error {
		reached = true
		return NewStatus(codes.Aborted, "REACHED", "").Err()
	})
	for _, b := range bindings(t) {
		if b.method != http.MethodGet {
			continue
		}
		reached = false
		method := methodOf(b.call)
		if method == nil {
			t.Fatalf("methodOf(%q) = nil", b.call)
		}
		path := strings.NewReplacer("{conversation_id}", "c", "{turn_id}", "t").Replace(b.path)
		a := f.do(t, "HEAD", path, "")
		if streams := method.IsStreamingServer(); reached == streams || (a.code == http.StatusMethodNotAllowed) != streams {
			t.Errorf("HEAD %s = %d, call made: %t", path, a.code, reached)
		} else if allow := a.header.Get("Allow"); streams && allow != "GET" {
			t.Errorf("HEAD %s: Allow = %q, want GET", path, allow)
		}
	}
}

// TestMediaTypesAndOverrides: a body is read as JSON whatever its Content-Type, and no header
// overrides the method.
func TestMediaTypesAndOverrides(t *testing.T) {
	f := newFixture(t)
	for i, header := range []string{
		"Content-Type: application/x-www-form-urlencoded", "Content-Type: text/plain; charset=latin1", "Content-Type: ;;;",
		"Content-Type: multipart/form-data", "Content-Type: text/event-stream", "X-HTTP-Method-Override: DELETE",
		"Accept: text/html, */*", "TE: trailers",
	} {
		id := fmt.Sprint("c", i)
		a := f.do(t, "POST", "/v1/conversations:load", `{"conversationId": "`+id+`"}`, header,
			"Content-Type: application/x-www-form-urlencoded")
		if !strings.Contains(a.wantOK(t), `"`+id+`"`) {
			t.Errorf("%s: %s", header, a.body)
		}
		for name := range a.header {
			if strings.HasPrefix(name, "Grpc-") || name == "Trailer" {
				t.Errorf("%s: response has the header %s", header, name)
			}
		}
		if a = f.do(t, "PATCH", "/v1/conversations/"+id, `{"title": "T"}`, header); !strings.Contains(a.wantOK(t), `"T"`) {
			t.Errorf("%s: %s", header, a.body)
		}
	}
}

// serveStub serves a service that answers each call by a function.
func serveStub(t *testing.T, answer func(ctx context.Context, method string) error) *fixture {
	t.Helper()
	return serve(t, rpctest.Dial(t, grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnknownServiceHandler(func(_ any,
		stream grpc.ServerStream,
	) error {
		method, _ := grpc.MethodFromServerStream(stream)
		return answer(stream.Context(), method)
	}))))
}

func TestEveryCodeHasItsStatus(t *testing.T) {
	var answered error
	f := serveStub(t, func(context.Context, string) error { return answered })
	for code, want := range map[codes.Code]int{
		codes.Canceled: 499, codes.Unknown: 500, codes.InvalidArgument: 400, codes.DeadlineExceeded: 504, codes.NotFound: 404,
		codes.AlreadyExists: 409, codes.PermissionDenied: 403, codes.Unauthenticated: 401, codes.ResourceExhausted: 429,
		codes.FailedPrecondition: 400, codes.Aborted: 409, codes.OutOfRange: 400, codes.Unimplemented: 501,
		codes.Internal:    500,
		codes.Unavailable: 503, codes.DataLoss: 500,
	} {
		answered = NewStatus(code, "REASON", "the text", &errdetails.RetryInfo{
			RetryDelay: durationpb.New(1500 * time.Millisecond),
		}).Err()
		for _, path := range []string{"/v1/agents", "/v1/watch"} { // one reply, and many
			a := f.do(t, "GET", path, "")
			a.wantError(t, want, "REASON")
			if s := a.status(t); s.Code() != code || s.Message() != "the text" || a.header.Get("Retry-After") != "2" {
				t.Errorf("%v: status = %v, Retry-After = %q, want 2", code, s, a.header.Get("Retry-After"))
			}
			if challenge := a.header.Get("WWW-Authenticate"); (challenge != "") != (want == 401) ||
				strings.Contains(challenge, "text") {
				t.Errorf("%v: WWW-Authenticate = %q", code, challenge)
			}
		}
	}
}

// TestErrorsWithoutReason: an error of gRPC itself gets a reason and a text for users of HTTP.
func TestErrorsWithoutReason(t *testing.T) {
	var answered error
	f := serveStub(t, func(context.Context, string) error { return answered })
	for _, test := range []struct {
		err    error
		code   int
		reason string
	}{
		{errors.New("secret"), 500, "INTERNAL"},
		{status.Error(codes.Internal, "secret"), 500, "INTERNAL"},
		{status.Error(codes.InvalidArgument, "secret"), 500, "INTERNAL"},
		{status.Error(codes.Unavailable, "secret"), 503, "SHUTTING_DOWN"},
		{status.Error(codes.Canceled, "secret"), 503, "SHUTTING_DOWN"},
		{status.Error(codes.ResourceExhausted, "secret"), 500, reasonReplyTooLarge},
		{status.Error(codes.DeadlineExceeded, "secret"), 504, "DEADLINE_EXCEEDED"},
		{status.Error(codes.Unimplemented, "unknown"), 501, "UNIMPLEMENTED"},
	} {
		answered = test.err
		a := f.do(t, "GET", "/v1/agents", "")
		a.wantError(t, test.code, test.reason)
		if strings.Contains(a.body, "secret") {
			t.Errorf("%v: response %s contains the text of the error", test.err, a.body)
		}
	}
	if conn, ok := f.conn.(*grpc.ClientConn); !ok || conn.Close() != nil {
		t.Fatalf("connection = %T, want one of gRPC that can be closed", f.conn)
	}
	f.do(t, "GET", "/v1/agents", "").wantError(t, 503, "SHUTTING_DOWN")
	f.do(t, "GET", "/v1/watch", "").wantError(t, 503, "SHUTTING_DOWN")
}

// TestMetadata: only the headers that belong to the call are passed on as metadata.
func TestMetadata(t *testing.T) {
	var got metadata.MD
	var hasDeadline bool
	f := serveStub(t, func(ctx context.Context, _ string) error {
		got, _ = metadata.FromIncomingContext(ctx)
		_, hasDeadline = ctx.Deadline()
		return NewStatus(codes.Aborted, "SEEN", "").Err()
	})
	for _, path := range []string{"/v1/agents", "/v1/watch"} {
		f.do(t, "GET", path, "", "Authorization: Bearer x", "Traceparent: 00-1-2-3", "Grpc-Metadata-Tenant: other", "Grpc-Timeout: 50S",
			"X-Forwarded-For: 1.2.3.4", "Cookie: a=b", "Tenant: other", "X-Bin: !", "X-Request-Id: r-1",
			"Parley-Peer: forged").wantError(t, 409, "SEEN")
		for key, values := range got {
			switch key {
			case "authorization", "traceparent", "x-request-id":
			case "parley-peer":
				if len(values) != 1 || !strings.HasPrefix(values[0], "127.0.0.1:") {
					t.Errorf("%s: address of the client = %q, want that of the connection", path, values)
				}
			case ":authority", "content-type", "user-agent", "grpc-accept-encoding":
			default:
				t.Errorf("%s: call has metadata %s: %s", path, key, values)
			}
		}
		if fmt.Sprint(got["authorization"], got["traceparent"], got["x-request-id"], hasDeadline) !=
			"[Bearer x] [00-1-2-3] [r-1] true" {
			t.Errorf("%s: metadata = %v, deadline: %v, want the headers and a deadline", path, got, hasDeadline)
		}
		f.do(t, "GET", path, "", "Authorization: Bearer \xff").wantError(t, 409, "SEEN")
		if fmt.Sprint(got["authorization"]) != "[?]" || hasDeadline {
			t.Errorf("%s: authorization %q, deadline: %v, want a faulty credential and no deadline", path,
				got["authorization"], hasDeadline)
		}
	}
	for _, timeout := range []string{"5", "S", "0S", "-5S", "123456789S", "5s", "5 S", strings.Repeat("9", 5000) + "S"} {
		f.do(t, "GET", "/v1/agents", "", "Grpc-Timeout: "+timeout).wantError(t, 400, "INVALID_REQUEST", "Grpc-Timeout")
	}
}

// TestLongTimeouts: the largest timeouts last years and do not expire at once.
func TestLongTimeouts(t *testing.T) {
	var deadline time.Time
	f := serveStub(t, func(ctx context.Context, _ string) error {
		deadline, _ = ctx.Deadline()
		return NewStatus(codes.Aborted, "SEEN", "").Err()
	})
	for _, timeout := range []string{"8760H", "8761H", "2562047H", "2562048H", "9999999H", "99999999H", "99999999M", "99999999S"} {
		for _, path := range []string{"/v1/agents", "/v1/watch"} { // one reply, and many
			deadline = time.Time{}
			f.do(t, "GET", path, "", "Grpc-Timeout: "+timeout).wantError(t, 409, "SEEN")
			if left := time.Until(deadline); left < 300*24*time.Hour {
				t.Errorf("%s, Grpc-Timeout %s: deadline in %v, want at least 300 days", path, timeout, left)
			}
		}
	}
}

// TestDisconnect: when a client disconnects, its call ends.
func TestDisconnect(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	f := serveStub(t, func(ctx context.Context, _ string) error {
		close(started)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/conversations:load",
		strings.NewReader(`{"conversationId": "c"}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-started
		cancel()
	}()
	if response, err := f.client.Do(r); err == nil {
		response.Body.Close()
		t.Errorf("Do = %v, want an error", response.Status)
	}
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Error("call did not end")
	}
}
