package redisstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestSentinel kills the master that a Sentinel monitors, while two stores write to it. The Sentinel promotes one of
// two replicas, and the writes continue: none is lost, and none is made twice.
func TestSentinel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: a failover takes some seconds")
	}
	engine := redistest.Start(t)
	replicaOf(t, engine)
	replicaOf(t, engine)
	url := redistest.StartSentinel(t, "main", engine, 2)
	o := Options{Client: clientOf(t, url, Access{}), Buckets: 4, Replicated: true}
	stores := []*Store{openReplicated(t, o), openReplicated(t, o)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	killed := make(chan struct{})
	writers := make([]*failoverWriter, 4)
	served := make([]chan struct{}, len(writers))
	var running sync.WaitGroup
	for i := range writers {
		served[i] = make(chan struct{})
		writers[i] = &failoverWriter{tenant: "acme", id: fmt.Sprint("c", i), stores: stores, served: served[i]}
		running.Go(func() { writers[i].run(ctx, t, killed) })
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for n := int64(0); n < 100; {
		<-ticker.C
		stats, err := stores[0].TenantStats(ctx, "acme")
		if err != nil {
			t.Fatalf("TenantStats = %v", err)
		}
		n = stats.Messages
	}
	engine.Kill()
	close(killed)
	begin, most := time.Now(), time.After(failoverMost)
	for i, done := range served {
		select {
		case <-done:
		case <-most:
			t.Fatalf("%q was not served within %v after the kill", writers[i].id, failoverMost)
		}
	}
	t.Logf("served after %.1f s", time.Since(begin).Seconds())
	stop()
	running.Wait()
	for _, w := range writers {
		if lost, doubled := w.check(t, stores[0]); lost+doubled > 0 {
			t.Errorf("%q: %d acknowledged messages lost, %d doubled", w.id, lost, doubled)
		}
	}
}
