package faulttest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// creationCalls are the system calls by which a first start changes the disk, and those that
// it makes between them.
func creationCalls() []string {
	return []string{"mkdirat", "openat", "flock", "pwrite64", "fdatasync", "ftruncate", "fsync", "renameat", "unlinkat"}
}

// Wherever a first start is cut off, there is a whole store afterwards or none, and the next
// start works.
func TestCreationCutOff(t *testing.T) {
	for _, call := range creationCalls() {
		t.Run(call, func(t *testing.T) {
			cuts, err := cutCreation(t, call, nil)
			if err != nil {
				t.Fatal(err)
			}
			if cuts == 0 {
				t.Errorf("a first start makes no %s that can be cut off", call)
			}
			counts.add(t, "first starts cut off", cuts)
		})
	}
}

// The control: a server that makes its file in place leaves half a one, and it shows.
func TestCreationInPlace(t *testing.T) {
	need(t, "strace", "strace")
	inPlace := buildWith(t, "store/boltstore/file.go", "unfinished := path + unfinishedSuffix", "unfinished := path")
	found := 0
	for _, call := range []string{"pwrite64", "fdatasync"} {
		if _, err := cutCreation(t, call, inPlace); err != nil {
			found++
			t.Logf("as it must be: %.300v", err)
		}
	}
	counts.add(t, "control: half files found", found)
	if found == 0 {
		t.Error("a file that is made in place is never left half: the test of creation proves nothing")
	}
}

// cutCreation kills a first start at its N-th system call of a kind, for every N until it
// comes to serve, and says what is wrong with what that leaves behind.
func cutCreation(t *testing.T, call string, program []string) (cuts int, err error) {
	t.Helper()
	const most = 60
	for n := 1; n <= most; n++ {
		// The directory above is missing too.
		dataDir := filepath.Join(t.TempDir(), "parley", "data")
		s, _ := launchTracedAs(t, program, dataDir, []string{fmt.Sprintf("%s:signal=SIGKILL:when=%d", call, n)})
		err := s.serves(t)
		s.kill()
		if err == nil {
			return cuts, nil // It was not cut off.
		}
		if code, _ := s.exit(t); code != -1 { // It was not killed.
			return cuts, fmt.Errorf("%s %d: %w", call, n, err)
		}
		cuts++
		if err := checkCreation(t, dataDir); err != nil {
			return cuts, fmt.Errorf("%s %d: %w", call, n, err)
		}
	}
	return cuts, fmt.Errorf("a first start makes more than %d of %s", most, call)
}

// checkCreation says what is wrong with what a first start has left behind that was cut off.
func checkCreation(t *testing.T, dataDir string) error {
	t.Helper()
	path := filepath.Join(dataDir, fileName)
	switch _, err := os.Lstat(path); {
	case err == nil:
		counts.add(t, "stores left whole", 1)
		if err := soundPages(t, path); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		counts.add(t, "stores not yet there", 1)
	}
	s := launch(t, dataDir, nil)
	if err := s.serves(t); err != nil {
		return err
	}
	if entries, err := filepath.Glob(path + "*"); err != nil || len(entries) != 1 {
		return fmt.Errorf("left behind are %q, %w", entries, err)
	}
	c := newClients(1, 9)
	if err := c[0].do(t.Context(), s, &step{kind: appends, request: "r", words: []string{"words"}}); err != nil {
		return err
	}
	if err := recoverAll(t, s, c); err != nil {
		return err
	}
	s.stop(t)
	return nil
}
