package anthropic

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

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/packages/param"

	"github.com/parleyhq/parley/server/internal/agent"
)

const (
	// defaultBaseURL is Anthropic's own.
	defaultBaseURL = "https://api.anthropic.com"

	// maxToolName is what the API allows the name of a tool to have.
	maxToolName = 64
)

// parseBaseURL is where the API is, with a slash at the end. What is wrong is told without
// the address: it may hold secrets.
func parseBaseURL(address string) (*url.URL, error) {
	if address == "" {
		address = defaultBaseURL
	}
	base, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, fmt.Errorf("base_url: is not a URL; write it like %q", defaultBaseURL)
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, errors.New("base_url: must begin with http:// or https://")
	case base.Hostname() == "":
		return nil, errors.New("base_url: names no host")
	case base.Fragment != "":
		return nil, errors.New("base_url: must not have a fragment, the part behind #")
	}
	if base = base.JoinPath("/"); strings.HasSuffix(base.Path, "/v1/") {
		base = base.JoinPath("../") // the paths of the API have their own version
	}
	return base, nil
}

// check tells every fault of the configuration but those of base_url.
func check(config agent.Model) error {
	var faults []error
	fault := func(format string, values ...any) { faults = append(faults, fmt.Errorf(format, values...)) }
	if config.Model == "" {
		fault("model: is required")
	}
	if !isSendable(config.Key) {
		fault("key: has a line feed or another control character in it")
	}
	for _, name := range slices.Sorted(maps.Keys(config.Headers)) {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !isWord(r) && !strings.ContainsRune("!#$%&'*+.^`|~", r) }) {
			fault("headers: %.80q cannot name a header", name)
		} else if !isSendable(config.Headers[name]) {
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
		if tool.Name == "" || len(tool.Name) > maxToolName || strings.ContainsFunc(tool.Name, isNoWord) {
			fault("tools: %.80q cannot name a tool; write 1 to %d of A-Z, a-z, 0-9, '_' and '-'", tool.Name, maxToolName)
		} else if seen[tool.Name] {
			fault("tools: %s is there twice", tool.Name)
		}
		seen[tool.Name] = true
		if tool.Parameters != nil && tool.Parameters["type"] != "object" {
			fault("tools: the parameters of %.80q are not a JSON schema of type object", tool.Name)
		}
	}
	return errors.Join(faults...)
}

// isSendable reports whether a header may have the value.
func isSendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' })
}

// isWord reports whether the API takes the character in ids and names.
func isWord(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '-'
}

func isNoWord(r rune) bool { return !isWord(r) }

// newTools are the tools as the API takes them. The schemas are encoded here, once: the SDK
// would put their keys in another order each time, and that spoils the prompt cache.
func newTools(configured []agent.Tool) ([]sdk.ToolParam, error) {
	var faults []error
	var tools []sdk.ToolParam
	for _, tool := range configured {
		schema := []byte(`{"type":"object","properties":{}}`)
		if tool.Parameters != nil {
			var err error
			if schema, err = json.Marshal(tool.Parameters); err != nil {
				faults = append(faults, fmt.Errorf("tools: the parameters of %.80q cannot be written as JSON: %w", tool.Name, err))
			}
		}
		p := sdk.ToolParam{Name: tool.Name, InputSchema: param.Override[sdk.ToolInputSchemaParam](json.RawMessage(schema))}
		if tool.Description != "" {
			p.Description = sdk.String(tool.Description)
		}
		tools = append(tools, p)
	}
	return tools, errors.Join(faults...)
}

// secretsOf are what no error may show: the key, the headers' values, and the user, the
// password and the query of base_url.
func secretsOf(config agent.Model, base *url.URL) []string {
	secrets := []string{config.Key, base.RawQuery}
	for _, value := range config.Headers {
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
