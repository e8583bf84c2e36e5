package app

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/logqueue"
)

// TestTokenCommands creates, lists and revokes tokens as an operator does.
func TestTokenCommands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	create := []string{"token", "create", "--file", path, "--tenant", "acme", "--tenant=other", "--role=writer", "--name=shop"}
	code, secret, hint := start(t, create, nil)
	if code != 0 || !strings.HasPrefix(secret, "parley_") || len(secret) != len("parley_")+43+1 {
		t.Fatalf("start(%q) = %d with output %q and errors %q, want 0 with a token", create, code, secret, hint)
	}
	if !strings.HasPrefix(hint, "created token ") || !strings.HasSuffix(hint, "a running server reads the file again on SIGHUP\n") ||
		strings.Contains(hint, strings.TrimSpace(secret)) {
		t.Errorf("errors of token create = %q, want the id and what to do, without the token", hint)
	}
	environ := []string{"PARLEY_AUTH_TOKEN_FILE=" + path, "PARLEY_TTL=faulty, and not read"}
	create = []string{"token", "create", "--tenant", "*", "--role=admin", "--expires=never"}
	if code, _, errs := start(t, create, environ); code != 0 {
		t.Errorf("start(%q) = %d with errors %q, want 0", create, code, errs)
	}

	code, table, _ := start(t, []string{"token", "list"}, environ)
	lines := strings.Split(table, "\n")
	if code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") || !strings.Contains(lines[1], "acme,other") ||
		!strings.Contains(lines[2], "never") {
		t.Errorf("output of token list = %d, %q, want 0 and two tokens", code, table)
	}
	code, text, _ := start(t, []string{"token", "list", "-o", "json"}, environ)
	var list []struct {
		ID, Role, Name string
		Tenants        []string
		Expires        time.Time
		Expired        bool
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != 0 || len(list) != 2 {
		t.Fatalf("output of token list -o json = %d, %q, %v, want 0 and two tokens", code, text, err)
	}
	if first := list[0]; first.Role != "writer" || first.Name != "shop" || len(first.Tenants) != 2 || first.Expired ||
		time.Until(first.Expires) < 89*24*time.Hour || time.Until(first.Expires) > 90*24*time.Hour {
		t.Errorf("first token = %+v, want a writer for 90 days", list[0])
	}

	code, out, hint := start(t, []string{"token", "revoke", list[0].ID, "--file", path}, nil)
	if code != 0 || out != "" || !strings.HasPrefix(hint, "revoked token "+list[0].ID) {
		t.Errorf("token revoke = %d with output %q and errors %q, want 0", code, out, hint)
	}
	if tokens, err := tokenfile.List(path); err != nil || len(tokens) != 1 || tokens[0].ID != list[1].ID {
		t.Errorf("List() after revoke = %v, %v, want the second token", tokens, err)
	}
}

func TestTokenFaults(t *testing.T) {
	dir := t.TempDir()
	path, exposed := filepath.Join(dir, "tokens.yaml"), filepath.Join(dir, "exposed.yaml")
	for _, file := range []string{path, exposed} {
		if _, _, err := tokenfile.Create(t.Context(), file, tokenfile.Token{
			Tenants: []string{"acme"}, Role: auth.Reader, Created: time.Now(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(exposed, 0o644); err != nil {
		t.Fatal(err)
	}
	good := "token create --tenant=acme --role=reader --file=" + path + " "
	for _, test := range []struct{ args, want string }{
		{"token", "command line: use one of the commands of token; see 'parleyd token --help'"},
		{"token make", "command line: use one of the commands of token"},
		{"token create", "3 faults:\n  --file: must not be empty"},
		{"token create --file=" + path, "2 faults:\n  --tenant: no tenant; name at least one, or \"*\" for all\n  --role: role \"\": use"},
		{good + "--tenant=a/b", `--tenant: tenant "a/b"`},
		{good + "--tenant=*", `--tenant: "*" stands for all tenants`},
		{good + "--expires=soon", `--expires: "soon" is not a duration; write it as in 90s, 1h30m or 7d, or never`},
		{good + "--expires=0s", "--expires: \"0s\" is not 1s to 36500d"},
		{good + "--expires=-1h", "--expires: \"-1h\" is not 1s to 36500d"},
		{good + "--expires=100000d", "--expires: \"100000d\" is not 1s to 36500d"},
		{good + "--name=\a", "--name: use at most 128 bytes of printable text"},
		{good + "--rank=1", "command line: unknown flag: --rank; see 'parleyd token create --help'"},
		{good + "more", "command line: unknown command"},
		{"token create --tenant=acme --role=reader --file=" + exposed, "has mode 0644, so that others"},
		{"token list --file=" + exposed, "has mode 0644, so that others"},
		{"token list --file=" + dir + "/none", "none: no such file"},
		{strings.Replace(good, path, dir+"/none/tokens", 1), "the directory " + dir + "/none does not exist; create it"},
		{"token list --output=xml --file=" + path, "--output: \"xml\" is not one of table, json"},
		{"token revoke --file=" + path, "command line: accepts 1 arg(s), received 0"},
		{"token revoke abcdefgh --file=" + path, "there is no token \"abcdefgh\" in " + path + "; parleyd token list lists the ids"},
	} {
		code, out, errs := start(t, strings.Fields(test.args), nil)
		if code != exitUsage || out != "" || !strings.HasPrefix(errs, "parleyd: settings: ") || !strings.Contains(errs, test.want) {
			t.Errorf("start(%q) = %d with output %q and errors %q, want %d with errors %q", test.args, code, out, errs, exitUsage,
				test.want)
		}
	}
	if tokens, err := tokenfile.List(path); err != nil || len(tokens) != 1 {
		t.Errorf("List() after the faults = %d tokens, %v, want 1", len(tokens), err)
	}
}

// brokenOutput fails like a closed pipe.
type brokenOutput struct{}

// Write fails.
func (brokenOutput) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestTokenNotPrinted checks that the error contains the id of a token that was created but not printed.
func TestTokenNotPrinted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	var errs strings.Builder
	queue := logqueue.New(t.Context(), &errs)
	p := program{
		args:   []string{"token", "create", "--file", path, "--tenant=acme", "--role=reader"},
		stdout: brokenOutput{}, stderr: queue,
	}
	code := p.start(t.Context())
	queue.Close(logFlushLimit)
	if code != exitIO || !strings.Contains(errs.String(), "was created but not printed; revoke it: broken pipe") {
		t.Errorf("start() with broken output = %d with errors %q, want %d", code, errs.String(), exitIO)
	}
}
