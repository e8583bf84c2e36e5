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

// tools reads the tools that a model may call.
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
				f.require(key, n, "name", "write what the model is to call it")
			}
			if t.Name != "" && slices.ContainsFunc(*target, func(o agent.Tool) bool { return o.Name == t.Name }) {
				f.fault(key, n, "has the name of another tool, %q; a model could not tell them apart", t.Name)
			}
			*target = append(*target, t)
		})
	}
}

// toolName is what both providers take as one.
func toolName(target *string) value[string] {
	return value[string]{target, "name", func(s string) (string, error) {
		if s == "" || len(s) > 64 || strings.Trim(s, letters+digits+"_-") != "" {
			return "", fmt.Errorf("%.80q cannot name a tool; write 1 to 64 of A-Z, a-z, 0-9, '_' and '-'", s)
		}
		return s, nil
	}, verbatim}
}

// schema reads the parameters of t: a JSON schema of type object, written in YAML. What the
// rest of it means is between model and caller.
func (f *file) schema(t *agent.Tool) field {
	return func(key string, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			f.fault(key, n, "must be a JSON schema, as in {type: object, properties: {name: {type: string}}}")
			return
		}
		s := &schemaReader{file: f, left: maxSchemaBytes}
		object, _ := s.value(key, n, 1).(map[string]any)
		if s.stopped != "" {
			f.fault(key, n, "%s", s.stopped)
		}
		if kind := child(n, "type"); kind == nil || kind.Value != "object" {
			f.fault(key, n, "must have type: object, for the arguments of a call are named")
		}
		t.Parameters = object
	}
}

// schemaReader makes the values of JSON of those of YAML.
type schemaReader struct {
	file    *file
	left    int    // bytes that may still come, about as JSON has them
	stopped string // why nothing more is read: an alias may stand for very much, even for itself
}

// take notes that a text comes, and tells whether it may.
func (s *schemaReader) take(text string) bool {
	if s.left -= len(text) + 2; s.left < 0 && s.stopped == "" {
		s.stopped = "has more than " + formatSize(maxSchemaBytes) + " with its aliases written out"
	}
	return s.stopped == ""
}

// value returns a map[string]any, []any, string, bool, int, int64, uint64, float64 or nil.
func (s *schemaReader) value(key string, n *yaml.Node, depth int) any {
	if depth > maxSchemaDepth && s.stopped == "" {
		s.stopped = fmt.Sprintf("is more than %d levels deep", maxSchemaDepth)
	}
	if !s.take(n.Value) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		object := map[string]any{}
		s.file.pairs(key, n, func(name, value *yaml.Node) {
			if !s.take(name.Value) {
				return
			}
			if name.Kind != yaml.ScalarNode || name.ShortTag() == "!!merge" {
				s.file.fault(key, name, "has a key that JSON cannot have; write a text, and no <<")
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

// jsonScalar is a scalar as JSON has it: a date is the text that was written.
func jsonScalar(n *yaml.Node) (scalar any, err error) {
	notJSON := errors.New("is nothing that JSON has; write a text, a number, true, false or null")
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
