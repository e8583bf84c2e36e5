// Package gateway serves the API as JSON over HTTP. It only translates: each request becomes a call
// over the connection passed to [New]. The interceptors and handlers of gRPC answer that call, so
// rules, limits and errors are the same for both transports. proto/parley/v1/http.yaml maps paths
// to calls. Start at [New].
package gateway

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/parleyhq/parley/gen/gateway/parley/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway/openapi"
)

const (
	documentPath = "/openapi.json"
	importPath   = "/v1/import"
	appendPath   = "/v1/append"
)

// hasLines reports whether the body of a request to a path consists of lines, which are read during the call.
func hasLines(path string) bool { return path == importPath || path == appendPath }

// Authorize returns an error, which is a status, if a caller with this metadata may not call a method. The
// metadata is what [Metadata] returns. If the gateway then refuses the request without a call, it passes the status to
// refused. It does so once at most.
type Authorize func(ctx context.Context, method string, sent metadata.MD) (refused func(error), err error)

// handler answers the requests of all paths.
type handler struct {
	authorize   Authorize
	mux         *runtime.ServeMux
	maxBodyTime time.Duration
	large       *Bodies
}

// New returns the handler of /openapi.json and of all paths under /v1/. The handler makes its calls
// over conn and does not close it. It calls authorize before it reads a body or parses anything besides
// the path. If authorize is nil, only the server behind conn checks the callers. large limits the memory of the
// bodies of all handlers that share it.
func New(
	ctx context.Context, conn grpc.ClientConnInterface, authorize Authorize, large *Bodies,
) (http.Handler, error) {
	h, err := newHandler(ctx, conn, authorize, large)
	return LimitWrites(h), err
}

func newHandler(
	ctx context.Context, conn grpc.ClientConnInterface, authorize Authorize, large *Bodies,
) (*handler, error) {
	if authorize == nil {
		authorize = func(context.Context, string, metadata.MD) (func(error), error) { return func(error) {}, nil }
	}
	h := &handler{authorize: authorize, maxBodyTime: maxBodyTime, large: large}
	dropAll := func(string) (string, bool) { return "", false }
	h.mux = runtime.NewServeMux(append(slices.Concat(marshalerOptions(), responseOptions()),
		runtime.WithMiddlewares(func(next runtime.HandlerFunc) runtime.HandlerFunc {
			return h.prepare(next, calledMethod(ctx, next))
		}),
		runtime.WithErrorHandler(handleError),
		runtime.WithStreamErrorHandler(StatusOf),
		runtime.WithRoutingErrorHandler(h.handleRoutingError),
		// The mux splits RawPath, which routedPath returns, and then decodes each parameter.
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
		// JSON clients neither set nor receive gRPC metadata, except what httpCall.outgoing passes on.
		runtime.WithIncomingHeaderMatcher(dropAll),
		runtime.WithOutgoingHeaderMatcher(dropAll),
		runtime.WithOutgoingTrailerMatcher(dropAll),
		runtime.WithWriteContentLength(),
	)...)
	streaming := streamingConn{jsonNamesConn{conn}}
	c := &checkedConn{conn: streaming, check: checkRequest}
	for _, register := range []func() error{
		func() error {
			return gatewayv1.RegisterConversationServiceHandlerClient(ctx, h.mux, parleyv1.NewConversationServiceClient(c))
		},
		func() error {
			return gatewayv1.RegisterRecordServiceHandlerClient(ctx, h.mux, parleyv1.NewRecordServiceClient(c))
		},
		func() error {
			return gatewayv1.RegisterInteractionLogServiceHandlerClient(ctx, h.mux, parleyv1.NewInteractionLogServiceClient(c))
		},
		func() error {
			return gatewayv1.RegisterAdminServiceHandlerClient(ctx, h.mux, parleyv1.NewAdminServiceClient(c))
		},
	} {
		if err := register(); err != nil {
			return nil, err
		}
	}
	// These handlers replace the generated ones: the mux prefers the pattern registered last.
	client := parleyv1.NewConversationServiceClient(streaming)
	imports := &importer{client: client, mux: h.mux, large: h.large}
	if err := h.mux.HandlePath(http.MethodPost, importPath, imports.serve); err != nil {
		return nil, err
	}
	appends := &appender{client: client, mux: h.mux, large: h.large}
	if err := h.mux.HandlePath(http.MethodPost, appendPath, appends.serve); err != nil {
		return nil, err
	}
	return h, nil
}

// ServeHTTP answers one request.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isHead := r.Method == http.MethodHead
	if r.URL.Path == documentPath && (isHead || r.Method == http.MethodGet) {
		openapi.Serve(w, r)
		return
	}
	call := &httpCall{request: r}
	routed := r.WithContext(context.WithValue(r.Context(), httpCallKey{}, call))
	routed.URL = new(*r.URL)
	routed.URL.RawPath = routedPath(rawPath(r.URL))
	routed.Header = call.readHeader()
	if isHead {
		routed.Method = http.MethodGet // net/http omits the body of the response.
	}
	h.mux.ServeHTTP(w, routed)
}

// rawPath returns the path of a URL as the client sent it. EscapedPath would decode "%2F" if the client has left
// another character without its encoding.
func rawPath(u *url.URL) string { return cmp.Or(u.RawPath, u.EscapedPath()) }

// routedPath returns a percent-encoded path in the form that the mux routes. It decodes the characters that need no
// encoding. In ids it encodes ":", which would otherwise begin the name of a method.
func routedPath(escaped string) string {
	const names = 3 // "", "v1", and the collection with its method. Ids follow.
	segments := strings.Split(escaped, "/")
	for i, segment := range segments {
		text, err := url.PathUnescape(segment)
		if err != nil {
			continue // An invalid escape is in no path of net/http.
		}
		segments[i] = url.PathEscape(text) // It leaves ":" as it is.
		if i >= names {
			segments[i] = strings.ReplaceAll(segments[i], ":", "%3A")
		}
	}
	return strings.Join(segments, "/")
}

// calledMethod returns the full name of the method that a handler of a path calls. It runs the handler with
// an empty request, which makes no call.
func calledMethod(ctx context.Context, of runtime.HandlerFunc) string {
	call := &httpCall{probing: true}
	empty := &http.Request{Method: http.MethodGet, URL: new(url.URL), Body: newBody(nil)}
	call.request = empty
	of(discardWriter{}, empty.WithContext(context.WithValue(ctx, httpCallKey{}, call)), nil)
	return call.method
}

// discardWriter discards the response to the empty request of calledMethod.
type discardWriter struct{}

// Header returns a header that is not used.
func (discardWriter) Header() http.Header { return make(http.Header) }

// Write does nothing.
func (discardWriter) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader does nothing.
func (discardWriter) WriteHeader(int) {}

// prepare returns a handler that runs when the path of a request is known, before the call of the method. It
// authorizes the caller, parses the path and the query, reads the body and acquires the memory that the
// decoded body needs.
func (h *handler) prepare(next runtime.HandlerFunc, method string) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		call := httpCallOf(r.Context())
		pattern, _ := runtime.HTTPPattern(r.Context())
		call.pathExists, call.isStream = true, r.Method == http.MethodGet && isStream(pattern)
		if call.probing {
			return
		}
		if call.isStream && call.request.Method == http.MethodHead {
			h.refuseMethod(w, call, h.allowedMethods(r, rawPath(call.request.URL)))
			return
		}
		var err error
		if call.refused, err = h.authorize(r.Context(), method, Metadata(call.request)); err != nil {
			RefuseUnread(w, r, func() { writeStatus(w, StatusOf(r.Context(), err)) })
			return
		}
		if err := call.parse(r, params); err != nil {
			handleError(r.Context(), h.mux, nil, w, r, err)
			return
		}
		if !hasLines(r.URL.Path) {
			release, ok := h.prepareBody(w, r)
			if !ok {
				return
			}
			defer release()
		}
		next(w, r, params)
	}
}

// prepareBody reads the body and acquires the memory that the decoded body needs, which release releases.
// If it returns false, it has answered the request.
func (h *handler) prepareBody(w http.ResponseWriter, r *http.Request) (release func(), ok bool) {
	call := httpCallOf(r.Context())
	text, isRead, err := h.large.readBody(w, r, h.maxBodyTime)
	if err != nil {
		isRead()
		h.refuseBody(w, r, err)
		return nil, false
	}
	call.release, err = h.large.acquireValue(r.Context(), text, h.large.maxWait)
	isRead()
	if err == nil {
		if err = call.setBody(text); err != nil {
			call.release()
		}
	}
	if err != nil {
		handleError(r.Context(), h.mux, nil, w, r, err)
		return nil, false
	}
	r.Body = newBody(text)
	return call.release, true
}

// isStream reports whether a GET of the pattern returns a stream. Such a path does not allow HEAD,
// because calling it has effects: a watch may delete an ephemeral conversation.
func isStream(pattern runtime.Pattern) bool {
	switch pattern.String() {
	case "/v1/backup", "/v1/export", "/v1/watch", "/v1/conversations/{conversation_id=*}/turns/{turn_id=*}/events":
		return true
	}
	return false
}

// RefuseUnread answers a request by write, which writes an error, without waiting for the rest of its body.
func RefuseUnread(w http.ResponseWriter, r *http.Request, write func()) {
	// On HTTP/1, net/http would wait for the body before it sends the response, unless the connection is closed.
	// On HTTP/2, it resets the stream, and other requests of the connection continue.
	unread := r.ProtoMajor == 1 && r.Body != nil && r.Body != http.NoBody
	if unread {
		w.Header().Set("Connection", "close")
	}
	write()
	if unread {
		linger(w, r, new(sync.WaitGroup))
	}
}

// refuseBody answers a request whose body was not read completely. The connection cannot be used
// for another request, so it is closed.
func (h *handler) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close")
	handleError(r.Context(), h.mux, nil, w, r, err)
	if status.Code(err) == codes.ResourceExhausted {
		linger(w, r, new(sync.WaitGroup))
	}
}

// allowedMethods returns the methods that a percent-encoded path allows, in the order of the Allow header.
func (h *handler) allowedMethods(r *http.Request, path string) []string {
	if path == documentPath {
		return []string{http.MethodGet, http.MethodHead}
	}
	var known []string
	streams := false
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		// The mux has no lookup function, so a request that only probes is routed through it.
		call := &httpCall{probing: true}
		probe := r.Clone(context.WithValue(r.Context(), httpCallKey{}, call))
		probe.Method, probe.URL.Path, probe.URL.RawPath = method, path, routedPath(path)
		h.mux.ServeHTTP(nil, probe)
		if call.pathExists {
			known = append(known, method)
			streams = streams || call.isStream
		}
	}
	if i := slices.Index(known, http.MethodGet); i >= 0 && !streams {
		known = slices.Insert(known, i+1, http.MethodHead)
	}
	return known
}
