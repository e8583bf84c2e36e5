package redisstore

import (
	"testing"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestReplicatedWithTLS: with TLS, also between the nodes of a cluster, a write is acknowledged when a replica has it,
// and not otherwise. What was acknowledged is there after the replica has replaced its master.
func TestReplicatedWithTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: a failover takes some seconds")
	}
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1, redistest.TLS())
	access := Access{CAFile: c.Nodes[0].CAFile, CertFile: c.Nodes[0].CertFile, KeyFile: c.Nodes[0].KeyFile}
	s := openReplicated(t, Options{Client: clientOf(t, c.URL(), access), Buckets: 4, Replicated: true})
	master, replica := c.Nodes[0], c.Nodes[3]
	tenant := tenantAt(t, s, c, master, true)
	write := func(text string) error {
		return lastError(s.Append(t.Context(), &store.Append{
			Tenant: tenant, ConversationID: "c", Messages: message(text), Request: requestOf(text),
		}))
	}
	if err := write("one"); err != nil {
		t.Fatalf("Append with a replica = %v, want nil", err)
	}
	replica.Pause()
	wantError(t, "Append without an answer of the replica", write("two"), store.ErrUnavailable)
	replica.Restart()
	c.AwaitComplete()
	if err := write("two"); err != nil { // The same request.
		t.Fatalf("repeated Append = %v, want nil", err)
	}
	master.Kill()
	c.AwaitComplete()
	snapshot, err := s.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "c", Newest: -1})
	if err != nil {
		t.Fatalf("Read after the failover = %v, want nil", err)
	}
	if got := textsOf(t, snapshot.Messages); len(got) != 2 || got[0] != "one" || got[1] != "two" {
		t.Errorf("messages after the failover = %q, want one and two", got)
	}
}
