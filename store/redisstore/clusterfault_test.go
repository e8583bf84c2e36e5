package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// tenantAt returns a tenant whose bucket a node serves, or does not serve.
func tenantAt(t *testing.T, s *Store, c *redistest.Cluster, node *redistest.Server, at bool) string {
	t.Helper()
	for i := range 1000 {
		tenant := fmt.Sprint("tenant", i)
		if (c.Master(s.bucketOf(tenant).prefix) == node) == at {
			return tenant
		}
	}
	t.Fatal("no tenant")
	return ""
}

// TestMasterGone kills a master of a cluster, first together with its replica. Only its buckets are concerned, and work
// again after the restart, or the failover.
func TestMasterGone(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: a failover takes some seconds")
	}
	c := redistest.StartCluster(t, 3, 1)
	master, replica := c.Nodes[0], c.Nodes[3]
	now := time.Now()
	s := openWith(t, Options{
		Options: store.Options{Now: func() time.Time { return now }, TTL: time.Hour}, Buckets: 16,
	}, addressesIn(c.URL())...)
	lost, kept := tenantAt(t, s, c, master, true), tenantAt(t, s, c, master, false)
	write := func(ctx context.Context, tenant, id string) error {
		return lastError(s.Append(ctx, &store.Append{Tenant: tenant, ConversationID: id, Messages: message("hello")}))
	}
	for _, tenant := range []string{lost, kept} {
		if err := write(t.Context(), tenant, "c"); err != nil {
			t.Fatal(err)
		}
	}
	replica.Kill()
	master.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Read(ctx, &store.Read{Tenant: lost, ConversationID: "c"})
	wantError(t, "Read of the lost bucket", err, store.ErrUnavailable)
	wantError(t, "Append to the lost bucket", write(t.Context(), lost, "c"), store.ErrUnavailable)
	if err := write(t.Context(), kept, "d"); err != nil {
		t.Errorf("Append to another bucket = %v", err)
	}
	leases := s.bucketOf(kept).prefix + "ls"
	if _, err := c.Master(leases).Do("ZADD", leases, "1", s.server); err != nil {
		t.Fatal(err)
	}
	wantError(t, "renewal of leases", s.renew(t.Context()), store.ErrUnavailable)
	if end, err := c.Master(leases).Do("ZSCORE", leases, s.server); err != nil || len(end) < 5 {
		t.Errorf("lease in another bucket ends at %q, %v; want it renewed", end, err)
	}
	now = now.Add(2 * time.Hour)
	_, err = s.Sweep(t.Context(), 100)
	wantError(t, "Sweep", err, store.ErrUnavailable)
	if stats, err := s.TenantStats(t.Context(), kept); err != nil || stats.Conversations != 0 {
		t.Errorf("TenantStats of another bucket after the sweep = %+v, %v; want none", stats, err)
	}
	master.Restart()
	replica.Restart()
	c.AwaitComplete()
	if err := write(t.Context(), lost, "d"); err != nil {
		t.Errorf("Append after the restart = %v", err)
	}
	master.Kill()
	c.AwaitComplete()
	if err := write(t.Context(), lost, "e"); err != nil {
		t.Errorf("Append after the failover = %v", err)
	}
}

// move is a slot that moves from one node to another.
type move struct {
	slot     string
	from, to *redistest.Server
	nodes    []*redistest.Server
}

func (m *move) do(t *testing.T, node *redistest.Server, words ...string) string {
	t.Helper()
	text, err := node.Do(words...)
	if err != nil {
		t.Fatalf("%v = %v", words, err)
	}
	return text
}

// begin begins to move the slot.
func (m *move) begin(t *testing.T) {
	t.Helper()
	m.do(t, m.to, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.do(t, m.from, "CLUSTER", "MYID"))
	m.do(t, m.from, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.do(t, m.to, "CLUSTER", "MYID"))
}

// keys moves up to n keys and returns whether there were any.
func (m *move) keys(t *testing.T, n int) bool {
	t.Helper()
	keys := m.do(t, m.from, "CLUSTER", "GETKEYSINSLOT", m.slot, strconv.Itoa(n))
	if keys == "" {
		return false
	}
	host, port, _ := strings.Cut(m.to.Addr(), ":")
	m.do(t, m.from, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, strings.Split(keys, "\n")...)...)
	return true
}

// end gives the slot to the other node.
func (m *move) end(t *testing.T) {
	t.Helper()
	id := m.do(t, m.to, "CLUSTER", "MYID")
	m.do(t, m.to, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	for _, node := range m.nodes {
		m.do(t, node, "CLUSTER", "SETSLOT", m.slot, "NODE", id)
	}
}

// TestMovedSlot moves a slot, key by key, while appends, creates and renewals of leases go on. Each is made once or not
// at all, and none leaves a key at the node that does not have the slot yet.
func TestMovedSlot(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: needs a cluster")
	}
	c := redistest.StartCluster(t, 3, 0)
	s := openWith(t, Options{Buckets: 1}, addressesIn(c.URL())...)
	prefix := s.buckets[0].prefix
	m := &move{from: c.Master(prefix), nodes: c.Nodes}
	m.to = c.Nodes[0]
	if m.to == m.from {
		m.to = c.Nodes[1]
	}
	m.slot = m.do(t, m.from, "CLUSTER", "KEYSLOT", prefix)
	done, appended := make(chan struct{}), make(chan int, 1)
	appendOne := func(i int) {
		a := &store.Append{Tenant: "acme", ConversationID: "c", Messages: message(fmt.Sprint(i)), CreateWith: &parleyv1.Conversation{
			Retention: &parleyv1.Retention{KeepAll: true},
		}}
		if r, err := s.Append(t.Context(), a); err != nil {
			t.Errorf("Append %d = %v", i, err)
		} else if r.Conversation.GetVersion() != int32(i+1) {
			t.Errorf("version after append %d = %d", i, r.Conversation.GetVersion())
		}
	}
	appendOne(0)
	for i := range 5 {
		appendTo(t, s, fmt.Sprint("other", i), "hello")
	}
	go func() {
		n := 1
		defer func() { appended <- n }()
		for ; ; n++ {
			select {
			case <-done:
				return
			default:
				appendOne(n)
			}
		}
	}()
	created := make(chan error, 1)
	m.begin(t)
	for i := 0; m.keys(t, 1); i++ {
		wantError(t, "renewal while the slot moves", s.renew(t.Context()), store.ErrUnavailable)
		if i == 3 {
			go func() {
				created <- errors.Join(
					s.Hold(t.Context(), &store.Hold{Tenant: "acme", ConversationIDs: []string{"new"}}),
					lastError(s.Create(t.Context(), &store.Create{
						Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "new"},
					})))
			}()
		}
		readAll(t, s, fmt.Sprint("other", i%5))
	}
	m.end(t)
	if err := <-created; err != nil {
		t.Errorf("Hold and Create while the slot moved = %v", err)
	}
	close(done)
	n := <-appended
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}
	wantTexts(t, s, "c", want...)
	if err := s.renew(t.Context()); err != nil {
		t.Errorf("renewal afterwards = %v", err)
	}
	if stats, err := s.TenantStats(t.Context(), "acme"); err != nil || stats.Conversations != 7 ||
		stats.Messages != int64(n)+5 {
		t.Errorf("TenantStats = %+v, %v; want 7 conversations with %d messages", stats, err, n+5)
	}
}
