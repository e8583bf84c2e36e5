package config

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// The kinds of agents. An agent named echo always exists.
const (
	KindEcho      = "echo"
	KindCommand   = "command"
	KindOpenAI    = "openai"
	KindAnthropic = "anthropic"
	KindRemote    = "remote"
	KindA2A       = "a2a"

	allKinds = "echo, command, openai, anthropic, remote or a2a"
)

const (
	maxAgentName  = 128
	agentAlphabet = letters + digits + "._-"

	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	digits  = "0123456789"
)

// Agent contains the configuration of one agent, with defaults for keys that the file does not set.
type Agent struct {
	Name         string                  // 1 to 128 characters of [A-Za-z0-9._-]
	Kind         string                  // one of the Kind constants
	Description  string                  // up to 1 KiB
	SystemPrompt string                  // up to 64 KiB
	Window       *parleyv1.ContextWindow // nil: all kept messages
	// MaxConcurrent is the maximum number of answers at the same time. If 0, the kind's own limit applies,
	// if it has one.
	MaxConcurrent    int
	StructuredBlocks bool // not for KindEcho, KindRemote and KindA2A

	// For KindCommand.
	Command []string // program and arguments; at least the program
	Format  string   // "text" or "stream-json"
	Dir     string   // empty: working directory of the server
	Env     []string // names of variables that are passed to the program

	// For KindOpenAI and KindAnthropic.
	BaseURL         string // http or https; empty: the provider's own API
	Model           string
	APIKey          Secret // also for KindA2A; zero value: no key
	Tools           []agent.Tool
	MaxOutputTokens int      // 0: the provider's default
	Temperature     *float64 // 0 to 2; nil: the provider's default
	ThinkingTokens  int      // of KindAnthropic; at least 1024, and less than the limit of an answer; 0: not sent
	ReasoningEffort string   // of KindOpenAI; empty: not sent

	// For KindRemote.
	Address string // host:port, optionally with the prefix dns:///, or unix:PATH
	TLS     *TLS   // also for KindA2A; nil: plaintext, or the system's certificates for KindA2A

	// For KindA2A.
	URL   string   // http or https
	Hosts []string // other hosts that the agent card may name

	// For KindOpenAI, KindAnthropic, KindRemote and KindA2A, by header name.
	Headers map[string]Secret
}

// addEcho adds the agent echo if the file does not configure it, and sorts the agents by name.
func (c *Config) addEcho() {
	if !slices.ContainsFunc(c.Agents, func(a Agent) bool { return a.Name == KindEcho }) {
		c.Agents = append(c.Agents, Agent{Name: KindEcho, Kind: KindEcho})
	}
	slices.SortFunc(c.Agents, func(a, b Agent) int { return cmp.Compare(a.Name, b.Name) })
}

func (f *file) agents(key string, n *yaml.Node) {
	f.pairs(key, n, func(name, value *yaml.Node) {
		if n := len(name.Value); n == 0 || n > maxAgentName || strings.Trim(name.Value, agentAlphabet) != "" {
			f.fault(key, name, "%.140q is not a valid agent name; use 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'",
				name.Value, maxAgentName)
			return
		}
		a := Agent{Name: name.Value}
		f.agent(key+"."+a.Name, &a, value)
		// Faulty agents are added too, so that default_agent is not reported as unknown.
		f.loader.config.Agents = append(f.loader.config.Agents, a)
	})
}

// agent reads node n into a.
func (f *file) agent(key string, a *Agent, n *yaml.Node) {
	kind := child(n, "kind")
	switch {
	case n.Kind != yaml.MappingNode:
		f.mapping(key, n, nil) // reports the fault
		return
	case kind == nil:
		f.fault(key, n, "has no kind; write %s", allKinds)
		return
	case a.Name == KindEcho && kind.Value != KindEcho:
		f.fault(key+".kind", kind, "must be echo, because the name echo is reserved for it; choose another name")
		return
	}
	a.Kind = kind.Value
	fields := f.commonFields(a)
	check := func(string, *Agent, *yaml.Node) {} // check makes checks that involve several keys.
	switch kind.Value {
	case KindEcho:
	case KindCommand:
		check = f.checkCommand
		f.addCommandFields(fields, a)
	case KindOpenAI, KindAnthropic:
		check = f.checkModel
		f.addModelFields(fields, a, n)
	case KindRemote:
		check = f.checkRemote
		f.addRemoteFields(fields, a)
	case KindA2A:
		check = f.checkA2A
		f.addA2AFields(fields, a, n)
	default:
		// The keys of an unknown kind are unknown, so they are not checked.
		f.fault(key+".kind", kind, "%.80q is not a kind of agent; write %s", kind.Value, allKinds)
		return
	}
	f.mapping(key, n, fields)
	check(key, a, n)
}

// commonFields returns the keys of all kinds of agents.
func (f *file) commonFields(a *Agent) map[string]field {
	return map[string]field{
		"kind":           func(string, *yaml.Node) {}, // already read
		"description":    f.value(text(&a.Description, "", 0, kib, "")),
		"system_prompt":  f.value(text(&a.SystemPrompt, "", 0, 64*kib, "")),
		"max_concurrent": f.value(count(&a.MaxConcurrent, 0, 1, 1024)),
		"window": func(key string, n *yaml.Node) {
			a.Window = &parleyv1.ContextWindow{}
			f.mapping(key, n, map[string]field{
				"max_messages":  f.value(count(&a.Window.MaxMessages, 0, 0, math.MaxInt32)),
				"max_exchanges": f.value(count(&a.Window.MaxExchanges, 0, 0, math.MaxInt32)),
				"max_bytes":     f.value(size(&a.Window.MaxBytes, 0, 0, math.MaxInt32)),
				"cache_stable":  f.value(boolean(&a.Window.CacheStable, false)),
			})
		},
	}
}

// addCommandFields adds the keys that only command agents have.
func (f *file) addCommandFields(fields map[string]field, a *Agent) {
	fields["structured_blocks"] = f.value(boolean(&a.StructuredBlocks, false))
	fields["format"] = f.value(choice(&a.Format, "text", "text", "stream-json"))
	fields["dir"] = f.value(text(&a.Dir, "", 1, 4*kib, ""))
	fields["env"] = f.list(&a.Env, func(_ int, name *string) pflag.Value { return variableName(name) })
	fields["command"] = func(key string, n *yaml.Node) {
		f.list(&a.Command, func(index int, word *string) pflag.Value {
			return text(word, "", max(0, 1-index), mib, "") // the program must not be empty
		})(key, n)
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			f.fault(key, n, "must start with the program, as in [python3, writer.py]")
		}
	}
}

func (f *file) checkCommand(key string, _ *Agent, n *yaml.Node) {
	f.require(key, n, "command", "set it, as in [program, argument]")
}

// require reports a fault if a mapping lacks a key. advice says what to do.
func (f *file) require(key string, n *yaml.Node, name, advice string) {
	if child(n, name) == nil {
		f.fault(key, n, "has no %s; %s", name, advice)
	}
}
