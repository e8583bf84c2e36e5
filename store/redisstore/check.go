package redisstore

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/parleyhq/parley/store"
)

const (
	// leastVersion is the lowest major version of the engine: scripts that say what they may do came with 7.0.
	leastVersion = 7
	// maxClockError is the difference of the clocks of the engine and of this machine from which on Open fails.
	maxClockError = 2 * time.Second
	// maxNodeTimeout is the cluster-node-timeout above which a failover is slow.
	maxNodeTimeout = 5 * time.Second
)

// checkEngine checks the engine, in a cluster each master. It returns what deserves a warning.
func (s *Store) checkEngine(ctx context.Context) (warnings []string, err error) {
	affected := map[string][]string{} // addresses by warning
	masters, withReplicas := 0, 0
	nodes := s.client.Nodes()
	for _, address := range slices.Sorted(maps.Keys(nodes)) {
		node := nodes[address]
		text, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			if reply, ok := rueidis.IsRedisErr(err); ok && isRefused(reply) {
				return nil, fmt.Errorf("the engine at %s does not allow INFO to its user: %w; allow it with ACL SETUSER",
					address, err)
			}
			if len(nodes) > 1 && errors.Is(s.fault(err), store.ErrUnavailable) {
				continue // A replica, or a master that another one replaces. All buckets are read later.
			}
			return nil, s.unavailable(err)
		}
		info := parseInfo(text)
		if info["role"] == "slave" {
			continue
		}
		masters++
		if info["connected_slaves"] != "0" {
			withReplicas++
		}
		if err := errors.Join(checkInfo(info), s.checkClock(ctx, node)); err != nil {
			return nil, fmt.Errorf("the engine at %s %w", address, err)
		}
		for _, warning := range append(s.infoWarnings(info), nodeTimeoutWarning(ctx, node, info)...) {
			affected[warning] = append(affected[warning], address)
		}
	}
	if masters == 0 {
		return nil, s.unavailable(errors.New("it has no master"))
	}
	if s.replicated && withReplicas == 0 { // If only some have none, the buckets of the others can be written.
		return nil, s.unavailable(errors.New("no replica is connected, but --durability replicated needs one to " +
			"acknowledge a write: connect a replica, or use --durability local"))
	}
	for _, warning := range slices.Sorted(maps.Keys(affected)) {
		warnings = append(warnings, warning+" at "+strings.Join(affected[warning], ", "))
	}
	return warnings, nil
}

// isRefused reports whether the engine refuses a command because of the rights of its user.
func isRefused(reply *rueidis.RedisError) bool { return strings.HasPrefix(reply.Error(), "NOPERM ") }

// parseInfo returns the fields of a reply to INFO.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// checkInfo returns why the store cannot use an engine. The error continues a sentence about it. The policy is that of
// INFO and not of CONFIG GET, which engines in a cloud forbid.
func checkInfo(info map[string]string) error {
	version := info["redis_version"]
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < leastVersion {
		return fmt.Errorf("has version %q: use Redis 7.0 or Valkey 7.2, or later", version)
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		return fmt.Errorf("has maxmemory-policy %q, and would remove parts of conversations: set it to noeviction", policy)
	}
	return nil
}

// checkClock checks that the clocks of an engine and of this machine agree.
func (s *Store) checkClock(ctx context.Context, node rueidis.Client) error {
	before := s.clock()
	clock, err := node.Do(ctx, node.B().Time().Build()).AsStrSlice()
	after := s.clock()
	if err != nil || len(clock) != 2 {
		return fmt.Errorf("does not tell its time: %w", s.fault(err))
	}
	seconds, _ := strconv.ParseInt(clock[0], 10, 64)
	micros, _ := strconv.ParseInt(clock[1], 10, 64)
	return compareClocks(before, after, time.Unix(seconds, micros*1000))
}

// compareClocks returns an error if the time that an engine has told between two times of this machine is
// maxClockError or more before the first or after the second.
func compareClocks(before, after, engine time.Time) error {
	switch {
	case before.Sub(engine) >= maxClockError:
		return fmt.Errorf("has a clock that is %v behind this machine: set both clocks, for example with NTP",
			before.Sub(engine).Round(time.Millisecond))
	case engine.Sub(after) >= maxClockError:
		return fmt.Errorf("has a clock that is %v ahead of this machine: set both clocks, for example with NTP",
			engine.Sub(after).Round(time.Millisecond))
	}
	return nil
}

// infoWarnings returns what is allowed but may lose data.
func (s *Store) infoWarnings(info map[string]string) (warnings []string) {
	if info["aof_enabled"] == "0" {
		warnings = append(warnings,
			"appendonly is off, so that a restart of the engine loses conversations: set appendonly yes")
	}
	switch hasReplica := info["connected_slaves"] != "0"; {
	case hasReplica:
	case s.replicated:
		warnings = append(warnings, "no replica, so that no write of its buckets is acknowledged: connect a replica")
	default:
		warnings = append(warnings, "no replica, so that nothing replaces the engine if it fails: add replicas")
	}
	return warnings
}

// nodeTimeoutWarning returns a warning if a node of a cluster waits long before a failover. If the user may not read
// the setting, there is none.
func nodeTimeoutWarning(ctx context.Context, node rueidis.Client, info map[string]string) []string {
	const name = "cluster-node-timeout"
	if info["cluster_enabled"] != "1" {
		return nil
	}
	reply, err := node.Do(ctx, node.B().ConfigGet().Parameter(name).Build()).AsStrMap()
	if err != nil {
		return nil
	}
	ms, err := strconv.ParseInt(reply[name], 10, 64)
	timeout := time.Duration(ms) * time.Millisecond
	if err != nil || timeout <= maxNodeTimeout {
		return nil
	}
	return []string{
		fmt.Sprintf("%s is %v, so that a failover takes longer than that: set it to %v", name, timeout, maxNodeTimeout),
	}
}

// unavailable returns the error of Open for an engine that cannot be used now, with its addresses.
func (s *Store) unavailable(err error) error {
	addresses := strings.Join(s.addresses, ", ")
	if reply, ok := rueidis.IsRedisErr(err); ok {
		for _, refusal := range []string{"WRONGPASS ", "NOAUTH ", "ERR invalid password", "ERR AUTH "} {
			if strings.HasPrefix(reply.Error(), refusal) {
				return fmt.Errorf("the engine at %s refuses the user or the password: %w", addresses, err)
			}
		}
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		err = fmt.Errorf("%w: set --redis-ca-file to the certificate of the authority of the engine", err)
	}
	if errors.Is(err, store.ErrUnavailable) {
		return fmt.Errorf("engine at %s: %w", addresses, err)
	}
	return fmt.Errorf("engine at %s: %w: %w", addresses, store.ErrUnavailable, err)
}
