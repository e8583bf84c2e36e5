// Package gateway serves the API as JSON over HTTP. It translates and nothing else: every
// request becomes a call over the connection that [New] is given, which runs the interceptors
// and handlers of gRPC, so that rules, limits and errors are the same. Which path is which
// call stands in proto/parley/v1/http.yaml.
// Begin with [New].
package gateway

import (
	"context"
	"net/http"
	"slices"
	"sync"
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
	large       *largeBodies
}

// New returns the handler of all paths under /v1/, and of /openapi.json. The calls go over
// conn, which it does not close.
func New(ctx context.Context, over grpc.ClientConnInterface) (http.Handler, error) {
	d, err := newDoor(ctx, over)
	return withOutlet(d), err
}

func newDoor(ctx context.Context, over grpc.ClientConnInterface) (*door, error) {
	d := &door{maxBodyTime: maxBodyTime, large: newLargeBodies()}
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
	imports := &importer{client: parleyv1.NewConversationServiceClient(under), mux: d.mux, large: d.large}
	if err := d.mux.HandlePath(http.MethodPost, importPath, imports.serve); err != nil {
		return nil, err
	}
	return d, nil
}

// ServeHTTP answers one request.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isHead := r.Method == http.MethodHead
	if r.URL.Path == documentPath && (isHead || r.Method == http.MethodGet) {
		openapi.Serve(w, r)
		return
	}
	x := &exchange{request: r}
	call := r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	call.Header = x.readHeader()
	if isHead {
		call.Method = http.MethodGet // The server leaves the body out.
	}
	d.mux.ServeHTTP(w, call)
}

// prepare does what must be done once the path of a request is known, ahead of the call: it
// reads the body, and sees to it that nothing else is taken for one.
func (d *door) prepare(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		x := exchangeOf(r.Context())
		pattern, _ := runtime.HTTPPattern(r.Context())
		x.known, x.streams = true, r.Method == http.MethodGet && isStream(pattern)
		if x.asking {
			return
		}
		if x.streams && x.request.Method == http.MethodHead {
			d.refuseMethod(w, x, d.methods(r, r.URL.Path))
			return
		}
		if err := x.begin(r, params); err != nil {
			handleError(r.Context(), d.mux, nil, w, r, err)
			return
		}
		if r.URL.Path != importPath {
			text, isRead, err := d.large.readBody(w, r, d.maxBodyTime)
			if err != nil {
				isRead()
				d.refuseBody(w, r, err)
				return
			}
			x.leave, err = d.large.enter(r.Context(), text, d.large.maxWait)
			isRead()
			if err == nil {
				defer x.leave()
				err = x.setBody(text)
			}
			if err != nil {
				handleError(r.Context(), d.mux, nil, w, r, err)
				return
			}
			r.Body = newBody(text)
		}
		next(w, r, params)
	}
}

// isStream says whether the GET of a path is a stream. Those have no HEAD: a stream does
// things by being there, a watch may delete.
func isStream(pattern runtime.Pattern) bool {
	switch pattern.String() {
	case "/v1/backup", "/v1/export", "/v1/watch", "/v1/conversations/{conversation_id=*}/turns/{turn_id=*}/events":
		return true
	}
	return false
}

// refuseBody answers a request whose body was not read to its end. Its connection is of no
// use any more.
func (d *door) refuseBody(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("Connection", "close")
	handleError(r.Context(), d.mux, nil, w, r, err)
	if status.Code(err) == codes.ResourceExhausted {
		linger(w, r, new(sync.WaitGroup))
	}
}

// methods are those that a path is known with, in the order of the Allow header.
func (d *door) methods(r *http.Request, path string) []string {
	if path == documentPath {
		return []string{http.MethodGet, http.MethodHead}
	}
	var known []string
	streams := false
	for _, method := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
		// The mux knows, but only tells by doing.
		x := &exchange{asking: true}
		ask := r.Clone(context.WithValue(r.Context(), exchangeKey{}, x))
		ask.Method, ask.URL.Path, ask.URL.RawPath = method, path, ""
		d.mux.ServeHTTP(nil, ask)
		if x.known {
			known = append(known, method)
			streams = streams || x.streams
		}
	}
	if i := slices.Index(known, http.MethodGet); i >= 0 && !streams {
		known = slices.Insert(known, i+1, http.MethodHead)
	}
	return known
}
