package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// Sizes of TestFailovers.
const (
	failoverWriters = 8                      // at the master that is killed, and as many at the others
	failoverBefore  = 3 * time.Second        // of load before the kill
	failoverCut     = 200 * time.Millisecond // of load without replicas before some kills
	failoverAfter   = time.Second            // of load after the buckets serve again
	failoverMost    = 30 * time.Second       // until they do; about 4 s were measured
)

// TestFailovers kills the master of some buckets under load, once, or 20 times with PARLEY_LONG=1 in the environment.
// Its buckets become available again, the others stay available, and no message is stored twice. With
// Options.Replicated, no acknowledged message is lost, even in every second round, in which the connections to the
// replicas are cut before the kill. The log contains the measurements.
func TestFailovers(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: a failover takes some seconds")
	}
	rounds := 1
	if os.Getenv("PARLEY_LONG") != "" {
		rounds = 20
	}
	for name, replicated := range map[string]bool{"local": false, "replicated": true} {
		t.Run(name, func(t *testing.T) {
			f := &failovers{cluster: redistest.StartCluster(t, 3, 2), replicated: replicated}
			for range 2 {
				f.stores = append(f.stores, openReplicated(t, Options{
					Client: clientOf(t, f.cluster.URL(), Access{}), Buckets: 16, Replicated: replicated,
				}))
			}
			for i := range rounds {
				f.round(t, i)
			}
		})
	}
}

// failovers are the rounds of TestFailovers with one cluster.
type failovers struct {
	cluster    *redistest.Cluster
	replicated bool
	stores     []*Store // each attempt of an append is made by the next one
}

// failoverWriter appends messages to a conversation, each with a request that it repeats until it is acknowledged.
type failoverWriter struct {
	tenant, id string
	stores     []*Store
	served     chan struct{} // closed when a message was acknowledged that was begun after the kill

	acknowledged []time.Time // in the order of the messages
}

// run appends until ctx ends. killed is closed when the master is killed.
func (w *failoverWriter) run(ctx context.Context, t *testing.T, killed <-chan struct{}) {
	t.Helper()
	attempts := 0
	for ctx.Err() == nil {
		after := false
		select {
		case <-killed:
			after = true
		default:
		}
		text := fmt.Sprint(len(w.acknowledged))
		for {
			_, err := w.stores[attempts%len(w.stores)].Append(context.WithoutCancel(ctx), &store.Append{
				Tenant: w.tenant, ConversationID: w.id, Messages: message(text), Request: requestOf(w.id + " " + text),
				CreateWith: &parleyv1.Conversation{Retention: &parleyv1.Retention{KeepAll: true}},
			})
			attempts++
			if err == nil {
				break
			}
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("Append(%q, %q) = %v, want nil or ErrUnavailable", w.id, text, err)
				return
			}
			if ctx.Err() != nil {
				return // It may be in the history.
			}
		}
		w.acknowledged = append(w.acknowledged, time.Now())
		if after && w.served != nil {
			close(w.served)
			w.served = nil
		}
	}
}

// tenantsAt returns tenants whose buckets a node serves, or does not serve.
func (f *failovers) tenantsAt(t *testing.T, node *redistest.Server, at bool, n int) (tenants []string) {
	t.Helper()
	masters := map[string]*redistest.Server{}
	for i := 0; len(tenants) < n; i++ {
		if i == 1000 {
			t.Fatal("no tenants")
		}
		tenant := fmt.Sprint("tenant", i)
		prefix := f.stores[0].bucketOf(tenant).prefix
		if masters[prefix] == nil {
			masters[prefix] = f.cluster.Master(prefix)
		}
		if (masters[prefix] == node) == at {
			tenants = append(tenants, tenant)
		}
	}
	return tenants
}

// round kills a master under load, checks what it leaves, and starts it again.
func (f *failovers) round(t *testing.T, number int) {
	t.Helper()
	buckets := f.stores[0].buckets
	master := f.cluster.Master(buckets[number%len(buckets)].prefix)
	var all []*failoverWriter
	for _, at := range []bool{true, false} {
		for _, tenant := range f.tenantsAt(t, master, at, failoverWriters) {
			id := fmt.Sprint("round ", number, " of ", tenant)
			all = append(all, &failoverWriter{tenant: tenant, id: id, stores: f.stores, served: make(chan struct{})})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	killed := make(chan struct{})
	var served []chan struct{}
	var running sync.WaitGroup
	for _, w := range all {
		served = append(served, w.served)
		running.Go(func() { w.run(ctx, t, killed) })
	}
	<-time.After(failoverBefore)
	cut := number%2 == 0
	if cut { // The replicas cannot connect again, and do not have what is written from here on.
		_, err1 := master.Do("ACL", "SETUSER", "default", "-psync", "-sync")
		_, err2 := master.Do("CLIENT", "KILL", "TYPE", "replica")
		if err := errors.Join(err1, err2); err != nil {
			t.Error(err)
		}
		<-time.After(failoverCut)
	}
	begin := time.Now()
	master.Kill()
	close(killed)
	most := time.After(failoverMost)
	for i, done := range served {
		select {
		case <-done:
		case <-most:
			t.Errorf("%q was not served within %v after the kill", all[i].id, failoverMost)
			most = time.After(0)
		}
	}
	outage := time.Since(begin)
	<-time.After(failoverAfter)
	stop()
	running.Wait()
	master.Restart()
	f.cluster.AwaitComplete()
	lost, doubled := 0, 0
	for _, w := range all {
		l, d := w.check(t, f.stores[0])
		lost, doubled = lost+l, doubled+d
	}
	if doubled > 0 || lost > 0 && f.replicated {
		t.Errorf("round %d: %d acknowledged messages lost, %d doubled", number, lost, doubled)
	}
	others := all[failoverWriters:]
	before := rateOf(others, begin.Add(-failoverBefore+time.Second), begin, time.Second) // After the first second.
	during := rateOf(others, begin, begin.Add(max(outage, time.Second)), time.Second)
	if slices.Max(during) == 0 {
		t.Errorf("round %d: no append to other buckets in %v after the kill", number, outage)
	}
	sum := 0
	for _, n := range before {
		sum += n
	}
	mean := max(1, sum/len(before))
	t.Logf("round %d, replicas cut off before: %t: served after %.1f s; others %d appends a second before, at least %d (%d %%) in a second afterwards; "+
		"%d lost, %d doubled", number, cut, outage.Seconds(), mean, slices.Min(during), 100*slices.Min(during)/mean, lost, doubled)
}

// rateOf returns how many appends of writers were acknowledged in each whole window from one time to another.
func rateOf(writers []*failoverWriter, from, to time.Time, window time.Duration) []int {
	counts := make([]int, int(to.Sub(from)/window))
	for _, w := range writers {
		for _, at := range w.acknowledged {
			if i := int(at.Sub(from) / window); !at.Before(from) && i < len(counts) {
				counts[i]++
			}
		}
	}
	return counts
}

// check returns how many acknowledged messages the history lacks, and how many messages it has more than once. Its
// sequences must have no gaps.
func (w *failoverWriter) check(t *testing.T, s *Store) (lost, doubled int) {
	t.Helper()
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: w.tenant, ConversationID: w.id, Newest: -1})
	if err != nil {
		t.Errorf("Read(%q) = %v", w.id, err)
		return 0, 0
	}
	messages, err := snapshot.Messages.Messages()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for i, m := range messages {
		if seen[m.GetContent()] > 0 {
			doubled++
		}
		seen[m.GetContent()]++
		if m.GetSequence() != int32(i+1) {
			t.Errorf("message %d of %q has sequence %d, want %d", i, w.id, m.GetSequence(), i+1)
		}
	}
	for i := range w.acknowledged {
		if seen[fmt.Sprint(i)] == 0 {
			lost++
		}
	}
	return lost, doubled
}
