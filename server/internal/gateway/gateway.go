// Package gateway serves the API as JSON over HTTP. It translates and nothing else: every
// request becomes a call over a gRPC connection to this very server, so that rules, limits
// and errors are those of gRPC. Which path is which call stands in proto/parley/v1/http.yaml.
// Begin with [New].
package gateway

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"

	gatewayv1 "github.com/parleyhq/parley/gen/gateway/parley/v1"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// New returns the handler of all paths under /v1/, and of /openapi.json. The calls go over
// conn, which it does not close.
func New(ctx context.Context, conn grpc.ClientConnInterface) (http.Handler, error) {
	mux := runtime.NewServeMux()
	if err := gatewayv1.RegisterConversationServiceHandlerClient(ctx, mux, parleyv1.NewConversationServiceClient(conn)); err != nil {
		return nil, err
	}
	if err := gatewayv1.RegisterInteractionLogServiceHandlerClient(ctx, mux, parleyv1.NewInteractionLogServiceClient(conn)); err != nil {
		return nil, err
	}
	if err := gatewayv1.RegisterAdminServiceHandlerClient(ctx, mux, parleyv1.NewAdminServiceClient(conn)); err != nil {
		return nil, err
	}
	return mux, nil
}
