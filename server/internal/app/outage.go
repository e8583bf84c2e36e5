package app

import (
	"context"
	"errors"
	"time"

	"github.com/parleyhq/parley/store"
)

const (
	// pingInterval is the time between two pings of the store.
	pingInterval = time.Second
	// pingTime is the time limit of a ping.
	pingTime = 3 * time.Second
)

// watchStore asks the store whether it answers, until ctx ends. While it does not, probes report an outage.
func (s *server) watchStore(ctx context.Context, pinger store.Pinger) {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	isOut := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := ping(ctx, pinger)
		switch {
		case ctx.Err() != nil, errors.Is(err, store.ErrClosed):
			return
		case err != nil && !isOut:
			s.log.Error("store unavailable", "error", err)
			s.transports.SetOutage("store unavailable")
		case err == nil && isOut:
			s.log.Info("store available again")
			s.transports.SetOutage("")
		}
		isOut = err != nil
	}
}

func ping(ctx context.Context, pinger store.Pinger) error {
	ctx, cancel := context.WithTimeout(ctx, pingTime)
	defer cancel()
	return pinger.Ping(ctx)
}
