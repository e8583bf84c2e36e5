package metrics

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"
)

// calls measures the calls of a gRPC server. Its metrics have the names, labels and texts of go-grpc-middleware's
// provider for Prometheus, which dashboards and alerts of others expect. That provider finds five metrics by their
// labels in each call, which took 3 % of the processor time of short calls; calls finds them once for each method.
type calls struct {
	started, handled, received, sent *prometheus.CounterVec
	seconds                          *prometheus.HistogramVec

	methods sync.Map // full name of a method to *methodMetrics; bounded by the methods of the server
}

// methodMetrics are the metrics of a method.
type methodMetrics struct {
	started, received, sent prometheus.Counter
	handled                 [codes.Unauthenticated + 1]prometheus.Counter // by code; this is the last one
	seconds                 prometheus.Observer
}

// The values of the label grpc_type.
const (
	unaryType        = "unary"
	clientStreamType = "client_stream"
	serverStreamType = "server_stream"
	bidiStreamType   = "bidi_stream"
)

func (m *Metrics) addCalls() {
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	m.calls.started = m.counters("grpc_server_started_total", "Total number of RPCs started on the server.", labels...)
	m.calls.handled = m.counters("grpc_server_handled_total",
		"Total number of RPCs completed on the server, regardless of success or failure.", append(labels, "grpc_code")...)
	m.calls.received = m.counters("grpc_server_msg_received_total",
		"Total number of RPC stream messages received on the server.", labels...)
	m.calls.sent = m.counters("grpc_server_msg_sent_total",
		"Total number of gRPC stream messages sent by the server.", labels...)
	m.calls.seconds = m.histograms("grpc_server_handling_seconds",
		"Histogram of response latency (seconds) of gRPC that had been application-level handled by the server.",
		// Most calls take less than a millisecond, streams minutes.
		[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30, 300}, labels...)
}

// AddMethods adds the metrics of all methods of a server, with the value 0.
func (m *Metrics) AddMethods(server reflection.ServiceInfoProvider) {
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			m.calls.method("/"+service+"/"+method.Name, typeOf(method.IsClientStream, method.IsServerStream))
		}
	}
}

func typeOf(clientStream, serverStream bool) string {
	switch {
	case clientStream && serverStream:
		return bidiStreamType
	case clientStream:
		return clientStreamType
	case serverStream:
		return serverStreamType
	default:
		return unaryType
	}
}

// method returns the metrics of a method of the server. It creates them when they are needed for the first time.
func (c *calls) method(fullName, kind string) *methodMetrics {
	if known, ok := c.methods.Load(fullName); ok {
		found, _ := known.(*methodMetrics) // The map has no others.
		return found
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(fullName, "/"), "/")
	added := &methodMetrics{
		started:  c.started.WithLabelValues(kind, service, name),
		received: c.received.WithLabelValues(kind, service, name),
		sent:     c.sent.WithLabelValues(kind, service, name),
		seconds:  c.seconds.WithLabelValues(kind, service, name),
	}
	for code := range added.handled {
		added.handled[code] = c.handled.WithLabelValues(kind, service, name, codes.Code(code).String())
	}
	known, _ := c.methods.LoadOrStore(fullName, added)
	found, _ := known.(*methodMetrics)
	return found
}

// end records the end of a call.
func (m *methodMetrics) end(start time.Time, err error) {
	code := status.Code(err)
	if int(code) >= len(m.handled) {
		code = codes.Unknown // No code of gRPC.
	}
	m.handled[code].Inc()
	m.seconds.Observe(time.Since(start).Seconds())
}

// Unary returns the interceptor that measures unary calls. It must be outside of that which makes statuses of errors.
func (m *Metrics) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method, start := m.calls.method(info.FullMethod, unaryType), time.Now()
		method.started.Inc()
		method.received.Inc()
		reply, err := handler(ctx, request)
		if err == nil {
			method.sent.Inc()
		}
		method.end(start, err)
		return reply, err
	}
}

// Stream returns the interceptor that measures streams. It must be outside of that which makes statuses of errors.
func (m *Metrics) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		method, start := m.calls.method(info.FullMethod, typeOf(info.IsClientStream, info.IsServerStream)), time.Now()
		method.started.Inc()
		err := handler(srv, &measuredStream{stream, method})
		method.end(start, err)
		return err
	}
}

// measuredStream is a stream whose messages are counted.
type measuredStream struct {
	grpc.ServerStream
	method *methodMetrics
}

// SendMsg sends a message.
func (s *measuredStream) SendMsg(message any) error {
	err := s.ServerStream.SendMsg(message)
	if err == nil {
		s.method.sent.Inc()
	}
	return err
}

// RecvMsg receives a message.
func (s *measuredStream) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	if err == nil {
		s.method.received.Inc()
	}
	return err
}
