package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/config/configtest"
)

// checkConfig runs parleyd check-config and returns what it writes.
func checkConfig(t *testing.T, args, environ []string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := execute(t, append([]string{"check-config"}, args...), environ)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	return stdout, stderr
}

// execute runs a command line that must not serve and returns what it writes.
func execute(t *testing.T, args, environ []string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	root := NewCommand(args, environ, func(context.Context, *Config) error {
		t.Errorf("%q called serve", args)
		return nil
	})
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func TestCheckConfig(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	printed, stderr := checkConfig(t, []string{"--config", path, "--max-turns=7"}, append(environ, "PARLEY_TTL=2d"))
	if stderr != "" {
		t.Fatal(stderr)
	}
	want, err := os.ReadFile("testdata/printed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), strings.ReplaceAll(printed, dir, "DIR")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestCheckConfigCanBeRead checks that the printed settings are read as the same settings and
// printed in the same form again.
func TestCheckConfigCanBeRead(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	for _, args := range [][]string{
		nil,
		{"--config", path},
		{"--config", "testdata/good.yaml"},
		{"--http-address=", "--log-format=json", "--memory-warning-bytes=0", "--data-dir=~", "--stop-grace=0"},
		{"--log-redact=[0-9]{4}\n: # \"'\n", "--http-allowed-origins=https://a.example"},
	} {
		printed, _ := checkConfig(t, args, environ)
		again := []string{"--config", inFile(t, printed)}
		want, err1 := load(t, args, environ)
		got, err2 := load(t, again, environ)
		if err1 != nil || err2 != nil {
			t.Fatalf("%v, %v\n%s", err1, err2, printed)
		}
		for _, a := range want.Agents { // Values of headers in the file are not printed.
			for name, value := range a.Headers {
				if value.env == "" && value.file == "" {
					a.Headers[name] = literal("[set]")
				}
			}
		}
		if d := diff(want, got); d != "" {
			t.Errorf("%q (-want +got):\n%s\n%s", args, d, printed)
		}
		if reprinted, _ := checkConfig(t, again, environ); reprinted != printed {
			t.Errorf("%q (-first +second):\n%s", args, cmp.Diff(printed, reprinted))
		}
	}
}

// TestCheckConfigTexts checks that any text is printed in a form that can be read again.
func TestCheckConfigTexts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.String(), rapid.StringOfN(rapid.SampledFrom([]rune(" \t\r\n#:-'\"\\|a\u0085\u2028\ufeff")),
			0, 8, -1),
			rapid.SampledFrom([]string{
				"", "~", "5", "0x1F", "1e3", "true", "no", "2026-01-31", "<<", "*a", "&a", "!x", "[set]",
			})).
			Filter(func(s string) bool { return !strings.ContainsRune(s, 0) })
		l := newLoader(nil)
		a := Agent{
			Name: "a", Kind: "command", Description: word.Draw(t, "description"), SystemPrompt: word.Draw(t, "system_prompt"),
			Command: []string{"x", word.Draw(t, "argument")}, Format: "text",
		}
		m := Agent{
			Name: "m", Kind: "openai", BaseURL: "http://localhost", Model: "x" + word.Draw(t, "model"),
			Tools: []agent.Tool{
				{Name: "t", Parameters: map[string]any{"type": "object", word.Draw(t, "key"): []any{word.Draw(t, "item")}}},
			},
		}
		l.config.DataDir = "x" + word.Draw(t, "data_dir")
		l.config.Agents = []Agent{a, m}
		l.config.addEcho()
		var printed bytes.Buffer
		if err := l.config.Write(&printed, l.config); err != nil {
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
	args := []string{"--config", "testdata/faulty.yaml", "--max-turns", "0", "--verbose", "start"}
	environ := []string{"PARLEY_TTL=soon", "PARLEY_MAX_MESAGES=30"}
	want, err := os.ReadFile("testdata/faulty.txt")
	if err != nil {
		t.Fatal(err)
	}
	check := func(flags ...string) {
		t.Helper()
		stdout, stderr, err := execute(t, flags, environ)
		bad, isFaults := errors.AsType[*Error](err)
		if !isFaults || stdout != "" || stderr != "" {
			t.Errorf("error = %v, output %q, %q, want an *Error and no output", err, stdout, stderr)
		}
		if d := cmp.Diff(string(want), fmt.Sprintln(bad)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
	check(args...) // as at a start
	check(append([]string{"check-config"}, args...)...)
	check(append(args[:4:4], "check-config", args[4], args[5])...)
}

// TestCheckConfigUnknownVariable: check-config prints the warnings that a start would log.
func TestCheckConfigUnknownVariable(t *testing.T) {
	_, warnings := checkConfig(t, nil, []string{"PARLEY_PORT=tcp://10.0.0.1:50051", "PARLEY_TLL=1h"})
	const want = "parleyd: warning: PARLEY_PORT: unknown environment variable ignored; parleyd --help lists the known ones\n" +
		"parleyd: warning: PARLEY_TLL: unknown environment variable ignored; did you mean PARLEY_TTL?\n"
	if warnings != want {
		t.Errorf("warnings = %q, want %q", warnings, want)
	}
}

// TestCheckConfigOpensNothing checks that warnings are not printed among the settings and that no
// file is created.
func TestCheckConfigOpensNothing(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "key"), "sk-marked", 0o644)
	path := inFile(t, "agents: {a: {kind: openai, model: m, api_key_file: "+dir+"/key}}")
	printed, warnings := checkConfig(t, []string{"--config", path, "--data-dir", filepath.Join(dir, "data")}, nil)
	if !strings.HasPrefix(warnings, "parleyd: warning: "+path+":1: agents.a.api_key_file: file with a secret is accessible") || strings.Count(warnings, "\n") != 1 {
		t.Errorf("warnings = %s, want one line", warnings)
	}
	if strings.Contains(printed, "accessible to other users") || strings.Contains(printed+warnings, "marked") {
		t.Errorf("output contains a warning or a secret: %s", printed)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("ReadDir = %v, %v, want one entry", entries, err)
	}
}
