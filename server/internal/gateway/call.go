package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/tracing"
)

// httpCallKey is the key of the httpCall in the context of a request.
type httpCallKey struct{}

// httpCall is the state of an HTTP request that becomes a call.
type httpCall struct {
	// request is the request as received, except that its body is read.
	request *http.Request
	// params maps the fields that the path contains to their values. A key is the path of a field,
	// for example "conversation.id".
	params map[string]string
	query  url.Values
	// text is the body. It is empty if the body consists of lines, see hasLines.
	text []byte
	// sent means that a request message was sent. Later errors come from the server.
	sent bool
	// refused is called with the status of a request that is refused before a message was sent. It is nil before the
	// caller is authorized.
	refused func(error)

	// release releases the memory of the body. It is nil if the body consists of lines.
	release func()

	// probing means that the request only probes a path and makes no call. pathExists is then set if the path
	// exists, and isStream if it returns a stream.
	probing, pathExists, isStream bool
	// method is the full name of the method of the path. It is set if probing is set and the path's handler is
	// run.
	method string
}

// httpCallOf returns the httpCall that the context of a call or of its HTTP request belongs to.
func httpCallOf(ctx context.Context) *httpCall {
	call, _ := ctx.Value(httpCallKey{}).(*httpCall)
	return call
}

// readHeader returns the headers that the generated code receives. Content-Type is not among them:
// every body is JSON, whatever its declared type, for example the form type that curl sends by
// default. Headers that override the method are not among them either.
func (c *httpCall) readHeader() http.Header {
	header := make(http.Header, 2)
	if values := c.request.Header["Accept"]; len(values) > 0 {
		header["Accept"] = values
	}
	if timeout := c.request.Header.Get("Grpc-Timeout"); timeout != "" {
		header["Grpc-Timeout"] = []string{cappedTimeout(timeout)}
	}
	return header
}

// outgoing returns the context of the call with its metadata.
func (c *httpCall) outgoing(ctx context.Context) context.Context {
	return metadata.NewOutgoingContext(ctx, Metadata(c.request))
}

// Metadata returns the metadata of calls in this process for an HTTP request: its credentials, its trace context, and
// what the log contains about it.
func Metadata(r *http.Request) metadata.MD {
	md := metadata.Join(Credentials(r), calllog.Forwarded(r))
	if values := printable(r.Header.Values("Traceparent")); len(values) > 0 {
		md.Set("traceparent", values[0])
	}
	tracing.Inject(r.Context(), func(key, value string) { md.Set(key, value) })
	return md
}

// Credentials returns the metadata with which calls in this process pass on the credentials of an HTTP request: its
// headers Authorization and Parley-Tenant, and the client certificate that TLS has verified. No other header
// becomes metadata, so a client cannot forge a certificate.
func Credentials(r *http.Request) metadata.MD {
	md := make(metadata.MD, 4)
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		md = metadata.Join(md, auth.Forwarded(r.TLS.VerifiedChains[0][0]))
	}
	for _, key := range []string{auth.TokenKey, auth.TenantKey} {
		switch sent := r.Header.Values(key); {
		case len(sent) == 0:
		case len(printable(sent)) > 0:
			md.Set(key, sent...)
		default:
			// gRPC cannot send these values. The caller has sent a credential or a tenant, and it is faulty: it must not
			// count as absent, because then the client certificate or the only tenant would count.
			md.Set(key, faultyValue)
		}
	}
	return md
}

// faultyValue is neither a token nor a tenant.
const faultyValue = "?"

// printable returns the values of a header, or nil if gRPC refuses to send one of them.
func printable(values []string) []string {
	for _, value := range values {
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil
		}
	}
	return values
}

// parse parses the path, the query and the header of a request. The error is a status.
func (c *httpCall) parse(r *http.Request, params map[string]string) error {
	var f faults
	c.params = params
	f.checkPath(params)
	var err error
	if c.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		f.add(wholeQuery,
			"is malformed: separate parameters by & and encode bytes other than letters, digits and - . _ ~ as %%XX")
	}
	if timeout := r.Header.Get("Grpc-Timeout"); timeout != "" && !isTimeout(timeout) {
		f.add("Grpc-Timeout", "is not a timeout: use 1 to 8 digits and one of H M S m u n, for example 5S")
	}
	// The generated code reads the query from here. If these were nil, it would parse the body as a form.
	r.Form, r.PostForm = c.query, url.Values{}
	return f.err()
}

// isTimeout reports whether a header is a timeout greater than 0 in the form of the gRPC protocol.
func isTimeout(header string) bool {
	const (
		maxDigits = 8
		units     = "HMSmun"
	)
	last := len(header) - 1
	digits, unit := header[:last], header[last:]
	return digits != "" && len(digits) <= maxDigits && strings.Contains(units, unit) &&
		strings.Trim(digits, "0123456789") == "" && strings.Trim(digits, "0") != ""
}

// cappedTimeout returns a timeout of at most a year. The generated code computes in nanoseconds: an
// int64 can represent 292 years, but 8 digits of hours are up to 11,408 years.
func cappedTimeout(header string) string {
	const year = 365 * 24
	digits, inHours := strings.CutSuffix(header, "H")
	if hours, err := strconv.Atoi(digits); inHours && isTimeout(header) && err == nil && hours > year {
		return strconv.Itoa(year) + "H"
	}
	return header
}

// bodyField returns the field of the request message that the body contains: "*" is the message
// itself and "" is no field. A path that contains a field of an inner message belongs to a call
// that updates this message.
func (c *httpCall) bodyField() string {
	switch c.request.Method {
	case http.MethodGet, http.MethodHead, http.MethodDelete:
		return ""
	}
	for param := range c.params {
		if field, _, inside := strings.Cut(param, "."); inside {
			return field
		}
	}
	return "*"
}

// setBody sets the body. The error is a status.
func (c *httpCall) setBody(text []byte) error {
	c.text = text
	if c.bodyField() == "" && len(bytes.TrimSpace(text)) > 0 {
		var f faults
		f.add(wholeBody, "must be empty for %s: send the fields as query parameters", c.request.Method)
		return f.err()
	}
	return nil
}

// errProbing is the error of a call whose request only probes.
var errProbing = errors.New("the request only probes")

// probingStream is the stream of a call whose request only probes. The generated code logs an error if such a stream
// cannot be started or ended.
type probingStream struct{ grpc.ClientStream }

// SendMsg returns an error.
func (probingStream) SendMsg(any) error { return errProbing }

// RecvMsg returns an error.
func (probingStream) RecvMsg(any) error { return errProbing }

// CloseSend does nothing.
func (probingStream) CloseSend() error { return nil }

// Header returns no metadata.
func (probingStream) Header() (metadata.MD, error) { return nil, nil }

// Trailer returns no metadata.
func (probingStream) Trailer() metadata.MD { return nil }

// checkedConn is the connection that the generated handlers use. It checks the request message of
// each call against the HTTP request and sends the metadata that belongs to the call.
type checkedConn struct {
	conn grpc.ClientConnInterface
	// check returns an error, which the call returns, to refuse a request message. It may change
	// the message.
	check func(call *httpCall, request proto.Message) error
}

// Invoke makes a unary call.
func (c *checkedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	call := httpCallOf(ctx)
	if call.probing {
		return errProbing
	}
	if err := c.checkMessage(call, args); err != nil {
		return err
	}
	return c.conn.Invoke(call.outgoing(ctx), method, args, reply, opts...)
}

// NewStream starts a streaming call.
func (c *checkedConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	call := httpCallOf(ctx)
	if call.probing {
		call.method = method
		return probingStream{}, nil
	}
	stream, err := c.conn.NewStream(call.outgoing(ctx), desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &checkedStream{ClientStream: stream, conn: c, call: call}, nil
}

// checkMessage returns an error if message must not be sent.
func (c *checkedConn) checkMessage(call *httpCall, message any) error {
	request, ok := message.(proto.Message)
	if !ok {
		return errors.New("not a message")
	}
	if err := c.check(call, request); err != nil {
		return err
	}
	if err := CheckSize(request); err != nil {
		return err
	}
	call.sent = true
	return nil
}

// CheckSize returns an error, which is a status, for a request message that is larger than gRPC's limit. An in-process
// connection does not enforce it, and some values are larger as a message than in JSON, for example a list of numbers.
func CheckSize(request proto.Message) error {
	if size := proto.Size(request); size > maxBodyBytes {
		return NewStatus(codes.ResourceExhausted, reasonBodyTooLarge,
			fmt.Sprintf("the request is %d bytes as a message, more than the limit of %d: %s",
				size, maxBodyBytes, reduceSizeHint)).Err()
	}
	return nil
}

// checkedStream is a stream whose request messages are checked.
type checkedStream struct {
	grpc.ClientStream
	conn *checkedConn
	call *httpCall
}

// SendMsg checks and sends the only request message of the stream. It releases the memory of the
// request body: a stream may be long, and its replies are not large.
func (s *checkedStream) SendMsg(m any) error {
	defer s.call.release()
	if err := s.conn.checkMessage(s.call, m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(m)
}
