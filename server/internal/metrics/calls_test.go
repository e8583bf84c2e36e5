package metrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	grpcprometheus "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// testStream is a stream whose messages fail if err is not nil.
type testStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as in a stream
	err error
}

func (s *testStream) Context() context.Context { return s.ctx }
func (s *testStream) SendMsg(any) error        { return s.err }
func (s *testStream) RecvMsg(any) error        { return s.err }

// TestCallsAsTheProvider makes the same calls with the interceptors of this package and with those of
// go-grpc-middleware's provider, whose metrics others know, and compares all metrics of both.
func TestCallsAsTheProvider(t *testing.T) {
	m := New(Options{})
	provider := grpcprometheus.NewServerMetrics(grpcprometheus.WithServerHandlingTimeHistogram(
		grpcprometheus.WithHistogramBuckets([]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30, 300})))
	server := grpc.NewServer()
	parleyv1.RegisterConversationServiceServer(server, parleyv1.UnimplementedConversationServiceServer{})
	m.AddMethods(server)
	provider.InitializeMetrics(server)
	compare := func(when string) {
		t.Helper()
		got, want := series(t, m.registry), series(t, provider)
		for _, series := range slices.Sorted(maps.Keys(want)) {
			if got[series] != want[series] {
				t.Errorf("%s: %s = %q, want as of the provider %q", when, series, got[series], want[series])
			}
			delete(got, series)
		}
		for series := range got {
			t.Errorf("%s: %s exists, but not in the provider", when, series)
		}
	}
	compare("before the first call")
	const service = "/parley.v1.ConversationService/"
	for _, fault := range []error{
		nil, status.Error(codes.NotFound, "x"), status.Error(codes.Unauthenticated, "x"), status.Error(codes.Canceled, "x"),
	} {
		handler := func(context.Context, any) (any, error) { return nil, fault }
		for _, interceptor := range []grpc.UnaryServerInterceptor{m.Unary(), provider.UnaryServerInterceptor()} {
			_, _ = interceptor(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: service + "GetConversation"}, handler)
		}
		for _, interceptor := range []grpc.StreamServerInterceptor{m.Stream(), provider.StreamServerInterceptor()} {
			for method, client := range map[string]bool{"Chat": false, "ImportConversations": true} {
				for _, broken := range []error{nil, errors.New("broken")} {
					_ = interceptor(nil, &testStream{ctx: t.Context(), err: broken},
						&grpc.StreamServerInfo{FullMethod: service + method, IsClientStream: client, IsServerStream: !client},
						func(_ any, stream grpc.ServerStream) error {
							_, _, _ = stream.RecvMsg(nil), stream.SendMsg(nil), stream.SendMsg(nil)
							return fault
						})
				}
			}
		}
	}
	compare("after calls")
}

// TestUnknownCode checks that a code that gRPC does not have is counted as Unknown.
func TestUnknownCode(t *testing.T) {
	m := New(Options{})
	_, _ = m.Unary()(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/M"}, func(context.Context, any) (any, error) {
		return nil, status.Error(99, "x")
	})
	m.want(t, `grpc_server_handled_total{grpc_code="Unknown",grpc_method="M",grpc_service="s",grpc_type="unary"} 1`)
}

// series returns the values of the metrics of gRPC by name and labels. The value of a histogram is its bounds and the
// number of observations.
func series(t *testing.T, c prometheus.Collector) map[string]string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "grpc_server_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			value := fmt.Sprint(metric.GetCounter().GetValue())
			if h := metric.GetHistogram(); h != nil {
				value = fmt.Sprint(h.GetSampleCount())
				for _, bucket := range h.GetBucket() {
					value += fmt.Sprint(" ", bucket.GetUpperBound())
				}
			}
			values[fmt.Sprint(family.GetName(), metric.GetLabel())] = family.GetType().String() + family.GetHelp() + value
		}
	}
	return values
}
