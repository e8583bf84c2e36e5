package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

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
