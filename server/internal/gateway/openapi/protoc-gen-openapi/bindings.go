package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// binding maps an HTTP method and path to a call.
type binding struct {
	method string   // "get"
	path   string   // "/v1/conversations/{conversation.id}"
	fields []string // Parameters of the path, for example "conversation.id".
	body   string   // Field of the request in the body; "*" is the request itself, "" is no body.
}

// rule is a google.api.HttpRule with the keys that are supported.
type rule struct {
	Selector           string
	Get                string
	Put                string
	Post               string
	Delete             string
	Patch              string
	Body               string
	AdditionalBindings []rule `yaml:"additional_bindings"`
}

// parseBindings reads a google.api.Service in YAML and returns the bindings of each call by its
// full name "package.Service.Method". The first binding is the primary one.
func parseBindings(data []byte) (map[string][]binding, error) {
	var service struct {
		Type          string
		ConfigVersion int `yaml:"config_version"`
		HTTP          struct{ Rules []rule }
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&service); err != nil {
		return nil, err
	}
	bindings := map[string][]binding{}
	for _, r := range service.HTTP.Rules {
		if bindings[r.Selector] != nil {
			return nil, fmt.Errorf("%s: has two rules; use additional_bindings", r.Selector)
		}
		for _, each := range append([]rule{r}, r.AdditionalBindings...) {
			b, err := each.binding()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Selector, err)
			}
			bindings[r.Selector] = append(bindings[r.Selector], b)
		}
	}
	return bindings, nil
}

func (r *rule) binding() (binding, error) {
	var found []binding
	paths := map[string]string{"get": r.Get, "put": r.Put, "post": r.Post, "delete": r.Delete, "patch": r.Patch}
	for method, path := range paths {
		if path != "" {
			found = append(found, binding{method: method, path: path, body: r.Body})
		}
	}
	if len(found) != 1 {
		return binding{}, fmt.Errorf("has %d paths, want 1", len(found))
	}
	b := found[0]
	for _, field := range regexp.MustCompile(`\{(.*?)\}`).FindAllStringSubmatch(b.path, -1) {
		if strings.ContainsAny(field[1], "=*") {
			return binding{}, fmt.Errorf("%s: patterns in a path are not supported", b.path)
		}
		b.fields = append(b.fields, field[1])
	}
	return b, nil
}
