// Package gateway serves the API as JSON over HTTP. It translates and nothing else: every
// request becomes a call over a gRPC connection to this very server, so that rules, limits
// and errors are those of gRPC. Which path is which call stands in proto/parley/v1/http.yaml.
// Begin with [New].
package gateway

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/parleyhq/parley/gen/gateway/parley/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/gateway/openapi"
)

const (
	documentPath = "/openapi.json"
	importPath   = "/v1/import"
)

// door is the handler of all paths.
type door struct {
	mux         *runtime.ServeMux
	maxBodyTime time.Duration
}

// New returns the handler of all paths under /v1/, and of /openapi.json. The calls go over
// conn, which it does not close.
func New(ctx context.Context, over grpc.ClientConnInterface) (http.Handler, error) {
	d, err := newDoor(ctx, over)
	return withHead(withOutlet(d)), err
}

func newDoor(ctx context.Context, over grpc.ClientConnInterface) (*door, error) {
	d := &door{maxBodyTime: maxBodyTime}
	nothing := func(string) (string, bool) { return "", false }
	d.mux = runtime.NewServeMux(append(slices.Concat(marshalerOptions(), outletOptions()),
		runtime.WithMiddlewares(d.prepare),
		runtime.WithErrorHandler(handleError),
		runtime.WithStreamErrorHandler(statusOf),
		runtime.WithRoutingErrorHandler(d.handleRoutingError),
		// Metadata is no business of clients that speak JSON; see exchange.outgoing.
		runtime.WithIncomingHeaderMatcher(nothing),
		runtime.WithOutgoingHeaderMatcher(nothing),
		runtime.WithOutgoingTrailerMatcher(nothing),
		runtime.WithWriteContentLength(),
	)...)
	under := streamingConn{over}
	c := &conn{under: under, check: checkRequest}
	for _, register := range []func() error{
		func() error {
			return gatewayv1.RegisterConversationServiceHandlerClient(ctx, d.mux, parleyv1.NewConversationServiceClient(c))
		},
		func() error {
			return gatewayv1.RegisterInteractionLogServiceHandlerClient(ctx, d.mux, parleyv1.NewInteractionLogServiceClient(c))
		},
		func() error {
			return gatewayv1.RegisterAdminServiceHandlerClient(ctx, d.mux, parleyv1.NewAdminServiceClient(c))
		},
	} {
		if err := register(); err != nil {
			return nil, err
		}
	}
	// Goes ahead of the one that is generated.
	imports := &importer{client: parleyv1.NewConversationServiceClient(under), mux: d.mux}
	if err := d.mux.HandlePath(http.MethodPost, importPath, imports.serve); err != nil {
		return nil, err
	}
	return d, nil
}

// ServeHTTP answers one request.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == documentPath && r.Method == http.MethodGet {
		openapi.Serve(w, r)
		return
	}
	x := &exchange{request: r}
	call := r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	call.Header = x.readHeader()
	d.mux.ServeHTTP(w, call)
}

// prepare does what must be done once the path of a request is known, ahead of the call: it
// reads the body, and sees to it that nothing else is taken for one.
func (d *door) prepare(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		x := exchangeOf(r.Context())
		if x.asking {
			x.known = true
			return
		}
		if err := x.begin(r, params); err != nil {
			handleError(r.Context(), d.mux, nil, w, r, err)
			return
		}
		if r.URL.Path != importPath {
			text, err := readBody(w, r, d.maxBodyTime)
			if err != nil {
				d.refuseBody(w, r, err)
				return
			}
			if err := x.setBody(text); err != nil {
				handleError(r.Context(), d.mux, nil, w, r, err)
				return
			}
			r.Body = newBody(text)
		}
		next(w, r, params)
	}
}

// refuseBody answers a request whose body was not read to its end. Its connection is of no
// use any more.
func (d *door) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close")
	handleError(r.Context(), d.mux, nil, w, r, err)
	if status.Code(err) == codes.ResourceExhausted {
		linger(w, r)
	}
}

// methods are those that a path is known with, in the order of the Allow header.
func (d *door) methods(r *http.Request, path string) []string {
	if path == documentPath {
		return []string{http.MethodGet, http.MethodHead}
	}
	var known []string
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		// The mux knows, but only tells by doing.
		x := &exchange{asking: true}
		ask := r.Clone(context.WithValue(r.Context(), exchangeKey{}, x))
		ask.Method, ask.URL.Path, ask.URL.RawPath = method, path, ""
		d.mux.ServeHTTP(nil, ask)
		if x.known {
			known = append(known, method)
		}
	}
	if i := slices.Index(known, http.MethodGet); i >= 0 {
		known = slices.Insert(known, i+1, http.MethodHead)
	}
	return known
}

// withHead has a HEAD be a GET, whose body the server leaves out: it ends where the body
// begins, so that one of a stream does as well.
func withHead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			ctx, leave := context.WithCancel(r.Context())
			defer leave()
			r = r.WithContext(ctx)
			r.Method = http.MethodGet
			w = &headWriter{ResponseWriter: w, leave: leave}
		}
		next.ServeHTTP(w, r)
	})
}

// headWriter writes the answer to a HEAD request.
type headWriter struct {
	http.ResponseWriter
	leave context.CancelFunc // ends the call
}

// WriteHeader writes what is wanted of the answer.
func (w *headWriter) WriteHeader(code int) {
	w.ResponseWriter.WriteHeader(code)
	w.leave()
}

// Unwrap is for http.ResponseController.
func (w *headWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
