package transport

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rules"
)

// connectionCounter counts the connections of a client.
type connectionCounter struct{ begun, ended atomic.Int64 }

func (*connectionCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return ctx
}

func (*connectionCounter) HandleRPC(context.Context, stats.RPCStats) {}

func (*connectionCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

func (c *connectionCounter) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		c.begun.Add(1)
	case *stats.ConnEnd:
		c.ended.Add(1)
	}
}

// withLoopback runs a test in a synctest bubble with a new loopback.
func withLoopback(t *testing.T, o rpc.Options, test func(t *testing.T, l *loopback)) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	service := rpc.New(o)
	synctest.Test(t, func(t *testing.T) {
		l := newLoopback(service)
		served := make(chan error, 1)
		go func() { served <- l.serve() }()
		defer func() {
			l.stop(t.Context())
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		test(t, l)
	})
}

// TestLoopbackIdle checks that a client which makes no calls for a while keeps its connection. The
// client of the MCP tools would send a ping every 30 s by default.
func TestLoopbackIdle(t *testing.T) {
	t.Parallel()
	agents, err := agent.NewSet("echo", []agent.Entry{{Name: "echo", Agent: echo.New()}})
	if err != nil {
		t.Fatal(err)
	}
	withLoopback(t, rpc.Options{Agents: agents}, func(t *testing.T, l *loopback) {
		t.Helper()
		var conns connectionCounter
		c, err := client.Dial("passthrough:loopback", append(l.dialOptions(), grpc.WithStatsHandler(&conns))...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if _, err := c.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{}); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Minute) // of the fake clock
			synctest.Wait()
		}
		if begun, ended := conns.begun.Load(), conns.ended.Load(); begun != 1 || ended != 0 {
			t.Errorf("connections begun = %d and ended = %d, want 1 and 0", begun, ended)
		}
	})
}

// TestLimits compares the limits of the client with those of the server, since neither imports the other's.
func TestLimits(t *testing.T) {
	if client.MaxGRPCBytes != rules.MaxGRPCBytes {
		t.Errorf("client.MaxGRPCBytes = %d, want rules.MaxGRPCBytes, %d", client.MaxGRPCBytes, rules.MaxGRPCBytes)
	}
}
