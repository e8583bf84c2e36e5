package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

type backupStream = grpc.ServerStreamingServer[parleyv1.BackupStoreResponse]

// fakeAdmin is a server that can only make backups.
type fakeAdmin struct {
	parleyv1.UnimplementedAdminServiceServer

	backup func(backupStream) error
}

func (f fakeAdmin) BackupStore(_ *parleyv1.BackupStoreRequest, stream backupStream) error {
	return f.backup(stream)
}

// serveBackup serves backup until the test ends, and returns the address.
func serveBackup(t *testing.T, backup func(backupStream) error) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterAdminServiceServer(s, fakeAdmin{backup: backup})
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(listener) })
	t.Cleanup(func() { s.Stop(); running.Wait() })
	return listener.Addr().String()
}

// backupPieces returns a backup that announces size bytes, sends chunks, and ends with err.
func backupPieces(size int64, err error, chunks ...string) func(backupStream) error {
	return func(stream backupStream) error {
		for i, chunk := range chunks {
			reply := &parleyv1.BackupStoreResponse{Chunk: []byte(chunk)}
			if i == 0 {
				reply.SizeBytes = size
			}
			if err := stream.Send(reply); err != nil {
				return err
			}
		}
		return err
	}
}

// newDir creates a directory with these files.
func newDir(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBackup(t *testing.T) {
	const exists = " already exists"
	old, partial := map[string]string{"b.db": "old"}, map[string]string{"b.db.partial": "old"}
	complete := backupPieces(6, nil, "one", "", "two")
	lost := status.Error(codes.Internal, "out of order")
	tests := []struct {
		name   string
		backup func(backupStream) error
		before map[string]string
		args   []string
		after  map[string]string
		stderr string // A part of standard error.
		code   int
	}{
		{"new", complete, nil, nil, map[string]string{"b.db": "-rw------- onetwo"}, "backed up 6 B\n", 0},
		{"quiet", complete, nil, []string{"--quiet"}, map[string]string{"b.db": "-rw------- onetwo"}, "", 0},
		{"an existing file is kept", complete, old, nil, map[string]string{"b.db": "-rw------- old"}, exists, 64},
		{
			"an existing file is replaced", complete, old,
			[]string{"--force"},
			map[string]string{"b.db": "-rw------- onetwo"},
			"backed up 6 B\n", 0,
		},
		{"a partial file is kept", complete, partial, nil, map[string]string{"b.db.partial": "-rw------- old"}, exists, 64},
		{
			"a partial file is replaced", complete, partial,
			[]string{"--force"},
			map[string]string{"b.db": "-rw------- onetwo"},
			"backed up 6 B\n", 0,
		},
		{
			"missing bytes", backupPieces(7, nil, "one", "two"), nil, nil,
			map[string]string{},
			"the copy is incomplete: 6 of 7 bytes received", 1,
		},
		{
			"too many bytes", backupPieces(5, nil, "one", "two"), nil, nil,
			map[string]string{},
			"the copy is incomplete: 6 of 5 bytes received", 1,
		},
		{"no bytes", backupPieces(0, nil), nil, nil, map[string]string{}, "the copy is incomplete: 0 of 0 bytes received", 1},
		{
			"no size", backupPieces(0, nil, "one"), nil, nil,
			map[string]string{},
			"the copy is incomplete: 3 of 0 bytes received", 1,
		},
		{
			"an error of the server", backupPieces(7, lost, "one"), old,
			[]string{"--force"},
			map[string]string{"b.db": "-rw------- old"},
			"out of order (Internal)", 1,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := newDir(t, test.before)
			args := append([]string{"--address", serveBackup(t, test.backup), "backup", filepath.Join(dir, "b.db")}, test.args...)
			stdout, stderr, code := runOnce(t.Context(), "", args...)
			if stdout != "" || !strings.Contains(stderr, test.stderr) || (test.stderr == "") != (stderr == "") ||
				code != test.code {
				t.Errorf("standard output %q, standard error %q, exit code %d; want %q, %d", stdout, stderr, code, test.stderr,
					test.code)
			}
			if diff := cmp.Diff(test.after, files(t, dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBackupKeepsAnOpenStore checks that --force does not replace a file that a server has open.
func TestBackupKeepsAnOpenStore(t *testing.T) {
	dir := newDir(t, map[string]string{"b.db": "old"})
	name := filepath.Join(dir, "b.db")
	locked, err := lockForReplacement(name)
	if err != nil {
		t.Fatal(err)
	}
	_, stderr, code := runOnce(t.Context(), "", "--address", serveBackup(t, backupPieces(6, nil, "one", "two")), "backup",
		name, "--force")
	if !strings.Contains(stderr, "a server has it open") || code != 64 {
		t.Errorf("standard error %q, exit code %d; want that a server has it open, 64", stderr, code)
	}
	if err := locked.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"b.db": "-rw------- old"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestBackupKeepsAnotherPartialFile checks that a backup does not remove a partial file that another backup has
// written in the meantime.
func TestBackupKeepsAnotherPartialFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "b.db")
	err := writeNewFile(name, false, func(w io.Writer) error {
		_, err := io.WriteString(w, "mine")
		return errors.Join(err, os.Remove(name+".partial"), os.WriteFile(name+".partial", []byte("another's"), 0o600))
	})
	if err == nil || !strings.Contains(err.Error(), "replaced by another backup") {
		t.Errorf("writeNewFile() = %v, want that another backup replaced the file", err)
	}
	if diff := cmp.Diff(map[string]string{"b.db.partial": "-rw------- another's"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestBackupToStandardOutput(t *testing.T) {
	address := serveBackup(t, backupPieces(6, nil, "one", "two"))
	stdout, stderr, code := runOnce(t.Context(), "", "--address", address, "backup", "-")
	if stdout != "onetwo" || stderr != "backed up 6 B\n" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d; want the copy, 0", stdout, stderr, code)
	}
	_, written := runOnTerminal(t, nil, "--address", address, "backup", "-")
	if !strings.Contains(written, "cannot be written to a terminal") {
		t.Errorf("to a terminal: output %q, want a refusal", written)
	}
	dir := t.TempDir()
	if _, stderr, code := runOnce(t.Context(), "", "--address", address, "backup", "--force", dir); !strings.Contains(stderr, "not a regular file") || code != 64 {
		t.Errorf("to a directory: standard error %q, exit code %d, want 64", stderr, code)
	}
}

func TestBackupHasNoDefaultTimeout(t *testing.T) {
	address := serveBackup(t, func(stream backupStream) error {
		if _, limited := stream.Context().Deadline(); limited {
			t.Error("the call has a deadline")
		}
		return backupPieces(1, nil, "x")(stream)
	})
	if _, stderr, code := runOnce(t.Context(), "", "--address", address, "backup", "-"); code != 0 {
		t.Errorf("standard error %q, exit code %d, want 0", stderr, code)
	}
}

func TestBackupWithFullOutput(t *testing.T) {
	address := serveBackup(t, func(stream backupStream) error {
		if err := backupPieces(6, nil, "one", "two")(stream); err != nil {
			return err
		}
		<-stream.Context().Done() // The client must cancel the call.
		return stream.Context().Err()
	})
	var stderr strings.Builder
	code := run(t.Context(), []string{"--address", address, "backup", "-"}, console{
		out: fullDisk{}, err: &stderr, getenv: func(string) string { return "" }, now: time.Now,
	})
	if want := "parley: no space left on device\n"; stderr.String() != want || code != 1 {
		t.Errorf("standard error %q, exit code %d, want %q, 1", stderr.String(), code, want)
	}
}

func TestBackupIsInterrupted(t *testing.T) {
	sent := make(chan struct{})
	address := serveBackup(t, func(stream backupStream) error {
		if err := backupPieces(6, nil, "one")(stream); err != nil {
			return err
		}
		close(sent)
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	dir := t.TempDir()
	s := openTerminal(t.Context(), t, "--address", address, "backup", filepath.Join(dir, "b.db"))
	<-sent
	if diff := cmp.Diff([]string{"b.db.partial"}, names(t, dir)); diff != "" {
		t.Errorf("files during the backup (-want +got):\n%s", diff)
	}
	s.interrupt()
	s.expect("parley: interrupted\n")
	s.expectEnd(1)
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("files after the interrupt = %v, want none", left)
	}
}

// names returns the names of the files in dir.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		all = append(all, entry.Name())
	}
	return all
}

func TestBackupShowsProgress(t *testing.T) {
	address := serveBackup(t, backupPieces(6, nil, "one", "two"))
	left, written := runOnTerminal(t, io.Discard, "--address", address, "backup", "-")
	if left != "backed up 6 B\n" || !strings.Contains(written, "waiting until") ||
		!strings.Contains(written, "\rbacking up") {
		t.Errorf("final screen %q, output %q", left, written)
	}
	if left, _ := runOnTerminal(t, io.Discard, "--address", address, "backup", "--quiet", "-"); left != "" {
		t.Errorf("--quiet: final screen %q, want none", left)
	}
	lost := errors.New("gone")
	if left, _ := runOnTerminal(t, io.Discard, "--address", serveBackup(t, backupPieces(6, lost, "one")), "backup", "-"); left != "parley: gone (Unknown)\n" {
		t.Errorf("failed backup: final screen %q", left)
	}
}
