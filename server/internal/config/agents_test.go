package config

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/config/configtest"
)

func writeFile(t *testing.T, path, data string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		t.Fatal(err)
	}
}

func fromEnv(name, text string) Secret  { return Secret{env: name, text: &text} }
func fromFile(path, text string) Secret { return Secret{file: path, text: &text} }
func literal(text string) Secret        { return Secret{text: &text} }

func TestConfigAgents(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	got, err := load(t, []string{"--config", path}, environ)
	if err != nil {
		t.Fatal(err)
	}
	half, zero := 0.5, 0.0
	parameters := map[string]any{
		"type": "object", "required": []any{"name"}, "additionalProperties": false,
		"properties": map[string]any{
			"name": map[string]any{
				"type": "string", "minLength": 1, "default": "5",
				"examples": []any{nil, 16, 1.5, true, "2026-01-31"},
			},
			"1": map[string]any{"enum": []any{"yes", 1e3, uint64(18446744073709551615)}},
		},
	}
	want := defaults()
	want.DefaultAgent = "gpt"
	want.Agents = []Agent{
		{
			Name: "claude", Kind: "anthropic", Model: "claude-x", APIKey: fromFile(dir+"/key", "sk-marked-file"),
			Headers: map[string]Secret{"authorization": fromEnv("TEAM_TOKEN", "Bearer marked-env")}, Temperature: &zero,
			ThinkingTokens: 2048,
		},
		{Name: "echo", Kind: "echo"},
		{
			Name: "gpt", Kind: "openai", Description: "Knows much.", SystemPrompt: "Be brief.",
			Window:        &parleyv1.ContextWindow{MaxExchanges: 5, CacheStable: true},
			MaxConcurrent: 1024, StructuredBlocks: true,
			BaseURL: "https://gateway.example:8443/openai/v1", Model: "gpt-x", APIKey: fromEnv("GPT_KEY", "sk-marked-env"),
			Headers: map[string]Secret{
				"X-Team": literal("shop 5"), "x-token": fromEnv("TEAM_TOKEN", "Bearer marked-env"),
				"x-other": fromFile(dir+"/token", "Bearer marked-file"),
			},
			Tools: []agent.Tool{
				{Name: "find_product", Description: "Finds products by name.", Parameters: parameters},
				{Name: "Buy-it_2", Parameters: parameters},
				{Name: "now"},
			},
			MaxOutputTokens: 4096, Temperature: &half, ReasoningEffort: "high",
		},
		{
			Name: "helper", Kind: "a2a", URL: "https://helper.example:8443/cards/agent.json",
			Hosts: []string{"api.helper.example", "fd00::1"}, APIKey: fromFile(dir+"/key", "sk-marked-file"),
			Headers: map[string]Secret{"x-team": literal("marked-literal")},
			TLS:     &TLS{serverName: "helper", config: &tls.Config{}}, MaxConcurrent: 4,
		},
		{
			Name: "local", Kind: "openai", BaseURL: "http://[::1]:11434/v1", Model: "llama",
			Headers: map[string]Secret{"Authorization": literal("Basic marked-literal")},
		},
		{Name: "named", Kind: "remote", Address: "dns:///planner.example:7001"},
		{Name: "neighbour", Kind: "remote", Address: "unix:/run/agent.sock", TLS: &TLS{config: &tls.Config{}}},
		{Name: "parrot", Kind: "echo", MaxConcurrent: 1},
		{
			Name: "planner", Kind: "remote", Address: "planner.example:7001", MaxConcurrent: 2,
			Headers: map[string]Secret{"authorization": fromFile(dir+"/token", "Bearer marked-file")},
			TLS: &TLS{
				caFile: dir + "/cert.pem", certFile: dir + "/cert.pem", keyFile: dir + "/key.pem",
				serverName: "planner", config: &tls.Config{},
			},
		},
		{Name: "writer", Kind: "command", Command: []string{"cat"}, Format: "text", StructuredBlocks: true, MaxConcurrent: 3},
	}
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	find := func(name string) Agent {
		return got.Agents[slices.IndexFunc(got.Agents, func(a Agent) bool { return a.Name == name })]
	}
	// Compare the types too, not only the JSON form.
	if d := cmp.Diff(parameters, find("gpt").Tools[0].Parameters); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, a := range got.Agents {
		if a.TLS == nil {
			continue
		}
		full := a.Name == "planner"
		if c := a.TLS.config; (c.RootCAs != nil) != full || (len(c.Certificates) == 1) != full ||
			c.ServerName != a.TLS.serverName {
			t.Errorf("agent %s: the TLS config does not match its files", a.Name)
		}
	}
}

// TestConfigHelpExample checks that the example in the help text is valid and contains every key.
func TestConfigHelpExample(t *testing.T) {
	_, example, _ := strings.Cut(help, "configures another agent:\n\n")
	c, err := load(t, []string{"--config", inFile(t, example)}, []string{"ANTHROPIC_API_KEY=k", "TEAM_TOKEN=t"})
	if err != nil {
		t.Fatal(err)
	}
	if c.DefaultAgent != "writer" || len(c.Agents) != 7 || len(c.Warnings) > 0 {
		t.Errorf("the example was read as %+v", c)
	}
	f := &file{loader: newLoader(nil)}
	fields := f.commonFields(&Agent{})
	f.addCommandFields(fields, &Agent{})
	f.addModelFields(fields, &Agent{}, mappingOf(t, "{}"))
	f.addRemoteFields(fields, &Agent{})
	f.addA2AFields(fields, &Agent{}, mappingOf(t, "{}"))
	for key := range fields {
		if key != "api_key" && !strings.Contains(example, key+":") {
			t.Errorf("the help text does not contain the key %s", key)
		}
	}
}

// texts returns the warnings as check-config prints them.
func texts(warnings []Warning) (lines []string) {
	for _, w := range warnings {
		lines = append(lines, w.String())
	}
	return lines
}

func TestConfigWarnings(t *testing.T) {
	dir := t.TempDir()
	cert, key := configtest.Certificate(t)
	open, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	writeFile(t, open, "k", 0o640)
	writeFile(t, closed, "k", 0o400)
	writeFile(t, filepath.Join(dir, "cert"), cert, 0o644)
	writeFile(t, filepath.Join(dir, "key"), key, 0o604)
	modeIs := func(key, mode string) string {
		return "agents.a." + key + ": file with a secret is accessible to other users; run chmod 600; its mode is " + mode
	}
	for _, test := range []struct {
		agent string
		want  []string
	}{
		{"kind: openai, model: m, api_key_file: " + open, []string{modeIs("api_key_file", "0640")}},
		{"kind: openai, model: m, api_key_file: " + closed, nil},
		{
			"kind: remote, address: 'h:1', headers: {x: {file: " + open + "}}, tls: {cert_file: " + dir + "/cert, key_file: " + dir + "/key}",
			[]string{modeIs("headers.x.file", "0640"), modeIs("tls.key_file", "0604")},
		},
		{"kind: openai, model: m, base_url: 'http://10.0.0.1/v1', api_key_file: " + closed, []string{
			"agents.a.base_url: key and headers are sent over the network unencrypted; use https if the API supports it",
		}},
		{"kind: anthropic, model: m, base_url: 'HTTP://api', headers: {x: y}", []string{
			"agents.a.base_url: key and headers are sent over the network unencrypted; use https if the API supports it",
		}},
		{"kind: openai, model: m, base_url: 'http://10.0.0.1/v1'", nil},
		{"kind: openai, model: m, base_url: 'http://localhost/v1', headers: {x: y}", nil},
		{"kind: openai, model: m, base_url: 'https://10.0.0.1/v1', headers: {x: y}", nil},
		{"kind: remote, address: '10.0.0.1:1', headers: {x: y}", []string{
			"agents.a.headers: headers are sent over the network unencrypted; set tls if the service supports it",
		}},
		{"kind: remote, address: 'dns:///h:1', headers: {x: y}", []string{
			"agents.a.headers: headers are sent over the network unencrypted; set tls if the service supports it",
		}},
		{"kind: remote, address: '10.0.0.1:1', headers: {x: y}, tls: {}", nil},
		{"kind: remote, address: '10.0.0.1:1'", nil},
		{"kind: remote, address: '127.0.0.1:1', headers: {x: y}", nil},
		{"kind: remote, address: 'unix:/a', headers: {x: y}", nil},
	} {
		path := inFile(t, "agents: {a: {"+test.agent+"}}")
		c, err := load(t, []string{"--config", path}, nil)
		if err != nil {
			t.Errorf("%s: %v", test.agent, err)
			continue
		}
		for i, want := range test.want {
			test.want[i] = path + ":1: " + want
		}
		if got := texts(c.Warnings); !slices.Equal(got, test.want) {
			t.Errorf("%s: warnings = %q, want %q", test.agent, got, test.want)
		}
	}
}
