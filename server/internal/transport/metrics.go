package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
)

// metricsPath is the path of the metrics.
const metricsPath = "/metrics"

// authorizeScrapes returns a handler that passes the requests of callers that may read the metrics to next: those with
// the role reader for all tenants, or every caller if sign-in is off. The service writes audit entries about others.
func authorizeScrapes(next http.Handler, service *rpc.Server) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "use GET", http.StatusMethodNotAllowed)
			return
		}
		_, err := service.SignIn(r.Context(), auth.MetricsMethod, gateway.Metadata(r))
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.Is(err, auth.ErrUnauthenticated):
			w.Header().Set("Www-Authenticate", `Bearer realm="parley"`)
			http.Error(w, "the request has no valid credential; send a token in the header Authorization, or use a client "+
				"certificate; it needs the role reader for all tenants", http.StatusUnauthorized)
		default:
			http.Error(w, err.Error()+"; use a credential that has it", http.StatusForbidden)
		}
	})
}

// metricsServer serves /metrics on a listener of its own.
type metricsServer struct {
	log          *slog.Logger
	server       *http.Server
	listener     net.Listener
	certificates *certificates // nil if there is no TLS
	signIn       []string      // kinds of credentials
}

// openMetrics listens on the address of the metrics. It does not serve yet.
func openMetrics(ctx context.Context, o Options, c *certificates) (*metricsServer, error) {
	guarded, err := gateway.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != metricsPath {
			http.Error(w, "there is only "+metricsPath+" at this address", http.StatusNotFound)
			return
		}
		o.Metrics.ServeHTTP(w, r)
	}), nil, o.Insecure || o.Auth.Required())
	if err != nil {
		return nil, err
	}
	m := &metricsServer{log: o.Log, certificates: c, signIn: o.SignIn}
	m.server = &http.Server{
		Handler: guarded, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // errors of clients, not of the server
	}
	if c != nil {
		m.server.TLSConfig, m.server.ConnState = c.config("h2", "http/1.1"), m.trackConn
	}
	l, err := listen(ctx, o.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w; choose another --metrics-address", err)
	}
	m.listener = limitConns(l, o.Log)
	return m, nil
}

// trackConn is the [http.Server.ConnState] hook. It tracks the client certificates, as in [httpServer.trackConn].
func (m *metricsServer) trackConn(conn net.Conn, state http.ConnState) {
	secured, ok := conn.(*tls.Conn)
	switch {
	case !ok:
	case state == http.StateActive:
		m.certificates.track(conn, secured.NetConn(), secured.ConnectionState())
	case state == http.StateClosed || state == http.StateHijacked:
		m.certificates.untrack(conn)
	}
}

func (m *metricsServer) serve() error {
	m.log.Info("serving metrics", "address", m.listener.Addr().String(), "tls", m.certificates != nil,
		"sign_in", describeSignIn(m.signIn))
	var err error
	if m.certificates != nil {
		err = m.server.ServeTLS(m.listener, "", "")
	} else {
		err = m.server.Serve(m.listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stop waits for running scrapes. When ctx ends, it closes their connections.
func (m *metricsServer) stop(ctx context.Context) {
	if m.server.Shutdown(ctx) != nil {
		_ = m.server.Close()
	}
}
