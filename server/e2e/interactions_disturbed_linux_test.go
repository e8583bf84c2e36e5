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

// TestInteractionsDisturbed: somebody does this and that to the files while the server writes.
// What can be mended is, else lines are counted until it has been undone, and no chat fails.
func TestInteractionsDisturbed(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	d := &disturbed{dir: filepath.Join(dataDir, "interactions"), root: t.TempDir()}
	a := &accounted{s: startServer(t, dataDir, keepsAll)}
	told := 0
	for _, test := range []struct {
		name    string
		disturb func(t *testing.T, d *disturbed) (undo func() error)
		loses   bool
	}{
		{"the directory is moved away", moved((*disturbed).directory), false},
		{"the file is moved away", moved((*disturbed).file), false},
		{"all may read", setMode(0o755, 0o644), false},
		{"nobody may write", setMode(0o500, 0o400), false},
		{"nobody may do anything", setMode(0, 0), false},
		{"another owner", disown, false},
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
			said := len(a.said)
			a.append(t, 20)
			a.chat(t)
			said = len(a.said) - said
			if undo != nil {
				if err := undo(); err != nil {
					t.Fatal(err)
				}
			}
			a.append(t, 5)
			lost := a.wantAccounted(t, append(slices.Clone(d.aside), d.dir)...) - told
			told += lost
			if !test.loses {
				said = 0
			}
			if lost != said {
				t.Errorf("the log tells of %d lines that are lost, want %d", lost, said)
			}
			eventually(t, "modes", []string{"drwx------", "-rw-------"}, func() (modes []string) { // The directory's may take a second.
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
	if warned := a.warnedOf(t); warned != told {
		t.Errorf("operators were warned of %d lines that are lost, want %d", warned, told)
	}
}

// disturbed is the directory of a log, and what was moved away from it.
type disturbed struct {
	dir   string
	aside []string // directories, in that order
	root  string   // of those
}

// directory is that of the log.
func (d *disturbed) directory(*testing.T) string { return d.dir }

// file is the one of the day.
func (d *disturbed) file(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(d.dir, "*.jsonl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has files %q, %v", d.dir, paths, err)
	}
	return slices.Max(paths)
}

// move moves directory or file away.
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

// moved moves away what stays away.
func moved(what func(*disturbed, *testing.T) string) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		d.move(t, what(d, t))
		return nil
	}
}

// replaced moves something away, and has another thing take its place for a while.
func replaced(what func(*disturbed, *testing.T) string, replace func(path string) error) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		path := what(d, t)
		d.move(t, path)
		err := replace(path)
		for errors.Is(err, fs.ErrExist) { // The server was faster.
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

// setMode gives modes to directory and file.
func setMode(dir, file os.FileMode) func(*testing.T, *disturbed) func() error {
	return func(t *testing.T, d *disturbed) func() error {
		t.Helper()
		if err := errors.Join(os.Chmod(d.file(t), file), os.Chmod(d.dir, dir)); err != nil {
			t.Fatal(err)
		}
		return nil
	}
}

// disown gives directory and file to another user.
func disown(t *testing.T, d *disturbed) func() error {
	t.Helper()
	const nobody = 65534
	if err := errors.Join(os.Chown(d.file(t), nobody, nobody), os.Chown(d.dir, nobody, nobody)); err != nil {
		t.Skipf("only root can give files away: %v", err)
	}
	return nil
}
