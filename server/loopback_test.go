package main

import (
	"context"
	"iter"
	"log/slog"
	"strings"
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
	"github.com/parleyhq/parley/store"
)

// connections counts the connections of a client.
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

// overLoopback runs a test with a loopback of its own in a bubble.
func overLoopback(t *testing.T, o rpc.Options, test func(t *testing.T, l *loopback)) {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	service, err := rpc.New(o)
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
		test(t, l)
	})
}

// TestLoopbackKeepsAnIdleConnection: the client of the MCP tools, which pings every 30 s by
// default, keeps its connection to the loopback when no calls are made for a while.
func TestLoopbackKeepsAnIdleConnection(t *testing.T) {
	t.Parallel()
	agents, err := agent.NewSet("echo", []agent.Entry{{Name: "echo", Agent: echo.New()}})
	if err != nil {
		t.Fatal(err)
	}
	overLoopback(t, rpc.Options{Agents: agents}, func(t *testing.T, l *loopback) {
		t.Helper()
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

// chatter are Turns of which each says the same, as long as somebody listens.
type chatter struct{ rpc.Turns }

// Chat talks.
func (chatter) Chat(context.Context, string, *parleyv1.ChatRequest, *store.Request) iter.Seq2[*parleyv1.TurnEvent, error] {
	e := &parleyv1.TurnEvent{Event: &parleyv1.TurnEvent_TextDelta{TextDelta: &parleyv1.TextDelta{Text: strings.Repeat("x", 1000)}}}
	return func(yield func(*parleyv1.TurnEvent, error) bool) {
		for yield(e, nil) {
		}
	}
}

// TestLoopbackWaitsForItsReader: a reader at the other end, which passes a stream on, may be busy
// with one message for as long as its own client takes.
func TestLoopbackWaitsForItsReader(t *testing.T) {
	t.Parallel()
	overLoopback(t, rpc.Options{Turns: chatter{}}, func(t *testing.T, l *loopback) {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		stream, err := parleyv1.NewConversationServiceClient(l.conn).Chat(ctx, &parleyv1.ChatRequest{Content: "hello"})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for range 2 * streamBytes / 1000 {
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(10 * time.Minute) // of this bubble's clock
		}
	})
}
