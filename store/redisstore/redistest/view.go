package redistest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// view returns the cluster as a node sees it: a line for each node that runs, with its address, role,
// master and slots. If the node does not see a complete cluster, the error says why.
func (s *Server) view(running map[string]bool) (string, error) {
	info, err := s.Do("CLUSTER", "INFO")
	if err != nil {
		return "", err
	}
	if !strings.Contains(info, "cluster_state:ok") {
		return "", fmt.Errorf("cluster is not ok:\n%s", info)
	}
	nodes, err := s.Do("CLUSTER", "NODES")
	if err != nil {
		return "", err
	}
	var lines []string
	served := 0
	for line := range strings.Lines(nodes) {
		n, err := parseNode(line)
		if err != nil {
			return "", err
		}
		if !running[n.addr] {
			continue
		}
		if n.fault != "" {
			return "", fmt.Errorf("node %s is %s", n.addr, n.fault)
		}
		lines = append(lines, n.String())
		served += n.slotCount
	}
	expected := 0
	for _, runs := range running {
		if runs {
			expected++
		}
	}
	if len(lines) != expected || served != slots {
		return "", fmt.Errorf("%d of %d nodes known, %d of %d slots served", len(lines), expected, served, slots)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n"), s.checkReplication()
}

// checkReplication returns an error if the server is a replica without a connection to its master.
func (s *Server) checkReplication() error {
	info, err := s.Do("INFO", "replication")
	if err != nil {
		return err
	}
	if strings.Contains(info, "role:slave") && !strings.Contains(info, "master_link_status:up") {
		return fmt.Errorf("replica has no connection to its master:\n%s", info)
	}
	return nil
}

// node is a line of CLUSTER NODES.
type node struct {
	addr, role, master string
	slots              []string // "12" or "0-5460"
	slotCount          int
	fault              string // "" if the node is well
}

// String returns what all nodes of a cluster agree on about a node.
func (n node) String() string {
	return fmt.Sprintf("%s %s of %s, slots %v", n.addr, n.role, n.master, n.slots)
}

// parseNode parses a line: id, address, flags, master, times of ping and pong, epoch, link, slots.
func parseNode(line string) (node, error) {
	fields := strings.Fields(line)
	if len(fields) < 8 {
		return node{}, fmt.Errorf("line of CLUSTER NODES with %d fields: %q", len(fields), line)
	}
	addr, _, _ := strings.Cut(fields[1], "@")
	n := node{addr: addr, role: "node", master: fields[3]}
	for flag := range strings.SplitSeq(fields[2], ",") {
		switch flag {
		case "master", "slave":
			n.role = flag
		case "handshake", "fail", "fail?", "noaddr":
			n.fault = flag
		}
	}
	if link := fields[7]; link != "connected" {
		n.fault = link
	}
	for _, slot := range fields[8:] {
		if strings.HasPrefix(slot, "[") { // It moves, and is also in a range.
			continue
		}
		low, high, isRange := strings.Cut(slot, "-")
		if !isRange {
			high = low
		}
		first, err1 := strconv.Atoi(low)
		last, err2 := strconv.Atoi(high)
		if err1 != nil || err2 != nil {
			return node{}, fmt.Errorf("slots %q in %q", slot, line)
		}
		n.slots = append(n.slots, slot)
		n.slotCount += last - first + 1
	}
	return n, nil
}
