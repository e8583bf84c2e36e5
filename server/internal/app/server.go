package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/command"
	"github.com/parleyhq/parley/server/internal/calllog"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/limit"
	"github.com/parleyhq/parley/server/internal/logqueue"
	"github.com/parleyhq/parley/server/internal/metrics"
	"github.com/parleyhq/parley/server/internal/peer"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/server/internal/supervisor"
	"github.com/parleyhq/parley/server/internal/tracing"
	"github.com/parleyhq/parley/server/internal/tracing/tracestore"
	"github.com/parleyhq/parley/server/internal/transport"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
)

// A sweep deletes at most sweepBatch conversations per transaction, so that writers never wait long.
const (
	sweepInterval = 2 * time.Second
	sweepBatch    = 256
)

// servingStatus is what the supervisor shows while the server serves.
const servingStatus = "serving"

// options are what run needs in addition to the settings.
type options struct {
	version   string // of the program
	log       *slog.Logger
	stderr    *logqueue.Queue // of log; nil: unknown
	level     *slog.LevelVar  // of log
	gcBallast int             // size of the GC ballast in bytes
	tracer    *tracing.Tracer // nil: no traces
	onStop    func()          // called when the server starts to stop, for any reason, once or more
	// readSettings reads the settings again. It is called for each value of hangups.
	readSettings func(ctx context.Context) (*config.Config, error)
	hangups      <-chan os.Signal
}

// server is the wired service. Open it with open, serve with serve, end it with stop.
type server struct {
	options

	storage      *Storage
	storeHealthy context.Context // ends when the store fails, with the error as its cause
	storeFailed  context.CancelCauseFunc
	agents       *agent.Set
	processes    command.Processes // of agents
	reloader     *reloader
	settings     atomic.Pointer[config.Config] // the last ones that were read
	stopReaping  func()
	supervisor   *supervisor.Supervisor
	stopWatchdog func()
	limits       *limit.Tenants
	metrics      *metrics.Metrics
	backupTime   *storedTime    // nil: the store has no backups
	failureTime  *storedTime    // nil: the store cannot fail
	saving       sync.WaitGroup // of failureTime
	hub          *watch.Hub
	turns        *turn.Manager
	peers        *peer.Turns // nil: no other server uses the store

	signIn     *signIn
	service    *rpc.Server
	transports *transport.Servers

	group     *errgroup.Group // everything that serve has started
	serving   context.Context // ends with a signal to stop, when a transport fails, and with stopServe
	stopServe context.CancelFunc
}

// run serves until ctx ends, a transport fails or the store fails. Then it stops the server and
// returns the errors.
func run(ctx context.Context, c *config.Config, o options) error {
	s, err := open(ctx, c, o)
	if err != nil {
		return err
	}
	if err := s.turns.Recover(ctx); err != nil {
		if ctx.Err() != nil && s.storeHealthy.Err() == nil {
			err = nil // A signal to stop came first. The next start completes the recovery.
		}
		return errors.Join(err, s.close())
	}
	s.settings.Store(c)
	if err := s.listen(ctx, c); err != nil {
		return errors.Join(err, s.close())
	}
	s.reloader = &reloader{server: s, start: c, agents: c.Agents}
	s.serve(ctx)
	s.supervisor.Ready(servingStatus)
	select {
	case <-s.storeHealthy.Done():
	case <-s.serving.Done():
	}
	return s.stop(c.StopGrace)
}

// open creates the agents and the turns and opens the storage. Turns continue after the end of ctx,
// which is the signal to stop. The caller must call close, unless there is an error.
func open(ctx context.Context, c *config.Config, o options) (*server, error) {
	limits := limit.New(c.Limits(), time.Now)
	s := &server{
		options: o, storage: NewStorage(c, limits, o.log, o.level), limits: limits,
		hub: watch.New(watch.Options{
			MaxWatchers: c.MaxWatchers, MaxOf: func(tenant string) int { return limits.Of(tenant).MaxWatchers },
		}),
		supervisor: supervisor.New(o.log),
	}
	s.metrics = metrics.New(metrics.Options{
		Version: o.version, StoreName: c.Store, Tenants: c.MetricsTenants,
		LimitReasons: rpc.LimitReasons(), FailureReasons: rpc.FailureReasons(),
	})
	var err error
	if s.agents, _, err = newAgents(c, &s.processes, nil); err != nil {
		return nil, err
	}
	if s.signIn, err = openSignIn(c, o.log); err != nil {
		return nil, errors.Join(err, s.agents.Close())
	}
	s.storeHealthy, s.storeFailed = context.WithCancelCause(context.WithoutCancel(ctx))
	s.turns = turn.New(context.WithoutCancel(ctx), turn.Options{
		Store: s.traced(), Agents: s.agents, EventSink: s.hub, Log: o.log,
		TurnTimeout: c.TurnTimeout, IdleTimeout: c.IdleTimeout,
		MaxAnswerBytes: c.MaxAnswerBytes, MaxConversationBytes: c.MaxConversationBytes,
		MaxRecordBytes: int64(c.MaxRecordBytes),
		MaxTurnsOf:     func(tenant string) int { return limits.Of(tenant).MaxTurns },
		OnEnd:          func(e turn.End) { s.metrics.TurnEnded(metrics.Turn(e)) },
		Owner:          s.owner,
	})
	s.metrics.SetAgents(s.agents.Names())
	if c.Store == "bolt" {
		s.failureTime = openStoredTime(c.DataDir, failureTimeName, o.log)
	}
	if err := s.storage.Open(ctx, c, []Observer{s.hub, s.turns, s.metrics}, s.onStoreFailure); err != nil {
		s.saving.Wait()
		s.storeFailed(nil)
		s.signIn.close()
		return nil, errors.Join(err, s.agents.Close())
	}
	if ordered, ok := s.storage.Store.(store.Ordered); ok {
		s.hub.Follow(ordered)
	}
	logAgents(o.log, c)
	s.stopWatchdog = s.supervisor.Watch(func() { _, _ = s.storage.Stats(context.WithoutCancel(ctx)) })
	// The check process of the store has ended: the reaper would take its exit code.
	s.stopReaping = reapOrphans(ctx, &s.processes, o.log)
	return s, nil
}

// loggedCalls returns which calls have an entry in the log.
func loggedCalls(c *config.Config) calllog.Settings {
	return calllog.Settings{Calls: calllog.Calls(c.LogCalls), SlowAfter: c.SlowCallTime}
}

// traced returns the store whose operations have spans if there is a tracer.
func (s *server) traced() store.Store {
	if s.tracer == nil {
		return s.storage
	}
	return tracestore.New(s.storage)
}

// listen listens on the addresses of the settings. It does not serve yet.
func (s *server) listen(ctx context.Context, c *config.Config) error {
	backuper, hasBackups := s.storage.Store.(store.Backuper) // Nil if the store has no backups.
	if hasBackups {
		s.backupTime = openStoredTime(c.DataDir, backupTimeName, s.log)
	}
	turns, self, err := s.allTurns(ctx, c)
	if err != nil {
		return err
	}
	s.service = rpc.New(rpc.Options{
		Store: s.traced(), Backuper: backuper, StoreName: c.Store, Turns: turns, Peers: s.peers,
		Self: self, Hub: s.hub, Agents: s.agents,
		Interactions: s.allInteractions(), MaxMessageBytes: c.MaxMessageBytes,
		MaxConversationBytes: c.MaxConversationBytes, Version: s.version,
		BallastBytes: s.gcBallast, Log: s.log, Calls: loggedCalls(c), Tracer: s.tracer,
		Auth: s.signIn.auth, Limits: s.limits, SummaryBytes: c.SummaryBytes(),
		Retentions: rules.Retentions{
			ForbidKeepAll: !c.AllowKeepAll, ForbidNoExpiry: !c.AllowNoExpiry, ForbidNoEviction: !c.AllowNoEviction,
		},
		Monitor: &monitor{s.metrics, s.backupTime}, Unary: s.metrics.Unary(), Stream: s.metrics.Stream(),
	})
	s.transports, err = transport.Open(ctx, transport.Options{
		GRPCAddress: c.GRPCAddress, HTTPAddress: c.HTTPAddress, DebugAddress: c.DebugAddress,
		KeepaliveTime:  c.KeepaliveTime,
		AllowedOrigins: c.HTTPAllowedOrigins, A2A: c.A2A, A2AURL: c.A2AURL, A2APushPrivate: c.A2APushPrivate,
		Console: c.Console, ConsoleReadOnly: c.ConsoleReadOnly,
		WriteSettings: func(w io.Writer) error { return s.settings.Load().Write(w, c) },
		Insecure:      c.Insecure, Version: s.version, Log: s.log,
		Tracer: s.tracer, TLS: tlsFiles(c), Auth: s.signIn.auth, OIDCIssuer: c.OIDCIssuer, SignIn: c.SignIn(),
		Metrics: s.metrics.Handler(), MetricsAddress: c.MetricsAddress, MetricsOverHTTP: c.MetricsOverHTTP(),
	}, s.service)
	if err != nil {
		return err
	}
	s.metrics.AddMethods(s.transports)
	s.metrics.AddSources(s.metricsSources(ctx))
	return nil
}

// serve starts the transports, the sweep of expired conversations, the recovery of turns, and the maintenance of the
// interaction log. They run until s.serving ends. serve also compiles the rules of the API, which would be most of the
// time of a start: until then, a call compiles what it needs.
func (s *server) serve(ctx context.Context) {
	ctx, s.stopServe = context.WithCancel(ctx)
	s.group, s.serving = errgroup.WithContext(ctx)
	s.transports.Serve(s.group)
	s.group.Go(func() error {
		// What only the start and the compilation used is garbage. The GC ballast would keep it.
		defer debug.FreeOSMemory()
		return rules.Compile()
	})
	s.group.Go(func() error { s.reloader.reloadAtHangup(s.serving); return nil })
	s.group.Go(func() error { sweep(s.serving, s.storage, s.log); return nil })
	s.group.Go(func() error { s.turns.KeepRecovering(s.serving); return nil })
	if pinger, ok := s.storage.Store.(store.Pinger); ok {
		s.group.Go(func() error { s.watchStore(s.serving, pinger); return nil })
	}
	s.group.Go(func() error { s.storage.Maintain(s.serving); return nil })
}

// close closes the agents, and then the storage, which stores the last changes of turns.
func (s *server) close() error {
	s.onStop()
	s.stopReaping()
	if s.service != nil {
		s.service.Close()
	}
	if s.peers != nil {
		_ = s.peers.Close()
	}
	err := errors.Join(s.agents.Close(), s.storage.Close())
	s.saving.Wait() // The store is closed, so it does not fail again.
	s.stopWatchdog()
	s.signIn.close()
	s.storeFailed(nil)
	return err
}

// sweep deletes expired conversations, and those above the capacity, every sweepInterval.
func sweep(ctx context.Context, s store.Store, log *slog.Logger) {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = s.Sweep(ctx, sweepBatch); err != nil {
				if ctx.Err() == nil && !errors.Is(err, store.ErrUnavailable) { // watchStore logs an outage, once.
					log.Error("sweep failed", "error", err)
				}
				break
			}
		}
	}
}
