package tokenfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start is the time at which tests begin.
func start() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

// create adds a token that expires after an hour.
func create(tb testing.TB, path string, tenants ...string) (secret string, created tokenfile.Token) {
	tb.Helper()
	secret, created, err := tokenfile.Create(tb.Context(), path, tokenfile.Token{
		Tenants: tenants, Role: auth.Writer, Name: "shop", Created: start(), Expires: start().Add(time.Hour),
	})
	if err != nil {
		tb.Fatalf("Create() = %v", err)
	}
	return secret, created
}

func openFile(tb testing.TB, path string, now func() time.Time) *tokenfile.File {
	tb.Helper()
	f, err := tokenfile.Open(path, now)
	if err != nil {
		tb.Fatalf("Open() = %v", err)
	}
	return f
}

func TestVerify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	secret, created := create(t, path, "acme", "other")
	nameless, other, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
		Tenants: []string{"*"}, Role: auth.Admin, Created: start(),
	})
	if err != nil {
		t.Fatal(err)
	}
	now := start()
	f := openFile(t, path, func() time.Time { return now })
	for _, test := range []struct {
		token string
		want  auth.Identity
	}{
		{secret, auth.Identity{
			ID: "token:" + created.ID, Name: "shop", Tenants: []string{"acme", "other"}, Role: auth.Writer,
			Expires: created.Expires,
		}},
		{nameless, auth.Identity{
			ID: "token:" + other.ID, Name: "token " + other.ID, Tenants: []string{"*"}, Role: auth.Admin,
		}},
	} {
		got, err := f.Verify(t.Context(), auth.Credentials{Token: test.token})
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("Verify(token) = error %v, want none; identity (-want +got):\n%s", err, diff)
		}
	}
	now = created.Expires.Add(-time.Nanosecond)
	if _, err := f.Verify(t.Context(), auth.Credentials{Token: secret}); err != nil {
		t.Errorf("Verify() before the expiry = %v, want no error", err)
	}
	now = created.Expires
	_, err = f.Verify(t.Context(), auth.Credentials{Token: secret})
	if err == nil || !strings.Contains(err.Error(), created.ID) || strings.Contains(err.Error(), secret[:12]) {
		t.Errorf("Verify() at the expiry = %v, want an error with the id %s and without the token", err, created.ID)
	}
	for _, token := range []string{
		"", "x", secret[:len(secret)-1], secret + "x", strings.ToUpper(secret), " " + secret, created.ID,
		fmt.Sprintf("%x", created.Hash), "________ in place of a token, which is missing ___",
	} {
		if got, err := f.Verify(t.Context(), auth.Credentials{Token: token}); err == nil {
			t.Errorf("Verify(%q) = %+v, want an error", token, got)
		}
	}
}

// TestTokenForm checks the form that clients and scanners for secrets rely on, and that the file contains no token.
func TestTokenForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	secret, created := create(t, path, "acme")
	if len(secret) != len("parley_")+43 || !strings.HasPrefix(secret, "parley_") {
		t.Errorf("token has %d bytes and begins with %.7q, want parley_ and 43 characters", len(secret), secret)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(content), secret[7:20]) || !strings.Contains(string(content), fmt.Sprintf("%x", created.Hash)) {
		t.Errorf("file = %s, want the hash and not the token", content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat() = %v, %v, want mode 0600", info.Mode(), err)
	}
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	first, created := create(t, path, "acme")
	f := openFile(t, path, start)
	accepted := func(token string) bool {
		_, err := f.Verify(t.Context(), auth.Credentials{Token: token})
		return err == nil
	}
	second, _ := create(t, path, "acme")
	if _, err := tokenfile.Revoke(t.Context(), path, created.ID); err != nil {
		t.Fatal(err)
	}
	if !accepted(first) || accepted(second) {
		t.Errorf("before Reload: first token accepted %t, second %t, want true and false", accepted(first), accepted(second))
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"fault":   func() error { return os.WriteFile(path, append(content, "more: 1\n"...), 0o600) },
		"mode":    func() error { return os.Chmod(path, 0o604) },
		"missing": func() error { return os.Remove(path) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := f.Reload(); err == nil || !accepted(first) || accepted(second) {
			t.Errorf("Reload() of a file with a bad %s = %v; first token accepted %t, second %t; want an error, true and false",
				name, err, accepted(first), accepted(second))
		}
		_ = os.Remove(path)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Reload(); err != nil || accepted(first) || !accepted(second) {
		t.Errorf("Reload() = %v; first token accepted %t, second %t; want no error, false and true", err, accepted(first),
			accepted(second))
	}
}

func TestOpenFaults(t *testing.T) {
	const good = "{id: abcdefgh, sha256: " + hash1 + ", tenants: [a], role: reader, created: " + when + ", expires: never}"
	list := func(token string) string { return "version: 1\ntokens:\n  - " + token + "\n" }
	with := func(old, replacement string) string { return list(strings.Replace(good, old, replacement, 1)) }
	tests := []struct {
		content string
		want    []string
	}{
		{"", []string{"PATH:1: is empty"}},
		{"# nothing\n", []string{"PATH:1: is empty"}},
		{"version: [1", []string{"PATH: line 1: did not find"}},
		{"parley_secret", []string{"PATH:1: must be a mapping"}},
		{"tokens: []", []string{"PATH:1: version is missing"}},
		{"version: 2\nfuture: {}", []string{"PATH:2: unknown key", `PATH:1: version is "2", this program reads version 1`}},
		{"version: 1", []string{"PATH:1: tokens is missing"}},
		{"version: 1\ntokens: 3", []string{"PATH:2: tokens must be a list"}},
		{list(good) + "---\nversion: 1\n", []string{"PATH:1: has more than one document"}},
		{list("x"), []string{"PATH:3: must be a mapping"}},
		{with("id: abcdefgh", "id: ABC"), []string{`PATH:3: id: "ABC" is not an id`}},
		{with("id: abcdefgh, ", ""), []string{"PATH:3: id is missing"}},
		{with("role: reader", "role: root"), []string{`PATH:3: role: role "root": use reader, writer or admin`}},
		{with("role: reader", "role: [reader]"), []string{"PATH:3: role: must be one value"}},
		{with("[a]", "[a/b]"), []string{`PATH:3: tenants: tenant "a/b"`}},
		{with("[a]", "a"), []string{"PATH:3: tenants must be a list"}},
		{with("[a]", "[[a]]"), []string{"PATH:3: tenants must be a list of names"}},
		{with("tenants: [a], ", ""), []string{"PATH:3: tenants is missing"}},
		{with(hash1, "parley_secret"), []string{"PATH:3: sha256: must be 64 hexadecimal digits"}},
		{with(hash1, hash1[2:]), []string{"PATH:3: sha256: must be 64"}},
		{with(hash1, hash1+"00"), []string{"PATH:3: sha256: must be 64"}},
		{with(when, "soon"), []string{`PATH:3: created: "soon" is not a time`}},
		{with("never", "9999-01-01T00:00:00Z"), []string{"PATH:3: expires: "}},
		{with("role:", "name: \"a\\nb\", role:"), []string{"PATH:3: name: use at most 128 bytes of printable text"}},
		{with("role:", "token: x, role:"), []string{`PATH:3: unknown key "token"`}},
		{with("role:", "id: abcdefgh, role:"), []string{"PATH:3: key id is set twice"}},
		{list(good + "\n  - " + good), []string{
			"PATH:4: id: is also that of the token in line 3", "PATH:4: sha256: is also that of the token in line 3",
		}},
		{list(good + "\n  - {}\n  - x"), []string{
			"PATH:4: tenants is missing", "PATH:4: id is missing", "PATH:4: sha256 is missing", "PATH:4: role is missing",
			"PATH:4: created is missing", "PATH:4: expires is missing", "PATH:5: must be a mapping",
		}},
	}
	for i, test := range tests {
		path := filepath.Join(t.TempDir(), "tokens.yaml")
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := tokenfile.Open(path, start)
		var bad *tokenfile.FaultsError
		if !errors.As(err, &bad) || len(bad.Faults) != len(test.want) {
			t.Errorf("%d: Open(%q) = %v, want the faults %q", i, test.content, err, test.want)
			continue
		}
		for j, fault := range bad.Faults {
			if want := strings.Replace(test.want[j], "PATH", path, 1); !strings.HasPrefix(fault, want) {
				t.Errorf("%d: fault = %q, want %q", i, fault, want)
			}
			if strings.Contains(fault, "parley_secret") {
				t.Errorf("%d: fault = %q, want none with what may be a token", i, fault)
			}
		}
	}
}

const (
	hash1 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	when  = "2026-11-23T12:00:00Z"
)

func TestOpenMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	create(t, path, "acme")
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("has mode %#o, so that others than its owner can access it; run: chmod 600 %s", mode, path)
		if _, err := tokenfile.Open(path, start); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(mode %#o) = %v, want %q", mode, err, want)
		}
	}
	for _, mode := range []os.FileMode{0o600, 0o400} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := tokenfile.Open(path, start); err != nil {
			t.Errorf("Open(mode %#o) = %v, want no error", mode, err)
		}
	}
	if _, err := tokenfile.Open(t.TempDir(), start); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("Open(directory) = %v, want an error that says so", err)
	}
}

// rejections returns credentials that are rejected for different reasons.
func rejections(tb testing.TB) (*tokenfile.File, map[string]auth.Credentials) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "tokens.yaml")
	expired, created := create(tb, path, "acme")
	for range 100 {
		create(tb, path, "acme")
	}
	revoked, token := create(tb, path, "acme")
	if _, err := tokenfile.Revoke(tb.Context(), path, token.ID); err != nil {
		tb.Fatal(err)
	}
	f := openFile(tb, path, func() time.Time { return created.Expires })
	return f, map[string]auth.Credentials{
		"missing": {}, "malformed": {Token: "not a token"}, "expired": {Token: expired}, "revoked": {Token: revoked},
		"wrong": {Token: expired[:len(expired)-1] + "-"},
	}
}

// TestRejectionTime compares the medians of 10,000 tries of each kind of faulty token, measured in turn. The bound is
// far above the noise of a median, and far below the factor of a check that returns before it hashes. It
// measures time, so it runs only with PARLEY_LONG.
func TestRejectionTime(t *testing.T) {
	if os.Getenv("PARLEY_LONG") == "" {
		t.Skip("measures time: set PARLEY_LONG")
	}
	f, credentials := rejections(t)
	const tries, repeat, bound = 10_000, 10, 2.5
	times := map[string][]time.Duration{}
	for range tries {
		for kind, c := range credentials { // in random order
			begin := time.Now()
			for range repeat {
				if _, err := f.Verify(t.Context(), c); err == nil {
					t.Fatalf("Verify(%s token) = no error", kind)
				}
			}
			times[kind] = append(times[kind], time.Since(begin))
		}
	}
	medians := map[string]time.Duration{}
	for kind, all := range times {
		slices.Sort(all)
		medians[kind] = all[len(all)/2]
	}
	for kind, median := range medians {
		if ratio := float64(medians["wrong"]) / float64(median); ratio > bound || ratio < 1/bound {
			t.Errorf("median of the %s token = %s, of a wrong token %s, want a factor below %v", kind, median, medians["wrong"],
				bound)
		}
	}
}

func BenchmarkRejected(b *testing.B) {
	f, credentials := rejections(b)
	for kind, c := range credentials {
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = f.Verify(b.Context(), c)
			}
		})
	}
}

func BenchmarkAccepted(b *testing.B) {
	path := filepath.Join(b.TempDir(), "tokens.yaml")
	secret, _ := create(b, path, "acme")
	f := openFile(b, path, start)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Verify(b.Context(), auth.Credentials{Token: secret}); err != nil {
			b.Fatal(err)
		}
	}
}
