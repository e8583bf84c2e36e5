// Package transport serves the API over gRPC, and over HTTP and MCP, which call the gRPC handlers in
// memory. It closes the connections of dead and stuck clients. Start at [Open].
package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // Clients may compress requests.
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/facade/a2a"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/tracing"
)

// socketPrefix is the prefix of an address that is the path of a Unix socket.
const socketPrefix = "unix:"

// Options are the settings of the transports.
type Options struct {
	// GRPCAddress is host:port or unix:PATH.
	GRPCAddress string
	// HTTPAddress is host:port. If empty, HTTP is off.
	HTTPAddress string
	// DebugAddress is a loopback host:port or unix:PATH. If empty, there are no profiles.
	DebugAddress string
	// KeepaliveTime is how long a connection is idle before the server checks whether the client is
	// alive.
	KeepaliveTime time.Duration
	// AllowedOrigins are the origins of web pages that may call over HTTP.
	AllowedOrigins []string
	// Console serves the console at / of the HTTP listener. If ConsoleReadOnly, its page has no button that changes
	// anything. WriteSettings writes the settings in effect, without secrets, for the page; Console requires it.
	Console         bool
	ConsoleReadOnly bool
	WriteSettings   func(io.Writer) error
	// A2A serves the agents over the A2A protocol, see package a2a. A2AURL is the address of the HTTP listener for the
	// agent cards. If empty, they name the host of the request.
	// A2APushPrivate allows push notifications to addresses that are not public.
	A2A            bool
	A2AURL         string
	A2APushPrivate bool
	// TLS has the certificates of the listeners. If nil, the listeners have no TLS. A Unix socket has none in
	// any case.
	TLS *TLSFiles
	// Auth is the authenticator of the service. MCP and the rules for web pages depend on it, too. It is required.
	Auth *auth.Authenticator
	// OIDCIssuer is where MCP clients get tokens. If empty, they must have one.
	OIDCIssuer string
	// SignIn are the names of the kinds of credentials that Auth accepts, for the log.
	SignIn []string
	// Insecure allows HTTP requests for any host name; see [gateway.Guard].
	Insecure bool
	// Metrics is the handler of /metrics. It need not check its callers. If nil, there are no metrics.
	Metrics http.Handler
	// MetricsAddress is host:port of a listener of its own for /metrics. If empty, there is none.
	MetricsAddress string
	// MetricsOverHTTP adds /metrics to the HTTP listener.
	MetricsOverHTTP bool
	// Tracer begins the spans of requests over HTTP. If nil, there are none.
	Tracer *tracing.Tracer
	// Version of the program, for MCP clients.
	Version string
	Log     *slog.Logger
}

// Servers are the gRPC server and the HTTP server with their listeners.
type Servers struct {
	log          *slog.Logger
	grpc         *grpc.Server
	services     grpc.ServiceRegistrar // of grpc
	grpcListener net.Listener
	http         *httpServer    // nil if HTTP is off
	direct       *rpc.Direct    // nil if HTTP and A2A are off
	notifier     *a2a.Notifier  // nil if A2A is off
	metrics      *metricsServer // nil if the metrics have no listener of their own
	debug        *debugServer   // nil if it is off
	readiness    *readiness
	signIn       []string // kinds of credentials

	certificates *certificates // nil if there is no TLS
	stopWatching func()        // ends the watch of the certificates
	watchesUntil chan struct{}
}

// Open listens on the addresses of the options. It does not serve yet. Errors name the setting.
func Open(ctx context.Context, o Options, service *rpc.Server) (*Servers, error) {
	if o.Auth == nil {
		o.Auth = auth.New(time.Now)
	}
	states := health.NewServer()
	s := &Servers{log: o.Log, readiness: newReadiness(states), signIn: o.SignIn, watchesUntil: make(chan struct{})}
	s.stopWatching = sync.OnceFunc(func() { close(s.watchesUntil) })
	if o.Metrics != nil {
		o.Metrics = authorizeScrapes(o.Metrics, service)
	}
	var err error
	options := append(GRPCOptions(o.KeepaliveTime), service.ServerOptions()...)
	if o.TLS != nil {
		if s.certificates, err = openCertificates(*o.TLS, o.Log); err != nil {
			return nil, fmt.Errorf("open certificates: %w", err)
		}
		if !strings.HasPrefix(o.GRPCAddress, socketPrefix) {
			options = append(options, grpc.Creds(s.certificates.grpcCredentials()))
		}
	}
	s.grpc = grpc.NewServer(options...)
	s.services = service.Registrar(s.grpc)
	service.Register(s.grpc)
	healthv1.RegisterHealthServer(s.services, states)
	reflection.Register(s.grpc)
	l, err := listen(ctx, o.GRPCAddress)
	if err != nil {
		return nil, fmt.Errorf("listen for gRPC: %w; another server may be running, choose another --grpc-address", err)
	}
	s.grpcListener = limitConns(l, o.Log)
	if s.debug, err = openDebug(ctx, o); err != nil {
		return nil, errors.Join(err, s.grpcListener.Close())
	}
	if o.Metrics != nil && o.MetricsAddress != "" {
		if s.metrics, err = openMetrics(ctx, o, s.certificates); err != nil {
			return nil, errors.Join(err, s.grpcListener.Close(), s.debug.close())
		}
	}
	if o.HTTPAddress == "" && !o.A2A {
		return s, nil
	}
	if err := s.openHTTP(ctx, o, service); err != nil {
		if s.metrics != nil {
			err = errors.Join(err, s.metrics.listener.Close())
		}
		return nil, errors.Join(err, s.grpcListener.Close(), s.debug.close())
	}
	return s, nil
}

// openHTTP opens the HTTP server, if it is on, and registers the service of A2A, whose calls it answers in memory, too.
func (s *Servers) openHTTP(ctx context.Context, o Options, service *rpc.Server) (err error) {
	s.direct = service.Direct(ctx)
	facade := a2a.Options{
		Conn: s.direct, Authorize: service.Authorize, Agents: service.Agents, URL: o.A2AURL,
		SignIn: service.SignIn, NeedsSignIn: o.Auth.Required(), Version: o.Version,
	}
	if o.A2A {
		s.notifier = a2a.NewNotifier(ctx, a2a.NotifierOptions{Options: facade, Private: o.A2APushPrivate, Log: o.Log})
		facade.Notifier = s.notifier
		a2a.Register(s.services, facade)
		if at, ok := s.grpcListener.Addr().(*net.TCPAddr); ok {
			facade.GRPCPort = at.Port
		}
	}
	if o.HTTPAddress == "" {
		return nil
	}
	s.http, err = openHTTP(ctx, o, service, s.direct, facade, s.certificates, s.readiness)
	return err
}

// GetServiceInfo returns the services of the gRPC server and their methods.
func (s *Servers) GetServiceInfo() map[string]grpc.ServiceInfo { return s.grpc.GetServiceInfo() }

// CertificateExpiry returns the time at which the certificate of the listeners expires. ok is false if they have
// no TLS.
func (s *Servers) CertificateExpiry() (at time.Time, ok bool) {
	if s.certificates == nil {
		return time.Time{}, false
	}
	return s.certificates.current.Load().leaf.NotAfter, true
}

// Certificate returns the certificate of the listeners, nil if they have no TLS. It may change.
func (s *Servers) Certificate() *tls.Certificate {
	if s.certificates == nil {
		return nil
	}
	return &s.certificates.current.Load().config.Certificates[0]
}

// MetricsAddress returns the address of the listener of the metrics, or nil if they have none of their own.
func (s *Servers) MetricsAddress() net.Addr {
	if s.metrics == nil {
		return nil
	}
	return s.metrics.listener.Addr()
}

// RegisterService adds a service to the gRPC server. It must be called before Serve.
func (s *Servers) RegisterService(description *grpc.ServiceDesc, implementation any) {
	s.services.RegisterService(description, implementation)
}

// GRPCAddress returns the address of the gRPC listener.
func (s *Servers) GRPCAddress() net.Addr { return s.grpcListener.Addr() }

// HTTPAddress returns the address of the HTTP listener, or nil if HTTP is off.
func (s *Servers) HTTPAddress() net.Addr {
	if s.http == nil {
		return nil
	}
	return s.http.listener.Addr()
}

// Flow-control windows: what a client may send before the server has accepted it.
const (
	streamWindowBytes = 64 << 10
	connWindowBytes   = 4 << 20
)

// GRPCOptions returns the limits of every stream and connection. The defaults of grpc-go leave most
// of them unlimited. The values come from measurements.
func GRPCOptions(keepaliveTime time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxRecvMsgSize(rules.MaxGRPCBytes),
		grpc.MaxSendMsgSize(rules.MaxGRPCBytes),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTime / 3, MaxConnectionIdle: 15 * time.Minute,
		}),
		// A stream whose handler does not receive, for example because it waits, holds at most this much. gRPC
		// increases the window for a larger message when the handler receives it. Without these options it measures
		// the network and may increase the windows of all streams to 16 MiB.
		grpc.StaticStreamWindowSize(streamWindowBytes),
		grpc.StaticConnWindowSize(connWindowBytes),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.WaitForHandlers(true), // The store closes after the handlers have returned.
		grpc.WriteBufferSize(64 << 10),
		// Worker goroutines keep their grown stacks, which saves a tenth of the CPU time of a call, as
		// measured. While all workers are busy, for example with Chat, a call gets a new goroutine.
		grpc.NumStreamWorkers(128),
	}
}

// listen listens on host:port or unix:PATH. It replaces a socket file that no server listens on.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var (
		listener net.ListenConfig
		dialer   net.Dialer
	)
	path, isUnix := strings.CutPrefix(address, socketPrefix)
	if !isUnix {
		return listener.Listen(ctx, "tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return nil, errors.Join(fmt.Errorf("%s is in use", path), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // A busy server causes another error.
			return nil, fmt.Errorf("%s is in use: %w", path, err)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := listener.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o600)
}

// Serve starts all servers in group. They serve until Drain. When it returns, the server is ready: a call that
// arrives is served.
func (s *Servers) Serve(group *errgroup.Group) {
	s.readiness.serve(append(slices.Collect(maps.Keys(s.grpc.GetServiceInfo())), ""))
	group.Go(s.serveGRPC)
	if s.debug != nil {
		group.Go(s.debug.serve)
	}
	if s.http != nil {
		group.Go(s.http.loopback.serve)
		group.Go(s.http.serve)
	}
	if s.metrics != nil {
		group.Go(s.metrics.serve)
	}
	if s.certificates != nil {
		group.Go(func() error { s.certificates.watch(s.watchesUntil); return nil })
	}
}

// PrepareReload reads the certificates again. They change when apply is called, which cannot fail. The server also
// reads them again when the files change. Connections continue, except those of clients whose certificate
// is not trusted any more.
func (s *Servers) PrepareReload() (apply func(), err error) {
	if s.certificates == nil {
		return func() {}, nil
	}
	return s.certificates.prepare()
}

func (s *Servers) serveGRPC() error {
	address := s.grpcListener.Addr().String()
	if s.grpcListener.Addr().Network() == "unix" {
		address = socketPrefix + address // as clients dial it
	}
	hasTLS := s.certificates != nil && s.grpcListener.Addr().Network() != "unix"
	s.log.Info("serving grpc", "address", address, "tls", hasTLS, "sign_in", describeSignIn(s.signIn))
	if err := s.grpc.Serve(s.grpcListener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // It was stopped before it served.
}

// describeSignIn returns the kinds of credentials for a log entry.
func describeSignIn(kinds []string) string {
	if len(kinds) == 0 {
		return "off"
	}
	return strings.Join(kinds, ", ")
}

// SetNotReady makes the health service and /readyz report that the server does not accept calls. The server is not
// ready again. /readyz says why, which callers without sign-in can read.
func (s *Servers) SetNotReady(why string) { s.readiness.stop(why) }

// SetOutage makes the health service and /readyz report that the server cannot serve for a while, although it accepts
// calls. why is as in SetNotReady; if it is empty, the outage has ended.
func (s *Servers) SetOutage(why string) { s.readiness.setOutage(why) }

// Drain rejects new calls and waits for running calls to end. When ctx ends, it cancels them. It
// returns when all servers have stopped.
func (s *Servers) Drain(ctx context.Context) {
	s.stopWatching()
	var draining sync.WaitGroup
	draining.Go(func() {
		cancelStop := context.AfterFunc(ctx, s.grpc.Stop)
		defer cancelStop()
		s.grpc.GracefulStop()
	})
	if s.direct != nil {
		draining.Go(func() { s.direct.Stop(ctx) })
	}
	if s.http != nil {
		draining.Go(func() { s.http.stop(ctx) })
	}
	if s.metrics != nil {
		draining.Go(func() { s.metrics.stop(ctx) })
	}
	draining.Wait()
	if s.notifier != nil { // It has received the end of all turns.
		s.notifier.Close(ctx)
	}
	_ = s.debug.close() // The last: it shows what a stop waits for.
}
