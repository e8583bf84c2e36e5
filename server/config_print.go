package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/agent"
)

const aboutCheck = `Reads flags, environment and file as the start does, and prints the settings in force as a
YAML file that parleyd takes again. Keys are not in it, only which variable or file holds them;
headers that are written out become [set]. All that is wrong is printed at once, and the exit
code is 64, as at a start. The store is not opened, and nobody is called.`

// print writes what the command check-config prints: the settings, and warnings beside them.
func (l *loader) print(cmd *cobra.Command, c *config) error {
	for _, warning := range c.warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "parleyd: warning:", warning)
	}
	return l.write(cmd.OutOrStdout())
}

// write writes the settings as a file that would be read as the same, but for the values
// of headers that were written out.
func (l *loader) write(w io.Writer) error {
	file, agents := &mapping{}, &mapping{}
	for _, s := range l.settings {
		file.put(s.key(), unquoted(s.String()))
	}
	for _, a := range l.config.agents {
		agents.put(a.name, a.node())
	}
	file.put("default_agent", l.config.defaultAgent)
	file.put("agents", agents.node())
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(file.node()); err != nil {
		return err
	}
	return e.Close()
}

// node is the agent in the form of the file, less what is as if it had not been written.
func (a agentConfig) node() *yaml.Node {
	m := &mapping{}
	m.add("kind", a.kind)
	m.add("description", a.description)
	m.add("system_prompt", a.systemPrompt)
	if w := a.window; w != nil {
		bounds := &mapping{}
		bounds.put("max_messages", w.GetMaxMessages())
		bounds.put("max_exchanges", w.GetMaxExchanges())
		bounds.put("max_bytes", unquoted(formatSize(int64(w.GetMaxBytes()))))
		bounds.put("cache_stable", w.GetCacheStable())
		m.put("window", bounds.flow())
	}
	m.add("max_concurrent", a.maxConcurrent)
	m.add("structured_blocks", a.structuredBlocks)
	m.add("command", a.command)
	m.add("format", a.format)
	m.add("dir", a.dir)
	m.add("env", a.env)
	m.add("base_url", a.baseURL)
	m.add("model", a.model)
	m.add("api_key_env", a.apiKey.env)
	m.add("api_key_file", a.apiKey.file)
	m.add("address", a.address)
	if a.tls != nil {
		m.put("tls", a.tls.node())
	}
	if len(a.headers) > 0 {
		m.put("headers", headersNode(a.headers))
	}
	m.add("max_output_tokens", a.maxOutputTokens)
	if a.temperature != nil {
		m.put("temperature", *a.temperature)
	}
	if len(a.tools) > 0 {
		m.put("tools", toolsNode(a.tools))
	}
	return m.node()
}

func (t *tlsConfig) node() *yaml.Node {
	m := &mapping{}
	m.add("ca_file", t.caFile)
	m.add("cert_file", t.certFile)
	m.add("key_file", t.keyFile)
	m.add("server_name", t.serverName)
	return m.flow()
}

func headersNode(headers map[string]secret) *yaml.Node {
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
