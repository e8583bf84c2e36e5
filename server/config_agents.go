package main

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

// The kinds of agents. There is always an agent called echo.
const (
	kindEcho      = "echo"
	kindCommand   = "command"
	kindOpenAI    = "openai"
	kindAnthropic = "anthropic"
	kindRemote    = "remote"

	allKinds = "echo, command, openai, anthropic or remote"
)

const (
	maxAgentName  = 128
	agentAlphabet = letters + digits + "._-"

	letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	digits  = "0123456789"
)

// agentConfig is one entry of agents.
type agentConfig struct {
	name             string // up to 128 of [A-Za-z0-9._-]
	kind             string
	description      string                  // up to 1 KiB
	systemPrompt     string                  // up to 64 KiB
	window           *parleyv1.ContextWindow // nil: all that is kept
	maxConcurrent    int                     // answers at once; 0: the kind's own limit, if it has one
	structuredBlocks bool                    // not of the kinds echo and remote

	// Of the kind command.
	command []string // program and arguments, at least the program
	format  string   // "text" or "stream-json"
	dir     string   // empty: that of the server
	env     []string // names of variables that the program is given

	// Of the kinds openai and anthropic.
	baseURL         string // http or https; empty: the provider's own
	model           string
	apiKey          secret // its zero value: none
	tools           []agent.Tool
	maxOutputTokens int      // 0: the provider's default
	temperature     *float64 // nil: the provider's default

	// Of the kind remote.
	address string     // host:port or unix:PATH
	tls     *tlsConfig // nil: plaintext

	// Of the kinds openai, anthropic and remote.
	headers map[string]secret
}

// addEcho sees to it that echo is among the agents, and sorts them by name.
func (c *config) addEcho() {
	if !slices.ContainsFunc(c.agents, func(a agentConfig) bool { return a.name == kindEcho }) {
		c.agents = append(c.agents, agentConfig{name: kindEcho, kind: kindEcho})
	}
	slices.SortFunc(c.agents, func(a, b agentConfig) int { return cmp.Compare(a.name, b.name) })
}

func (f *file) agents(key string, n *yaml.Node) {
	f.pairs(key, n, func(name, value *yaml.Node) {
		if n := len(name.Value); n == 0 || n > maxAgentName || strings.Trim(name.Value, agentAlphabet) != "" {
			f.fault(key, name, "%.140q cannot name an agent; write 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'",
				name.Value, maxAgentName)
			return
		}
		a := agentConfig{name: name.Value}
		f.agent(key+"."+a.name, &a, value)
		// Faulty or not: default_agent is not to be called unknown.
		f.loader.config.agents = append(f.loader.config.agents, a)
	})
}

// agent reads n into a.
func (f *file) agent(key string, a *agentConfig, n *yaml.Node) {
	kind := child(n, "kind")
	switch {
	case n.Kind != yaml.MappingNode:
		f.mapping(key, n, nil) // says so
		return
	case kind == nil:
		f.fault(key, n, "has no kind; write %s", allKinds)
		return
	case a.name == kindEcho && kind.Value != kindEcho:
		f.fault(key+".kind", kind, "must be echo: that name stands for it everywhere; choose another name")
		return
	}
	a.kind = kind.Value
	fields := f.commonFields(a)
	check := func(string, *agentConfig, *yaml.Node) {} // what no value tells by itself
	switch kind.Value {
	case kindEcho:
	case kindCommand:
		check = f.checkCommand
		f.addCommandFields(fields, a)
	case kindOpenAI, kindAnthropic:
		check = f.checkModel
		f.addModelFields(fields, a, n)
	case kindRemote:
		check = f.checkRemote
		f.addRemoteFields(fields, a)
	default:
		// Which keys it may have is not known, so nothing is said of them.
		f.fault(key+".kind", kind, "%.80q is not a kind of agent; write %s", kind.Value, allKinds)
		return
	}
	f.mapping(key, n, fields)
	check(key, a, n)
}

// commonFields are the keys that every kind of agent has.
func (f *file) commonFields(a *agentConfig) map[string]field {
	return map[string]field{
		"kind":           func(string, *yaml.Node) {}, // read already
		"description":    f.value(text(&a.description, "", 0, kib, "")),
		"system_prompt":  f.value(text(&a.systemPrompt, "", 0, 64*kib, "")),
		"max_concurrent": f.value(count(&a.maxConcurrent, 0, 1, 1024)),
		"window": func(key string, n *yaml.Node) {
			a.window = &parleyv1.ContextWindow{}
			f.mapping(key, n, map[string]field{
				"max_messages":  f.value(count(&a.window.MaxMessages, 0, 0, math.MaxInt32)),
				"max_exchanges": f.value(count(&a.window.MaxExchanges, 0, 0, math.MaxInt32)),
				"max_bytes":     f.value(size(&a.window.MaxBytes, 0, 0, math.MaxInt32)),
				"cache_stable":  f.value(boolean(&a.window.CacheStable, false)),
			})
		},
	}
}

// addCommandFields adds the keys that only command agents have.
func (f *file) addCommandFields(fields map[string]field, a *agentConfig) {
	fields["structured_blocks"] = f.value(boolean(&a.structuredBlocks, false))
	fields["format"] = f.value(choice(&a.format, "text", "text", "stream-json"))
	fields["dir"] = f.value(text(&a.dir, "", 1, 4*kib, ""))
	fields["env"] = f.list(&a.env, func(_ int, name *string) pflag.Value { return variableName(name) })
	fields["command"] = func(key string, n *yaml.Node) {
		f.list(&a.command, func(index int, word *string) pflag.Value {
			return text(word, "", max(0, 1-index), mib, "") // the program is not empty
		})(key, n)
		if n.Kind == yaml.SequenceNode && len(n.Content) == 0 {
			f.fault(key, n, "must begin with the program, as in [python3, writer.py]")
		}
	}
}

func (f *file) checkCommand(key string, _ *agentConfig, n *yaml.Node) {
	f.require(key, n, "command", "write it as [program, argument]")
}

// require wants a mapping to have a key; otherwise it says what to do.
func (f *file) require(key string, n *yaml.Node, name, advice string) {
	if child(n, name) == nil {
		f.fault(key, n, "has no %s; %s", name, advice)
	}
}
