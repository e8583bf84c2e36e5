package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/mcp"
	"github.com/parleyhq/parley/server/internal/console"
	"github.com/parleyhq/parley/server/internal/facade/a2a"
	"github.com/parleyhq/parley/server/internal/facade/agui"
	"github.com/parleyhq/parley/server/internal/facade/openai"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
)

// importPath is the path of an import. Its bodies have any length, and the call limits their time.
const importPath = "/v1/import"

// maxBodyTime is how long a client may take to send the body of a request other than an import.
const maxBodyTime = time.Minute

// mcpTimeout is the time limit of a tool's call. Turns have the limits of turns instead.
const mcpTimeout = 30 * time.Second

// httpServer serves the API over HTTP and MCP, and the health probes.
type httpServer struct {
	log         *slog.Logger
	server      *http.Server
	listener    net.Listener
	deadClients *deadClients
	direct      *rpc.Direct    // of the API and the facades
	loopback    *loopback      // of the MCP tools
	client      *client.Client // of the MCP tools, over the loopback

	certificates *certificates // nil if there is no TLS
	signIn       []string      // kinds of credentials
}

// openHTTP listens on the HTTP address. It does not serve yet. /readyz reports the readiness.
func openHTTP(
	ctx context.Context, o Options, service *rpc.Server, d *rpc.Direct, facade a2a.Options, c *certificates, r *readiness,
) (*httpServer, error) {
	h := &httpServer{
		log: o.Log, deadClients: newDeadClients(o.KeepaliveTime), direct: d, loopback: newLoopback(service),
		certificates: c, signIn: o.SignIn,
	}
	var err error
	if h.client, err = client.Dial("passthrough:loopback", h.loopback.dialOptions()...); err != nil {
		return nil, err
	}
	handler, err := h.handler(ctx, o, service, facade, r)
	if err != nil {
		return nil, err
	}
	h.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnState: h.trackConn,
		ErrorLog:  slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // errors of clients, not of the server
		// HTTP/2 is on with TLS only.
		HTTP2: &http.HTTP2Config{SendPingTimeout: o.KeepaliveTime, PingTimeout: o.KeepaliveTime / 3},
	}
	if c != nil {
		h.server.TLSConfig = c.config("h2", "http/1.1")
	}
	if h.listener, err = listenHTTP(ctx, o.HTTPAddress, o.KeepaliveTime, o.Log); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w; choose another --http-address, or turn it off with an empty one", err)
	}
	return h, nil
}

// listenHTTP listens with TCP keepalive. A dead client to which no data is unsent is detected within
// keepalive plus a third of it, as gRPC's keepalive does. [deadClients] detects the others.
func listenHTTP(
	ctx context.Context, address string, keepalive time.Duration, log *slog.Logger,
) (*progressListener, error) {
	listen := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepalive, Interval: max(keepalive/9, time.Second), Count: 3,
		},
		Control: limitRetransmitInterval(keepalive),
	}
	listen.SetMultipathTCP(false) // It has neither the socket options nor the state of a TCP connection.
	l, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &progressListener{limitConns(l, log), readAckedBytes}, nil
}

// trackConn is the [http.Server.ConnState] hook.
func (h *httpServer) trackConn(conn net.Conn, state http.ConnState) {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		h.deadClients.trackConn(conn, state)
		return
	}
	h.deadClients.trackConn(secured.NetConn(), state)
	switch state {
	case http.StateActive: // The handshake is complete. A connection becomes active for each request.
		h.certificates.track(conn, secured.NetConn(), secured.ConnectionState())
	case http.StateClosed, http.StateHijacked:
		h.certificates.untrack(conn)
	}
}

func (h *httpServer) handler(
	ctx context.Context, o Options, service *rpc.Server, facade a2a.Options, ready *readiness,
) (http.Handler, error) {
	bodies := gateway.NewBodies()
	api, err := gateway.New(ctx, h.direct, service.Authorize, bodies)
	if err != nil {
		return nil, err
	}
	facade.Bodies = bodies
	toAgents := a2a.New(facade)
	openAI := openai.New(h.direct, service.Authorize, bodies)
	agentUI := agui.New(h.direct, service.Authorize, bodies)
	tools := &mcpSignIn{
		tools: mcp.New(h.client, mcp.Options{Version: o.Version, Timeout: mcpTimeout, Log: h.log}).Handler(),
		auth:  o.Auth, signIn: service.SignIn, issuer: o.OIDCIssuer,
	}
	page := newConsole(o, service)
	guarded, err := gateway.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case o.Console && console.IsReply(r.URL.Path):
			page.ServeHTTP(w, r)
		case r.URL.Path == mcpPath:
			tools.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, openai.Prefix):
			openAI.ServeHTTP(w, r)
		case strings.HasPrefix(r.URL.Path, agui.PathPrefix):
			agentUI.ServeHTTP(w, r)
		case r.URL.Path == metricsPath && o.Metrics != nil && o.MetricsOverHTTP:
			o.Metrics.ServeHTTP(w, r)
		case o.A2A && a2a.Serves(r.URL.Path):
			toAgents.ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	}), o.AllowedOrigins, o.Insecure || o.Auth.Required())
	if err != nil {
		return nil, fmt.Errorf("http-allowed-origins: %w", err)
	}
	traced := o.Tracer.HTTP(guarded)
	// An http.ServeMux would redirect a path with an empty id to the path of another call.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { h.logPanic(r, recover()) }()
		if len(r.TransferEncoding) > 0 {
			// net/http ignores a Content-Length beside it. A proxy that does not would take the bytes after the
			// body for another request, so no other request may follow.
			w.Header().Set("Connection", "close")
		}
		if r.Body != http.NoBody && r.URL.Path != importPath {
			r.Body = newTimedBody(w, r.Body, maxBodyTime)
		}
		switch {
		case r.URL.Path == "/healthz":
			_, _ = w.Write([]byte("ok\n"))
		case r.URL.Path == "/readyz":
			writeReadiness(w, ready.notReady())
		case o.Console && console.IsFile(r.URL.Path):
			page.ServeHTTP(w, r)
		case tools.isMetadata(r):
			tools.serveMetadata(w, r)
		case r.URL.Path == metricsPath: // Scrapes have no span, as health checks.
			guarded.ServeHTTP(w, r)
		default:
			traced.ServeHTTP(w, r)
		}
	}), nil
}

func newConsole(o Options, service *rpc.Server) *console.Console {
	return console.New(console.Options{
		ReadOnly: o.ConsoleReadOnly, Version: o.Version, SignInRequired: o.Auth.Required(), SignIn: service.SignIn,
		WriteSettings: o.WriteSettings,
	})
}

// writeReadiness writes why the server is not ready, or that it is if there is no reason.
func writeReadiness(w http.ResponseWriter, notReady string) {
	if notReady != "" {
		http.Error(w, "not ready: "+notReady, http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

// logPanic logs the cause of a handler's panic and then panics with http.ErrAbortHandler, which ends
// only this request. If cause is nil, there was no panic and logPanic does nothing.
func (h *httpServer) logPanic(r *http.Request, cause any) {
	switch cause {
	case nil:
	case http.ErrAbortHandler:
		panic(cause)
	default:
		h.log.Error("panic in an HTTP request", "method", r.Method, "path", r.URL.Path, "error", cause, "stack",
			string(debug.Stack()))
		panic(http.ErrAbortHandler)
	}
}

// timedBody is a request body with a time limit until its end. The limit applies also if no handler
// reads the body, because net/http waits for the rest of a body before it replies.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func newTimedBody(w http.ResponseWriter, body io.ReadCloser, limit time.Duration) timedBody {
	b := timedBody{body, http.NewResponseController(w)}
	_ = b.control.SetReadDeadline(time.Now().Add(limit)) // Cannot fail: every connection has deadlines.
	return b
}

// Read reads the body. At the end of the body it removes the read deadline of the connection,
// because net/http treats a passed deadline as a disconnected client.
func (b timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (h *httpServer) serve() error {
	h.log.Info("serving http", "address", h.listener.Addr().String(), "tls", h.certificates != nil, "sign_in",
		describeSignIn(h.signIn))
	stop := make(chan struct{})
	var checking sync.WaitGroup
	checking.Go(func() { h.deadClients.run(stop) })
	defer checking.Wait()
	defer close(stop)
	serve := h.server.Serve
	if h.certificates != nil {
		serve = func(l net.Listener) error { return h.server.ServeTLS(l, "", "") }
	}
	if err := serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop waits for running requests to end. When ctx ends, it closes their connections.
func (h *httpServer) stop(ctx context.Context) {
	var ending sync.WaitGroup
	ending.Go(func() {
		if h.server.Shutdown(ctx) != nil {
			_ = h.server.Close()
		}
	})
	h.loopback.stop(ctx)
	_ = h.client.Close() // An open client would resume its streams.
	ending.Wait()
}
