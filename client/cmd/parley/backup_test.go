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

// serveBackup serves backups until the test ends and returns where.
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

// pieces is a backup that says it has so many bytes, brings these, and ends with err.
func pieces(whole int64, err error, chunks ...string) func(backupStream) error {
	return func(stream backupStream) error {
		for i, chunk := range chunks {
			reply := &parleyv1.BackupStoreResponse{Chunk: []byte(chunk)}
			if i == 0 {
				reply.SizeBytes = whole
			}
			if err := stream.Send(reply); err != nil {
				return err
			}
		}
		return err
	}
}

// filled makes a directory with these files.
func filled(t *testing.T, content map[string]string) string {
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
	const there = " is there already"
	old, partial := map[string]string{"b.db": "old"}, map[string]string{"b.db.partial": "old"}
	whole := pieces(6, nil, "one", "", "two")
	lost := status.Error(codes.Internal, "out of order")
	tests := []struct {
		name   string
		backup func(backupStream) error
		before map[string]string
		args   []string
		after  map[string]string
		stderr string // A part of it.
		code   int
	}{
		{"new", whole, nil, nil, map[string]string{"b.db": "-rw------- onetwo"}, "backed up 6 B\n", 0},
		{"quiet", whole, nil, []string{"--quiet"}, map[string]string{"b.db": "-rw------- onetwo"}, "", 0},
		{"an old one stays", whole, old, nil, map[string]string{"b.db": "-rw------- old"}, there, 64},
		{"an old one goes", whole, old, []string{"--force"}, map[string]string{"b.db": "-rw------- onetwo"}, "backed up 6 B\n", 0},
		{"another is being written", whole, partial, nil, map[string]string{"b.db.partial": "-rw------- old"}, there, 64},
		{"another was cut off", whole, partial, []string{"--force"}, map[string]string{"b.db": "-rw------- onetwo"}, "backed up 6 B\n", 0},
		{"bytes are missing", pieces(7, nil, "one", "two"), nil, nil, map[string]string{}, "the copy is not whole: 6 of 7 bytes came", 1},
		{"bytes too many", pieces(5, nil, "one", "two"), nil, nil, map[string]string{}, "the copy is not whole: 6 of 5 bytes came", 1},
		{"nothing came", pieces(0, nil), nil, nil, map[string]string{}, "the copy is not whole: 0 of 0 bytes came", 1},
		{"no size came", pieces(0, nil, "one"), nil, nil, map[string]string{}, "the copy is not whole: 3 of 0 bytes came", 1},
		{"the server breaks off", pieces(7, lost, "one"), old, []string{"--force"}, map[string]string{"b.db": "-rw------- old"}, "out of order (Internal)", 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filled(t, test.before)
			args := append([]string{"--address", serveBackup(t, test.backup), "backup", filepath.Join(dir, "b.db")}, test.args...)
			stdout, stderr, code := once(t.Context(), "", args...)
			if stdout != "" || !strings.Contains(stderr, test.stderr) || (test.stderr == "") != (stderr == "") || code != test.code {
				t.Errorf("standard output %q, standard error %q, exit code %d; want %q, %d", stdout, stderr, code, test.stderr, test.code)
			}
			if diff := cmp.Diff(test.after, files(t, dir)); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBackupReplacesNoStore: a file that a server has open stays, also with --force.
func TestBackupReplacesNoStore(t *testing.T) {
	dir := filled(t, map[string]string{"b.db": "old"})
	name := filepath.Join(dir, "b.db")
	held, err := lockReplaced(name)
	if err != nil {
		t.Fatal(err)
	}
	_, stderr, code := once(t.Context(), "", "--address", serveBackup(t, pieces(6, nil, "one", "two")), "backup", name, "--force")
	if !strings.Contains(stderr, "a server has it open") || code != 64 {
		t.Errorf("standard error %q, exit code %d", stderr, code)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"b.db": "-rw------- old"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestBackupPushedAside: a backup whose .partial another one has replaced leaves that alone.
func TestBackupPushedAside(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "b.db")
	err := writeNew(name, false, func(w io.Writer) error {
		_, err := io.WriteString(w, "mine")
		return errors.Join(err, os.Remove(name+".partial"), os.WriteFile(name+".partial", []byte("another's"), 0o600))
	})
	if err == nil || !strings.Contains(err.Error(), "another backup took its place") {
		t.Errorf("error %v", err)
	}
	if diff := cmp.Diff(map[string]string{"b.db.partial": "-rw------- another's"}, files(t, dir)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestBackupToStandardOutput(t *testing.T) {
	address := serveBackup(t, pieces(6, nil, "one", "two"))
	stdout, stderr, code := once(t.Context(), "", "--address", address, "backup", "-")
	if stdout != "onetwo" || stderr != "backed up 6 B\n" || code != 0 {
		t.Errorf("standard output %q, standard error %q, exit code %d", stdout, stderr, code)
	}
	_, written := seen(t, nil, "--address", address, "backup", "-")
	if !strings.Contains(written, "not for a terminal") {
		t.Errorf("on a terminal: %q", written)
	}
	dir := t.TempDir()
	if _, stderr, code := once(t.Context(), "", "--address", address, "backup", "--force", dir); !strings.Contains(stderr, "not a file") || code != 64 {
		t.Errorf("into a directory: standard error %q, exit code %d, want 64", stderr, code)
	}
}

func TestBackupHasNoTimeLimitOfItsOwn(t *testing.T) {
	address := serveBackup(t, func(stream backupStream) error {
		if _, limited := stream.Context().Deadline(); limited {
			t.Error("the call has a deadline")
		}
		return pieces(1, nil, "x")(stream)
	})
	if _, stderr, code := once(t.Context(), "", "--address", address, "backup", "-"); code != 0 {
		t.Errorf("standard error %q, exit code %d", stderr, code)
	}
}

func TestBackupThatCannotBeWritten(t *testing.T) {
	address := serveBackup(t, func(stream backupStream) error {
		if err := pieces(6, nil, "one", "two")(stream); err != nil {
			return err
		}
		<-stream.Context().Done() // It must not be waited for.
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
		if err := pieces(6, nil, "one")(stream); err != nil {
			return err
		}
		close(sent)
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	dir := t.TempDir()
	s := open(t.Context(), t, "--address", address, "backup", filepath.Join(dir, "b.db"))
	<-sent
	if diff := cmp.Diff([]string{"b.db.partial"}, names(t, dir)); diff != "" {
		t.Errorf("files on the way (-want +got):\n%s", diff)
	}
	s.interrupt()
	s.expect("parley: interrupted\n")
	s.expectEnd(1)
	if left := names(t, dir); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

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

func TestBackupShowsHowFarItIs(t *testing.T) {
	address := serveBackup(t, pieces(6, nil, "one", "two"))
	left, written := seen(t, io.Discard, "--address", address, "backup", "-")
	if left != "backed up 6 B\n" || !strings.Contains(written, "waiting until") || !strings.Contains(written, "\rbacking up") {
		t.Errorf("left on the screen %q, written %q", left, written)
	}
	if left, _ := seen(t, io.Discard, "--address", address, "backup", "--quiet", "-"); left != "" {
		t.Errorf("quietly: left on the screen %q", left)
	}
	lost := errors.New("gone")
	if left, _ := seen(t, io.Discard, "--address", serveBackup(t, pieces(6, lost, "one")), "backup", "-"); left != "parley: gone (Unknown)\n" {
		t.Errorf("that fails: left on the screen %q", left)
	}
}
