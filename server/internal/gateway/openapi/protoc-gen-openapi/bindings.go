package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// binding is one way to a call: a method, a path and what the body holds.
type binding struct {
	method string   // "get"
	path   string   // "/v1/conversations/{conversation.id}"
	fields []string // of the path: "conversation.id"
	body   string   // "*" is the whole request, "" nothing, else one of its fields
}

// rule is a google.api.HttpRule, without what no path here needs.
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

// parseBindings reads a google.api.Service in YAML: the ways to each call, by its full name
// "package.Service.Method". The main one is the first.
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
	ways := map[string][]binding{}
	for _, r := range service.HTTP.Rules {
		if ways[r.Selector] != nil {
			return nil, fmt.Errorf("%s: has two rules", r.Selector)
		}
		for _, way := range append([]rule{r}, r.AdditionalBindings...) {
			b, err := way.binding()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.Selector, err)
			}
			ways[r.Selector] = append(ways[r.Selector], b)
		}
	}
	return ways, nil
}

func (r *rule) binding() (binding, error) {
	var found []binding
	for method, path := range map[string]string{"get": r.Get, "put": r.Put, "post": r.Post, "delete": r.Delete, "patch": r.Patch} {
		if path != "" {
			found = append(found, binding{method: method, path: path, body: r.Body})
		}
	}
	if len(found) != 1 {
		return binding{}, fmt.Errorf("has %d paths, not 1", len(found))
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
