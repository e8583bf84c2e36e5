package tokenfile_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/auth/tokenfile"
)

// TestConcurrentChanges creates tokens in a missing file and revokes half of them from many goroutines. Each locks the
// file with a descriptor of its own, as processes do.
func TestConcurrentChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.yaml")
	const workers, each = 8, 8
	var mu sync.Mutex
	want := map[string]bool{}
	var changing sync.WaitGroup
	for range workers {
		changing.Go(func() {
			for i := range each {
				_, created, err := tokenfile.Create(t.Context(), path, tokenfile.Token{
					Tenants: []string{"a"}, Role: auth.Reader, Created: start(),
				})
				if err == nil && i%2 == 0 {
					_, err = tokenfile.Revoke(t.Context(), path, created.ID)
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				want[created.ID] = i%2 != 0
				mu.Unlock()
			}
		})
	}
	changing.Wait()
	tokens, err := tokenfile.List(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		if !want[token.ID] {
			t.Errorf("List() has %s, which was revoked or never created", token.ID)
		}
	}
	if len(tokens) != workers*each/2 {
		t.Errorf("List() has %d tokens, want %d", len(tokens), workers*each/2)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("ReadDir() = %v, %v, want only the file of tokens", entries, err)
	}
}

func TestChangesKeepTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	var want []tokenfile.Token
	for _, token := range []tokenfile.Token{
		{Tenants: []string{"*"}, Role: auth.Admin, Name: `"quoted" # & *text: yes`},
		{Tenants: []string{"123", "1e5", "null", "true"}, Role: auth.Reader, Name: "ß 世界"},
		{Tenants: []string{"acme"}, Role: auth.Writer, Name: "~", Expires: start().Add(time.Hour)},
		{Tenants: []string{"acme"}, Role: auth.Writer, Name: " "},
	} {
		token.Created = start()
		_, created, err := tokenfile.Create(t.Context(), path, token)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, created)
	}
	got, err := tokenfile.List(path)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("List() = error %v, want none; tokens (-want +got):\n%s", err, diff)
	}
	revoked, err := tokenfile.Revoke(t.Context(), path, want[1].ID)
	if diff := cmp.Diff(want[1], revoked); err != nil || diff != "" {
		t.Errorf("Revoke() = error %v, want none; token (-want +got):\n%s", err, diff)
	}
	got, err = tokenfile.List(path)
	if diff := cmp.Diff([]tokenfile.Token{want[0], want[2], want[3]}, got); err != nil || diff != "" {
		t.Errorf("List() after Revoke = error %v, want none; tokens (-want +got):\n%s", err, diff)
	}
}

// TestRefusedChanges checks that a refused change leaves the file as it was.
func TestRefusedChanges(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokens.yaml")
	if _, err := tokenfile.Revoke(t.Context(), path, "abcdefgh"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Revoke() in a missing file = %v, want os.ErrNotExist", err)
	}
	create(t, path, "acme")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var unknown *tokenfile.UnknownError
	if _, err := tokenfile.Revoke(t.Context(), path, "abcdefgh"); !errors.As(err, &unknown) || unknown.ID != "abcdefgh" {
		t.Errorf("Revoke(unknown) = %v, want an *UnknownError", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	var bad *tokenfile.FaultsError
	if _, _, err := tokenfile.Create(t.Context(), path, tokenfile.Token{}); !errors.As(err, &bad) {
		t.Errorf("Create() in a file that others can read = %v, want a *FaultsError", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("file = %q, %v, want it unchanged: %q", after, err, before)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("ReadDir() = %v, %v, want only the file of tokens", entries, err)
	}
}

// TestLocked checks that a change waits for another process, and no longer than its context.
func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.yaml")
	create(t, path, "acme")
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := tokenfile.Create(ctx, path, tokenfile.Token{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Create() of a locked file = %v, want context.DeadlineExceeded", err)
	}
	if tokens, err := tokenfile.List(path); err != nil || len(tokens) != 1 {
		t.Errorf("List() of a locked file = %d tokens, %v, want 1", len(tokens), err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	create(t, path, "acme")
}

// TestSymbolicLink checks that a change replaces the file that a link refers to, not the link.
func TestSymbolicLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "tokens.yaml"), filepath.Join(dir, "link")
	create(t, path, "acme")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	create(t, link, "acme")
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("Lstat(link) = %v, %v, want a symbolic link", info.Mode(), err)
	}
	if tokens, err := tokenfile.List(path); err != nil || len(tokens) != 2 {
		t.Errorf("List() = %d tokens, %v, want 2", len(tokens), err)
	}
}
