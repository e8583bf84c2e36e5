package config

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/agent"
)

const checkConfigHelp = `Reads flags, environment and file as a start does, and prints the effective settings as a
YAML file that parleyd can read. It contains no secrets: for a key it contains the variable or
file that holds it, and for a header value in the file it contains [set]. If there are faults, all
are printed and the exit code is 64, as at a start. The store is not opened, and no agent is called.`

// print runs the command check-config: it writes the settings to standard output and warnings to
// standard error.
func (l *loader) print(cmd *cobra.Command, c *Config) error {
	for _, warning := range c.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "parleyd: warning:", warning)
	}
	return l.write(cmd.OutOrStdout())
}

// write writes the settings as a file that has the same meaning when it is read. Only the values of
// headers that are in the file are not written.
func (l *loader) write(w io.Writer) error {
	file, agents := &mapping{}, &mapping{}
	for _, s := range l.settings {
		file.put(s.key(), unquoted(s.String()))
	}
	for _, a := range l.config.Agents {
		agents.put(a.Name, a.node())
	}
	if rules := l.config.ClientCertificates; len(rules) > 0 {
		list := make([]*yaml.Node, len(rules))
		for i, rule := range rules {
			list[i] = rule.node()
		}
		file.put("client_certificates", listNode(list, 0))
	}
	if len(l.config.Tenants) > 0 {
		tenants := &mapping{}
		for _, t := range l.config.Tenants {
			tenants.put(t.Name, t.node())
		}
		file.put("tenants", tenants.node())
	}
	file.put("default_agent", l.config.DefaultAgent)
	file.put("agents", agents.node())
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(file.node()); err != nil {
		return err
	}
	return e.Close()
}

// node returns the agent in the form of the file, without keys that have their zero value.
func (a Agent) node() *yaml.Node {
	m := &mapping{}
	m.add("kind", a.Kind)
	m.add("description", a.Description)
	m.add("system_prompt", a.SystemPrompt)
	if w := a.Window; w != nil {
		bounds := &mapping{}
		bounds.put("max_messages", w.GetMaxMessages())
		bounds.put("max_exchanges", w.GetMaxExchanges())
		bounds.put("max_bytes", unquoted(formatSize(int64(w.GetMaxBytes()))))
		bounds.put("cache_stable", w.GetCacheStable())
		m.put("window", bounds.flow())
	}
	m.add("max_concurrent", a.MaxConcurrent)
	m.add("structured_blocks", a.StructuredBlocks)
	m.add("command", a.Command)
	m.add("format", a.Format)
	m.add("dir", a.Dir)
	m.add("env", a.Env)
	m.add("base_url", a.BaseURL)
	m.add("model", a.Model)
	m.add("api_key_env", a.APIKey.env)
	m.add("api_key_file", a.APIKey.file)
	m.add("address", a.Address)
	if a.TLS != nil {
		m.put("tls", a.TLS.node())
	}
	if len(a.Headers) > 0 {
		m.put("headers", headersNode(a.Headers))
	}
	m.add("max_output_tokens", a.MaxOutputTokens)
	if a.Temperature != nil {
		m.put("temperature", *a.Temperature)
	}
	if len(a.Tools) > 0 {
		m.put("tools", toolsNode(a.Tools))
	}
	return m.node()
}

func (t *TLS) node() *yaml.Node {
	m := &mapping{}
	m.add("ca_file", t.caFile)
	m.add("cert_file", t.certFile)
	m.add("key_file", t.keyFile)
	m.add("server_name", t.serverName)
	return m.flow()
}

func headersNode(headers map[string]Secret) *yaml.Node {
	m := &mapping{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		m.put(name, headers[name].printed())
	}
	return m.node()
}

func toolsNode(tools []agent.Tool) *yaml.Node {
	list := make([]*yaml.Node, len(tools))
	for i, t := range tools {
		m := &mapping{}
		m.add("name", t.Name)
		m.add("description", t.Description)
		m.add("parameters", t.Parameters)
		list[i] = m.node()
	}
	return listNode(list, 0)
}
