package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	maxTools       = 128
	maxSchemaBytes = 64 * kib
	maxSchemaDepth = 32
)

// tools returns a field that reads the tools that a model may call.
func (f *file) tools(target *[]agent.Tool) field {
	return func(key string, n *yaml.Node) {
		if n.Kind == yaml.SequenceNode && len(n.Content) > maxTools {
			f.fault(key, n, "has %d tools, at most %d are allowed", len(n.Content), maxTools)
		}
		f.items(key, n, func(_ int, key string, n *yaml.Node) {
			var t agent.Tool
			f.mapping(key, n, map[string]field{
				"name":        f.value(toolName(&t.Name)),
				"description": f.value(text(&t.Description, "", 0, 16*kib, "")),
				"parameters":  f.schema(&t),
			})
			if n.Kind == yaml.MappingNode {
				f.require(key, n, "name", "set the name by which the model calls it")
			}
			if t.Name != "" && slices.ContainsFunc(*target, func(o agent.Tool) bool { return o.Name == t.Name }) {
				f.fault(key, n, "has the same name as another tool, %q; use unique names", t.Name)
			}
			*target = append(*target, t)
		})
	}
}

// toolName is a value for the name of a tool, in the form that both providers accept.
func toolName(target *string) value[string] {
	return value[string]{target, "name", func(s string) (string, error) {
		if s == "" || len(s) > 64 || strings.Trim(s, letters+digits+"_-") != "" {
			return "", fmt.Errorf("%.80q is not a valid tool name; use 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'", s)
		}
		return s, nil
	}, verbatim}
}

// schema returns a field that reads the parameters of t: a JSON schema of type object, written in
// YAML. Other parts of the schema are not checked; the model and the caller interpret them.
func (f *file) schema(t *agent.Tool) field {
	return func(key string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			f.fault(key, n, "must be a JSON schema, as in {type: object, properties: {name: {type: string}}}")
			return
		}
		s := &schemaReader{file: f, remaining: maxSchemaBytes}
		object, _ := s.value(key, n, 1).(map[string]any)
		if s.fault != "" {
			f.fault(key, n, "%s", s.fault)
		}
		if kind := child(n, "type"); kind == nil || kind.Value != "object" {
			f.fault(key, n, "must have type: object, because arguments are named")
		}
		t.Parameters = object
	}
}

// schemaReader converts YAML values to JSON values.
type schemaReader struct {
	file      *file
	remaining int    // bytes that may still be read, approximately in JSON form
	fault     string // why reading has stopped; an alias may expand to a huge value or refer to itself
}

// consume counts the bytes of text and reports whether reading may continue.
func (s *schemaReader) consume(text string) bool {
	if s.remaining -= len(text) + 2; s.remaining < 0 && s.fault == "" {
		s.fault = "has more than " + formatSize(maxSchemaBytes) + " with its aliases expanded"
	}
	return s.fault == ""
}

// value returns a map[string]any, []any, string, bool, int, int64, uint64, float64 or nil.
func (s *schemaReader) value(key string, n *yaml.Node, depth int) any {
	if depth > maxSchemaDepth && s.fault == "" {
		s.fault = fmt.Sprintf("is more than %d levels deep", maxSchemaDepth)
	}
	if !s.consume(n.Value) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		object := map[string]any{}
		s.file.pairs(key, n, func(name, value *yaml.Node) {
			if !s.consume(name.Value) {
				return
			}
			if name.Kind != yaml.ScalarNode || name.ShortTag() == "!!merge" {
				s.file.fault(key, name, "has a key that JSON does not support; use a text, and no <<")
				return
			}
			object[name.Value] = s.value(key+"."+name.Value, value, depth+1)
		})
		return object
	case yaml.SequenceNode:
		list := []any{}
		s.file.items(key, n, func(_ int, key string, n *yaml.Node) {
			list = append(list, s.value(key, n, depth+1))
		})
		return list
	}
	scalar, err := jsonScalar(n)
	if err != nil {
		s.file.fault(key, n, "%v", err)
	}
	return scalar
}

// jsonScalar converts a scalar to a JSON value. A date becomes its text.
func jsonScalar(n *yaml.Node) (scalar any, err error) {
	notJSON := errors.New("is not a JSON value; use a text, a number, true, false or null")
	switch n.ShortTag() {
	case "!!str", "!!timestamp":
		return n.Value, nil
	case "!!null", "!!bool", "!!int", "!!float":
		if n.Decode(&scalar) != nil {
			return nil, notJSON
		}
		if x, isFloat := scalar.(float64); isFloat && (math.IsNaN(x) || math.IsInf(x, 0)) {
			return nil, notJSON
		}
		return scalar, nil
	}
	return nil, notJSON
}
