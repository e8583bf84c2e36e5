package secretfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// TestFaults reads files of each kind. DIR stands for their folder.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, size int, mode fs.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(in(name), make([]byte, size), mode), os.Chmod(in(name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("full", 4<<10, 0o600)
	write("large", 4<<10+1, 0o600)
	write("empty", 0, 0o400)
	write("public", 1, 0o644)
	if err := errors.Join(syscall.Mkfifo(in("pipe"), 0o600), os.Symlink("full", in("link"))); err != nil {
		t.Fatal(err)
	}
	const private = `"DIR/public" can be accessed by other users: its mode is 0644; run chmod 600`
	for _, test := range []struct{ name, want, wantPrivate string }{
		{"full", "", ""},
		{"link", "", ""},
		{"empty", "", ""},
		{"public", "", private},
		{"large", "names a file of more than 4KiB", "names a file of more than 4KiB"},
		{"pipe", "must name a regular file", "must name a regular file"},
		{".", "must name a regular file", "must name a regular file"},
		{
			"missing", "names a file that cannot be read: no such file or directory",
			"names a file that cannot be read: no such file or directory",
		},
	} {
		data, err := secretfile.Read(in(test.name), 4<<10)
		check(t, "Read", test.name, dir, test.want, data, err)
		data, err = secretfile.ReadPrivate(in(test.name), 4<<10)
		check(t, "ReadPrivate", test.name, dir, test.wantPrivate, data, err)
	}
}

func check(t *testing.T, call, name, dir, want string, data []byte, err error) {
	t.Helper()
	got := ""
	if err != nil {
		got = strings.ReplaceAll(err.Error(), dir, "DIR")
	}
	if got != want || (data == nil) != (err != nil) {
		t.Errorf("%s(%s) = %d bytes, error %q, want error %q", call, name, len(data), got, want)
	}
}
