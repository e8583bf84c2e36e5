package auth_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/parleyhq/parley/server/internal/auth"
)

// TestRefusalTimeOverNetwork compares 10,000 refusals of each kind of faulty credential, as a caller of a gRPC server
// measures them. It measures time, so it runs only with PARLEY_LONG.
func TestRefusalTimeOverNetwork(t *testing.T) {
	if os.Getenv("PARLEY_LONG") == "" {
		t.Skip("measures time: set PARLEY_LONG")
	}
	v := one(auth.Reader, "acme")
	v["expired"] = auth.Identity{Tenants: []string{"acme"}, Role: auth.Reader, Expires: time.Now()}
	conn := dial(t, auth.New(time.Now, slow{}, v))
	kinds := map[string][]string{ // of the metadata authorization
		"missing": nil, "malformed": {"t"}, "repeated": {"Bearer t", "Bearer t"}, "unknown": {"Bearer x"},
		"expired": {"Bearer expired"}, "slow to check": {"Bearer slow"},
	}
	const tries, callers = 10_000, 8
	var mu sync.Mutex
	var all sync.WaitGroup
	times := map[string][]time.Duration{}
	for range callers {
		all.Go(func() {
			for range tries / callers {
				for kind, values := range kinds { // in random order
					ctx := metadata.NewOutgoingContext(t.Context(), metadata.MD{auth.TokenKey: values})
					begin := time.Now()
					err := conn.Invoke(ctx, read, new(emptypb.Empty), new(emptypb.Empty))
					took := time.Since(begin)
					if err == nil || !strings.Contains(err.Error(), auth.ErrUnauthenticated.Error()) {
						t.Errorf("call with a %s token = %v, want ErrUnauthenticated", kind, err)
					}
					mu.Lock()
					times[kind] = append(times[kind], took)
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	quartile := func(kind string, n int) time.Duration { return times[kind][len(times[kind])*n/4] }
	for kind := range kinds {
		slices.Sort(times[kind])
	}
	for kind := range kinds {
		t.Logf("%s: quartiles %s, %s, %s", kind, quartile(kind, 1), quartile(kind, 2), quartile(kind, 3))
		for n := 1; n <= 3; n++ {
			// A millisecond is the time of the slow check.
			if apart := (quartile(kind, n) - quartile("unknown", n)).Abs(); apart > time.Millisecond/2 {
				t.Errorf("quartile %d of %s = %s, of unknown %s, want them closer", n, kind, quartile(kind, n),
					quartile("unknown", n))
			}
		}
	}
}

// dial starts a gRPC server that authorizes all calls, and connects to it.
func dial(t *testing.T, a *auth.Authenticator) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(stream)
		if _, err := a.Authorize(stream.Context(), method, auth.FromNetwork(stream.Context())); err != nil {
			return auth.ErrUnauthenticated
		}
		return errors.New("authorized")
	}))
	listener, err := (&net.ListenConfig{}).Listen(context.WithoutCancel(t.Context()), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return conn
}
