package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// mapping is one of YAML that is being made, its keys in the order in which they come.
type mapping struct{ content []*yaml.Node }

func (m *mapping) node() *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Content: m.content}
}

// flow is the node in one line.
func (m *mapping) flow() *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle, Content: m.content}
}

// put adds a key and a value, of those that node takes.
func (m *mapping) put(key string, value any) {
	m.content = append(m.content, textNode(key), node(value))
}

// add is put, but for zero values.
func (m *mapping) add(key string, value any) {
	if !reflect.ValueOf(value).IsZero() {
		m.put(key, value)
	}
}

// node is a node, or a value of JSON or a list of texts as one.
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
		panic(err) // Only numbers, true, false and null are left.
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

// textNode is a text, in quotes where the package would write what it cannot read again:
// merge keys, and some texts of several lines.
func textNode(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	odd := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	switch {
	case text == "<<", strings.ContainsFunc(text, odd):
		n.Style = yaml.DoubleQuotedStyle
	case strings.Contains(text, "\n"):
		n.Style = yaml.LiteralStyle
	}
	return n
}

// unquoted is a setting's text: it has no quotes where YAML takes it for a number, which
// reads as well.
func unquoted(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if tag := n.ShortTag(); tag == "!!int" || tag == "!!bool" {
		return n
	}
	return textNode(text)
}
