package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// TestCopyCancelled ends the context during the copy.
func TestCopyCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &copier{
		ctx: ctx, file: openScratch(t), current: make([]byte, backupStep), fresh: make([]byte, backupStep), paced: true,
	}
	steps := 0
	if _, err := c.ReadFrom(readerFunc(func(p []byte) (int, error) {
		steps++
		if steps == 3 {
			cancel()
		}
		return len(p), nil
	})); !errors.Is(err, context.Canceled) || steps != 3 {
		t.Errorf("ReadFrom = %v after %d steps, want Canceled after 3", err, steps)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func openScratch(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "scratch"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestCopier copies a file, changes the file, and copies it again from one transaction. The copy
// must have the state of that transaction.
func TestCopier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	fill := func(round int) {
		if err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("bucket"))
			if err != nil {
				return err
			}
			for key := range 200 {
				if err := b.Put(fmt.Append(nil, key), fmt.Append(nil, round, strings.Repeat("word ", 2000))); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 5 {
		fill(round)
	}
	c := &copier{
		ctx: t.Context(), file: openScratch(t), current: make([]byte, backupStep), fresh: make([]byte, backupStep),
	}
	if err := c.copyPaced(path, 3*backupStep/2); err != nil { // A part of the file.
		t.Fatal(err)
	}
	for round := range 5 {
		fill(round)
	}
	var size int64
	var want strings.Builder
	if err := db.View(func(tx *bolt.Tx) (err error) {
		c.at = 0
		if size, err = tx.WriteTo(c); err == nil {
			_, err = tx.WriteTo(&want)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(c.file.Name())
	if err != nil || string(got) != want.String() || int64(len(got)) != size || size <= 3*backupStep/2 {
		t.Errorf("copy has %d bytes, want the %d of one transaction; %v", len(got), size, err)
	}
}
