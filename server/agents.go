package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/anthropic"
	"github.com/parleyhq/parley/server/internal/agent/command"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/agent/openai"
	"github.com/parleyhq/parley/server/internal/agent/remote"
)

// newAgents makes the agents that the settings name. What keeps one from being made is a
// fault of the settings; all of those are in the one error.
func newAgents(c *config) (_ *agent.Set, err error) {
	entries := make([]agent.Entry, 0, len(c.agents))
	defer func() {
		if err == nil {
			return // The set closes them.
		}
		for _, entry := range entries {
			err = errors.Join(err, entry.Agent.Close())
		}
	}()
	var bad faults
	for _, a := range c.agents {
		made, err := newAgent(a)
		if err != nil {
			bad = append(bad, fmt.Sprintf("agents.%s: %v", a.name, err))
			continue
		}
		entries = append(entries, agent.Entry{
			Name: a.name, Kind: a.kind, Description: a.description, SystemPrompt: a.systemPrompt, Window: a.window, Agent: made,
		})
	}
	if len(bad) > 0 {
		return nil, bad
	}
	return agent.NewSet(c.defaultAgent, entries)
}

// newAgent makes what answers under the name of a.
func newAgent(a agentConfig) (made agent.Agent, err error) {
	switch a.kind {
	case kindEcho:
		made = echo.New()
	case kindCommand:
		made, err = command.New(command.Config{
			Command: a.command, Format: a.format, Dir: a.dir, Env: a.env, MaxConcurrent: a.maxConcurrent,
		})
	case kindOpenAI:
		made, err = openai.New(a.asModel())
	case kindAnthropic:
		made, err = anthropic.New(a.asModel())
	case kindRemote:
		o := remote.Config{Address: a.address, Headers: revealed(a.headers)}
		if a.tls != nil {
			o.TLS = a.tls.config
		}
		made, err = remote.New(o)
	default:
		err = fmt.Errorf("%q is not a kind of agent", a.kind)
	}
	if err != nil {
		return nil, err
	}
	if a.structuredBlocks {
		made = agent.Blocks(made)
	}
	if a.maxConcurrent > 0 && a.kind != kindCommand { // command has a limit of its own
		made = agent.Limit(made, a.maxConcurrent)
	}
	return made, nil
}

// asModel is what the agents that are models are told. It holds secrets in the clear.
func (a agentConfig) asModel() agent.Model {
	return agent.Model{
		BaseURL: a.baseURL, Model: a.model, Key: a.apiKey.reveal(), Headers: revealed(a.headers),
		Tools: a.tools, MaxOutputTokens: a.maxOutputTokens, Temperature: a.temperature,
	}
}

func revealed(headers map[string]secret) map[string]string {
	values := make(map[string]string, len(headers))
	for name, value := range headers {
		values[name] = value.reveal()
	}
	return values
}

// logAgents says which agents there are and what is behind them, and what is doubtful.
func logAgents(log *slog.Logger, c *config) {
	for _, a := range c.agents {
		attributes := []any{"agent", a.name, "kind", a.kind, "default", a.name == c.defaultAgent}
		switch a.kind {
		case kindCommand:
			attributes = append(attributes, "program", a.command[0])
		case kindOpenAI, kindAnthropic:
			attributes = append(attributes, "model", a.model, "base_url", a.baseURL)
		case kindRemote:
			attributes = append(attributes, "address", a.address, "tls", a.tls != nil)
		}
		log.Info("agent configured", attributes...)
	}
	for _, warning := range c.warnings {
		log.Warn("doubtful setting", "setting", warning)
	}
}
