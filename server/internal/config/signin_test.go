package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
	"github.com/parleyhq/parley/server/internal/config/configtest"
	"github.com/parleyhq/parley/server/internal/secretfile"
)

// signInFiles are files that the settings of TLS and sign-in name.
type signInFiles struct{ dir, cert, key, otherKey, tokens string }

func writeSignInFiles(t *testing.T) signInFiles {
	t.Helper()
	dir := t.TempDir()
	f := signInFiles{
		dir: dir, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem"),
		otherKey: filepath.Join(dir, "other.pem"), tokens: filepath.Join(dir, "tokens.yaml"),
	}
	cert, key := configtest.Certificate(t)
	_, otherKey := configtest.Certificate(t)
	for path, text := range map[string]string{f.cert: cert, f.key: key, f.otherKey: otherKey, f.tokens: "tokens: []\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestSignInFaults checks the rules for TLS and sign-in. DIR stands for the folder of the files.
func TestSignInFaults(t *testing.T) {
	const pair = "--tls-cert-file=DIR/cert.pem --tls-key-file=DIR/key.pem"
	const tokens = "--auth-token-file=DIR/tokens.yaml"
	const without = `--grpc-address: ":1" can be reached from other machines without `
	const other = ", or use a loopback address, or set --insecure on a trusted network"
	const rule = "client_certificates: [{cn: shop, tenants: [acme], role: writer}]"
	for _, test := range []struct{ args, file, want string }{
		// Which addresses need what.
		{"--grpc-address=:1 --http-address=:2 " + pair + " " + tokens, "", ""},
		{
			"--grpc-address=:1 " + pair, "",
			without + "sign-in; set --auth-token-file, --oidc-issuer or client_certificates" + other,
		},
		{"--grpc-address=:1 " + tokens, "", without + "TLS; set --tls-cert-file and --tls-key-file" + other},
		{"--grpc-address=:1 --oidc-audience=a --oidc-issuer=https://i.example " + pair, "", ""},
		{"--grpc-address=:1 --tls-client-ca-file=DIR/cert.pem " + pair, rule, ""},
		{tokens, "", ""},
		{pair, "", ""},
		{"--grpc-address=unix:/run/p " + tokens, "", ""},

		// Which settings need others.
		{"--tls-cert-file=DIR/cert.pem", "", "--tls-cert-file: needs --tls-key-file"},
		{"--tls-key-file=DIR/key.pem", "", "--tls-key-file: needs --tls-cert-file"},
		{
			"--tls-client-ca-file=DIR/cert.pem", "",
			"--tls-client-ca-file: needs TLS; set --tls-cert-file and --tls-key-file",
		},
		{"--tls-client-auth=required " + pair, "", "--tls-client-auth: needs --tls-client-ca-file"},
		{"", rule, "FILE:1: client_certificates: needs --tls-client-ca-file"},
		{"--oidc-issuer=https://i.example", "", "--oidc-issuer: needs --oidc-audience"},
		{"--oidc-audience=a", "", "--oidc-audience: needs --oidc-issuer"},
		{"--oidc-tenant-claim=org", "", "--oidc-tenant-claim: needs --oidc-issuer"},
		{"--oidc-role-claim=job", "", "--oidc-role-claim: needs --oidc-issuer"},
		{
			"--tls-cert-file=DIR/cert.pem --oidc-audience=a", "", "settings: 2 faults:\n" +
				"  --tls-cert-file: needs --tls-key-file\n  --oidc-audience: needs --oidc-issuer",
		},

		// Values.
		{
			"--tls-client-auth=off", "", `--tls-client-auth: "off" is not one of optional, required`,
		},
		{
			"--oidc-audience=a --oidc-issuer=http://i.example", "", "settings: 2 faults:\n" +
				"  --oidc-issuer: is not an issuer; use its https URL, as in https://login.example; " +
				"http is allowed for a loopback host\n  --oidc-audience: needs --oidc-issuer",
		},
		{"--oidc-audience=a --oidc-issuer=http://127.0.0.1:5556/dex", "", ""},

		// Files.
		{
			"--tls-cert-file=DIR/cert.pem --tls-key-file=DIR/none", "",
			"--tls-key-file: names a file that cannot be read: no such file or directory",
		},
		{
			"--tls-cert-file=DIR/cert.pem --tls-key-file=DIR/other.pem", "",
			"--tls-cert-file: does not match the key of --tls-key-file: tls: private key does not match public key",
		},
		{
			"--tls-client-ca-file=DIR/tokens.yaml " + pair, "",
			"--tls-client-ca-file: names a file without a certificate in PEM form",
		},
		{
			"--auth-token-file=DIR/none", "", "--auth-token-file: names a file that cannot be read: " +
				"no such file or directory; create it with 'parleyd token create --file'",
		},
		{"--auth-token-file=DIR", "", "--auth-token-file: must name a regular file"},

		// Rules for client certificates.
		{"", "client_certificates: [{}]", "settings: 4 faults:\n" +
			"  FILE:1: client_certificates[0]: must have exactly one of uri and cn\n" +
			"  FILE:1: client_certificates[0]: has no role; write reader, writer or admin\n" +
			"  FILE:1: client_certificates[0]: has no tenants; write a list, as in [acme]; [\"*\"] is all tenants\n" +
			"  FILE:1: client_certificates: needs --tls-client-ca-file"},
		{
			"--tls-client-ca-file=DIR/cert.pem " + pair,
			"client_certificates: [{cn: a, uri: b, tenants: [.x], role: owner}]", "settings: 3 faults:\n" +
				`  FILE:1: client_certificates[0].role: role "owner": use reader, writer or admin` + "\n" +
				"  FILE:1: client_certificates[0]: must have exactly one of uri and cn\n" +
				`  FILE:1: client_certificates[0].tenants: tenant ".x": use 1 to 64 letters, digits, dots, ` +
				"underscores and hyphens, not starting with a dot or a hyphen",
		},
	} {
		t.Run(test.args+" "+test.file, func(t *testing.T) {
			dir := writeSignInFiles(t).dir
			args := strings.Fields(strings.ReplaceAll(test.args, "DIR", dir))
			path := inFile(t, test.file)
			_, err := load(t, append(args, "--config="+path), nil)
			got := ""
			if err != nil {
				got = strings.NewReplacer(path, "FILE", dir, "DIR").Replace(err.Error())
			}
			want := test.want
			if want != "" && !strings.HasPrefix(want, "settings: ") {
				want = "settings: " + want
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("error (-want +got):\n%s", d)
			}
		})
	}
}

// TestSecretFilesOfOthers checks that the key and the tokens are refused if other users can read or replace them.
func TestSecretFilesOfOthers(t *testing.T) {
	for _, test := range []struct {
		name            string
		file, directory fs.FileMode
		want            string // empty: accepted
	}{
		{"private", 0o600, 0o755, ""},
		{"read-only", 0o400, 0o700, ""},
		{"in a folder as /tmp", 0o600, 0o777 | fs.ModeSticky, ""},
		{"readable by the group", 0o640, 0o700, `"FILE" can be accessed by other users: its mode is 0640; run chmod 600`},
		{"readable by all", 0o604, 0o700, `"FILE" can be accessed by other users: its mode is 0604; run chmod 600`},
		{
			"in a folder of all", 0o600, 0o777,
			`"FILE" can be replaced by other users: the mode of its directory is 0777; run chmod o-w on it`,
		},
	} {
		for _, name := range []string{"tls-key-file", "auth-token-file"} {
			t.Run(test.name+" "+name, func(t *testing.T) {
				files := writeSignInFiles(t)
				path := map[string]string{"tls-key-file": files.key, "auth-token-file": files.tokens}[name]
				if err := errors.Join(os.Chmod(path, test.file), os.Chmod(files.dir, test.directory)); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.Chmod(files.dir, 0o700) })
				args := []string{"--" + name + "=" + path}
				if name == "tls-key-file" {
					args = append(args, "--tls-cert-file="+files.cert)
				}
				_, err := load(t, args, nil)
				got, want := "", test.want
				if err != nil {
					got = strings.ReplaceAll(err.Error(), path, "FILE")
				}
				if want != "" {
					want = "settings: --" + name + ": " + want
				}
				if got != want {
					t.Errorf("error = %s\n  want  %s", got, want)
				}
			})
		}
	}
}

// TestSizeOfTokenFile checks that the settings accept a file as large as parleyd token create may write it.
func TestSizeOfTokenFile(t *testing.T) {
	f := writeSignInFiles(t)
	for size, want := range map[int64]string{
		secretfile.MaxPEMBytes + 1: "", tokenfile.MaxFileBytes: "",
		tokenfile.MaxFileBytes + 1: "settings: --auth-token-file: names a file of more than 16MiB",
	} {
		if err := os.Truncate(f.tokens, size); err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, err := load(t, []string{"--auth-token-file=" + f.tokens}, nil); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("file of %d bytes: error = %q, want %q", size, got, want)
		}
	}
}

// TestInsecureWarning checks that a start with --insecure has one warning that says what is missing.
func TestInsecureWarning(t *testing.T) {
	f := writeSignInFiles(t)
	pair := []string{"--tls-cert-file=" + f.cert, "--tls-key-file=" + f.key}
	token := []string{"--auth-token-file=" + f.tokens}
	const reachable = "can be reached from other machines without "
	for _, test := range []struct {
		name string
		args []string
		want []Warning
	}{
		{"loopback", nil, nil},
		{"both are missing", []string{"--grpc-address=:1", "--http-address=:2"}, []Warning{{
			"--grpc-address, --http-address", reachable + "TLS and sign-in",
			"set --tls-cert-file and --tls-key-file, and --auth-token-file, --oidc-issuer or client_certificates",
		}}},
		{"no TLS", append(token, "--http-address=:2"), []Warning{{
			"--http-address", reachable + "TLS", "set --tls-cert-file and --tls-key-file",
		}}},
		{"no sign-in", append(pair, "--http-address=:2"), []Warning{{
			"--http-address", reachable + "sign-in", "set --auth-token-file, --oidc-issuer or client_certificates",
		}}},
		{"nothing is missing", append(append(pair, token...), "--http-address=:2"), nil},
	} {
		c, err := load(t, append(test.args, "--insecure"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(test.want, c.Warnings); d != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", test.name, d)
		}
	}
}

// TestClientCertificates checks that rules for client certificates are read, and printed in the same form.
func TestClientCertificates(t *testing.T) {
	f := writeSignInFiles(t)
	const rules = `client_certificates:
  - {uri: 'spiffe://example/acme', tenants: [acme, globex], role: writer}
  - {cn: operator, tenants: ['*'], role: admin}
`
	args := []string{"--tls-cert-file=" + f.cert, "--tls-key-file=" + f.key, "--tls-client-ca-file=" + f.cert}
	c, err := load(t, append(args, "--config="+inFile(t, rules)), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []ClientCertificate{
		{URI: "spiffe://example/acme", Tenants: []string{"acme", "globex"}, Role: auth.Writer},
		{CN: "operator", Tenants: []string{"*"}, Role: auth.Admin},
	}
	if d := cmp.Diff(want, c.ClientCertificates); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"client certificates"}, c.SignIn()); d != "" {
		t.Errorf("SignIn() (-want +got):\n%s", d)
	}
	if c.TLSClientAuth != ClientAuthOptional {
		t.Errorf("TLSClientAuth = %q, want %q", c.TLSClientAuth, ClientAuthOptional)
	}
	printed, _ := checkConfig(t, append(args, "--config="+inFile(t, rules)), nil)
	if !strings.Contains(printed, rules) {
		t.Errorf("check-config printed\n%s\nwant\n%s in it", printed, rules)
	}
}
