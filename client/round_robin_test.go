package client_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// dialRoundRobin serves fakes, and returns a client of all of them. The servers and the client are closed at the end of
// the test.
func dialRoundRobin(t *testing.T, servers []*fake) *client.Client {
	t.Helper()
	names := manual.NewBuilderWithScheme("names")
	var state resolver.State
	for _, f := range servers {
		address := listen(t, f, "tcp", "127.0.0.1:0")
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}})
	}
	names.InitialState(state)
	c, err := client.Dial("names:///parley", client.WithRoundRobin(), grpc.WithResolvers(names),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// appendOnce makes calls until each of some servers has received one, and then some more. It checks that the servers
// that answer have together answered each request once.
func appendOnce(t *testing.T, c *client.Client, called []*fake, answering ...*fake) {
	t.Helper()
	receivedNone := func(f *fake) bool { received, _ := f.recordedCalls(); return len(received) == 0 }
	calls := 0
	for left := 20; left > 0; calls++ {
		if !slices.ContainsFunc(called, receivedNone) {
			left--
		} else if calls > 100_000 {
			t.Fatal("a server has received no call")
		}
		if _, err := c.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: "c", RequestId: fmt.Sprint(calls),
		}); err != nil {
			t.Fatalf("AppendMessages %d = %v, want nil", calls, err)
		}
	}
	answered := map[string]int{}
	for _, f := range answering {
		_, ids := f.recordedCalls()
		for _, id := range ids {
			answered[id]++
		}
	}
	for i := range calls {
		if n := answered[fmt.Sprint(i)]; n != 1 {
			t.Errorf("request %d was answered %d times, want once", i, n)
		}
	}
}

// TestRoundRobin: calls go to all addresses of a target, and those that one of its servers refuses with UNAVAILABLE
// go to another one, with the same request_id.
func TestRoundRobin(t *testing.T) {
	servers := make([]*fake, 3)
	for i := range servers {
		servers[i] = &fake{health: health.NewServer()}
	}
	servers[2].unavailable = math.MaxInt
	appendOnce(t, dialRoundRobin(t, servers), servers, servers[:2]...)
}

// TestRoundRobinHealth: no call goes to a server that is not serving.
func TestRoundRobinHealth(t *testing.T) {
	serving, stopping := &fake{health: health.NewServer()}, &fake{health: health.NewServer()}
	stopping.health.Shutdown()
	appendOnce(t, dialRoundRobin(t, []*fake{stopping, serving}), []*fake{serving}, serving)
	if received, _ := stopping.recordedCalls(); len(received) != 0 {
		t.Errorf("the server that is not serving received %d calls, want none", len(received))
	}
}
