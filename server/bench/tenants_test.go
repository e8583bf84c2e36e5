package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/store"
)

// BenchmarkTenants measures the appends of a quiet tenant, which has one caller, beside those of another
// tenant with 64 callers and large messages. In every round the quiet tenant appends alone and then beside
// each kind of flood. The metric is the ratio of the 99th percentiles. PARLEY_BENCH_ROUNDS,
// PARLEY_BENCH_SLICE and PARLEY_BENCH_ONLY apply as in BenchmarkService. A slice is four times as long.
func BenchmarkTenants(b *testing.B) {
	const turn = 4 // slices
	rounds, slice := benchRounds(b)
	only := benchSetting(b, "ONLY", regexp.Compile, regexp.MustCompile(""))
	s := openBenchServer(b, 200)
	s.auth = auth.New(time.Now, anyone{})
	quiet, flooding := s.serve(b, s.newTurns()), s.serve(b, s.newTurns())
	for _, api := range []struct {
		name         string
		quiet, flood appender
	}{
		{"in process", s.appendInProcess, s.appendInProcess},
		{"gRPC", appendOver(quiet), appendOver(flooding)},
	} {
		for _, bytes := range []int{500, 16 << 10, 64 << 10} {
			name := fmt.Sprintf("%s, messages of %d B", api.name, bytes)
			if !only.MatchString(name) {
				continue
			}
			f := &flood{append: api.flood, bytes: bytes}
			var alone, beside, ratios, rates []float64
			for round := range rounds + 1 { // The first warms up.
				runtime.GC()
				before := percentile99(b, s.ctx, api.quiet, turn*slice)
				stop := f.start(s.ctx, turn*slice)
				after := percentile99(b, s.ctx, api.quiet, turn*slice)
				rate, err := stop()
				must(b, err)
				if round > 0 {
					alone, beside = append(alone, before), append(beside, after)
					ratios, rates = append(ratios, after/before), append(rates, rate)
				}
			}
			var table strings.Builder
			row(&table, name+": p99 alone, ms", alone)
			row(&table, name+": p99 beside the flood, ms", beside)
			row(&table, name+": appends of the flood per second", rates)
			b.ReportMetric(row(&table, name+": beside / alone", ratios), metric(name))
			b.Log(table.String())
		}
	}
	b.ReportMetric(0, "ns/op")
}

// appender appends a message to a conversation of a tenant.
type appender func(ctx context.Context, tenant, id string, m *parleyv1.Message) error

func (s *benchServer) appendInProcess(ctx context.Context, tenant, id string, m *parleyv1.Message) error {
	_, err := s.store.Append(ctx, &store.Append{Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{m}})
	return err
}

// anyone is a verifier that lets each caller name any tenant.
type anyone struct{}

func (anyone) Verify(context.Context, auth.Credentials) (auth.Identity, error) {
	return auth.Identity{Tenants: []string{auth.AllTenants}, Role: auth.Writer}, nil
}

func appendOver(conn *grpc.ClientConn) appender {
	client := parleyv1.NewConversationServiceClient(conn)
	return func(ctx context.Context, tenant, id string, m *parleyv1.Message) error {
		_, err := client.AppendMessages(metadata.AppendToOutgoingContext(ctx, auth.TenantKey, tenant),
			&parleyv1.AppendMessagesRequest{ConversationId: id, Messages: []*parleyv1.Message{m}})
		return err
	}
}

// percentile99 appends for a duration with one caller. It returns the 99th percentile of the times in
// milliseconds.
func percentile99(b *testing.B, ctx context.Context, write appender, d time.Duration) float64 {
	b.Helper()
	m := benchMessage(parleyv1.Role_ROLE_USER)
	var took []float64
	for end := time.Now().Add(d); time.Now().Before(end); {
		start := time.Now()
		must(b, write(ctx, "quiet", fmt.Sprint("c", rand.N(100)), m))
		took = append(took, float64(time.Since(start).Microseconds())/1000)
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// flood is what the other tenant appends, with 64 callers.
type flood struct {
	append appender
	bytes  int // of a message
}

// start starts the callers and returns when they have appended for a quarter of a slice. stop ends them. It
// returns the appends per second.
func (f *flood) start(ctx context.Context, slice time.Duration) (stop func() (rate float64, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	var done atomic.Int64
	start := time.Now()
	m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", f.bytes-100)}
	for caller := range 64 {
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := f.append(ctx, "flooding", fmt.Sprint(f.bytes, "-", caller), m); err != nil && ctx.Err() == nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
	}
	<-time.After(slice / 4)
	return func() (float64, error) {
		n, took := done.Load(), time.Since(start)
		cancel()
		return float64(n) / took.Seconds(), group.Wait()
	}
}
