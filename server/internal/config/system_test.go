package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCheckSystem: the server refuses at the start what a system cannot do.
func TestCheckSystem(t *testing.T) {
	const remedy = ", or run the server on Linux or macOS, for example in WSL or a container"
	command := []Agent{{Name: "a", Kind: KindEcho}, {Name: "b", Kind: KindCommand}}
	for _, c := range []struct {
		goos, store string
		log         bool
		agents      []Agent
		want        []string
	}{
		{goos: "linux", store: "bolt", log: true, agents: command},
		{goos: "darwin", store: "bolt", log: true, agents: command},
		{goos: "windows", store: "memory"},
		{goos: "windows", store: "bolt", log: true, want: []string{
			"--store: bolt is not available on Windows; use redis, or memory, which keeps nothing after a stop" + remedy,
		}},
		{goos: "windows", store: "redis"},
		{goos: "windows", store: "redis", log: true, want: []string{
			"--interaction-log: the interaction log is not available on Windows; turn it off" + remedy,
		}},
		{goos: "windows", store: "memory", log: true, agents: command, want: []string{
			"--interaction-log: the interaction log is not available on Windows; turn it off" + remedy,
			"agents.b: kind command is not available on Windows; use another kind" + remedy,
		}},
	} {
		l := newLoader(nil)
		l.config.Store, l.config.InteractionLog, l.config.Agents = c.store, c.log, c.agents
		l.checkSystem(c.goos)
		if diff := cmp.Diff(c.want, l.faults); diff != "" {
			t.Errorf("checkSystem(%q) with store %s, log %t (-want +got):\n%s", c.goos, c.store, c.log, diff)
		}
	}
}
