package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

// TestInteractionsDisturbed changes the log's files in several ways while the server writes. The
// server repairs what it can. Otherwise it counts lost entries until the change is undone. No chat
// fails.
func TestInteractionsDisturbed(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	d := &disturbed{dir: filepath.Join(dataDir, "interactions"), root: t.TempDir()}
	a := &ledger{s: startServer(t, dataDir, keepAllFlag)}
	reported := 0
	for _, test := range []struct {
		name    string
		disturb func(t *testing.T, d *disturbed) (undo func() error)
		loses   bool
	}{
		{"the directory is moved away", moved((*disturbed).directory), false},
		{"the file is moved away", moved((*disturbed).file), false},
		{"all users may read", setMode(0o755, 0o644), false},
		{"no user may write", setMode(0o500, 0o400), false},
		{"no user has any permission", setMode(0, 0), false},
		{"another owner", changeOwner, false},
		{"a file for the directory", replaced((*disturbed).directory, makeFile), true},
		{"a link for the directory", replaced((*disturbed).directory, makeLink("..")), true},
		{"a directory for the file", replaced((*disturbed).file, makeDirectory), true},
		{"a link for the file", replaced((*disturbed).file, makeLink("../not-there")), true},
		{"a file system that is read-only", func(t *testing.T, d *disturbed) func() error {
			t.Helper()
			if err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_RDONLY, ""); err != nil {
				t.Skipf("only root can mount a file system: %v", err)
			}
			return func() error { return syscall.Unmount(d.dir, syscall.MNT_DETACH) }
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			a.append(t, 5)
			undo := test.disturb(t, d)
			sent := len(a.sent)
			a.append(t, 20)
			a.chat(t)
			sent = len(a.sent) - sent
			if undo != nil {
				if err := undo(); err != nil {
					t.Fatal(err)
				}
			}
			a.append(t, 5)
			lost := a.wantComplete(t, append(slices.Clone(d.aside), d.dir)...) - reported
			reported += lost
			if !test.loses {
				sent = 0
			}
			if lost != sent {
				t.Errorf("the log reports %d lost entries, want %d", lost, sent)
			}
			// The server may take a second to reset the directory's mode.
			eventually(t, "modes", []string{"drwx------", "-rw-------"}, func() (modes []string) {
				for _, path := range []string{d.dir, d.file(t)} {
					info, err := os.Stat(path)
					if err != nil {
						t.Fatal(err)
					}
					modes = append(modes, info.Mode().String())
				}
				return modes
			})
		})
	}
	a.s.terminate()
	a.s.wantStop(t)
	if warned := a.warnedLosses(t); warned != reported {
		t.Errorf("warnings report %d lost entries, want %d", warned, reported)
	}
}

// disturbed is the directory of a log and the paths of what was moved out of it.
type disturbed struct {
	dir   string
	aside []string // directories with the moved files, in the order of the moves
	root  string   // parent of those directories
}

// directory returns the log's directory.
func (d *disturbed) directory(*testing.T) string { return d.dir }

// file returns the log's newest file.
func (d *disturbed) file(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(d.dir, "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("log files in %s = %q, %v; want some", d.dir, paths, err)
	}
	return slices.Max(paths)
}

// move moves the directory or the file away.
func (d *disturbed) move(t *testing.T, path string) {
	t.Helper()
	aside := filepath.Join(d.root, fmt.Sprint("aside", len(d.aside)))
	d.aside = append(d.aside, aside)
	to := aside
	if path != d.dir {
		if err := os.Mkdir(aside, 0o700); err != nil {
			t.Fatal(err)
		}
		to = filepath.Join(aside, filepath.Base(path))
	}
	if err := os.Rename(path, to); err != nil {
		t.Fatal(err)
	}
}

// moved returns a disturbance that moves what away for good.
func moved(what func(*disturbed, *testing.T) string) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		d.move(t, what(d, t))
		return nil
	}
}

// replaced returns a disturbance that moves what away and puts something else in its place until undo.
func replaced(
	what func(*disturbed, *testing.T) string, replace func(path string) error,
) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		path := what(d, t)
		d.move(t, path)
		err := replace(path)
		for errors.Is(err, fs.ErrExist) { // The server has already created it again.
			d.move(t, path)
			err = replace(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		return func() error { return os.Remove(path) }
	}
}

func makeFile(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

func makeDirectory(path string) error { return os.Mkdir(path, 0o700) }

func makeLink(to string) func(path string) error {
	return func(path string) error { return os.Symlink(to, path) }
}

// setMode returns a disturbance that sets the modes of the directory and the file.
func setMode(dir, file os.FileMode) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		if err := errors.Join(os.Chmod(d.file(t), file), os.Chmod(d.dir, dir)); err != nil {
			t.Fatal(err)
		}
		return nil
	}
}

// changeOwner makes another user the owner of the directory and the file.
func changeOwner(t *testing.T, d *disturbed) func() error {
	t.Helper()
	const nobody = 65534
	if err := errors.Join(os.Chown(d.file(t), nobody, nobody), os.Chown(d.dir, nobody, nobody)); err != nil {
		t.Skipf("only root can change the owner of a file: %v", err)
	}
	return nil
}
