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

// importPath has bodies of any length, with limits of their own.
const importPath = "/v1/import"

// maxBodyTime is how long a client may take to send a body, other than that of an import.
const maxBodyTime = time.Minute

// mcpTimeout bounds what tools ask, questions aside, which have the limits of turns.
const mcpTimeout = 30 * time.Second

// httpDoor serves the API to those who speak HTTP or MCP, and probes.
type httpDoor struct {
	log      *slog.Logger
	server   *http.Server
	listener net.Listener
	gone     *goneClients
	loopback *loopback
	client   *client.Client // of the MCP tools, over the loopback
}

// openHTTP listens; nothing is served yet. ready says whether the server takes calls.
func openHTTP(ctx context.Context, c *config.Config, service *rpc.Server, ready *atomic.Bool, log *slog.Logger) (*httpDoor, error) {
	d := &httpDoor{log: log, gone: newGoneClients(c.KeepaliveTime)}
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
		ConnState: d.gone.follow,
		ErrorLog:  slog.NewLogLogger(log.Handler(), slog.LevelDebug), // faults of clients, not of the server
	}
	if d.listener, err = listenHTTP(ctx, c.HTTPAddress, c.KeepaliveTime); err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w; choose another --http-address, or turn it off with an empty one", err)
	}
	return d, nil
}

// listenHTTP has TCP find clients that are gone while no data waits for them, as gRPC's
// keepalive does: within keepalive and a third of it. The others are found by [goneClients].
func listenHTTP(ctx context.Context, address string, keepalive time.Duration) (*steadyListener, error) {
	listen := net.ListenConfig{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepalive, Interval: max(keepalive/9, time.Second), Count: 3},
		Control:         controlProbes(keepalive),
	}
	listen.SetMultipathTCP(false) // It has neither the options nor the state of one connection.
	l, err := listen.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &steadyListener{l, readTaken}, nil
}

func (d *httpDoor) handler(ctx context.Context, c *config.Config, service *rpc.Server, ready *atomic.Bool) (http.Handler, error) {
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
	// No http.ServeMux: it would send a path with an empty id to that of another call.
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

// logPanic logs the cause of a handler's panic, nil if there was none, and lets go on only
// that this request is at its end.
func (d *httpDoor) logPanic(r *http.Request, cause any) {
	switch cause {
	case nil:
	case http.ErrAbortHandler:
		panic(cause)
	default:
		d.log.Error("panic in an HTTP request", "method", r.Method, "path", r.URL.Path, "error", cause, "stack", string(debug.Stack()))
		panic(http.ErrAbortHandler)
	}
}

// timedBody is a body that must have come within a time, whoever reads it or does not:
// net/http itself waits for the rest of one before it answers.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func newTimedBody(w http.ResponseWriter, body io.ReadCloser, within time.Duration) timedBody {
	b := timedBody{body, http.NewResponseController(w)}
	_ = b.control.SetReadDeadline(time.Now().Add(within)) // A connection can.
	return b
}

// Read reads. At the end it gives the connection its time back: to be at the end of a
// deadline is taken for the client's leaving.
func (b timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

func (d *httpDoor) serve() error {
	d.log.Info("serving http", "address", d.listener.Addr().String())
	stop := make(chan struct{})
	var checking sync.WaitGroup
	checking.Go(func() { d.gone.run(stop) })
	defer checking.Wait()
	defer close(stop)
	if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop lets the requests that are under way end, until ctx does.
func (d *httpDoor) stop(ctx context.Context) {
	var ending sync.WaitGroup
	ending.Go(func() {
		if d.server.Shutdown(ctx) != nil {
			_ = d.server.Close()
		}
	})
	d.loopback.stop(ctx)
	_ = d.client.Close() // Its streams would be asked for again.
	ending.Wait()
}
