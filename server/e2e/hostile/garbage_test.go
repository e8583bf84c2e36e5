package hostile

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

const (
	garbageRate  = 64 << 20 // bytes in a second
	garbageSlice = time.Second
	// garbageSlices is the number of slices with garbage, and of those without.
	garbageSlices = 10
)

// TestGarbage measures the appends of a client while others send 64 MB of garbage in a second: bytes that are not
// HTTP/2, and requests that are not messages. Slices with and without garbage alternate. The 99th percentile must
// less than double. It measures time, so it runs only with PARLEY_LONG.
func TestGarbage(t *testing.T) { //nolint:paralleltest // It measures time.
	if os.Getenv("PARLEY_LONG") == "" {
		t.Skip("measures time: set PARLEY_LONG")
	}
	built := filepath.Join(t.TempDir(), "parleyd")
	if err := parleydtest.Build(t.Context(), built); err != nil {
		t.Fatal(err)
	}
	for name, send := range map[string]func(context.Context, string, *pacer){
		"bytes": sendBytes, "requests": sendRequests,
	} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // It measures time.
			s := startProgram(t, built, insecure.NewCredentials())
			quiet, loud := new(latencies), new(latencies)
			var sent int64
			quiet.measure(t, s, garbageSlice) // It warms up.
			quiet.all = nil
			for range garbageSlices {
				quiet.measure(t, s, garbageSlice)
				ctx, cancel := context.WithCancel(t.Context())
				p := new(pacer)
				var sending sync.WaitGroup
				for range 4 {
					sending.Go(func() { send(ctx, s.grpcAddr, p) })
				}
				loud.measure(t, s, garbageSlice)
				cancel()
				sending.Wait()
				sent += p.sent
			}
			before, during := quiet.percentile(99), loud.percentile(99)
			t.Logf("p99 of %d appends without garbage %v, of %d beside %d MiB in a second %v: %.2f times",
				len(quiet.all), before, len(loud.all), sent/garbageSlices>>20, during,
				during.Seconds()/before.Seconds())
			if during >= 2*before {
				t.Errorf("p99 beside garbage = %v, want less than twice %v", during, before)
			}
		})
	}
}

// latencies are the durations of calls.
type latencies struct{ all []time.Duration }

// measure appends messages for some time.
func (l *latencies) measure(t *testing.T, s *server, length time.Duration) {
	t.Helper()
	request := &parleyv1.AppendMessagesRequest{
		ConversationId: "measured", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
	}
	if _, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "measured"}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(length); ; {
		start := time.Now()
		if start.After(end) {
			return
		}
		if _, err := s.AppendMessages(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		l.all = append(l.all, time.Since(start))
	}
}

func (l *latencies) percentile(p int) time.Duration {
	slices.Sort(l.all)
	return l.all[len(l.all)*p/100]
}

// pacer limits the rate of all senders together. The zero value starts at the first wait.
type pacer struct {
	mu    sync.Mutex
	start time.Time
	sent  int64
}

// wait waits until n bytes may be sent. It returns false if ctx has ended.
func (p *pacer) wait(ctx context.Context, n int) bool {
	p.mu.Lock()
	if p.start.IsZero() {
		p.start = time.Now()
	}
	at := p.start.Add(time.Duration(float64(p.sent) / garbageRate * float64(time.Second)))
	p.sent += int64(n)
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return true
	}
}

// sendBytes sends bytes that are not HTTP/2 on one connection after the other.
func sendBytes(ctx context.Context, address string, p *pacer) {
	garbage := bytes.Repeat([]byte{0, 255}, 32<<10)
	for ctx.Err() == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return
		}
		for p.wait(ctx, len(garbage)) {
			if _, err := conn.Write(garbage); err != nil {
				break
			}
		}
		_ = conn.Close()
	}
}

// sendRequests sends requests that are not messages.
func sendRequests(ctx context.Context, address string, p *pacer) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return
	}
	defer conn.Close()
	garbage := bytes.Repeat([]byte{0x12, 255}, 32<<10)
	codec := grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(protocodec.Name)})
	for p.wait(ctx, len(garbage)) {
		_ = conn.Invoke(ctx, appendM, garbage, new(parleyv1.AppendMessagesResponse), codec)
	}
}
