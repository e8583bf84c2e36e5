package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"sync"
	"time"

	"github.com/parleyhq/parley/server/internal/gateway"
)

// Rates at which the runtime samples allocations and waits while there is a debug listener. Without it, there
// are no samples.
const (
	memProfileRate       = 512 << 10        // one sample for this number of allocated bytes, the default of Go
	mutexProfileFraction = 100              // one sample for this number of waits for a lock
	blockProfileRate     = time.Millisecond // one sample for this time of waits
)

// debugServer serves profiles and stacks of the process, without sign-in. Its methods may be called on nil.
type debugServer struct {
	log      *slog.Logger
	listener net.Listener
	server   *http.Server
	requests sync.WaitGroup // running ones
}

// openDebug listens on the debug address. It does not serve yet. It returns nil if the debug listener is off.
func openDebug(ctx context.Context, o Options) (*debugServer, error) {
	if o.DebugAddress == "" {
		return nil, nil //nolint:nilnil // The methods accept nil.
	}
	d := &debugServer{log: o.Log}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and each profile by its name
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	guarded, err := gateway.Guard(mux, nil, false)
	if err != nil {
		return nil, err
	}
	d.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d.requests.Add(1)
			defer d.requests.Done()
			guarded.ServeHTTP(w, r)
		}),
		ReadTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // errors of clients, not of the server
	}
	l, err := listen(ctx, o.DebugAddress)
	if err != nil {
		return nil, fmt.Errorf("listen for profiles: %w; choose another --debug-address", err)
	}
	d.listener = limitConns(l, o.Log)
	runtime.MemProfileRate = memProfileRate
	runtime.SetMutexProfileFraction(mutexProfileFraction)
	runtime.SetBlockProfileRate(int(blockProfileRate.Nanoseconds()))
	return d, nil
}

func (d *debugServer) serve() error {
	address := d.listener.Addr().String()
	if d.listener.Addr().Network() == "unix" {
		address = socketPrefix + address
	}
	d.log.Info("serving profiles", "address", address)
	if err := d.server.Serve(d.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// close ends running requests, even a profile that takes minutes, and waits for their handlers.
func (d *debugServer) close() error {
	if d == nil {
		return nil
	}
	err := errors.Join(d.server.Close(), closeListener(d.listener))
	d.requests.Wait()
	return err
}

// closeListener closes a listener that may be closed.
func closeListener(l net.Listener) error {
	if err := l.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
