package store_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"testing"

	"github.com/parleyhq/parley/store"
)

func TestTokenScope(t *testing.T) {
	scopes := [][]string{
		nil, {""}, {"", ""}, {"a"}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {"a", "b", "c"}, {"abc", ""}, {"\x01a"},
	}
	position := []byte("position")
	for i, sealed := range scopes {
		token := store.SealToken(position, sealed...)
		for j, opened := range scopes {
			got, err := store.OpenToken(token, opened...)
			switch {
			case i == j && (err != nil || !bytes.Equal(got, position)):
				t.Errorf("OpenToken with scope %q = %q, %v, want %q", sealed, got, err, position)
			case i != j && (!errors.Is(err, store.ErrPageToken) || got != nil):
				t.Errorf("OpenToken of scope %q with scope %q = %q, %v, want ErrPageToken", sealed, opened, got, err)
			}
		}
	}
}

func TestTokenDamage(t *testing.T) {
	raw, err := base64.RawURLEncoding.DecodeString(store.SealToken([]byte("position"), "scope"))
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(raw) {
		raw[bit/8] ^= 1 << (bit % 8)
		if _, err := store.OpenToken(base64.RawURLEncoding.EncodeToString(raw), "scope"); !errors.Is(err, store.ErrPageToken) {
			t.Errorf("OpenToken with bit %d flipped = %v, want ErrPageToken", bit, err)
		}
		raw[bit/8] ^= 1 << (bit % 8)
	}
	for n := range raw {
		if _, err := store.OpenToken(base64.RawURLEncoding.EncodeToString(raw[:n]), "scope"); !errors.Is(err,
			store.ErrPageToken) {
			t.Errorf("OpenToken of the first %d bytes = %v, want ErrPageToken", n, err)
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add("", []byte(nil), "", "")
	f.Add(store.SealToken([]byte("p"), "a", "b"), []byte("p"), "a", "b")
	f.Fuzz(func(t *testing.T, token string, position []byte, a, b string) {
		if _, err := store.OpenToken(token, a, b); err != nil && !errors.Is(err, store.ErrPageToken) {
			t.Errorf("OpenToken(%q) = %v, want ErrPageToken or nil", token, err)
		}
		got, err := store.OpenToken(store.SealToken(position, a, b), a, b)
		if err != nil || !bytes.Equal(got, position) {
			t.Errorf("OpenToken(SealToken(%x)) = %x, %v", position, got, err)
		}
	})
}
