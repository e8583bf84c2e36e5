package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	maxHeaders       = 64
	maxHeaderName    = 128
	headerAlphabet   = letters + digits + "!#$%&'*+-.^_`|~"
	metadataAlphabet = "abcdefghijklmnopqrstuvwxyz" + digits + "_.-"
)

// headers returns a field that reads the headers that agent a sends with every request. checkName
// returns what is wrong with a name in lower case, or "". Values may be secret, so faults quote none.
func (f *file) headers(a *Agent, checkName func(name string) string) field {
	return func(key string, n *yaml.Node) {
		a.Headers = map[string]Secret{}
		lines := map[string]int{}
		f.pairs(key, n, func(name, value *yaml.Node) {
			lower := strings.ToLower(name.Value)
			line, twice := lines[lower]
			lines[lower] = name.Line
			problem := checkName(lower)
			switch {
			case twice:
				problem = fmt.Sprintf("was already set in line %d; names are not case-sensitive", line)
			case len(lower) > maxHeaderName:
				problem = fmt.Sprintf("is too long; the maximum is %d", maxHeaderName)
			}
			if problem != "" {
				f.fault(key, name, "%.80q %s", name.Value, problem)
				return
			}
			var s Secret
			f.header(key+"."+name.Value, &s, value)
			a.Headers[name.Value] = s
		})
		if len(a.Headers) > maxHeaders {
			f.fault(key, n, "has %d headers, at most %d are allowed", len(a.Headers), maxHeaders)
		}
	}
}

// header reads the value of a header, or the variable or file that contains it.
func (f *file) header(key string, target *Secret, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		f.secretLiteral(target, headerText)(key, n)
		return
	}
	f.mapping(key, n, map[string]field{
		"env":  f.secretFromEnv(target, headerText),
		"file": f.secretFromFile(target, headerText),
	})
	if (child(n, "env") == nil) == (child(n, "file") == nil) {
		f.fault(key, n, "must have exactly one of env and file, as in {env: NAME}")
	}
}
