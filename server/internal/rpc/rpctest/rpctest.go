// Package rpctest starts the service on a store in memory, for tests of what calls it: the gateway and the facades.
// Start at [Open].
package rpctest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/turn"
	"github.com/parleyhq/parley/server/internal/watch"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// Timeout is the maximum wait of a test, and of its turns. Only a failing test waits that long.
const Timeout = time.Minute

// Options change what Open starts. The zero value changes nothing.
type Options struct {
	// Agents are agents besides echo, which is the default agent.
	Agents []agent.Entry
	// Store is that of another Service, to which this one is as after a restart. If nil, Open makes one.
	Store *memstore.Store
	// Change changes the options of the service. If nil, they stay.
	Change func(*rpc.Options)
}

// Service is a service in this process. It ends with the test.
type Service struct {
	*rpc.Server

	// Conn is a connection to the service, whose server takes the credentials of calls from their metadata.
	Conn *grpc.ClientConn
	// Direct is the connection of transports in this process.
	Direct *rpc.Direct
	Store  *memstore.Store
	turns  *turn.Manager
}

// Open starts a service.
func Open(tb testing.TB, o Options) *Service {
	tb.Helper()
	log, hub := slog.New(slog.DiscardHandler), watch.New(watch.Options{})
	all := append([]agent.Entry{{Name: "echo", Kind: "echo", Agent: echo.New()}}, o.Agents...)
	agents, err := agent.NewSet("echo", all)
	if err != nil {
		tb.Fatal(err)
	}
	s := &Service{Store: o.Store}
	if s.Store == nil {
		s.Store = memstore.New(store.Options{Observe: func(changes []store.Change) {
			hub.Committed(changes)
			s.turns.Committed(changes)
		}})
		tb.Cleanup(func() { _ = s.Store.Close() })
	}
	s.turns = turn.New(tb.Context(), turn.Options{
		Store: s.Store, Agents: agents, EventSink: hub, Log: log, TurnTimeout: Timeout, IdleTimeout: Timeout,
		MaxAnswerBytes: 3 << 20, MaxTurns: 16,
	})
	options := rpc.Options{Store: s.Store, StoreName: "memory", Turns: s.turns, Hub: hub, Agents: agents, Log: log}
	if o.Change != nil {
		o.Change(&options)
	}
	s.Server = rpc.New(options)
	tb.Cleanup(func() { s.turns.Stop(tb.Context()) }) // The context has ended, so Stop does not wait for turns.
	g := grpc.NewServer(append(s.LoopbackOptions(), grpc.WaitForHandlers(true))...)
	s.Register(g)
	s.Conn, s.Direct = Dial(tb, g), s.Server.Direct(tb.Context())
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), Timeout)
		defer cancel()
		s.Direct.Stop(ctx)
		if ctx.Err() != nil {
			tb.Errorf("streams inside the process did not end with their clients: %v", ctx.Err())
		}
	})
	tb.Cleanup(s.Stop)
	return s
}

// Dial serves g until the test ends and returns a connection to it.
func Dial(tb testing.TB, g *grpc.Server) *grpc.ClientConn {
	tb.Helper()
	listener := bufconn.Listen(1 << 20)
	var serving sync.WaitGroup
	serving.Go(func() {
		// A test without calls may stop the server before Serve is called.
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			tb.Errorf("Serve: %v", err)
		}
	})
	conn, err := grpc.NewClient("passthrough:///parley",
		grpc.WithStaticStreamWindowSize(256<<10), // The same value as the server's.
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		serving.Wait()
	})
	return conn
}
