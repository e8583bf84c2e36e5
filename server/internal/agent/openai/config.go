package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	defaultBaseURL = "https://api.openai.com/v1"

	maxToolName  = 64
	letters      = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	toolAlphabet = letters + "_-"
	// headerAlphabet is RFC 9110's token.
	headerAlphabet = letters + "!#$%&'*+-.^_`|~"
)

// parseBaseURL makes a URL of base_url that ends in a slash. What is wrong is told
// without the address: it may hold secrets.
func parseBaseURL(address string) (*url.URL, error) {
	if address == "" {
		address = defaultBaseURL
	}
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, errors.New(`base_url: is not a URL; write it like "https://api.openai.com/v1"`)
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base_url: must begin with http:// or https://")
	case base.Hostname() == "":
		return nil, errors.New("base_url: names no host")
	case base.Fragment != "":
		return nil, errors.New("base_url: must not have a fragment, the part behind #")
	}
	return base.JoinPath("/"), nil
}

// check tells every fault of the configuration but those of base_url.
func check(config agent.Model) error {
	var faults []error
	fault := func(format string, values ...any) { faults = append(faults, fmt.Errorf(format, values...)) }
	if config.Model == "" {
		fault("model: is required")
	}
	if !sendable(config.Key) {
		fault("key: has a line feed or another control character in it")
	}
	for _, name := range slices.Sorted(maps.Keys(config.Headers)) {
		if name == "" || strings.Trim(name, headerAlphabet) != "" {
			fault("headers: %.80q cannot name a header", name)
		} else if !sendable(config.Headers[name]) {
			fault("headers: the value of %s has a line feed or another control character in it", name)
		}
	}
	if config.MaxOutputTokens < 0 {
		fault("max_output_tokens: %d is less than 0", config.MaxOutputTokens)
	}
	if t := config.Temperature; t != nil && (math.IsNaN(*t) || math.IsInf(*t, 0)) {
		fault("temperature: %v is not a finite number", *t)
	}
	seen := make(map[string]bool)
	for _, tool := range config.Tools {
		if tool.Name == "" || len(tool.Name) > maxToolName || strings.Trim(tool.Name, toolAlphabet) != "" {
			fault("tools: %.80q cannot name a tool; write 1 to %d of A-Z, a-z, 0-9, '_' and '-'", tool.Name, maxToolName)
		} else if seen[tool.Name] {
			fault("tools: %s is there twice", tool.Name)
		}
		seen[tool.Name] = true
		if tool.Parameters == nil {
			continue
		}
		if tool.Parameters["type"] != "object" {
			fault("tools: the parameters of %.80q are not a JSON schema of type object", tool.Name)
		} else if _, err := json.Marshal(tool.Parameters); err != nil {
			fault("tools: the parameters of %.80q cannot be written as JSON: %w", tool.Name, err)
		}
	}
	return errors.Join(faults...)
}

// sendable reports whether the value can be sent in a header.
func sendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' })
}
