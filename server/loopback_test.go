package main

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
)

// connections counts those of a client.
type connections struct{ begun, ended atomic.Int64 }

func (*connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (*connections) HandleRPC(context.Context, stats.RPCStats) {}

func (*connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (c *connections) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		c.begun.Add(1)
	case *stats.ConnEnd:
		c.ended.Add(1)
	}
}

// TestLoopbackKeepsAnIdleConnection: the client of the MCP tools, which pings every 30 s by
// default, keeps its connection to the loopback when nobody calls for a while.
func TestLoopbackKeepsAnIdleConnection(t *testing.T) {
	t.Parallel()
	agents, err := agent.NewSet("echo", []agent.Entry{{Name: "echo", Agent: echo.New()}})
	if err != nil {
		t.Fatal(err)
	}
	service, err := rpc.New(rpc.Options{Agents: agents, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := newLoopback(service)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- l.serve() }()
		defer func() {
			l.stop(t.Context())
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		var conns connections
		c, err := client.Dial("passthrough:loopback", append(l.dialOptions(), grpc.WithStatsHandler(&conns))...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if _, err := c.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{}); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Minute) // of this bubble's clock
			synctest.Wait()
		}
		if begun, ended := conns.begun.Load(), conns.ended.Load(); begun != 1 || ended != 0 {
			t.Errorf("%d connections were begun and %d ended, want 1 and 0", begun, ended)
		}
	})
}
