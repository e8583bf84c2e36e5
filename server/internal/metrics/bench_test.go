package metrics

import (
	"context"
	"testing"

	"google.golang.org/grpc"
)

// BenchmarkUnary measures what the interceptor adds to a unary call.
func BenchmarkUnary(b *testing.B) {
	unary := New(Options{}).Unary()
	info := &grpc.UnaryServerInfo{FullMethod: "/parley.v1.ConversationService/GetRoutingSummary"}
	handler := func(context.Context, any) (any, error) { return nil, nil } //nolint:nilnil // An empty call.
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unary(b.Context(), nil, info, handler); err != nil {
			b.Fatal(err)
		}
	}
}
