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
	// headerAlphabet contains the characters of a token in RFC 9110.
	headerAlphabet = letters + "!#$%&'*+-.^_`|~"
)

// Model is the configuration of an agent that calls a model through an HTTP API.
type Model struct {
	// BaseURL is the address of the API, for example "http://127.0.0.1:11434/v1". If empty, the
	// provider's own is used.
	BaseURL string
	// Model is the name of the model in the API. Required.
	Model string
	// Key is the API key, sent in the form of the provider. If empty, none is sent. It must never
	// appear in an error, an event or a log.
	Key string
	// Headers are sent with each request. Their values may be secret.
	Headers map[string]string
	// Tools are the tools that the model may call. The callers of Chat run them.
	Tools []Tool
	// MaxOutputTokens limits an answer. If 0, the provider's default applies, or 8192 if it has
	// none.
	MaxOutputTokens int
	// Temperature is sent unless it is nil or the request asks for reasoning by one of the fields below. Models that
	// reason refuse it.
	Temperature *float64
	// ThinkingTokens is the part of MaxOutputTokens that a model of Anthropic may use for thinking, at least 1024. If 0,
	// requests do not ask for thinking.
	ThinkingTokens int
	// ReasoningEffort is sent to the chat completions API, for example "low". If empty, it is not sent.
	ReasoningEffort string
}

// DefaultMaxTokens limits an answer if the configuration does not and the API requires a limit.
const DefaultMaxTokens = 8192

// MinThinkingTokens is the minimum of Model.ThinkingTokens in the API.
const MinThinkingTokens = 1024

// Tool is a tool that a model may call.
type Tool struct {
	// Name is the name that the model uses: 1 to 64 of A-Z, a-z, 0-9, '_' and '-', as both
	// providers require.
	Name string
	// Description explains the tool to the model. It may be empty.
	Description string
	// Parameters is a JSON schema of type object. If nil, the tool has no arguments.
	Parameters map[string]any
}

// parseBaseURL parses BaseURL, or own if BaseURL is empty. The path of the result ends in a slash.
// Errors do not contain the address, because it may contain secrets.
func (m Model) parseBaseURL(own string) (*url.URL, error) {
	address := m.BaseURL
	if address == "" {
		address = own
	}
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("base_url: is not a URL; use the form %q", own)
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base_url: must begin with http:// or https://")
	case base.Hostname() == "":
		return nil, errors.New("base_url: has no host")
	case base.Fragment != "":
		return nil, errors.New("base_url: must not have a fragment (the part after #)")
	}
	return base.JoinPath("/"), nil
}

// check returns all faults except those of BaseURL, each with its key in the configuration.
func (m Model) check() error {
	var faults []error
	fault := func(format string, values ...any) { faults = append(faults, fmt.Errorf(format, values...)) }
	if m.Model == "" {
		fault("model: is required")
	}
	if !isSendable(m.Key) {
		fault("key: contains a line feed or another control character")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if name == "" || strings.Trim(name, headerAlphabet) != "" {
			fault("headers: %.80q is not a valid header name", name)
		} else if !isSendable(m.Headers[name]) {
			fault("headers: the value of %s contains a line feed or another control character", name)
		}
	}
	if m.MaxOutputTokens < 0 {
		fault("max_output_tokens: %d is less than 0", m.MaxOutputTokens)
	}
	if t := m.Temperature; t != nil && (math.IsNaN(*t) || math.IsInf(*t, 0)) {
		fault("temperature: %v is not a finite number", *t)
	}
	if n := m.ThinkingTokens; n != 0 && n < MinThinkingTokens {
		fault("thinking_tokens: %d is less than %d", n, MinThinkingTokens)
	}
	seen := make(map[string]bool)
	for _, tool := range m.Tools {
		if tool.Name == "" || len(tool.Name) > maxToolName || strings.Trim(tool.Name, toolAlphabet) != "" {
			fault("tools: %.80q is not a valid tool name; use 1 to %d of A-Z, a-z, 0-9, '_' and '-'", tool.Name, maxToolName)
		} else if seen[tool.Name] {
			fault("tools: %s is configured twice", tool.Name)
		}
		seen[tool.Name] = true
		if tool.Parameters == nil {
			continue
		}
		if tool.Parameters["type"] != "object" {
			fault("tools: the parameters of %.80q are not a JSON schema of type object", tool.Name)
		} else if _, err := json.Marshal(tool.Parameters); err != nil {
			fault("tools: the parameters of %.80q cannot be encoded as JSON: %w", tool.Name, err)
		}
	}
	return errors.Join(faults...)
}

// isSendable reports whether value can be sent in a header.
func isSendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' })
}

// secrets returns the values that must not be shown: the key, the values of the headers, and the
// user, password and query of the base URL.
func (m Model) secrets(base *url.URL) []string {
	secrets := []string{m.Key, base.RawQuery}
	for _, value := range m.Headers {
		_, token, _ := strings.Cut(strings.TrimSpace(value), " ") // The part after the scheme, for example of "Bearer token".
		secrets = append(secrets, value, token)
	}
	for _, values := range base.Query() {
		secrets = append(secrets, values...)
	}
	if user := base.User; user != nil {
		password, _ := user.Password()
		// The form in which they are sent.
		basic := base64.StdEncoding.EncodeToString([]byte(user.Username() + ":" + password))
		secrets = append(secrets, user.String(), user.Username(), password, basic)
	}
	return secrets
}
