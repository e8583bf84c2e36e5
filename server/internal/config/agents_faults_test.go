package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/parleyhq/parley/server/internal/config/configtest"
)

func mappingOf(t *testing.T, text string) *yaml.Node {
	t.Helper()
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document.Content[0]
}

// TestConfigAgentFaults puts "marked" wherever a secret is or may be by mistake. No fault may
// contain it.
func TestConfigAgentFaults(t *testing.T) {
	dir := t.TempDir()
	cert, key := configtest.Certificate(t)
	otherCert, _ := configtest.Certificate(t)
	for name, data := range map[string]string{
		"empty": "\n\r\n", "large": strings.Repeat("x", 16385), "blank": "marked key", "bom": "\ufeffmarked\n",
		"cert": cert, "other": otherCert, "key": key, "garbage": "marked", "header": "marked\nkey",
		"hidden": "marked",
	} {
		writeFile(t, filepath.Join(dir, name), data, 0o600)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{
		"KEY=marked", "EMPTY=", "BLANK=marked ", "CONTROL=marked\x01", "LARGE=" + strings.Repeat("x", 16385),
	}
	const (
		model  = "kind: openai, model: m, "
		local  = model + "base_url: 'http://localhost/v1', "
		claude = "kind: anthropic, model: m, base_url: 'http://localhost', "
		remote = "kind: remote, address: 'localhost:1', "
		tool   = local + "tools: [{name: t, "

		badURL    = "base_url: must be an http or https URL, as in http://127.0.0.1:11434/v1"
		badTail   = "base_url: must end with the path, without ? and #"
		badDial   = "address: must be host:port, as in 127.0.0.1:7001, or unix:PATH; ports are 1 to 65535"
		ownHeader = " is set by the agent; remove it"
		keyHeader = " is the header of the API key; remove it, or remove the key"
		badHeader = " is not a valid header name; use letters, digits and '-'"
		badValue  = "contains a character that no header value has, a control character or one outside ASCII, at byte "
		badMeta   = " is not a valid key of gRPC metadata; use letters, digits, '-', '_' and '.'"
		noKey     = "has neither a key nor a base_url, and the provider's own API requires a key; " +
			"set api_key_env or api_key_file, or the base_url of another API"
		notJSON = "is not a JSON value; use a text, a number, true, false or null"
	)
	for _, test := range []struct{ agent, want string }{
		// Required keys.
		{"kind: openai", " has no model; set the name that the API uses for the model\n " + noKey},
		{"kind: anthropic, model: m", " " + noKey},
		{"kind: remote", " has no address; set the address of the AgentService: host:port or unix:PATH"},
		{model + "headers: {authorization: marked}", ""},
		{local, ""},

		// Keys of other kinds of agents.
		{local + "address: 'h:1'", ` unknown key "address"; parleyd --help lists the keys`},
		{remote + "model: m", ` unknown key "model"; parleyd --help lists the keys`},
		{remote + "structured_blocks: true", ` unknown key "structured_blocks"; parleyd --help lists the keys`},
		{"kind: echo, structured_blocks: true", ` unknown key "structured_blocks"; parleyd --help lists the keys`},

		// Addresses.
		{model + "base_url: 'ftp://h/'", "." + badURL},
		{model + "base_url: 'h:1'", "." + badURL},
		{model + "base_url: 'http://'", "." + badURL},
		{model + "base_url: 'http://:80'", "." + badURL},
		{model + "base_url: 'http://h:0'", "." + badURL},
		{model + "base_url: 'http://h:65536'", "." + badURL},
		{model + "base_url: \"http://h/\\n\"", "." + badURL},
		{model + "base_url: ''", "." + badURL},
		{model + "base_url: 'https://u:marked@h/'", ".base_url: must not contain a user or a password; " +
			"use api_key_env, api_key_file or headers"},
		{model + "base_url: 'https://h/?key=marked'", "." + badTail},
		{model + "base_url: 'https://h/#'", "." + badTail},
		{model + "base_url: 'https://h/" + strings.Repeat("x", 2048) + "'", ".base_url: is too long; the maximum is 2KiB"},
		{"kind: remote, address: ''", "." + badDial},
		{"kind: remote, address: h", "." + badDial},
		{"kind: remote, address: ':1'", "." + badDial},
		{"kind: remote, address: 'h:'", "." + badDial},
		{"kind: remote, address: 'h:0'", "." + badDial},
		{"kind: remote, address: 'http://h:1'", "." + badDial},
		{"kind: remote, address: 'h%:1'", "." + badDial},
		{"kind: remote, address: 'unix:'", "." + badDial},
		{"kind: remote, address: 'unix://h/p'", "." + badDial},
		{"kind: remote, address: 'unix:/p?q'", "." + badDial},

		// Keys.
		{local + "api_key: marked", ".api_key: would put a secret into this file; use api_key_env or api_key_file instead"},
		{local + "api_key_env: KEY, api_key_file: DIR/hidden", " has both api_key_env and api_key_file; use one of them"},
		{local + "api_key_env: sk-marked", ".api_key_env: names a variable that is not set in the server's environment"},
		{local + "api_key_env: EMPTY", ".api_key_env: names a variable that is empty in the server's environment"},
		{local + "api_key_env: LARGE", ".api_key_env: names a variable of 16385 bytes, at most 16384 are allowed"},
		{
			local + "api_key_env: KEY=marked",
			".api_key_env: must be the name of a variable; its value is taken from the server's environment",
		},
		{local + "api_key_env: {env: KEY}", ".api_key_env: must be one value, not a list or a mapping"},
		{
			local + "api_key_env: BLANK",
			".api_key_env: contains a character that no key has, a space, a control character or one outside ASCII, at byte 7",
		},
		{
			local + "api_key_env: CONTROL",
			".api_key_env: contains a character that no key has, a space, a control character or one outside ASCII, at byte 7",
		},
		{
			local + "api_key_file: DIR/bom",
			".api_key_file: contains a character that no key has, a space, a control character or one outside ASCII, at byte 1",
		},
		{local + "api_key_file: ''", ".api_key_file: must not be empty"},
		{local + "api_key_file: DIR/marked", ".api_key_file: names a file that cannot be read: no such file or directory"},
		{local + "api_key_file: DIR/hidden/marked", ".api_key_file: names a file that cannot be read: not a directory"},
		{local + "api_key_file: DIR", ".api_key_file: must name a regular file"},
		{local + "api_key_file: DIR/pipe", ".api_key_file: must name a regular file"},
		{local + "api_key_file: DIR/empty", ".api_key_file: names an empty file"},
		{local + "api_key_file: DIR/large", ".api_key_file: names a file of more than 16KiB"},

		// Headers.
		{local + "headers: [marked]", ".headers: must be a mapping, as in {key: value}"},
		{local + "headers: {x: {}}", ".headers.x: must have exactly one of env and file, as in {env: NAME}"},
		{
			local + "headers: {x: {env: KEY, file: DIR/hidden}}",
			".headers.x: must have exactly one of env and file, as in {env: NAME}",
		},
		{local + "headers: {x: {env: NONE}}", ".headers.x.env: names a variable that is not set in the server's environment"},
		{local + "headers: {x: {file: DIR/header}}", ".headers.x.file: " + badValue + "7"},
		{local + "headers: {x: ''}", ".headers.x: must not be empty"},
		{local + "headers: {x: ' marked'}", ".headers.x: starts or ends with a space, which a header value cannot"},
		{local + "headers: {x: \"marked\\n\"}", ".headers.x: " + badValue + "7"},
		{local + "headers: {x: märked}", ".headers.x: " + badValue + "2"},
		{local + "headers: {x y: marked}", `.headers: "x y"` + badHeader},
		{local + "headers: {'': marked}", `.headers: ""` + badHeader},
		{
			local + "headers: {X-A: marked, x-a: marked}",
			`.headers: "x-a" was already set in line 1; names are not case-sensitive`,
		},
		{
			local + "headers: {" + strings.Repeat("x", 129) + ": marked}",
			`.headers: "` + strings.Repeat("x", 80) + `" is too long; the maximum is 128`,
		},
		{
			local + "headers: {Content-Type: marked, HOST: marked, anthropic-version: marked}",
			`.headers: "Content-Type"` + ownHeader + "\n" + `.headers: "HOST"` + ownHeader + "\n" + `.headers: "anthropic-version"` + ownHeader,
		},
		{
			local + "api_key_env: KEY, headers: {Authorization: marked, x-api-key: marked}",
			`.headers: "Authorization"` + keyHeader,
		},
		{
			claude + "api_key_env: KEY, headers: {authorization: marked, X-Api-Key: marked}",
			`.headers: "X-Api-Key"` + keyHeader,
		},
		{claude + "headers: {x-api-key: marked}", ""},
		{
			remote + "headers: {Grpc-Timeout: marked, te: marked}",
			`.headers: "Grpc-Timeout" is set by gRPC; remove it` + "\n" + `.headers: "te" is set by gRPC; remove it`,
		},
		{
			remote + "headers: {x-bin: marked}",
			`.headers: "x-bin" would have a binary value, but only text is supported; choose a name without -bin`,
		},
		{remote + "headers: {x!: marked}", `.headers: "x!"` + badMeta},
		{local + "headers: {" + many(65, "x%d: y") + "}", ".headers: has 65 headers, at most 64 are allowed"},

		// Numbers.
		{local + "temperature: 2.1", `.temperature: "2.1" is not a number from 0 to 2`},
		{local + "temperature: -0.1", `.temperature: "-0.1" is not a number from 0 to 2`},
		{local + "temperature: .nan", `.temperature: ".nan" is not a number from 0 to 2`},
		{local + "temperature: NaN", `.temperature: "NaN" is not a number from 0 to 2`},
		{local + "max_output_tokens: 0", ".max_output_tokens: 0 is too small; the minimum is 1"},
		{claude + "api_key_env: KEY, thinking_tokens: 1023", ".thinking_tokens: is 1023; set 0 or at least 1024"},
		{
			claude + "api_key_env: KEY, thinking_tokens: 8192",
			".thinking_tokens: is 8192, which is not less than the limit of an answer, 8192; raise max_output_tokens",
		},
		{claude + "api_key_env: KEY, thinking_tokens: -1", ".thinking_tokens: -1 is too small; the minimum is 0"},
		{
			claude + "api_key_env: KEY, thinking_tokens: 8192, max_output_tokens: 8193, reasoning_effort: low",
			`: unknown key "reasoning_effort"; parleyd --help lists the keys`,
		},
		{local + "thinking_tokens: 1024", `: unknown key "thinking_tokens"; parleyd --help lists the keys`},
		{local + "max_concurrent: 0", ".max_concurrent: 0 is too small; the minimum is 1"},
		{"kind: echo, max_concurrent: 1025", ".max_concurrent: 1025 is too large; the maximum is 1024"},

		// TLS.
		{remote + "tls: ~", ".tls: must be a mapping, as in {key: value}"},
		{remote + "tls: {ca: x}", `.tls: unknown key "ca"; parleyd --help lists the keys`},
		{remote + "tls: {key_file: DIR/key}", ".tls: must have both cert_file and key_file, or neither"},
		{remote + "tls: {cert_file: DIR/cert}", ".tls: must have both cert_file and key_file, or neither"},
		{remote + "tls: {ca_file: DIR/none}", ".tls.ca_file: names a file that cannot be read: no such file or directory"},
		{remote + "tls: {ca_file: DIR/garbage}", ".tls.ca_file: names a file without a certificate in PEM form"},
		{
			remote + "tls: {cert_file: DIR/other, key_file: DIR/key}",
			".tls: cert_file and key_file do not match: tls: private key does not match public key",
		},
		{
			remote + "tls: {cert_file: DIR/cert, key_file: DIR/garbage, server_name: ''}",
			".tls.server_name: must not be empty\n.tls: cert_file and key_file do not match: tls: failed to find any PEM data " +
				"in key input",
		},

		// Tools.
		{local + "tools: {}", ".tools: must be a list, as in [one, two]"},
		{local + "tools: [t]", ".tools[0]: must be a mapping, as in {key: value}"},
		{local + "tools: [{}]", ".tools[0]: has no name; set the name by which the model calls it"},
		{
			local + "tools: [{name: a.b}]",
			`.tools[0].name: "a.b" is not a valid tool name; use 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'`,
		},
		{local + "tools: [{name: " + strings.Repeat("t", 65) + "}]", `.tools[0].name: "` + strings.Repeat("t", 65) +
			`" is not a valid tool name; use 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'`},
		{local + "tools: [{name: " + strings.Repeat("t", 64) + "}]", ""},
		{local + "tools: [{name: t}, {name: u, type: f}, {name: t}]", `.tools[1]: unknown key "type"; parleyd --help lists the keys` + "\n" +
			`.tools[2]: has the same name as another tool, "t"; use unique names`},
		{local + "tools: [" + many(129, "{name: t%d}") + "]", ".tools: has 129 tools, at most 128 are allowed"},
		{
			tool + "parameters: string}]",
			".tools[0].parameters: must be a JSON schema, as in {type: object, properties: {name: {type: string}}}",
		},
		{tool + "parameters: {}}]", ".tools[0].parameters: must have type: object, because arguments are named"},
		{tool + "parameters: {type: string}}]", ".tools[0].parameters: must have type: object, because arguments are named"},
		{
			tool + "parameters: {type: object, a: [1, .inf, !!binary aGk=, !x y]}}]",
			".tools[0].parameters.a[1]: " + notJSON + "\n.tools[0].parameters.a[2]: " + notJSON + "\n.tools[0].parameters.a[3]: " + notJSON,
		},
		{tool + "parameters: {type: object, a: 1, a: 2}}]", `.tools[0].parameters: key "a" was already set in line 1`},
		{tool + "parameters: {type: object, <<: {a: 1}, ? [a] : 1}}]", strings.TrimSuffix(strings.Repeat(
			".tools[0].parameters: has a key that JSON does not support; use a text, and no <<\n", 2), "\n")},
		{tool + "parameters: &p {type: object, a: *p, b: *p}}]", ".tools[0].parameters: is more than 32 levels deep"},
		{
			tool + "parameters: {type: object, a: " + bomb() + "}}]",
			".tools[0].parameters: has more than 64KiB with its aliases expanded",
		},
		{
			tool + "parameters: {type: object, a: " + strings.Repeat("x", 65536) + "}}]",
			".tools[0].parameters: has more than 64KiB with its aliases expanded",
		},
	} {
		t.Run(fmt.Sprintf("%.100s", test.agent), func(t *testing.T) {
			path := inFile(t, strings.ReplaceAll("agents: {a: {"+test.agent+"}}", "DIR", dir))
			_, err := load(t, []string{"--config", path}, environ)
			var want, got []string
			for line := range strings.Lines(test.want) {
				if strings.HasPrefix(line, " ") { // a fault of the agent as a whole
					line = ":" + line
				}
				want = append(want, path+":1: agents.a"+strings.TrimSuffix(line, "\n"))
			}
			if bad, ok := errors.AsType[*Error](err); ok {
				got = bad.Faults
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if err != nil && strings.Contains(strings.ReplaceAll(err.Error(), dir, ""), "marked") {
				t.Errorf("error %v contains a secret", err)
			}
		})
	}
}

// many returns form with each number below n, separated by commas.
func many(n int, form string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(form, i))
	}
	return strings.Join(all, ", ")
}

// bomb returns a short list that aliases expand to 10^9 elements.
func bomb() string {
	const ten = "[*a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d, *a%[1]d]"
	lists := []string{"&a0 [lol]"}
	for i := range 9 {
		lists = append(lists, fmt.Sprintf("&a%d ", i+1)+fmt.Sprintf(ten, i))
	}
	return "[" + strings.Join(lists, ", ") + "]"
}
