package tokenfile_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
)

// start is the time at which tests begin.
func start() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

// create adds a token that expires after an hour.
func create(t *testing.T, path string, tenants ...string) (secret string, created tokenfile.Token) {
	t.Helper()
	secret, created, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
		Tenants: tenants, Role: auth.Writer, Name: "shop", Created: start(), Expires: start().Add(time.Hour),
	})
	if err != nil {
		t.Fatalf("Create() = %v", err)
	}
	return secret, created
}

func TestVerify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	secret, created := create(t, path, "acme", "other")
	now := start()
	f, err := tokenfile.Open(path, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Verify(t.Context(), auth.Credentials{Token: secret})
	want := auth.Identity{Name: "shop", Tenants: []string{"acme", "other"}, Role: auth.Writer, Expires: created.Expires}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Verify(token) = error %v, want none; identity (-want +got):\n%s", err, diff)
	}
}
