package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/parleyhq/parley/client/buildinfo"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/logqueue"
)

// loadConfig parses the command line and returns the settings.
func loadConfig(tb testing.TB, args, environ []string) *config.Config {
	tb.Helper()
	var loaded *config.Config
	err := config.NewCommand(args, environ, func(_ context.Context, c *config.Config) error {
		loaded = c
		return nil
	}).ExecuteContext(tb.Context())
	if err != nil || loaded == nil {
		tb.Fatalf("NewCommand(%q).Execute() = %v, settings loaded = %v", args, err, loaded != nil)
	}
	return loaded
}

// start runs a command line that does not serve.
func start(t *testing.T, args, environ []string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	queue := logqueue.New(t.Context(), &errs)
	p := program{build: buildinfo.Info{Version: "v1"}, args: args, environ: environ, stdout: &out, stderr: queue}
	code = p.start(t.Context())
	queue.Close(logFlushLimit)
	return code, out.String(), errs.String()
}

// TestStartFaults checks that all faults of the settings are reported on standard error, with exit
// code 64.
func TestStartFaults(t *testing.T) {
	const want = "parleyd: settings: 2 faults:\n  PARLEY_TTL: \"soon\" is not a duration; write it as in 90s, 1h30m or 7d\n" +
		"  --max-turns: 0 is too small; the minimum is 1\n"
	for _, args := range [][]string{{"--max-turns=0"}, {"check-config", "--max-turns=0"}, {"--max-turns", "0", "check-config"}} {
		code, stdout, stderr := start(t, args, []string{"PARLEY_TTL=soon"})
		if code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("start(%q) = %d with output %q and errors %q, want %d with errors %q", args, code, stdout, stderr,
				exitUsage, want)
		}
	}
}

// TestStartPrints checks that commands which do not serve print to standard output, with exit code 0.
func TestStartPrints(t *testing.T) {
	for _, test := range []struct{ arg, want string }{
		{"check-config", "default_agent: echo"},
		{"--help", "Usage:"},
		{"--version", "parleyd version v1"},
	} {
		code, stdout, stderr := start(t, []string{test.arg}, nil)
		if code != 0 || stderr != "" || !strings.Contains(stdout, test.want) {
			t.Errorf("start(%q) = %d with output %q and errors %q, want 0 with output %q", test.arg, code, stdout, stderr,
				test.want)
		}
	}
}

// TestNewAgentsOfValidConfig checks that newAgents accepts every configuration that passes its own
// checks.
func TestNewAgentsOfValidConfig(t *testing.T) {
	for _, kind := range []string{config.KindEcho, config.KindCommand, config.KindOpenAI, config.KindAnthropic, config.KindRemote, config.KindA2A} {
		t.Run(kind, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "parley.yaml")
			accepted := 0
			rapid.Check(t, func(t *rapid.T) {
				text, err := json.Marshal(map[string]any{"agents": map[string]any{"a": drawAgent(t, kind)}}) // YAML as well
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, text, 0o600); err != nil {
					t.Fatal(err)
				}
				key := mostly(`[!-~]{1,9}`, rapid.String()).Draw(t, "key")
				var agents *agent.Set
				err = config.NewCommand([]string{"--config", path}, []string{"KEY=" + key}, func(_ context.Context, c *config.Config) (err error) {
					agents, _, err = newAgents(c, nil, nil)
					return err
				}).ExecuteContext(t.Context())
				if agents == nil { // Both return a *config.Error, but only that of the configuration names the file.
					if bad, ok := errors.AsType[*config.Error](err); !ok || !strings.HasPrefix(bad.Faults[0], path) {
						t.Fatalf("newAgents of %s: %v, want no error", text, err)
					}
					return
				}
				accepted++
				if err := agents.Close(); err != nil {
					t.Errorf("Close() of agents of %s: %v", text, err)
				}
			})
			if accepted == 0 {
				t.Error("no configuration was valid, want some")
			}
		})
	}
}

// drawAgent draws an entry of agents. Most of its values are valid, since one invalid value makes
// the configuration fail.
func drawAgent(t *rapid.T, kind string) map[string]any {
	entry := map[string]any{"kind": kind}
	anyText := mostly(`[ -~]{1,9}`, rapid.String())
	has := func(key string) bool { return rapid.Bool().Draw(t, "has "+key) }
	if has("system_prompt") {
		entry["system_prompt"] = anyText.Draw(t, "system_prompt")
	}
	switch kind {
	case config.KindCommand:
		entry["command"] = rapid.SliceOfN(anyText, 1, 3).Draw(t, "command")
		entry["format"] = rapid.SampledFrom([]string{"text", "stream-json"}).Draw(t, "format")
		if has("dir") {
			entry["dir"] = anyText.Draw(t, "dir")
		}
		if has("env") {
			entry["env"] = rapid.SliceOfN(mostly(`[A-Z]{1,5}`, anyText), 0, 2).Draw(t, "env")
		}
	case config.KindOpenAI, config.KindAnthropic:
		entry["model"] = anyText.Draw(t, "model")
		entry["base_url"] = mostly(`https?://[a-z.-]{1,5}(:[1-9][0-9]{0,3})?(/[a-z]{0,5})?`,
			rapid.OneOf(rapid.StringMatching(`(?i:https?)://[!-~]{1,9}`), anyText)).Draw(t, "base_url")
		if has("api_key_env") {
			entry["api_key_env"] = "KEY"
		}
		if has("tools") {
			name := mostly(`[A-Za-z0-9_-]{1,64}`, anyText).Draw(t, "tool")
			schema := map[string]any{"type": "object", anyText.Draw(t, "schema key"): anyText.Draw(t, "schema value")}
			entry["tools"] = []any{map[string]any{"name": name, "parameters": schema}}
		}
		if has("temperature") {
			entry["temperature"] = rapid.Float64Range(-0.1, 2.1).Draw(t, "temperature")
		}
		if has("max_output_tokens") {
			entry["max_output_tokens"] = rapid.IntRange(1000, 9000).Draw(t, "max_output_tokens")
		}
		if kind == config.KindAnthropic && has("thinking_tokens") {
			entry["thinking_tokens"] = rapid.IntRange(1000, 9000).Draw(t, "thinking_tokens")
		}
		if kind == config.KindOpenAI && has("reasoning_effort") {
			entry["reasoning_effort"] = anyText.Draw(t, "reasoning_effort")
		}
	case config.KindRemote:
		entry["address"] = mostly(`(dns:///)?[a-z.-]{1,5}:[1-9][0-9]{0,3}|unix:/{0,3}[a-z]{1,3}`,
			rapid.OneOf(rapid.StringMatching(`[!-~]{1,9}:[0-9]{1,5}`), rapid.StringMatching(`unix:[!-~]{0,5}`), anyText)).Draw(t,
			"address")
		if has("tls") {
			entry["tls"] = map[string]any{}
		}
	}
	if kind == config.KindA2A {
		delete(entry, "system_prompt") // It is refused.
		entry["url"] = mostly(`https://[a-z.-]{1,5}(:[1-9][0-9]{0,3})?(/[a-z]{0,5}(\.json)?)?`,
			rapid.OneOf(rapid.StringMatching(`(?i:https?)://[!-~]{1,9}`), anyText)).Draw(t, "url")
		if has("hosts") {
			entry["hosts"] = rapid.SliceOfN(mostly(`[a-z.-]{1,5}|::1`, anyText), 0, 2).Draw(t, "hosts")
		}
		if has("api_key_env") {
			entry["api_key_env"] = "KEY"
		}
		if has("tls") {
			entry["tls"] = map[string]any{}
		}
	}
	if kind != config.KindEcho && kind != config.KindCommand && has("headers") {
		names := mostly(`[a-z]{1,5}`, rapid.OneOf(rapid.StringMatching(`[!-~]{1,5}`), anyText))
		entry["headers"] = rapid.MapOfN(names, anyText, 0, 2).Draw(t, "headers")
	}
	return entry
}

// mostly draws five of six texts from the regular expression, and the others from other.
func mostly(expression string, other *rapid.Generator[string]) *rapid.Generator[string] {
	valid := rapid.StringMatching(expression)
	return rapid.OneOf(valid, valid, valid, valid, valid, other)
}
