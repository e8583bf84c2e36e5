package agent_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/agent"
)

const ownBaseURL = "https://api.provider.test/v1"

func TestModelFaults(t *testing.T) {
	_, err := agent.NewProvider(agent.Model{
		BaseURL: "ftp://ann:hidden@host", Key: "hidden\n", MaxOutputTokens: -1, Temperature: new(math.NaN()),
		Headers: map[string]string{"X Y": "hidden", "X-Z": "hidden\r\n", "": "hidden", "X-W": "hidden\x00", "x-#!": "\tfine"},
		Tools: []agent.Tool{
			{Name: "a b"},
			{Name: "a"},
			{Name: "a"},
			{Name: strings.Repeat("x", 65)},
			{Name: strings.Repeat("x", 64)},
			{Name: "list", Parameters: map[string]any{"type": "array"}},
			{Name: "none", Parameters: map[string]any{}},
			{Name: "odd", Parameters: map[string]any{"type": "object", "f": func() {}}},
		},
	}, ownBaseURL)
	want := []string{
		"base_url: must begin with http:// or https://",
		"model: is required",
		"key: contains a line feed or another control character",
		`headers: "" is not a valid header name`,
		`headers: "X Y" is not a valid header name`,
		"headers: the value of X-W contains a line feed or another control character",
		"headers: the value of X-Z contains a line feed or another control character",
		"max_output_tokens: -1 is less than 0",
		"temperature: NaN is not a finite number",
		`tools: "a b" is not a valid tool name; use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'`,
		"tools: a is configured twice",
		`tools: "` + strings.Repeat("x", 65) + `" is not a valid tool name; use 1 to 64 of A-Z, a-z, 0-9, '_' and '-'`,
		`tools: the parameters of "list" are not a JSON schema of type object`,
		`tools: the parameters of "none" are not a JSON schema of type object`,
		`tools: the parameters of "odd" cannot be encoded as JSON: json: unsupported type: func()`,
	}
	if diff := cmp.Diff(want, strings.Split(fmt.Sprint(err), "\n")); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

func TestBaseURL(t *testing.T) {
	for address, want := range map[string]string{
		"":                         "https://api.provider.test/v1/",
		"http://host:1/a%2Fb?k=1":  "http://host:1/a%2Fb/?k=1",
		"http://h:hidden":          `base_url: is not a URL; use the form "https://api.provider.test/v1"`,
		"http://hidden@ host":      `base_url: is not a URL; use the form "https://api.provider.test/v1"`,
		"https:///v1?k=hidden":     "base_url: has no host",
		"https://host/v1#hidden":   "base_url: must not have a fragment (the part after #)",
		"api.provider.test/hidden": "base_url: must begin with http:// or https://",
	} {
		p, err := agent.NewProvider(agent.Model{Model: "m", BaseURL: address}, ownBaseURL)
		if err == nil && p.Base.String() != want || err != nil && err.Error() != want {
			t.Errorf("NewProvider with BaseURL %q = %+v, %v, want %s", address, p, err, want)
		}
	}
}
