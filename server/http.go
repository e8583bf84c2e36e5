package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/client/mcp"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
)

// importPath is the path of an import. Its bodies have any length, and the call limits their time.
const importPath = "/v1/import"

// maxBodyTime is how long a client may take to send the body of a request other than an import.
const maxBodyTime = time.Minute

// mcpTimeout is the time limit of a tool's call. Turns have the limits of turns instead.
const mcpTimeout = 30 * time.Second

// httpTransport serves the API over HTTP and MCP, and the health probes.
type httpTransport struct {
	log         *slog.Logger
	server      *http.Server
	listener    net.Listener
	deadClients *deadClients
	loopback    *loopback
	client      *client.Client // of the MCP tools, over the loopback
}

// openHTTPTransport listens on the HTTP address. It does not serve yet. ready is what /readyz
// reports.
func openHTTPTransport(ctx context.Context, c *config.Config, service *rpc.Server, ready *atomic.Bool, log *slog.Logger) (*httpTransport, error) {
	d := &httpTransport{log: log, deadClients: newDeadClients(c.KeepaliveTime)}
	var err error
	if d.loopback, err = newLoopback(service); err != nil {
		return nil, err
	}
	if d.client, err = client.Dial("passthrough:loopback", d.loopback.dialOptions()...); err != nil {
		return nil, err
	}
	handler, err := d.handler(ctx, c, service, ready)
	if err != nil {
		return nil, err
	}
	d.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ConnState: d.deadClients.trackConn,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // errors of clients, not of the server
	}
	if d.listener, err = listenHTTP(ctx, c.HTTPAddress, c.KeepaliveTime); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w; choose another --http-address, or turn it off with an empty one", err)
	}
	return d, nil
}

// listenHTTP listens with TCP keepalive. A dead client to which no data is unsent is detected within
// keepalive plus a third of it, as gRPC's keepalive does. [deadClients] detects the others.
func listenHTTP(ctx context.Context, address string, keepalive time.Duration) (*progressListener, error) {
	listen := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepalive, Interval: max(keepalive/9, time.Second), Count: 3},
		Control:         limitRetransmitInterval(keepalive),
	}
	listen.SetMultipathTCP(false) // It has neither the socket options nor the state of a TCP connection.
	l, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &progressListener{l, readAckedBytes}, nil
}

func (d *httpTransport) handler(ctx context.Context, c *config.Config, service *rpc.Server, ready *atomic.Bool) (http.Handler, error) {
	api, err := gateway.New(ctx, service.Direct(d.loopback.conn))
	if err != nil {
		return nil, err
	}
	tools := mcp.New(d.client, mcp.Options{Version: version, Timeout: mcpTimeout, Log: d.log}).Handler()
	guarded, err := gateway.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" {
			tools.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	}), c.HTTPAllowedOrigins, c.Insecure)
	if err != nil {
		return nil, fmt.Errorf("http-allowed-origins: %w", err)
	}
	// An http.ServeMux would redirect a path with an empty id to the path of another call.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { d.logPanic(r, recover()) }()
		if r.Body != http.NoBody && r.URL.Path != importPath {
			r.Body = newTimedBody(w, r.Body, maxBodyTime)
		}
		switch {
		case r.URL.Path == "/healthz", r.URL.Path == "/readyz" && ready.Load():
			_, _ = w.Write([]byte("ok\n"))
		case r.URL.Path == "/readyz":
			http.Error(w, "not serving", http.StatusServiceUnavailable)
		default:
			guarded.ServeHTTP(w, r)
		}
	}), nil
}

// logPanic logs the cause of a handler's panic and then panics with http.ErrAbortHandler, which ends
// only this request. If cause is nil, there was no panic and logPanic does nothing.
func (d *httpTransport) logPanic(r *http.Request, cause any) {
	switch cause {
	case nil:
	case http.ErrAbortHandler:
		panic(cause)
	default:
		d.log.Error("panic in an HTTP request", "method", r.Method, "path", r.URL.Path, "error", cause, "stack", string(debug.Stack()))
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

func (d *httpTransport) serve() error {
	d.log.Info("serving http", "address", d.listener.Addr().String())
	stop := make(chan struct{})
	var checking sync.WaitGroup
	checking.Go(func() { d.deadClients.run(stop) })
	defer checking.Wait()
	defer close(stop)
	if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop waits for running requests to end. When ctx ends, it closes their connections.
func (d *httpTransport) stop(ctx context.Context) {
	var ending sync.WaitGroup
	ending.Go(func() {
		if d.server.Shutdown(ctx) != nil {
			_ = d.server.Close()
		}
	})
	d.loopback.stop(ctx)
	_ = d.client.Close() // An open client would resume its streams.
	ending.Wait()
}
