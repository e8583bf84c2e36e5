package redistest

import (
	"fmt"
	"strings"
	"testing"
)

// TestCluster: two clusters run at the same time, with a replica for each master and with TLS and a password.
func TestCluster(t *testing.T) {
	for _, test := range []struct {
		name              string
		masters, replicas int
		scheme            string
		options           []Option
	}{
		{"replicas", 3, 1, "redis://", nil},
		{"TLS and password", 3, 0, "rediss://", []Option{TLS(), Password("secret")}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := StartCluster(t, test.masters, test.replicas, test.options...)
			if want := test.masters * (1 + test.replicas); len(c.Nodes) != want {
				t.Fatalf("cluster of %d nodes, want %d", len(c.Nodes), want)
			}
			want := test.scheme + c.Nodes[0].Addr() + "," + c.Nodes[1].Addr() + "," + c.Nodes[2].Addr()
			if got := c.URL(); got != want {
				t.Errorf("URL() = %q, want %q", got, want)
			}
			masters := map[*Server]bool{}
			for i := range 30 {
				key := fmt.Sprint("key", i)
				m := c.Master(key)
				masters[m] = true
				do(t, m, "SET", key, "value")
			}
			for i, s := range c.Nodes {
				if isMaster := i < test.masters; masters[s] != isMaster {
					t.Errorf("node %d is the master of a key: %t, want %t", i, masters[s], isMaster)
				}
				if info := do(t, s, "CLUSTER", "INFO"); !strings.Contains(info, "cluster_state:ok") {
					t.Errorf("CLUSTER INFO of node %d:\n%s", i, info)
				}
			}
		})
	}
}

// TestFailover: a replica becomes the master of the slots of a node that is killed or paused. That node
// becomes its replica when it serves again.
func TestFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: two failovers take six seconds")
	}
	for _, test := range []struct {
		name       string
		fail, mend func(*Server)
	}{
		{"killed", (*Server).Kill, (*Server).Restart},
		{"paused", (*Server).Pause, (*Server).Resume},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := StartCluster(t, 3, 1)
			master := c.Master("key")
			do(t, master, "SET", "key", "value")
			if got := do(t, master, "WAIT", "1", "5000"); got != "1" {
				t.Fatalf("WAIT 1 = %s replicas, want 1", got)
			}
			test.fail(master)
			c.AwaitComplete()
			next := c.Master("key")
			if next == master {
				t.Fatal("Master() after a failover = the node that failed")
			}
			if got := do(t, next, "GET", "key"); got != "value" {
				t.Errorf("GET key after a failover = %q, want value", got)
			}
			test.mend(master)
			c.AwaitComplete()
			if got := do(t, master, "ROLE"); !strings.HasPrefix(got, "slave\n") {
				t.Errorf("ROLE of the node that failed = %q, want slave", got)
			}
		})
	}
}
