package config

import (
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

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
	return c.Write(cmd.OutOrStdout(), c)
}

// Write writes the settings that are in effect on a server that was started with start and has read c again. The text
// is a file that has the same meaning when it is read. Only the values of headers that are in the file are not written.
func (c *Config) Write(w io.Writer, start *Config) error {
	file, agents := &mapping{}, &mapping{}
	for i, s := range c.settingsRead {
		if !s.reloads {
			s = start.settingsRead[i]
		}
		file.put(s.key(), unquoted(s.String()))
	}
	for _, a := range c.Agents {
		agents.put(a.Name, a.node())
	}
	if rules := c.ClientCertificates; len(rules) > 0 {
		list := make([]*yaml.Node, len(rules))
		for i, rule := range rules {
			list[i] = rule.node()
		}
		file.put("client_certificates", listNode(list, 0))
	}
	if len(c.Tenants) > 0 {
		tenants := &mapping{}
		for _, t := range c.Tenants {
			tenants.put(t.Name, t.node())
		}
		file.put("tenants", tenants.node())
	}
	file.put("default_agent", c.DefaultAgent)
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
	m.add("url", a.URL)
	m.add("hosts", a.Hosts)
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
	m.add("thinking_tokens", a.ThinkingTokens)
	m.add("reasoning_effort", a.ReasoningEffort)
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

// mapping is a YAML mapping under construction. Its keys keep the order in which they are added.
type mapping struct{ content []*yaml.Node }

func (m *mapping) node() *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: m.content}
}

// flow returns the node in one line.
func (m *mapping) flow() *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle, Content: m.content}
}

// put adds a key and a value of any type that the function node accepts.
func (m *mapping) put(key string, value any) {
	m.content = append(m.content, textNode(key), node(value))
}

// add adds a key and a value unless the value is zero.
func (m *mapping) add(key string, value any) {
	if !reflect.ValueOf(value).IsZero() {
		m.put(key, value)
	}
}

// node converts a JSON value, a list of texts or a node to a node.
func node(value any) *yaml.Node {
	switch v := value.(type) {
	case *yaml.Node:
		return v
	case string:
		return textNode(v)
	case map[string]any:
		m := &mapping{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			m.put(key, v[key])
		}
		return m.node()
	case []any:
		return listNode(v, 0)
	case []string:
		return listNode(v, yaml.FlowStyle)
	}
	n := &yaml.Node{}
	if err := n.Encode(value); err != nil {
		panic(err) // Only numbers, true, false and null are left, and these can always be encoded.
	}
	return n
}

func listNode[T any](list []T, style yaml.Style) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: style}
	for _, value := range list {
		n.Content = append(n.Content, node(value))
	}
	return n
}

// textNode returns the node of a text. It is quoted if the YAML package would otherwise write a
// form that it cannot read: merge keys and some texts of several lines.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	nonPrintable := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	switch {
	case text == "<<", strings.ContainsFunc(text, nonPrintable):
		n.Style = yaml.DoubleQuotedStyle
	case strings.Contains(text, "\n"):
		n.Style = yaml.LiteralStyle
	}
	return n
}

// unquoted returns the node of a setting's text. It is written without quotes if YAML takes it for
// a number or a bool, which is easier to read.
func unquoted(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if tag := n.ShortTag(); tag == "!!int" || tag == "!!bool" {
		return n
	}
	return textNode(text)
}
