package secretfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/parleyhq/parley/server/internal/secretfile"
)

// asReader is the variable with the path that the test binary reads, as another user.
const asReader = "READ_PRIVATE"

func TestMain(m *testing.M) {
	if path := os.Getenv(asReader); path != "" {
		data, err := secretfile.ReadPrivate(path, 4<<10)
		fmt.Printf("%q %v", data, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestFileOfGroup reads files that Kubernetes could mount, as a user with additional groups.
func TestFileOfGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: needs root, to run a process as another user")
	}
	const user, group, fsGroup = 65532, 65531, 65530
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "secrets") //nolint:usetesting // The directories of t.TempDir are closed to other users.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "test")
	if err := errors.Join(os.WriteFile(binary, program, 0o700), os.Chmod(dir, 0o755), os.Chmod(binary, 0o755)); err != nil {
		t.Fatal(err)
	}
	mount := filepath.Join(dir, "mount")
	if err := errors.Join(os.Mkdir(mount, 0o700), os.Chown(mount, 0, fsGroup),
		os.Chmod(mount, fs.ModeSticky|fs.ModeSetgid|0o777)); err != nil {
		t.Fatal(err)
	}
	const accepted = `"tokens" <nil>`
	refused := func(mode string) string {
		return `"" "PATH" can be accessed by other users: its mode is ` + mode + "; run chmod 600"
	}
	for _, test := range []struct {
		uid, gid int
		mode     fs.FileMode
		want     string
	}{
		{0, fsGroup, 0o440, accepted},
		{0, fsGroup, 0o640, accepted},
		{0, group, 0o440, accepted},
		{0, fsGroup, 0o460, refused("0460")},
		{0, fsGroup, 0o444, refused("0444")},
		{0, 0, 0o444, refused("0444")},
		{user, fsGroup, 0o440, refused("0440")},
		{user, group, 0o400, accepted},
	} {
		path := filepath.Join(mount, "tokens.yaml")
		if err := errors.Join(os.WriteFile(path, []byte("tokens"), 0o600), os.Chown(path, test.uid, test.gid),
			os.Chmod(path, test.mode)); err != nil {
			t.Fatal(err)
		}
		command := exec.CommandContext(t.Context(), binary)
		command.Env = append(os.Environ(), asReader+"="+path)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{
			Uid: user, Gid: group, Groups: []uint32{fsGroup},
		}}
		output, err := command.CombinedOutput()
		if got := strings.ReplaceAll(string(output), path, "PATH"); err != nil || got != test.want {
			t.Errorf("ReadPrivate of a file of %d:%d with mode %o = %s, %v; want %s", test.uid, test.gid, test.mode, got, err,
				test.want)
		}
		if data, err := secretfile.ReadPrivate(path, 4<<10); test.mode&0o077 != 0 && err == nil {
			t.Errorf("ReadPrivate of a file of %d:%d with mode %o as root = %q, want an error", test.uid, test.gid, test.mode,
				data)
		}
	}
}
