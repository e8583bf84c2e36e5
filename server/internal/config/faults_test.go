package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestConfigFaults(t *testing.T) {
	const reachableProfiles = "can be reached from other machines, and profiles need no sign-in; " +
		"use a loopback address, as in 127.0.0.1:6060, or unix:PATH"
	const reachable = "can be reached from other machines without TLS and sign-in; " +
		"set --tls-cert-file and --tls-key-file, and --auth-token-file, --oidc-issuer or client_certificates, " +
		"or use a loopback address, or set --insecure on a trusted network"
	const notOrigin = "is not an origin; use scheme and host, as in https://app.example or http://localhost:3000"
	for _, test := range []struct {
		args, environ string // separated by spaces
		want          string
	}{
		// Places of faults.
		{"--max-messages=0", "", "--max-messages: 0 is too small; the minimum is 1"},
		{"", "PARLEY_MAX_MESSAGES=1000001", "PARLEY_MAX_MESSAGES: 1000001 is too large; the maximum is 1000000"},
		{"--max-messages=5 --max-messages=x", "", `--max-messages: "x" is not a whole number`},
		{"--max-messages=5", "PARLEY_MAX_MESSAGES=", `PARLEY_MAX_MESSAGES: "" is not a whole number`},
		{"--config=/no/such/file", "", "--config: open /no/such/file: no such file or directory"},
		{"", "PARLEY_CONFIG=/", "PARLEY_CONFIG: read /: is a directory"},

		// The command line.
		{"--max-mesages 3", "", "--max-mesages: unknown flag; parleyd --help lists the flags"},
		{"--max-mesages=3 serve", "", "settings: 2 faults:\n  --max-mesages: unknown flag; parleyd --help lists the flags\n" +
			`  command line: "serve" is neither a flag nor a command of parleyd`},
		{"-x", "", "-x: unknown flag; parleyd --help lists the flags"},
		{"--data-dir --ttls", "", ""},
		{"-- --ttls", "", `command line: "--ttls" is neither a flag nor a command of parleyd`},
		{"--ttl", "", "command line: flag needs an argument: --ttl"},
		{"--max-turns=x --ttl", "PARLEY_STORE=x", `settings: 3 faults:
  command line: flag needs an argument: --ttl
  PARLEY_STORE: "x" is not one of memory, bolt, redis
  --max-turns: "x" is not a whole number`},

		// The environment.
		{"", "PARLEY_MAX_MESAGES=3 PARLEY_AGENTS=x", ""}, // See TestUnknownVariables.

		// Numbers, sizes, durations.
		{"--ttl=5", "", `--ttl: "5" is not a duration; write it as in 90s, 1h30m or 7d`},
		{"--ttl=99ms", "", "--ttl: 99ms is too small; the minimum is 100ms"},
		{"--ttl=367d", "", "--ttl: 367d is too large; the maximum is 366d"},
		{"--ttl=-1h", "", "--ttl: -1h is too small; the minimum is 100ms"},
		{"--ttl=99999999999d", "", `--ttl: "99999999999d" is not a duration; write it as in 90s, 1h30m or 7d`},
		{"--ttl=1.5d", "", `--ttl: "1.5d" is not a duration; write it as in 90s, 1h30m or 7d`},
		{"--turn-timeout=0s", "", "--turn-timeout: 0s is too small; the minimum is 1ms"},
		{"--idle-timeout=0s", "", "--idle-timeout: 0s is too small; the minimum is 1ms"},
		{"--stop-grace=-1s", "", "--stop-grace: -1s is too small; the minimum is 0s"},
		{
			"--max-message-bytes=256KB", "",
			`--max-message-bytes: "256KB" is not a size; write whole bytes, KiB, MiB or GiB, as in 256KiB`,
		},
		{"--max-message-bytes=1023", "", "--max-message-bytes: 1023 is too small; the minimum is 1KiB"},
		{"--max-conversation-bytes=1025MiB", "", "--max-conversation-bytes: 1025MiB is too large; the maximum is 1GiB"},
		{
			"--memory-warning-bytes=9999999999GiB", "",
			`--memory-warning-bytes: "9999999999GiB" is not a size; write whole bytes, KiB, MiB or GiB, as in 256KiB`,
		},
		{
			"--memory-warning-bytes=-9999999999GiB", "",
			`--memory-warning-bytes: "-9999999999GiB" is not a size; write whole bytes, KiB, MiB or GiB, as in 256KiB`,
		},
		{"--max-conversations=-1", "", "--max-conversations: -1 is too small; the minimum is 0"},
		{"--max-turns=99999999999999999999", "", "--max-turns: 9223372036854775807 is too large; the maximum is 1024"},
		{"--max-turns=1025", "", "--max-turns: 1025 is too large; the maximum is 1024"},

		// Choices and texts.
		{"--store=sqlite", "", `--store: "sqlite" is not one of memory, bolt, redis`},
		{"--log-level=trace", "", `--log-level: "trace" is not one of debug, info, warn, error`},
		{"--log-level=info+2", "", `--log-level: "info+2" is not one of debug, info, warn, error`},
		{"--log-format=xml", "", `--log-format: "xml" is not one of text, json`},
		{"--insecure=maybe", "", `--insecure: "maybe" is neither true nor false`},
		{"--data-dir=", "", "--data-dir: must not be empty"},

		// Addresses.
		{"--grpc-address=", "", `--grpc-address: "" is not host:port or unix:PATH; ports are 0 to 65535`},
		{"--grpc-address=localhost", "", `--grpc-address: "localhost" is not host:port or unix:PATH; ports are 0 to 65535`},
		{
			"--grpc-address=localhost:65536", "",
			`--grpc-address: "localhost:65536" is not host:port or unix:PATH; ports are 0 to 65535`,
		},
		{
			"--grpc-address=localhost:http", "",
			`--grpc-address: "localhost:http" is not host:port or unix:PATH; ports are 0 to 65535`,
		},
		{"--grpc-address=unix:", "", `--grpc-address: "unix:" is not host:port or unix:PATH; ports are 0 to 65535`},
		{
			"--debug-address=localhost", "",
			`--debug-address: "localhost" is not host:port or unix:PATH; ports are 0 to 65535`,
		},
		{"--debug-address=:6060", "", `--debug-address: ":6060" ` + reachableProfiles},
		{"--debug-address=0.0.0.0:6060 --insecure", "", `--debug-address: "0.0.0.0:6060" ` + reachableProfiles},
		{"", "PARLEY_DEBUG_ADDRESS=debug.example:1", `PARLEY_DEBUG_ADDRESS: "debug.example:1" ` + reachableProfiles},
		{"--debug-address=[::1]:6060", "PARLEY_DEBUG_ADDRESS=unix:/run/p", ""},
		{"--http-address=unix:/run/p", "", `--http-address: "unix:/run/p" is not host:port; ports are 0 to 65535`},
		{"--http-address=unix:5", "", `--http-address: "unix:5" ` + reachable},
		{"--grpc-address=:1", "", `--grpc-address: ":1" ` + reachable},
		{"--grpc-address=0.0.0.0:1", "", `--grpc-address: "0.0.0.0:1" ` + reachable},
		{"--grpc-address=[::]:1", "", `--grpc-address: "[::]:1" ` + reachable},
		{"--grpc-address=10.0.0.1:1", "", `--grpc-address: "10.0.0.1:1" ` + reachable},
		{"--grpc-address=localhost.example:1", "", `--grpc-address: "localhost.example:1" ` + reachable},
		{"", "PARLEY_HTTP_ADDRESS=:1", `PARLEY_HTTP_ADDRESS: ":1" ` + reachable},
		{
			"--grpc-address=:1 --http-address=:2", "",
			`--grpc-address, --http-address: ":1" and ":2" ` + reachable,
		},
		{"--grpc-address=:1 --insecure", "PARLEY_HTTP_ADDRESS=example.org:1", ""},
		{"--grpc-address=LocalHost:1 --http-address=127.3.2.1:1", "", ""},
		{"--grpc-address=[::1]:1 --http-address=[::ffff:127.0.0.1]:1", "", ""},

		{
			"--log-redact=[", "",
			"--log-redact: \"[\" is not a regular expression: error parsing regexp: missing closing ]: `[`",
		},
		{"--log-redact=x*", "", `--log-redact: "x*" matches the empty text and therefore every position`},
		{"--log-retention-days=-1", "", "--log-retention-days: -1 is too small; the minimum is 0"},

		// Origins.
		{"--a2a-url=https://a.example", "", `--a2a-url: needs --a2a`},
		{
			"--a2a --a2a-url=a.example/x", "",
			`--a2a-url: "a.example/x" is not a scheme with a host; use, for example, https://agents.example`,
		},
		{"--http-allowed-origins=*", "", `--http-allowed-origins: "*" ` + notOrigin},
		{
			"--http-allowed-origins=https://a.example/", "",
			`--http-allowed-origins: "https://a.example/" ` + "is not the form that browsers send; use https://a.example",
		},
		{"--http-allowed-origins=https://*.example", "", `--http-allowed-origins: "https://*.example" ` + notOrigin},
		{"--http-allowed-origins=a.example", "", `--http-allowed-origins: "a.example" ` + notOrigin},
		{
			"--http-allowed-origins=https://A.example", "",
			`--http-allowed-origins: "https://A.example" ` + "is not the form that browsers send; use https://a.example",
		},
		{"--http-allowed-origins=https://a.example,,", "", `--http-allowed-origins: "" ` + notOrigin},
		{"--http-allowed-origins=null", "", `--http-allowed-origins: "null" ` + notOrigin},
		{
			"--http-allowed-origins=https://a.example,http://localhost:3000,http://a.example:443,https://a_b.example:80,http://[::1]:3000",
			"", "",
		},
		{"--http-allowed-origins=https://xn--bcher-kva.example,http://127.0.0.1,https://r3---a.example", "", ""},

		{
			"--http-allowed-origins=https://b.example,https://user@a.example", "",
			`--http-allowed-origins: "https://user@a.example" ` + notOrigin,
		},
		{
			"--http-allowed-origins=https://a.example:99999", "",
			`--http-allowed-origins: "https://a.example:99999" ` + notOrigin,
		},
		{"--http-allowed-origins=https://xn--a.example", "", `--http-allowed-origins: "https://xn--a.example" ` + notOrigin},
		{"--http-allowed-origins=http://127.1", "", `--http-allowed-origins: "http://127.1" ` + notOrigin},
		{"--http-allowed-origins=http://a.09", "", `--http-allowed-origins: "http://a.09" ` + notOrigin},
		{"--http-allowed-origins=http://a.0x", "", `--http-allowed-origins: "http://a.0x" ` + notOrigin},
		{"--http-allowed-origins=http://a.1.", "", `--http-allowed-origins: "http://a.1." ` + notOrigin},
		{
			"--http-allowed-origins=http://[fe80::1%25eth0]", "",
			`--http-allowed-origins: "http://[fe80::1%25eth0]" ` + notOrigin,
		},
		{"--http-allowed-origins=http://a.example.,http://a.0xg,http://a.0b1,http://1.a,http://[::ffff:102:304]:81", "", ""},

		// Settings that contradict each other.
		{"--max-conversation-bytes=512KiB", "", "--max-answer-bytes: 1MiB exceeds the maximum size of a conversation; " +
			"lower it, or raise --max-conversation-bytes, which is 512KiB"},
		{"--max-message-bytes=2MiB", "PARLEY_MAX_CONVERSATION_BYTES=1MiB", "--max-message-bytes: 2MiB exceeds the maximum " +
			"size of a conversation; lower it, or raise PARLEY_MAX_CONVERSATION_BYTES, which is 1MiB"},
		{"--max-message-bytes=3MiB --max-answer-bytes=3MiB", "", ""},
		{"--journal-budget=256", "", "--journal-budget: 256 is too small; use at least 64KiB, or 0 for no journal"},
		{"", "PARLEY_JOURNAL_BUDGET=5GiB", "PARLEY_JOURNAL_BUDGET: 5GiB is too large; the maximum is 4GiB"},
		{"--journal-budget=64KiB", "", ""},
		{"--journal-age=0s", "", "--journal-age: 0s is too small; the minimum is 1s"},
	} {
		t.Run(test.args+" "+test.environ, func(t *testing.T) {
			_, err := load(t, strings.Fields(test.args), strings.Fields(test.environ))
			if test.want == "" {
				if err != nil {
					t.Errorf("error = %v, want nil", err)
				}
				return
			}
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("error = %v, want an *Error", err)
			}
			if want := "settings: " + strings.TrimPrefix(test.want, "settings: "); err.Error() != want {
				t.Errorf("error = %v\n  want  %v", err, want)
			}
		})
	}
}

func TestConfigFileFaults(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{"max_messages: 20\nttl: \"1h\n", "FILE: line 2: found unexpected end of stream"},
		{"a: 1\n---\nb: 2\n", "FILE: has more than one document"},
		{"- ttl", "FILE:1: must be a mapping, as in {key: value}"},
		{"~", "FILE:1: must be a mapping, as in {key: value}"},
		{"max_messages: 2.5", `FILE:1: max_messages: "2.5" is not a whole number`},
		{"ttl: x\nttl: y", `FILE:1: ttl: "x" is not a duration; write it as in 90s, 1h30m or 7d` + "\n" +
			`FILE:2: key "ttl" was already set in line 1`},
		{"insecure: yes please", `FILE:1: insecure: "yes please" is neither true nor false`},
		{"? [ttl]\n: 1h", `FILE:1: unknown key ""; parleyd --help lists the keys`},
		{"<<: {ttl: 1h}", `FILE:1: unknown key "<<"; parleyd --help lists the keys`},
		{"agents:", "FILE:1: agents: must be a mapping, as in {key: value}"},
		{
			"agents: {a: {kind: command, command: [a, [b]]}}",
			"FILE:1: agents.a.command[1]: must be one value, not a list or a mapping",
		},
		{`agents: {a: {kind: command, command: ["a\0b"]}}`, "FILE:1: agents.a.command[0]: must not contain a NUL character"},
		{"agents: {a: {kind: command, command: ['', a]}}", "FILE:1: agents.a.command[0]: must not be empty"},
		{"agents: {'': {kind: echo}}", `FILE:1: agents: "" is not a valid agent name; ` +
			"use 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'"},
		{"agents: {" + strings.Repeat("x", 129) + ": {kind: echo}}", `FILE:1: agents: "` + strings.Repeat("x", 129) +
			`" is not a valid agent name; use 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'`},
		{"agents: {a: {kind: command, command: [cat], dir: ''}}", "FILE:1: agents.a.dir: must not be empty"},
		{
			"agents: {a: {kind: echo, system_prompt: " + strings.Repeat("x", 65537) + "}}",
			"FILE:1: agents.a.system_prompt: has 65537 bytes, at most 65536 are allowed",
		},
		{
			"agents: {a: {kind: echo, window: {max_bytes: 2GiB}}}",
			"FILE:1: agents.a.window.max_bytes: 2GiB is too large; the maximum is 2147483647",
		},
		{
			"agents: {a: &a {kind: echo, window: *a}}",
			"FILE:1: agents.a.window: unknown key \"kind\"; parleyd --help lists the keys\n" +
				"FILE:1: agents.a.window: unknown key \"window\"; parleyd --help lists the keys",
		},
	} {
		t.Run(fmt.Sprintf("%.60s", test.file), func(t *testing.T) {
			path := inFile(t, test.file)
			_, err := load(t, []string{"--config", path}, nil)
			bad, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("error = %v, want an *Error", err)
			}
			want := strings.Split(strings.ReplaceAll(test.want, "FILE", path), "\n")
			if d := cmp.Diff(want, bad.Faults); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestConfigAllFaultsAtOnce checks that one error contains the faults of all sources.
func TestConfigAllFaultsAtOnce(t *testing.T) {
	_, err := load(t,
		[]string{"--config", "testdata/faulty.yaml", "--max-turns", "0", "--verbose", "start"},
		[]string{"PARLEY_TTL=soon", "PARLEY_MAX_MESAGES=30"})
	if err == nil {
		t.Fatal("error = nil, want all faults")
	}
	want, errRead := os.ReadFile("testdata/faulty.txt")
	if errRead != nil {
		t.Fatal(errRead)
	}
	if d := cmp.Diff(string(want), err.Error()+"\n"); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v contains a secret", err)
	}
}

// FuzzConfigFile: any file is either rejected or read. If it is read, its values are within their
// limits, and it can be printed and read again. Whether agents can be created from it is tested in
// their packages.
func FuzzConfigFile(f *testing.F) {
	for _, path := range []string{"testdata/good.yaml", "testdata/faulty.yaml", "testdata/printed.yaml", "configtest/agents.yaml"} {
		seed, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	_, example, _ := strings.Cut(help, "configures another agent:\n\n")
	f.Add([]byte(example))
	environ := []string{"GPT_KEY=k", "TEAM_TOKEN=t", "ANTHROPIC_API_KEY=a"}
	read := func(data []byte) (*loader, *Config, error) {
		l := newLoader(environ)
		l.read("fuzz.yaml", data)
		c, err := l.load(pflag.NewFlagSet("", pflag.ContinueOnError), nil)
		return l, c, err
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		l, c, err := read(data)
		if err != nil {
			if bad, ok := errors.AsType[*Error](err); !ok || len(bad.Faults) == 0 {
				t.Errorf("error = %#v, want an *Error", err)
			}
			return
		}
		for _, s := range l.settings {
			if err := s.value.Set(s.String()); err != nil {
				t.Errorf("setting %s cannot be set to its own value %q: %v", s.name, s, err)
			}
		}
		if len(c.Agents) == 0 || c.MaxMessageBytes > c.MaxConversationBytes {
			t.Errorf("read as %+v", c)
		}
		var printed bytes.Buffer
		if err := l.config.Write(&printed, l.config); err != nil {
			t.Error(err)
		}
		if _, _, err := read(printed.Bytes()); err != nil {
			t.Errorf("%v\n%s", err, &printed)
		}
	})
}

// TestUnknownVariables: a variable that names no setting causes a warning, which suggests the
// setting with the most similar name.
func TestUnknownVariables(t *testing.T) {
	const unknown, list = ": unknown environment variable ignored; ", "parleyd --help lists the known ones"
	for _, test := range []struct {
		environ string // separated by spaces
		want    []string
	}{
		{"PARLEY_MAX_MESAGES=3 PATH=/bin", []string{"PARLEY_MAX_MESAGES" + unknown + "did you mean PARLEY_MAX_MESSAGES?"}},
		{"PARLEY_Max_Messages=3", []string{"PARLEY_Max_Messages" + unknown + "did you mean PARLEY_MAX_MESSAGES?"}},
		{"PARLEY_HTTP_ADDR=:8080", []string{"PARLEY_HTTP_ADDR" + unknown + "did you mean PARLEY_HTTP_ADDRESS?"}},
		{"PARLEY_TLL=1h", []string{"PARLEY_TLL" + unknown + "did you mean PARLEY_TTL?"}},
		{"PARLEY_CONFIGS=x", []string{"PARLEY_CONFIGS" + unknown + "did you mean PARLEY_CONFIG?"}},
		{"PARLEY_AGENTS=x PARLEY_=y", []string{"PARLEY_" + unknown + list, "PARLEY_AGENTS" + unknown + list}},
		{"PARLEY_ADDRESS=localhost:50051", nil},
		{"PARLEY_TOKEN=parley_x", nil},
		{"PARLEY_TOKEN_FILE=token", nil},
		{"PARLEY_TENANT=acme", nil},
		{"PARLEY_TLS_CA_FILE=ca.pem", nil},
		{"parley_ttl=1h PARLEYTTL=1h", nil},

		// Variables that Kubernetes sets for a Service named parley, and variables of another form.
		{"PARLEY_PORT=tcp://10.0.0.1:50051", []string{"PARLEY_PORT" + unknown + list}},
		{
			"KUBERNETES_SERVICE_HOST=10.0.0.2 PARLEY_SERVICE_HOST=10.0.0.1 PARLEY_SERVICE_PORT=50051 " +
				"PARLEY_SERVICE_PORT_GRPC=50051 PARLEY_PORT=tcp://10.0.0.1:50051 PARLEY_PORT_50051_TCP=tcp://10.0.0.1:50051 " +
				"PARLEY_PORT_50051_TCP_PROTO=tcp PARLEY_PORT_50051_TCP_PORT=50051 PARLEY_PORT_50051_TCP_ADDR=10.0.0.1", nil,
		},
		{"KUBERNETES_SERVICE_HOST=10.0.0.2 PARLEY_PORT=8080", []string{"PARLEY_PORT" + unknown + list}},
	} {
		c, err := load(t, nil, strings.Fields(test.environ))
		if err != nil {
			t.Errorf("%s: %v", test.environ, err)
			continue
		}
		if d := cmp.Diff(test.want, texts(c.Warnings)); d != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", test.environ, d)
		}
	}
	for _, s := range (&Config{}).settings() {
		if isServiceLink(s.variable(), "tcp://10.0.0.1:1") {
			t.Errorf("Kubernetes may set %s for a Service", s.variable())
		}
	}
}

// TestOriginsAsBrowsersSendThem: an origin that no browser sends is rejected. The error suggests
// the intended one.
func TestOriginsAsBrowsersSendThem(t *testing.T) {
	for origin, sent := range map[string]string{
		"https://app.example:443":            "https://app.example",
		"http://app.example:80":              "http://app.example",
		"http://app.example:":                "http://app.example",
		"https://app.example:08443":          "https://app.example:8443",
		"https://app.example/page?q=1":       "https://app.example",
		"https://APP.example:8443":           "https://app.example:8443",
		"HTTPS://app.example":                "https://app.example",
		"https://bücher.example":             "https://xn--bcher-kva.example",
		"https://BÜCHER.example:443":         "https://xn--bcher-kva.example",
		"https://straße.example":             "https://xn--strae-oqa.example",
		"https://例え.テスト:8443":                "https://xn--r8jz45g.xn--zckzah:8443",
		"http://[0:0:0:0:0:0:0:1]:3000":      "http://[::1]:3000",
		"http://[2001:DB8::1]:80":            "http://[2001:db8::1]",
		"https://\uff41\uff50\uff50.example": "https://app.example",
		"http://[::ffff:1.2.3.4]":            "http://[::ffff:102:304]",
		"http://[::FFFF:0.0.0.1]:81":         "http://[::ffff:0:1]:81",
		"http://1.2.3.4.":                    "http://1.2.3.4",
		"http://\uff11.2.3.4:80":             "http://1.2.3.4",
	} {
		_, err := load(t, []string{"--http-allowed-origins=" + origin}, nil)
		if want := "is not the form that browsers send; use " + sent; err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("origin %s: error = %v, want %s", origin, err, want)
		}
		if _, err := load(t, []string{"--http-allowed-origins=" + sent}, nil); err != nil {
			t.Errorf("origin %s: error = %v, want nil", sent, err)
		}
	}
}
