package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/agent"
)

// checkConfig runs parleyd check-config and returns what it writes.
func checkConfig(t *testing.T, args, environ []string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errors bytes.Buffer
	code = start(t.Context(), append([]string{"check-config"}, args...), environ, &out, &errors)
	return out.String(), errors.String(), code
}

func TestCheckConfig(t *testing.T) {
	path, dir, environ := agentsFile(t)
	printed, stderr, code := checkConfig(t, []string{"--config", path, "--max-turns=7"}, append(environ, "PARLEY_TTL=2d"))
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	want, err := os.ReadFile("testdata/config/printed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), strings.ReplaceAll(printed, dir, "DIR")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// What is printed is read as the same settings, and they are printed the same again.
func TestCheckConfigCanBeRead(t *testing.T) {
	path, _, environ := agentsFile(t)
	for _, args := range [][]string{
		nil,
		{"--config", path},
		{"--config", "testdata/config/good.yaml"},
		{"--http-address=", "--log-format=json", "--memory-warning-bytes=0", "--data-dir=~", "--stop-grace=0"},
	} {
		printed, stderr, code := checkConfig(t, args, environ)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		again := []string{"--config", inFile(t, printed)}
		want, err1 := load(t, args, environ)
		got, err2 := load(t, again, environ)
		if err1 != nil || err2 != nil {
			t.Fatalf("%v, %v\n%s", err1, err2, printed)
		}
		for _, a := range want.agents { // The one thing that is not printed.
			for name, value := range a.headers {
				if value.env == "" && value.file == "" {
					a.headers[name] = literal("[set]")
				}
			}
		}
		if d := diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s\n%s", args, d, printed)
		}
		if reprinted, _, code := checkConfig(t, again, environ); code != 0 || reprinted != printed {
			t.Errorf("%q: exit code %d (-first +second):\n%s", args, code, cmp.Diff(printed, reprinted))
		}
	}
}

// Whatever a text holds, it is printed so that it can be read.
func TestCheckConfigTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune(" \t\r\n#:-'\"\\|a\u0085\u2028\ufeff")), 0, 8, -1),
			rapid.SampledFrom([]string{"", "~", "5", "0x1F", "1e3", "true", "no", "2026-01-31", "<<", "*a", "&a", "!x", "[set]"})).
			Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
		l := newLoader(nil)
		a := agentConfig{
			name: "a", kind: "command", description: word.Draw(t, "description"), systemPrompt: word.Draw(t, "system_prompt"),
			command: []string{"x", word.Draw(t, "argument")}, format: "text",
		}
		m := agentConfig{
			name: "m", kind: "openai", baseURL: "http://localhost", model: "x" + word.Draw(t, "model"),
			tools: []agent.Tool{{Name: "t", Parameters: map[string]any{"type": "object", word.Draw(t, "key"): []any{word.Draw(t, "item")}}}},
		}
		l.config.dataDir = "x" + word.Draw(t, "data_dir")
		l.config.agents = []agentConfig{a, m}
		l.config.addEcho()
		var printed bytes.Buffer
		if err := l.write(&printed); err != nil {
			t.Fatal(err)
		}
		again := newLoader(nil)
		again.read("printed.yaml", printed.Bytes())
		again.config.addEcho()
		if d := diff(l.config, again.config); d != "" || len(again.faults) > 0 {
			t.Fatalf("%v (-want +got):\n%s\n%s", again.faults, d, printed.String())
		}
	})
}

func TestCheckConfigFaults(t *testing.T) {
	args := []string{"--config", "testdata/config/faulty.yaml", "--max-turns", "0", "--verbose", "start"}
	environ := []string{"PARLEY_TTL=soon", "PARLEY_MAX_MESAGES=30"}
	want, err := os.ReadFile("testdata/config/faulty.txt")
	if err != nil {
		t.Fatal(err)
	}
	check := func(flags ...string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := start(t.Context(), flags, environ, &stdout, &stderr); code != exitUsage || stdout.Len() > 0 {
			t.Errorf("exit code %d, printed %s", code, &stdout)
		}
		if d := cmp.Diff("parleyd: "+string(want), stderr.String()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	check(args...) // as a start says it
	check(append([]string{"check-config"}, args...)...)
	check(append(args[:4:4], "check-config", args[4], args[5])...)
}

// Warnings are beside the settings, not among them, and nothing is opened.
func TestCheckConfigOpensNothing(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "key"), "sk-marked", 0o644)
	path := inFile(t, "agents: {a: {kind: openai, model: m, api_key_file: "+dir+"/key}}")
	printed, warnings, code := checkConfig(t, []string{"--config", path, "--data-dir", filepath.Join(dir, "data")}, nil)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, warnings)
	}
	if !strings.HasPrefix(warnings, "parleyd: warning: "+path+":1: agents.a.api_key_file: other users") || strings.Count(warnings, "\n") != 1 {
		t.Errorf("warnings: %s", warnings)
	}
	if strings.Contains(printed, "other users") || strings.Contains(printed+warnings, "marked") {
		t.Errorf("printed: %s", printed)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v, there are now %v", err, entries)
	}
}
