package peer

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/store"
)

// The duration of a call of the interaction log grows with its files. A server that executes such a call answers health
// checks.
const (
	checkEvery = 500 * time.Millisecond
	checkTime  = 1500 * time.Millisecond // A server that does not answer is noticed after 2 s.
)

// whileAnswering returns the context for a call of another server. The context ends with ErrUnreachable when the server
// does not answer a health check either. The caller must call cancel after the call.
func (t *Turns) whileAnswering(
	ctx context.Context, to store.Server, conn *grpc.ClientConn,
) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	var checking sync.WaitGroup
	checking.Go(func() {
		ticker := time.NewTicker(checkEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := checkHealth(ctx, conn); err != nil && ctx.Err() == nil {
				t.log.WarnContext(ctx, "server cannot be reached", "address", to.Address, "error", err)
				end(ErrUnreachable)
			}
		}
	})
	return ctx, func() {
		end(nil)
		checking.Wait()
	}
}

// checkHealth returns an error if a server does not answer. A server that answers need not be healthy.
func checkHealth(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	_, err := healthv1.NewHealthClient(conn).Check(ctx, new(healthv1.HealthCheckRequest))
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return err
	}
	return nil
}
