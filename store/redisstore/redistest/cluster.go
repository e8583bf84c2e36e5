package redistest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const (
	slots = 16384 // of each cluster
	// nodeTimeout is the time in milliseconds after which a node that does not answer counts as failed.
	nodeTimeout = "2000"
)

// Cluster is a running cluster.
type Cluster struct {
	// Nodes are the servers: first the masters at the start, in the order of their slots, then the replicas
	// of the first master, then those of the second. A failover changes the roles and not this list.
	Nodes []*Server

	tb      testing.TB
	masters int // at the start
}

// StartCluster starts a cluster and waits until all its nodes see it complete. Its masters share the slots
// evenly. A node that is not reachable for 2 seconds counts as failed. Slots without a master do not stop
// the others.
//
// What [Start] says about programs that are missing, the end of the test and the output applies.
func StartCluster(tb testing.TB, masters, replicasPerMaster int, options ...Option) *Cluster {
	tb.Helper()
	program, dir := findProgram(tb), tb.TempDir()
	o := applyOptions(tb, append([]Option{
		Setting("cluster-enabled", "yes"),
		Setting("cluster-node-timeout", nodeTimeout),
		Setting("cluster-require-full-coverage", "no"),
		Setting("repl-diskless-sync-delay", "0"), // seconds to wait for more replicas
	}, options...))
	c := &Cluster{tb: tb, masters: masters}
	for i := range masters * (1 + replicasPerMaster) {
		nodeDir := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(nodeDir, 0o700); err != nil {
			tb.Fatal(err)
		}
		c.Nodes = append(c.Nodes, newServer(tb, program, o, nodeDir))
	}
	tb.Cleanup(func() {
		_ = c.each(func(_ int, s *Server) error { s.stop(); return nil }) // It returns nil only.
		for _, s := range c.Nodes {
			s.logOutput()
		}
	})
	err := c.each(func(_ int, s *Server) error { return s.start(true, freePort) })
	if err == nil {
		err = c.join()
	}
	if err != nil {
		tb.Fatalf("start a cluster: %v", err)
	}
	return c
}

// each calls f for all nodes at the same time and returns the errors.
func (c *Cluster) each(f func(i int, s *Server) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.Nodes))
	for i, s := range c.Nodes {
		wg.Go(func() {
			if err := f(i, s); err != nil {
				errs[i] = fmt.Errorf("node %d: %w", i, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// join makes a cluster of nodes that do not know each other.
func (c *Cluster) join() error {
	ids := make([]string, len(c.Nodes))
	err := c.each(func(i int, s *Server) (err error) {
		ids[i], err = s.Do("CLUSTER", "MYID")
		if err != nil || i >= c.masters {
			return err
		}
		// With an epoch of its own, no master has to change its epoch after they meet.
		if _, err := s.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		first, last := i*slots/c.masters, (i+1)*slots/c.masters-1
		_, err = s.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last))
		return err
	})
	if err != nil {
		return err
	}
	err = c.each(func(i int, s *Server) error {
		// Each node meets all others: to hear of them from one of them takes longer.
		for _, other := range c.Nodes[i+1:] {
			if _, err := s.Do("CLUSTER", "MEET", host, strconv.Itoa(other.port), strconv.Itoa(other.busPort)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	replicasPerMaster := len(c.Nodes)/c.masters - 1
	err = c.each(func(i int, s *Server) error {
		if i < c.masters {
			return nil
		}
		master := (i - c.masters) / replicasPerMaster
		return poll(func() error { // It fails until the node knows its master.
			_, err := s.Do("CLUSTER", "REPLICATE", ids[master])
			return err
		})
	})
	if err != nil {
		return err
	}
	return poll(c.check)
}

// URL returns the addresses of all masters at the start, "redis://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
// with TLS as "rediss://…".
func (c *Cluster) URL() string {
	addrs := make([]string, c.masters)
	for i := range addrs {
		addrs[i] = c.Nodes[i].Addr()
	}
	return c.Nodes[0].scheme() + strings.Join(addrs, ",")
}

// Master returns the node that serves the slot of a key, as the first node that runs sees it. Before a
// failover is over, that may be a node that does not run.
func (c *Cluster) Master(key string) *Server {
	c.tb.Helper()
	var errs error
	for _, s := range c.Nodes {
		if !s.answers() {
			continue
		}
		_, err := s.Do("EXISTS", key)
		if err == nil {
			return s
		}
		// The error of another node is "MOVED slot address".
		if words := strings.Fields(err.Error()); words[0] == "MOVED" && len(words) == 3 {
			for _, s := range c.Nodes {
				if s.Addr() == words[2] {
					return s
				}
			}
		}
		errs = errors.Join(errs, fmt.Errorf("%s: %w", s.Addr(), err))
	}
	c.tb.Errorf("Master(%q): no node knows it: %v", key, errs)
	return c.Nodes[0]
}

// AwaitComplete waits until the nodes that run see the same cluster, each slot has a master that runs, and
// the replicas that run follow their masters: after [Server.Kill], until the failover is over, after
// [Server.Restart], until the node is a part of the cluster again. A paused node counts as one that does
// not run.
func (c *Cluster) AwaitComplete() {
	c.tb.Helper()
	if err := poll(c.check); err != nil {
		c.tb.Errorf("AwaitComplete(): %v", err)
	}
}

// check returns why the cluster is not complete, nil if it is.
func (c *Cluster) check() error {
	running := map[string]bool{} // by address; false if paused
	for _, s := range c.Nodes {
		running[s.Addr()] = s.answers()
	}
	views := make([]string, len(c.Nodes))
	err := c.each(func(i int, s *Server) (err error) {
		if running[s.Addr()] {
			views[i], err = s.view(running)
		}
		return err
	})
	if err != nil {
		return err
	}
	var first string
	for _, view := range views {
		switch {
		case view == "":
		case first == "":
			first = view
		case view != first:
			return fmt.Errorf("nodes see different clusters:\n%s\nand\n%s", first, view)
		}
	}
	return nil
}
