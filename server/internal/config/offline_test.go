package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestOffline(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	// The other faults in the file must not affect an offline command.
	file := write("file.yaml", "data_dir: from-file\nmax_turns: none\nagents: {claude: {kind: anthropic, model: m, "+
		"api_key_env: MISSING}}\n")
	tests := []struct {
		args, environ []string
		want          string // the data directory
		fault         string
	}{
		{[]string{"repair", "x"}, nil, "./data", ""},
		{[]string{"repair", "--twice", "x", "--data-dir", "d"}, nil, "d", ""},
		{[]string{"--data-dir=d", "repair", "x"}, nil, "d", ""},
		{[]string{"repair", "x"}, []string{"PARLEY_DATA_DIR=e", "PARLEY_TTL=soon"}, "e", ""},
		{[]string{"repair", "x", "--data-dir=d"}, []string{"PARLEY_DATA_DIR=e", "PARLEY_CONFIG=" + file}, "d", ""},
		{[]string{"repair", "x", "--config", file}, nil, "from-file", ""},
		{[]string{"repair", "x"}, []string{"PARLEY_CONFIG=" + file}, "from-file", ""},
		{[]string{"repair", "x", "--config", write("none.yaml", "# nothing\n")}, nil, "./data", ""},
		{
			[]string{"repair", "x", "--config", write("bad.yaml", "data_dir: [a]\n")},
			nil, "",
			"bad.yaml:1: data_dir: must be one value",
		},
		{[]string{"repair", "x", "--config", write("broken.yaml", "data_dir: [a\n")}, nil, "", "broken.yaml: "},
		{[]string{"repair", "x", "--config", filepath.Join(dir, "missing")}, nil, "", "--config: open "},
		{[]string{"repair", "x", "--data-dir="}, nil, "", "--data-dir: must not be empty"},
		{[]string{"repair"}, nil, "", "command line: accepts 1 arg(s), received 0; see 'parleyd repair --help'"},
		{[]string{"repair", "x", "--ttl=1h"}, nil, "", "command line: unknown flag: --ttl; see 'parleyd repair --help'"},
	}
	for _, test := range tests {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			var got string
			var given []string
			twice := false
			err := NewCommand(test.args, test.environ, nil, Offline{
				Use: "repair FILE", Args: cobra.ExactArgs(1), Flags: func(f *pflag.FlagSet) {
					f.BoolVar(&twice, "twice", false, "repair twice")
				},
				Run: func(_ context.Context, call OfflineCall) error {
					got, given = call.Path, call.Args
					return nil
				},
			}).ExecuteContext(t.Context())
			var bad *Error
			switch {
			case test.fault == "" && (err != nil || got != test.want || !slices.Equal(given, []string{"x"})):
				t.Errorf("data directory %q, arguments %q, error %v, want data directory %q", got, given, err, test.want)
			case test.fault != "" &&
				(!errors.As(err, &bad) || len(bad.Faults) != 1 || !strings.Contains(bad.Faults[0], test.fault)):
				t.Errorf("error = %v, want an *Error with the fault %q", err, test.fault)
			}
			if want := slices.Contains(test.args, "--twice"); twice != want {
				t.Errorf("--twice = %t, want %t", twice, want)
			}
		})
	}
}

// TestCompletion: each shell gets a script, and the values of a setting are completed from the table of settings.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"completion bash":                "bash completion V2 for parleyd",
		"completion zsh":                 "#compdef parleyd",
		"completion fish":                "fish completion for parleyd",
		"completion powershell":          "powershell completion for parleyd",
		"__complete --store ":            "memory\nbolt\nredis\n:4\n",
		"__complete check-config --log-": "--log-format\t",
		"__complete --data-dir ":         ":0\n",
		"__complete --max-turns ":        ":4\n",
		"__complete completion ":         "bash\nzsh\nfish\npowershell\n:4\n",
	} {
		var out bytes.Buffer
		root := NewCommand(strings.Split(args, " "), nil, nil)
		root.SetOut(&out)
		root.SetErr(io.Discard)
		if err := root.Execute(); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s = %v, prints %.300q, want %q", args, err, out.String(), want)
		}
	}
	for args, name := range map[string]string{"completion": "", "completion tcsh": "tcsh", "completion bash zsh": "bash zsh"} {
		err := NewCommand(strings.Split(args, " "), nil, nil).Execute()
		want := fmt.Sprintf("settings: command line: name one shell, bash, zsh, fish, powershell, not %q; "+
			"see 'parleyd completion --help'", name)
		if err == nil || err.Error() != want {
			t.Errorf("%s = %v, want %s", args, err, want)
		}
	}
}
