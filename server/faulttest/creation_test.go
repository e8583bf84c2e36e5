package faulttest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// creationCalls returns the system calls with which a first start changes the disk, and those between.
func creationCalls() []string {
	return []string{"mkdirat", "openat", "flock", "pwrite64", "fdatasync", "ftruncate", "fsync", "renameat", "unlinkat"}
}

// TestCreationCutOff checks that a first start which is killed at any system call leaves a complete
// store or none, and that the next start works.
func TestCreationCutOff(t *testing.T) {
	for _, call := range creationCalls() {
		t.Run(call, func(t *testing.T) {
			cuts, err := cutCreation(t, call, nil)
			if err != nil {
				t.Fatal(err)
			}
			if cuts == 0 {
				t.Errorf("first starts killed at %s = 0, want some", call)
			}
			counts.add(t, "first starts cut off", cuts)
		})
	}
}

// TestCreationInPlace is the control: a server that creates its file in place leaves an incomplete
// file, and the check detects it.
func TestCreationInPlace(t *testing.T) {
	requireProgram(t, "strace", "strace")
	inPlace := buildWith(t, "store/boltstore/internal/boltfile/file.go", "unfinished := path + UnfinishedSuffix",
		"unfinished := path")
	found := 0
	for _, call := range []string{"pwrite64", "fdatasync"} {
		if _, err := cutCreation(t, call, inPlace); err != nil {
			found++
			t.Logf("detected as expected: %.300v", err)
		}
	}
	counts.add(t, "control: incomplete files detected", found)
	if found == 0 {
		t.Error("no incomplete file was detected; the test of creation proves nothing")
	}
}

// cutCreation kills a first start at its n-th system call of a kind, for n from 1 until the start
// succeeds. It returns the number of kills, and an error if one leaves a faulty store.
func cutCreation(t *testing.T, call string, program []string) (cuts int, err error) {
	t.Helper()
	const most = 60
	for n := 1; n <= most; n++ {
		// The parent directory does not exist either.
		dataDir := filepath.Join(t.TempDir(), "parley", "data")
		s, _ := launchTracedAs(t, program, dataDir, []string{fmt.Sprintf("%s:signal=SIGKILL:when=%d", call, n)})
		err := s.awaitServing()
		s.kill()
		if err == nil {
			return cuts, nil // There is no n-th call.
		}
		if code, _ := s.awaitExit(t); code != -1 { // The process was not killed.
			return cuts, fmt.Errorf("%s %d: %w", call, n, err)
		}
		cuts++
		if err := checkCreation(t, dataDir); err != nil {
			return cuts, fmt.Errorf("%s %d: %w", call, n, err)
		}
	}
	return cuts, fmt.Errorf("a first start makes more than %d calls of %s", most, call)
}

// checkCreation returns an error if a first start that was killed has left a faulty store.
func checkCreation(t *testing.T, dataDir string) error {
	t.Helper()
	path := filepath.Join(dataDir, fileName)
	switch _, err := os.Lstat(path); {
	case err == nil:
		counts.add(t, "stores left complete", 1)
		if err := soundPages(t, path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		counts.add(t, "stores not yet created", 1)
	}
	s := launch(t, dataDir, nil)
	if err := s.awaitServing(); err != nil {
		return err
	}
	entries, err := filepath.Glob(path + "*")
	if err != nil || len(entries) != 2 || !strings.HasPrefix(entries[1], path+".journal-") {
		return fmt.Errorf("files after a start = %q, %w; want the store and its journal", entries, err)
	}
	c := newClients(1, 9)
	if err := c[0].do(t.Context(), s, &step{kind: appendStep, request: "r", contents: []string{"content"}}); err != nil {
		return err
	}
	if err := verifyAll(t, s, c); err != nil {
		return err
	}
	s.stop(t)
	return nil
}
