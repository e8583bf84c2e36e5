package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"sync"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/agent/a2a"
	"github.com/parleyhq/parley/server/internal/agent/anthropic"
	"github.com/parleyhq/parley/server/internal/agent/command"
	"github.com/parleyhq/parley/server/internal/agent/echo"
	"github.com/parleyhq/parley/server/internal/agent/openai"
	"github.com/parleyhq/parley/server/internal/agent/remote"
	"github.com/parleyhq/parley/server/internal/config"
)

// reapOrphans reaps the orphaned processes of agents' programs until stop is called. If this process
// does not inherit orphans, it does nothing.
func reapOrphans(ctx context.Context, processes *command.Processes, log *slog.Logger) (stop func()) {
	if !command.Inherits() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Turns continue after the signal to stop.
	died := make(chan os.Signal, 1)
	signal.Notify(died, command.Died())
	var reaping sync.WaitGroup
	reaping.Go(func() { processes.Reap(ctx, died, log) })
	return func() {
		signal.Stop(died)
		cancel()
		reaping.Wait()
	}
}

// newAgents creates the agents of the settings. It records their programs in processes. reuse returns the entry of
// an agent that already exists. If reuse is nil, all agents are new. created contains the new agents. If agents
// cannot be created, the error lists all faults of the settings.
func newAgents(
	c *config.Config, processes *command.Processes, reuse func(config.Agent) (agent.Entry, bool),
) (_ *agent.Set, created []agent.Agent, err error) {
	entries := make([]agent.Entry, 0, len(c.Agents))
	var bad []string
	for _, a := range c.Agents {
		var entry agent.Entry
		exists := false
		if reuse != nil {
			entry, exists = reuse(a)
		}
		if !exists {
			if entry.Agent, err = newAgent(a, processes); err != nil {
				bad = append(bad, fmt.Sprintf("agents.%s: %v", a.Name, err))
				continue
			}
			created = append(created, entry.Agent)
		}
		entry.Name, entry.Kind, entry.Description = a.Name, a.Kind, a.Description
		entry.SystemPrompt, entry.Window = a.SystemPrompt, a.Window
		entry.Record = ""
		if a.Kind == config.KindA2A {
			entry.Record = a2a.RecordKey(a.Name)
		}
		entries = append(entries, entry)
	}
	var set *agent.Set
	if len(bad) > 0 {
		err = &config.Error{Faults: bad}
	} else {
		set, err = agent.NewSet(c.DefaultAgent, entries)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeAgents(created))
	}
	return set, created, nil
}

func closeAgents(agents []agent.Agent) error {
	var err error
	for _, a := range agents {
		err = errors.Join(err, a.Close())
	}
	return err
}

// isSameAgent reports whether the same agent.Agent can serve two configurations.
func isSameAgent(a, b config.Agent) bool {
	for _, c := range []*config.Agent{&a, &b} { // An agent.Entry contains these.
		c.Name, c.Description, c.SystemPrompt, c.Window = "", "", "", nil
	}
	return reflect.DeepEqual(a, b)
}

// newAgent creates the agent that a describes.
func newAgent(a config.Agent, processes *command.Processes) (created agent.Agent, err error) {
	switch a.Kind {
	case config.KindEcho:
		created = echo.New()
	case config.KindCommand:
		created, err = command.New(command.Config{
			Command: a.Command, Format: a.Format, Dir: a.Dir, Env: a.Env, MaxConcurrent: a.MaxConcurrent, Processes: processes,
		})
	case config.KindOpenAI:
		created, err = openai.New(modelConfig(a))
	case config.KindAnthropic:
		created, err = anthropic.New(modelConfig(a))
	case config.KindRemote:
		created, err = remote.New(remote.Config{Address: a.Address, TLS: a.TLS.Config(), Headers: revealHeaders(a.Headers)})
	case config.KindA2A:
		created, err = a2a.New(a2a.Config{
			URL: a.URL, Hosts: a.Hosts, Key: a.APIKey.Reveal(), Headers: revealHeaders(a.Headers), TLS: a.TLS.Config(),
		})
	default:
		err = fmt.Errorf("%q is not a kind of agent", a.Kind)
	}
	if err != nil {
		return nil, err
	}
	if a.StructuredBlocks {
		created = agent.Blocks(created)
	}
	if a.MaxConcurrent > 0 && a.Kind != config.KindCommand { // The command agent applies the limit itself.
		created = agent.Limit(created, a.MaxConcurrent)
	}
	return created, nil
}

// modelConfig returns the configuration of an agent that calls a model. It contains secrets in plain
// text.
func modelConfig(a config.Agent) agent.Model {
	return agent.Model{
		BaseURL: a.BaseURL, Model: a.Model, Key: a.APIKey.Reveal(), Headers: revealHeaders(a.Headers),
		Tools: a.Tools, MaxOutputTokens: a.MaxOutputTokens, Temperature: a.Temperature,
		ThinkingTokens: a.ThinkingTokens, ReasoningEffort: a.ReasoningEffort,
	}
}

// revealHeaders returns the headers with their secrets in plain text.
func revealHeaders(headers map[string]config.Secret) map[string]string {
	values := make(map[string]string, len(headers))
	for name, value := range headers {
		values[name] = value.Reveal()
	}
	return values
}

// logAgents logs the configured agents and the warnings of all settings.
func logAgents(log *slog.Logger, c *config.Config) {
	for _, a := range c.Agents {
		attributes := []any{"agent", a.Name, "kind", a.Kind, "default", a.Name == c.DefaultAgent}
		switch a.Kind {
		case config.KindCommand:
			attributes = append(attributes, "program", a.Command[0])
		case config.KindOpenAI, config.KindAnthropic:
			attributes = append(attributes, "model", a.Model, "base_url", a.BaseURL)
		case config.KindRemote:
			attributes = append(attributes, "address", a.Address, "tls", a.TLS != nil)
		case config.KindA2A:
			attributes = append(attributes, "url", a.URL)
		}
		log.Info("agent configured", attributes...)
	}
	for _, warning := range c.Warnings {
		//nolint:sloglint // The problem is a constant.
		log.Warn(warning.Problem, "setting", warning.Setting, "advice", warning.Advice)
	}
}
