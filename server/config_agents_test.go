package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// agentsFile is testdata/config/agents.yaml with the files that it names, and the
// environment that it needs. Each secret has "marked" in it.
func agentsFile(t *testing.T) (path, dir string, environ []string) {
	t.Helper()
	dir = t.TempDir()
	cert, key := certificate(t)
	for name, data := range map[string]string{
		"key": "sk-marked-file\r\n", "token": "Bearer marked-file\n", "cert.pem": cert, "key.pem": key,
	} {
		writeFile(t, filepath.Join(dir, name), data, 0o600)
	}
	text, err := os.ReadFile("testdata/config/agents.yaml")
	if err != nil {
		t.Fatal(err)
	}
	marked := strings.NewReplacer("DIR", dir, "Basic secret", "Basic marked-literal").Replace(string(text))
	return inFile(t, marked), dir, []string{"GPT_KEY=sk-marked-env", "TEAM_TOKEN=Bearer marked-env"}
}

func writeFile(t *testing.T, path, data string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}

// certificate makes one that vouches for itself, and its key, both in PEM form.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"planner"}, IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}))
}

func fromEnv(name, text string) secret  { return secret{env: name, text: &text} }
func fromFile(path, text string) secret { return secret{file: path, text: &text} }
func literal(text string) secret        { return secret{text: &text} }

func TestConfigAgents(t *testing.T) {
	path, dir, environ := agentsFile(t)
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
	want.defaultAgent = "gpt"
	want.agents = []agentConfig{
		{
			name: "claude", kind: "anthropic", model: "claude-x", apiKey: fromFile(dir+"/key", "sk-marked-file"),
			headers: map[string]secret{"authorization": fromEnv("TEAM_TOKEN", "Bearer marked-env")}, temperature: &zero,
		},
		{name: "echo", kind: "echo"},
		{
			name: "gpt", kind: "openai", description: "Knows much.", systemPrompt: "Be brief.",
			window:        &parleyv1.ContextWindow{MaxExchanges: 5, CacheStable: true},
			maxConcurrent: 1024, structuredBlocks: true,
			baseURL: "https://gateway.example:8443/openai/v1", model: "gpt-x", apiKey: fromEnv("GPT_KEY", "sk-marked-env"),
			headers: map[string]secret{
				"X-Team": literal("shop 5"), "x-token": fromEnv("TEAM_TOKEN", "Bearer marked-env"),
				"x-other": fromFile(dir+"/token", "Bearer marked-file"),
			},
			tools: []agent.Tool{
				{Name: "find_product", Description: "Finds products by name.", Parameters: parameters},
				{Name: "Buy-it_2", Parameters: parameters},
				{Name: "now"},
			},
			maxOutputTokens: 4096, temperature: &half,
		},
		{
			name: "local", kind: "openai", baseURL: "http://[::1]:11434/v1", model: "llama",
			headers: map[string]secret{"Authorization": literal("Basic marked-literal")},
		},
		{name: "named", kind: "remote", address: "dns:///planner.example:7001"},
		{name: "neighbour", kind: "remote", address: "unix:/run/agent.sock", tls: &tlsConfig{config: &tls.Config{}}},
		{name: "parrot", kind: "echo", maxConcurrent: 1},
		{
			name: "planner", kind: "remote", address: "planner.example:7001", maxConcurrent: 2,
			headers: map[string]secret{"authorization": fromFile(dir+"/token", "Bearer marked-file")},
			tls: &tlsConfig{
				caFile: dir + "/cert.pem", certFile: dir + "/cert.pem", keyFile: dir + "/key.pem",
				serverName: "planner", config: &tls.Config{},
			},
		},
		{name: "writer", kind: "command", command: []string{"cat"}, format: "text", structuredBlocks: true, maxConcurrent: 3},
	}
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	find := func(name string) agentConfig {
		return got.agents[slices.IndexFunc(got.agents, func(a agentConfig) bool { return a.name == name })]
	}
	if d := cmp.Diff(parameters, find("gpt").tools[0].Parameters); d != "" { // and not only as JSON
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, a := range got.agents {
		if a.tls == nil {
			continue
		}
		full := a.name == "planner"
		if c := a.tls.config; (c.RootCAs != nil) != full || (len(c.Certificates) == 1) != full || c.ServerName != a.tls.serverName {
			t.Errorf("%s: the files of tls were not used, or others were", a.name)
		}
	}
}

// The example of the help can be started with, and shows every key.
func TestConfigHelpExample(t *testing.T) {
	_, example, _ := strings.Cut(about, "says otherwise:\n\n")
	c, err := load(t, []string{"--config", inFile(t, example)}, []string{"ANTHROPIC_API_KEY=k", "TEAM_TOKEN=t"})
	if err != nil {
		t.Fatal(err)
	}
	if c.defaultAgent != "writer" || len(c.agents) != 6 || len(c.warnings) > 0 {
		t.Errorf("read as %+v", c)
	}
	f := &file{loader: newLoader(nil)}
	fields := f.commonFields(&agentConfig{})
	f.addCommandFields(fields, &agentConfig{})
	f.addModelFields(fields, &agentConfig{}, mappingOf(t, "{}"))
	f.addRemoteFields(fields, &agentConfig{})
	for key := range fields {
		if key != "api_key" && !strings.Contains(example, key+":") {
			t.Errorf("%s is not in the help", key)
		}
	}
}

func TestConfigWarnings(t *testing.T) {
	dir := t.TempDir()
	cert, key := certificate(t)
	open, closed := filepath.Join(dir, "open"), filepath.Join(dir, "closed")
	writeFile(t, open, "k", 0o640)
	writeFile(t, closed, "k", 0o400)
	writeFile(t, filepath.Join(dir, "cert"), cert, 0o644)
	writeFile(t, filepath.Join(dir, "key"), key, 0o604)
	modeIs := func(key, mode string) string {
		return "agents.a." + key + ": other users of this machine may get at the file, its mode is " + mode + "; chmod 600 keeps them out"
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
			"agents.a.base_url: key and headers go over the network unencrypted; write https if the API has it",
		}},
		{"kind: anthropic, model: m, base_url: 'HTTP://api', headers: {x: y}", []string{
			"agents.a.base_url: key and headers go over the network unencrypted; write https if the API has it",
		}},
		{"kind: openai, model: m, base_url: 'http://10.0.0.1/v1'", nil},
		{"kind: openai, model: m, base_url: 'http://localhost/v1', headers: {x: y}", nil},
		{"kind: openai, model: m, base_url: 'https://10.0.0.1/v1', headers: {x: y}", nil},
		{"kind: remote, address: '10.0.0.1:1', headers: {x: y}", []string{
			"agents.a.headers: go over the network unencrypted; write tls if the service has it",
		}},
		{"kind: remote, address: 'dns:///h:1', headers: {x: y}", []string{
			"agents.a.headers: go over the network unencrypted; write tls if the service has it",
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
		if !slices.Equal(c.warnings, test.want) {
			t.Errorf("%s: got %q, want %q", test.agent, c.warnings, test.want)
		}
	}
}
