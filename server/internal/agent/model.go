package agent

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

const (
	maxToolName = 64

	letters      = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	toolAlphabet = letters + "_-"
	// headerAlphabet is RFC 9110's token.
	headerAlphabet = letters + "!#$%&'*+-.^_`|~"
)

// Model is what the configuration says of an agent that is a model behind an HTTP API.
type Model struct {
	// BaseURL is where the API is, as in "http://127.0.0.1:11434/v1"; empty is the provider's own.
	BaseURL string
	// Model is the name by which the API knows it. Required.
	Model string
	// Key is sent as the provider wants it; empty sends none. It must never be in an error,
	// an event or a log.
	Key string
	// Headers are sent with every request. They may hold secrets as well.
	Headers map[string]string
	// Tools that the model may call. The callers of Chat run them.
	Tools []Tool
	// MaxOutputTokens bounds an answer; 0 is the provider's default, or 8192 where it has none.
	MaxOutputTokens int
	// Temperature is sent unless it is nil.
	Temperature *float64
}

// Tool is one that a model may call.
type Tool struct {
	// Name is what the model calls it: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', as both
	// providers want it.
	Name string
	// Description tells the model what it is for; may be empty.
	Description string
	// Parameters is a JSON schema of type object; nil takes no arguments.
	Parameters map[string]any
}

// parseBaseURL makes a URL of BaseURL, or of the provider's own where that is empty, whose
// path ends in a slash. What is wrong is told without the address: it may hold secrets.
func (m Model) parseBaseURL(own string) (*url.URL, error) {
	address := m.BaseURL
	if address == "" {
		address = own
	}
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("base_url: is not a URL; write it like %q", own)
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base_url: must begin with http:// or https://")
	case base.Hostname() == "":
		return nil, errors.New("base_url: names no host")
	case base.Fragment != "":
		return nil, errors.New("base_url: must not have a fragment, the part behind #")
	}
	return base.JoinPath("/"), nil
}

// check tells every fault but those of BaseURL, each by its key in the configuration.
func (m Model) check() error {
	var faults []error
	fault := func(format string, values ...any) { faults = append(faults, fmt.Errorf(format, values...)) }
	if m.Model == "" {
		fault("model: is required")
	}
	if !isSendable(m.Key) {
		fault("key: has a line feed or another control character in it")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if name == "" || strings.Trim(name, headerAlphabet) != "" {
			fault("headers: %.80q cannot name a header", name)
		} else if !isSendable(m.Headers[name]) {
			fault("headers: the value of %s has a line feed or another control character in it", name)
		}
	}
	if m.MaxOutputTokens < 0 {
		fault("max_output_tokens: %d is less than 0", m.MaxOutputTokens)
	}
	if t := m.Temperature; t != nil && (math.IsNaN(*t) || math.IsInf(*t, 0)) {
		fault("temperature: %v is not a finite number", *t)
	}
	seen := make(map[string]bool)
	for _, tool := range m.Tools {
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

// isSendable reports whether a header may have the value.
func isSendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' })
}

// secrets are what nobody is shown: the key, the headers' values, and the user, the
// password and the query of the base URL.
func (m Model) secrets(base *url.URL) []string {
	secrets := []string{m.Key, base.RawQuery}
	for _, value := range m.Headers {
		_, token, _ := strings.Cut(strings.TrimSpace(value), " ") // of "Bearer token"
		secrets = append(secrets, value, token)
	}
	for _, values := range base.Query() {
		secrets = append(secrets, values...)
	}
	if user := base.User; user != nil {
		password, _ := user.Password()
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password)) // sent as a header
		secrets = append(secrets, user.String(), user.Username(), password, basic)
	}
	return secrets
}
