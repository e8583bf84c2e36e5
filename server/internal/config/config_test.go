package config

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

// load executes the command line and returns the settings that are passed to serve.
func load(t *testing.T, args, environ []string) (*Config, error) {
	t.Helper()
	var served *Config
	err := NewCommand(args, environ, func(_ context.Context, c *Config) error {
		served = c
		return nil
	}).ExecuteContext(t.Context())
	if (err == nil) != (served != nil) {
		t.Fatalf("served: %t, error: %v, want either", served != nil, err)
	}
	return served, err
}

// inFile writes text to a file and returns its path.
func inFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parley.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.IgnoreFields(Config{}, "settingsRead"), cmpopts.IgnoreFields(Tenant{}, "rows"),
		cmp.AllowUnexported(Config{}, Agent{}, Secret{}, TLS{}), protocmp.Transform(),
		cmp.Comparer(func(a, b *regexp.Regexp) bool { return a.String() == b.String() }),
		cmp.Comparer(func(a, b *tls.Config) bool { return (a == nil) == (b == nil) }),
		cmp.Transformer("JSON", func(tool agent.Tool) string {
			text, err := json.Marshal(tool)
			return fmt.Sprint(string(text), err)
		}))
}

func defaults() *Config {
	return &Config{
		GRPCAddress: "127.0.0.1:50051", HTTPAddress: "127.0.0.1:8080", Console: true,
		Store: "bolt", Redis: Redis{Prefix: "parley", Spread: 1, Durability: "local"}, DataDir: "./data",
		JournalBudget: 256 << 20, JournalAge: time.Minute, CacheBytes: 64 << 20,
		MaxMessages: 20, TTL: time.Hour, MaxConversations: 1000,
		MaxMessageBytes: 256 << 10, MaxConversationBytes: 3 << 20, MaxRecordBytes: 256 << 20, MaxTenantRecordBytes: 1 << 30,
		AllowKeepAll: true, AllowNoExpiry: true, AllowNoEviction: true,
		TurnTimeout: 5 * time.Minute, IdleTimeout: time.Minute, StopGrace: 30 * time.Second,
		MaxAnswerBytes: 1 << 20, MaxTurns: 256, MaxWatchers: 10_000, MaxImports: 16, KeepaliveTime: time.Minute,
		MemoryWarningBytes: 100 << 20, InteractionLog: true, LogLevel: slog.LevelInfo,
		LogCalls: "errors", SlowCallTime: time.Second,
		DefaultAgent: "echo", Agents: []Agent{{Name: "echo", Kind: "echo"}},
		OIDCTenantClaim: "tenant", OIDCRoleClaim: "role",
	}
}

func TestConfigDefaults(t *testing.T) {
	for name, path := range map[string]string{
		"no file": "", "empty file": inFile(t, ""), "comments only": inFile(t, "# nothing\n"), "no keys": inFile(t, "{}"),
	} {
		c, err := load(t, []string{"--config", path}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := diff(defaults(), c); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestConfigFlags checks the names and defaults of all flags, on which users rely.
func TestConfigFlags(t *testing.T) {
	type row struct{ name, defaultText string }
	want := []row{
		{"config", ""},
		{"grpc-address", "127.0.0.1:50051"},
		{"http-address", "127.0.0.1:8080"},
		{"debug-address", ""},
		{"http-allowed-origins", ""},
		{"console", "true"},
		{"console-read-only", "false"},
		{"a2a", "false"},
		{"a2a-url", ""},
		{"a2a-push-private", "false"},
		{"insecure", "false"},
		{"tls-cert-file", ""},
		{"tls-key-file", ""},
		{"tls-client-ca-file", ""},
		{"tls-client-auth", ""},
		{"auth-token-file", ""},
		{"oidc-issuer", ""},
		{"oidc-audience", ""},
		{"oidc-tenant-claim", "tenant"},
		{"oidc-role-claim", "role"},
		{"store", "bolt"},
		{"data-dir", "./data"},
		{"journal-budget", "256MiB"},
		{"journal-age", "1m"},
		{"cache-bytes", "64MiB"},
		{"redis-url", ""},
		{"redis-password-file", ""},
		{"redis-password-env", ""},
		{"redis-ca-file", ""},
		{"redis-cert-file", ""},
		{"redis-key-file", ""},
		{"redis-prefix", "parley"},
		{"redis-buckets", "0"},
		{"redis-spread", "1"},
		{"durability", "local"},
		{"advertise-address", ""},
		{"peer-ca-file", ""},
		{"max-messages", "20"},
		{"ttl", "1h"},
		{"max-conversations", "1000"},
		{"max-bytes", "0"},
		{"max-message-bytes", "256KiB"},
		{"max-conversation-bytes", "3MiB"},
		{"max-record-bytes", "256MiB"},
		{"max-tenant-record-bytes", "1GiB"},
		{"allow-keep-all", "true"},
		{"allow-no-expiry", "true"},
		{"allow-no-eviction", "true"},
		{"turn-timeout", "5m"},
		{"idle-timeout", "1m"},
		{"stop-grace", "30s"},
		{"max-answer-bytes", "1MiB"},
		{"max-turns", "256"},
		{"max-watchers", "10000"},
		{"max-tenant-watchers", "0"},
		{"max-streams", "0"},
		{"max-imports", "16"},
		{"requests-per-second", "0"},
		{"append-bytes-per-second", "0"},
		{"keepalive-time", "1m"},
		{"memory-warning-bytes", "100MiB"},
		{"interaction-log", "true"},
		{"log-redact", ""},
		{"log-retention-days", "0"},
		{"log-level", "info"},
		{"log-format", ""},
		{"metrics-address", ""},
		{"metrics-tenants", ""},
		{"log-calls", "errors"},
		{"slow-call-time", "1s"},
	}
	var got []row
	NewCommand(nil, nil, nil).Flags().VisitAll(func(f *pflag.Flag) {
		got = append(got, row{f.Name, f.DefValue})
	})
	if d := cmp.Diff(want, got, cmp.AllowUnexported(row{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestConfigHelp(t *testing.T) {
	var out bytes.Buffer
	root := NewCommand([]string{"--help", "--ttl", "never"}, []string{"PARLEY_TTL=never"}, nil)
	root.SetOut(&out)
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/help.txt")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestConfigOrderOfSources(t *testing.T) {
	path := inFile(t, "max_messages: 3\nttl: 3h\n")
	for _, test := range []struct {
		name          string
		args, environ []string
		want          int
	}{
		{"default", nil, nil, 20},
		{"file", []string{"--config", path}, nil, 3},
		{"file named by the environment", nil, []string{"PARLEY_CONFIG=" + path}, 3},
		{"no file by flag", []string{"--config="}, []string{"PARLEY_CONFIG=" + path}, 20},
		{"file by flag", []string{"--config", path}, []string{"PARLEY_CONFIG=/no/such/file"}, 3},
		{"environment", nil, []string{"PARLEY_MAX_MESSAGES=4"}, 4},
		{"environment over file", []string{"--config", path}, []string{"PARLEY_MAX_MESSAGES=4"}, 4},
		{"flag", []string{"--max-messages", "5"}, nil, 5},
		{"flag over all", []string{"--max-messages=5", "--config", path}, []string{"PARLEY_MAX_MESSAGES=4"}, 5},
		{"flag of the default's value", []string{"--max-messages=20"}, []string{"PARLEY_MAX_MESSAGES=4"}, 20},
		{"last flag", []string{"--max-messages=5", "--max-messages", "6"}, nil, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := load(t, test.args, test.environ)
			if err != nil {
				t.Fatal(err)
			}
			if c.MaxMessages != test.want {
				t.Errorf("MaxMessages = %d, want %d", c.MaxMessages, test.want)
			}
		})
	}
}

// TestConfigSourcesAreAlike sets every setting by flag, environment and file.
func TestConfigSourcesAreAlike(t *testing.T) {
	files := writeSignInFiles(t)
	texts := map[string]string{
		"grpc-address": "[::1]:0", "http-address": "localhost:0",
		"debug-address":        "unix:/run/debug",
		"http-allowed-origins": "https://a.example,http://[::1]:3000", "insecure": "true", "console": "false", "console-read-only": "true", "a2a": "true", "a2a-url": "https://agents.example", "a2a-push-private": "true", "store": "memory",
		"data-dir": "/var/lib/parley", "journal-budget": "4GiB", "journal-age": "7s", "cache-bytes": "0", "max-messages": "7", "ttl": "7d", "max-conversations": "7",
		"allow-keep-all": "false", "allow-no-expiry": "false", "allow-no-eviction": "false",
		"max-message-bytes": "7KiB", "max-conversation-bytes": "2MiB", "max-record-bytes": "7GiB", "max-tenant-record-bytes": "7GiB", "turn-timeout": "7s", "idle-timeout": "7s",
		"stop-grace": "0s", "max-answer-bytes": "7KiB", "max-turns": "7", "max-watchers": "7", "keepalive-time": "7s",
		"memory-warning-bytes": "7GiB",
		"interaction-log":      "false", "log-redact": "[0-9]{16}|sk-", "log-retention-days": "7", "log-level": "warn",
		"log-format": "json", "log-calls": "slow", "slow-call-time": "2s",
		"max-bytes": "7GiB", "max-tenant-watchers": "7", "max-streams": "7", "max-imports": "7",
		"requests-per-second": "7", "append-bytes-per-second": "7KiB",
		"metrics-address": "[::1]:0", "metrics-tenants": "acme,trial",

		"tls-cert-file": files.cert, "tls-key-file": files.key, "tls-client-ca-file": files.cert,
		"tls-client-auth": "required", "auth-token-file": files.tokens, "oidc-issuer": "https://login.example",
		"oidc-audience": "parley", "oidc-tenant-claim": "org", "oidc-role-claim": "job",

		"redis-url": "redis://parley@a:1,b:2", "redis-password-file": files.key, "redis-password-env": "REDIS_PASSWORD",
		"redis-ca-file": files.cert, "redis-cert-file": files.cert, "redis-key-file": files.key, "redis-prefix": "a:b",
		"redis-buckets": "7", "redis-spread": "4", "durability": "replicated", "advertise-address": "a:1",
		"peer-ca-file": files.cert,
	}
	// needed are the variables without which a setting has no meaning.
	pair := []string{"PARLEY_TLS_CERT_FILE=" + files.cert, "PARLEY_TLS_KEY_FILE=" + files.key}
	issuer := []string{"PARLEY_OIDC_ISSUER=https://login.example", "PARLEY_OIDC_AUDIENCE=parley"}
	redis := []string{"PARLEY_STORE=redis", "PARLEY_REDIS_URL=redis://a:1"}
	redisWithTLS := []string{
		"PARLEY_STORE=redis", "PARLEY_REDIS_URL=rediss://a:1",
		"PARLEY_REDIS_CERT_FILE=" + files.cert, "PARLEY_REDIS_KEY_FILE=" + files.key,
	}
	needed := map[string][]string{
		"a2a-url": {"PARLEY_A2A=true"}, "a2a-push-private": {"PARLEY_A2A=true"},
		"redis-url": redis[:1], "redis-password-file": redis, "redis-password-env": append(redis, "REDIS_PASSWORD=secret"),
		"redis-prefix": redis, "redis-buckets": redis, "durability": redis, "advertise-address": redis,
		"redis-spread":  append(redis, "PARLEY_MAX_CONVERSATIONS=0"),
		"peer-ca-file":  slices.Concat(redis, pair, []string{"PARLEY_ADVERTISE_ADDRESS=a:1"}),
		"redis-ca-file": redisWithTLS[:2], "redis-cert-file": slices.Delete(slices.Clone(redisWithTLS), 2, 3),
		"redis-key-file": redisWithTLS[:3],
		"tls-cert-file":  pair[1:], "tls-key-file": pair[:1], "tls-client-ca-file": pair,
		"tls-client-auth": append(pair, "PARLEY_TLS_CLIENT_CA_FILE="+files.cert),
		"oidc-issuer":     issuer[1:], "oidc-audience": issuer[:1], "oidc-tenant-claim": issuer, "oidc-role-claim": issuer,
	}
	for _, s := range new(Config).settings() {
		text, known := texts[s.name]
		if !known {
			t.Errorf("setting %s has no test value", s.name)
			continue
		}
		key := strings.ReplaceAll(s.name, "-", "_")
		byFlag, err1 := load(t, []string{"--" + s.name + "=" + text}, needed[s.name])
		byVariable, err2 := load(t, nil, slices.Concat(needed[s.name], []string{"PARLEY_" + strings.ToUpper(key) + "=" + text}))
		byFile, err3 := load(t, []string{"--config", inFile(t, key+`: "`+text+`"`)}, needed[s.name])
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Errorf("%s: %v", s.name, err)
			continue
		}
		if without, err := load(t, nil, needed[s.name]); err == nil && diff(without, byFlag) == "" {
			t.Errorf("setting %s does not change the config", s.name)
		}
		if d := diff(byFlag, byVariable) + diff(byFlag, byFile); d != "" {
			t.Errorf("setting %s differs between flag, variable and file:\n%s", s.name, d)
		}
	}
}

func TestConfigFile(t *testing.T) {
	got, err := load(t, []string{"--config", "testdata/good.yaml"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.GRPCAddress, want.HTTPAddress = "unix:/run/parley.sock", ""
	want.MaxMessages, want.MaxMessageBytes, want.MaxConversations = 50, 512<<10, 0
	want.TTL = 30 * 24 * time.Hour
	want.InteractionLog, want.LogLevel = false, slog.LevelDebug
	want.DefaultAgent = "writer"
	want.Agents = []Agent{
		{Name: "Reviewer-2.x", Kind: "command", Command: []string{"python3", "writer.py", "5"}, Format: "text"},
		{Name: "echo", Kind: "echo"},
		{Name: "parrot", Kind: "echo", Description: "Says it again."},
		{
			Name: "writer", Kind: "command", Description: "Writes.", SystemPrompt: "You write.\nBe brief.\n",
			Window:  &parleyv1.ContextWindow{MaxMessages: 40, MaxExchanges: 5, MaxBytes: 64 << 10, CacheStable: true},
			Command: []string{"python3", "writer.py", "5"}, Format: "stream-json", Dir: "/srv/writer",
			Env: []string{"HOME", "API_KEY"},
		},
	}
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestConfigSizesAndDurations checks that formatted values can be parsed and keep their value.
func TestConfigSizesAndDurations(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64().Draw(t, "n")
		if got, err := parseSize(formatSize(n)); err != nil || got != n {
			t.Errorf("formatSize(%d) = %s, parseSize of it = %d, %v", n, formatSize(n), got, err)
		}
		if got, err := parseDuration(formatDuration(n)); err != nil || got != n {
			t.Errorf("formatDuration(%d) = %s, parseDuration of it = %d, %v", n, formatDuration(n), got, err)
		}
	})
	for text, want := range map[string]string{
		"86400s": "24h", "48h": "2d", "366d": "366d", "90m": "1h30m", "60s": "1m", "0": "0s", "100ms": "100ms",
	} {
		if n, err := parseDuration(text); err != nil || formatDuration(n) != want {
			t.Errorf("parseDuration(%s), formatted = %s, %v, want %s", text, formatDuration(n), err, want)
		}
	}
}

// TestDurations reads a table that the tests of the flags of parley read too.
func TestDurations(t *testing.T) {
	table, err := os.ReadFile("testdata/durations.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		text, want, found := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		if !found {
			continue // a comment
		}
		n, err := parseDuration(text)
		if want == "-" && err == nil {
			t.Errorf("parseDuration(%q) = %v, want an error", text, time.Duration(n))
		} else if want != "-" && (err != nil || time.Duration(n).String() != want) {
			t.Errorf("parseDuration(%q) = %v, %v, want %s", text, time.Duration(n), err, want)
		}
	}
}

// TestConfigLogFollowsTheStore checks the default of the interaction log: off with the memory
// store, otherwise on.
func TestConfigLogFollowsTheStore(t *testing.T) {
	for _, test := range []struct {
		args []string
		want bool
	}{
		{nil, true},
		{[]string{"--interaction-log=false"}, false},
		{[]string{"--store=memory"}, false},
		{[]string{"--store=memory", "--interaction-log"}, true},
		{[]string{"--config", inFile(t, "store: memory\ninteraction_log: true\n")}, true},
	} {
		c, err := load(t, test.args, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.InteractionLog != test.want {
			t.Errorf("%q: InteractionLog = %t, want %t", test.args, c.InteractionLog, test.want)
		}
	}
}
