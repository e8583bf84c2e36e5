package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRedisFaults checks the rules for the store on Redis. DIR stands for a folder with files.
func TestRedisFaults(t *testing.T) {
	const store = "--store=redis --redis-url=redis://a:1 "
	const withTLS = "--store=redis --redis-url=rediss://a:1 "
	const password = "must not have a password; remove it, and set --redis-password-file or --redis-password-env"
	const prefix = "is not a prefix; use 1 to 64 letters, digits and characters of -_.:/"
	const tooLarge = " is too large for --store redis; the maximum is 32MiB, because Redis executes one command at a time, " +
		"and a larger conversation would delay all others"
	for _, test := range []struct{ args, environ, want string }{
		{store, "", ""},
		{"", "PARLEY_STORE=redis PARLEY_REDIS_URL=redis+sentinel://a:1,b:2/main", ""},
		{store + "--journal-budget=0 --journal-age=1s --cache-bytes=0 --data-dir=d", "", ""}, // as with the memory store
		{"--store=redis", "", "--store: redis needs --redis-url, for example redis://127.0.0.1:6379"},
		{"--store=redis --redis-url=", "", "--redis-url: must not be empty with --store redis"},
		{"--redis-url= --redis-prefix=parley", "", ""},

		// URLs and prefixes.
		{"--store=redis --redis-url=redis://me:hunter2@a:1", "", "settings: 2 faults:\n  --redis-url: " + password +
			"\n  --store: redis needs --redis-url, for example redis://127.0.0.1:6379"},
		{store + "--redis-prefix=a{b}", "", `--redis-prefix: "a{b}" ` + prefix},
		{store + "--redis-prefix=", "", `--redis-prefix: "" ` + prefix},
		{store + "--redis-buckets=1025", "", "--redis-buckets: 1025 is too large; the maximum is 1024"},

		// A spread.
		{store + "--redis-spread=4 --max-conversations=4000", "", ""},
		{store + "--redis-spread=4 --max-conversations=0 --redis-buckets=8", "", ""},
		{store + "--redis-spread=17", "", "--redis-spread: 17 is too large; the maximum is 16"},
		{store + "--redis-spread=0", "", "--redis-spread: 0 is too small; the minimum is 1"},
		{
			store + "--redis-spread=4 --redis-buckets=6 --max-conversations=0", "",
			"--redis-spread: 4 does not divide the 6 of --redis-buckets evenly; use a divisor",
		},
		{
			store + "--max-conversations=3999", "PARLEY_REDIS_SPREAD=4",
			"--max-conversations: 3999 is too small for a spread of 4; use at least 4000, or 0 for no limit, or set " +
				"PARLEY_REDIS_SPREAD to 1",
		},
		{
			store + "--redis-spread=4", "",
			"--max-conversations: 1000 is too small for a spread of 4; use at least 4000, or 0 for no limit, or set " +
				"--redis-spread to 1",
		},
		// Durability.
		{store + "--durability=replicated", "", ""},
		{store + "--durability=always", "", `--durability: "always" is not one of local, replicated`},
		{"--durability=replicated", "", "--durability: needs --store redis"},
		{"--store=memory", "PARLEY_DURABILITY=replicated", "PARLEY_DURABILITY: needs --store redis"},
		{"--durability=local", "", ""},

		// Settings that need others.
		{
			"--redis-url=redis://a:1 --redis-buckets=7", "PARLEY_REDIS_PREFIX=p",
			"settings: 3 faults:\n  --redis-url: needs --store redis\n  PARLEY_REDIS_PREFIX: needs --store redis\n" +
				"  --redis-buckets: needs --store redis",
		},
		{store + "--redis-ca-file=DIR/empty", "", "--redis-ca-file: needs TLS; use a --redis-url that begins with rediss"},
		{
			store + "--redis-cert-file=DIR/cert.pem --redis-key-file=DIR/key.pem", "",
			"--redis-cert-file: needs TLS; use a --redis-url that begins with rediss",
		},
		{withTLS + "--redis-cert-file=DIR/cert.pem", "", "--redis-cert-file: needs --redis-key-file"},
		{withTLS + "--redis-key-file=DIR/key.pem", "", "--redis-key-file: needs --redis-cert-file"},

		// Files.
		{withTLS + "--redis-ca-file=DIR/cert.pem --redis-cert-file=DIR/cert.pem --redis-key-file=DIR/key.pem", "", ""},
		{
			withTLS + "--redis-ca-file=DIR/missing", "",
			"--redis-ca-file: names a file that cannot be read: no such file or directory",
		},
		{
			withTLS + "--redis-ca-file=DIR/empty", "",
			`--redis-url: has authorities in "DIR/empty", which has no certificate in PEM form`,
		},
		{
			withTLS + "--redis-cert-file=DIR/cert.pem --redis-key-file=DIR/open", "",
			`--redis-key-file: "DIR/open" can be accessed by other users: its mode is 0644; run chmod 600`,
		},

		// The password.
		{store + "--redis-password-file=DIR/password", "", ""},
		{store + "--redis-password-env=P", "P=secret", ""},
		{store + "--redis-password-env=P", "P=", "--redis-password-env: names a variable that is empty or not set in the " +
			"server's environment"},
		{store + "--redis-password-env=P=secret", "", "--redis-password-env: must be the name of a variable; its value is " +
			"taken from the server's environment"},
		{store + "--redis-password-file=DIR/empty", "", "--redis-password-file: names an empty file"},
		{
			store + "--redis-password-file=DIR/missing", "",
			"--redis-password-file: names a file that cannot be read: no such file or directory",
		},
		{
			store + "--redis-password-file=DIR/open", "",
			`--redis-password-file: "DIR/open" can be accessed by other users: its mode is 0644; run chmod 600`,
		},
		{
			store + "--redis-password-file=DIR/password --redis-password-env=P", "P=secret",
			"--redis-password-file: cannot be used with --redis-password-env; remove one",
		},

		{store + "--max-conversation-bytes=32MiB", "", ""},
		{store + "--max-conversation-bytes=33MiB", "", "--max-conversation-bytes: 33MiB" + tooLarge},
		{"--max-conversation-bytes=33MiB", "", ""},
	} {
		dir := redisFiles(t)
		_, err := load(t, strings.Fields(strings.ReplaceAll(test.args, "DIR", dir)), strings.Fields(test.environ))
		if test.want == "" && err == nil {
			continue
		}
		_, ok := errors.AsType[*Error](err)
		want := "settings: " + strings.TrimPrefix(test.want, "settings: ")
		if !ok || test.want == "" || strings.ReplaceAll(err.Error(), dir, "DIR") != want {
			t.Errorf("%s %s: error = %v\n  want  %v", test.args, test.environ, err, want)
		}
	}
}

// redisFiles returns a folder with the files of TestRedisFaults.
func redisFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = writeSignInFiles(t).dir
	for name, text := range map[string]string{"empty": "", "password": "secret\n", "open": "secret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "open"), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRedisPassword: the password of either source reaches the client, and is printed nowhere.
func TestRedisPassword(t *testing.T) {
	dir := redisFiles(t)
	for _, flag := range []string{"--redis-password-file=" + filepath.Join(dir, "password"), "--redis-password-env=P"} {
		args := []string{"--store=redis", "--redis-url=redis://parley@a:1", flag}
		c, err := load(t, args, []string{"P=secret"})
		if err != nil {
			t.Errorf("%s: %v", flag, err)
			continue
		}
		if got := c.Redis.Access().Password; got != "secret" {
			t.Errorf("%s: password = %q, want secret", flag, got)
		}
		printed, _, err := execute(t, append([]string{"check-config"}, args...), []string{"P=secret"})
		if err != nil || strings.Contains(printed, "secret") || !strings.Contains(printed, "redis_url: redis://parley@a:1") {
			t.Errorf("check-config %s prints %s, %v, want the URL without the password", flag, printed, err)
		}
	}
}

// TestSpreadOfTenants: the capacity of a tenant in the file is checked as that of all.
func TestSpreadOfTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "parley.yaml")
	text := "store: redis\nredis_url: redis://a:1\nredis_spread: 4\nmax_conversations: 8000\n" +
		"tenants:\n  a:\n    max_conversations: 3999\n  b:\n    max_conversations: 0\n  c:\n    max_turns: 3\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := load(t, []string{"--config=" + path}, nil)
	want := "tenants.a.max_conversations: 3999 is too small for a spread of 4; use at least 4000, or 0 for no limit"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("load = %v, want one fault with %q", err, want)
	}
}
