package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// file reads the YAML file into the loader's config. It walks the nodes itself, so that each fault
// has a line and a key, and all faults are reported.
type file struct {
	loader *loader
	name   string
}

// field reads the value n of a key, as in "agents.writer.kind".
type field func(key string, n *yaml.Node)

// readFile reads the file l.path. Faults in opening it are reported at place, where the path was
// set.
func (l *loader) readFile(place string) {
	data, err := os.ReadFile(l.path)
	if err != nil {
		l.fault(place, "%v", err)
		return
	}
	l.read(l.path, data)
}

// read reads the content data of the file name.
func (l *loader) read(name string, data []byte) {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return // The file is empty or has only comments.
	}
	if err == nil && !errors.Is(decoder.Decode(&second), io.EOF) {
		err = errors.New("has more than one document")
	}
	if err != nil {
		l.fault(name, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	f := &file{loader: l, name: name}
	fields := map[string]field{
		"default_agent": f.setting(l.defaultAgent),
		"agents":        f.agents,
		"tenants":       f.tenants,

		"client_certificates": f.clientCertificates,
	}
	for _, s := range l.settings {
		fields[s.key()] = f.setting(s)
	}
	f.mapping("", document.Content[0], fields)
}

func (f *file) fault(key string, n *yaml.Node, format string, args ...any) {
	f.loader.fault(f.place(key, n), format, args...)
}

func (f *file) warn(key string, n *yaml.Node, problem, advice string) {
	c := f.loader.config
	c.Warnings = append(c.Warnings, Warning{f.place(key, n), problem, advice})
}

func (f *file) place(key string, n *yaml.Node) string {
	if key == "" {
		return fmt.Sprintf("%s:%d", f.name, n.Line)
	}
	return fmt.Sprintf("%s:%d: %s", f.name, n.Line, key)
}

// setting returns a field that reads a scalar into s. The text is the same as in a flag.
func (f *file) setting(s *setting) field {
	return func(key string, n *yaml.Node) {
		switch {
		case n.Kind != yaml.ScalarNode:
			f.fault(key, n, "must be one value, not a list or a mapping")
		case n.ShortTag() == "!!null":
			f.fault(key, n, "has no value; leave the key out, or write \"\" for an empty one")
		default:
			f.loader.set(s, f.place(key, n), n.Value)
		}
	}
}

// value returns a field that reads a scalar into v.
func (f *file) value(v pflag.Value) field { return f.setting(&setting{value: v}) }

// list returns a field that reads a list of texts into target. item returns the value of the
// element at an index.
func (f *file) list(target *[]string, item func(index int, target *string) pflag.Value) field {
	return func(key string, n *yaml.Node) {
		*target = make([]string, len(n.Content))
		f.items(key, n, func(index int, key string, n *yaml.Node) {
			f.value(item(index, &(*target)[index]))(key, n)
		})
	}
}

// items calls each for every element of a list, with its key, as in "agents.writer.env[0]".
func (f *file) items(key string, n *yaml.Node, each func(index int, key string, n *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		f.fault(key, n, "must be a list, as in [one, two]")
		return
	}
	for i, node := range n.Content {
		each(i, fmt.Sprintf("%s[%d]", key, i), resolved(node))
	}
}

// mapping reads a mapping whose keys are those of fields.
func (f *file) mapping(key string, n *yaml.Node, fields map[string]field) {
	f.pairs(key, n, func(name, value *yaml.Node) {
		read, known := fields[name.Value]
		if !known {
			f.fault(key, name, "unknown key %.80q; parleyd --help lists the keys", name.Value)
			return
		}
		read(strings.TrimPrefix(key+"."+name.Value, "."), value)
	})
}

// pairs calls each for every key and value of a mapping.
func (f *file) pairs(key string, n *yaml.Node, each func(name, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		f.fault(key, n, "must be a mapping, as in {key: value}")
		return
	}
	lines := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		name, value := resolved(n.Content[i]), resolved(n.Content[i+1])
		if line, twice := lines[name.Value]; twice {
			f.fault(key, n.Content[i], "key %.80q was already set in line %d", name.Value, line)
			continue
		}
		lines[name.Value] = n.Content[i].Line
		each(name, value)
	}
}

// child returns the value of a key of a mapping, nil if there is none.
func child(n *yaml.Node, name string) *yaml.Node {
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if resolved(n.Content[i]).Value == name {
			return resolved(n.Content[i+1])
		}
	}
	return nil
}

// resolved returns the node that an alias refers to.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}
