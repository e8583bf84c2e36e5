package e2e

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// offline runs a command of parleyd on files and returns its exit code and what it wrote.
func offline(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	process := parleyd(t)
	process.Args = append(process.Args[:1], args...)
	var out, errs bytes.Buffer
	process.Stdout, process.Stderr = &out, &errs
	if err := process.Run(); process.ProcessState == nil {
		t.Fatal(err)
	}
	return process.ProcessState.ExitCode(), out.String(), errs.String()
}

// wantOffline fails the test unless a command ends with code and writes texts that contain stdout
// and stderr. Standard error must be one line, or empty if code is 0.
func wantOffline(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := offline(t, args...)
	if gotCode != code || !strings.Contains(gotOut, stdout) || !strings.Contains(gotErr, stderr) ||
		strings.Count(gotErr, "\n") > 1 || (gotErr == "") != (code == 0) {
		t.Errorf("parleyd %q = exit code %d, standard output %q, standard error %q; want %d, %q, %q", args, gotCode, gotOut,
			gotErr, code, stdout, stderr)
	}
}

// newDataDir returns a data directory with one conversation, and its store's file. The server that
// wrote it has ended by end.
func newDataDir(t *testing.T, end func(*server)) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	s := startServer(t, dir)
	if _, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "shop", Messages: []*parleyv1.Message{
			{Role: parleyv1.Role_ROLE_USER, Content: "two pounds of sugar"},
		},
	}); err != nil {
		t.Fatal(err)
	}
	end(s)
	<-s.process.Ended()
	return dir, filepath.Join(dir, storeName)
}

// corruptText changes every occurrence of text in the file.
func corruptText(t *testing.T, path, text string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	corrupted := bytes.ReplaceAll(content, []byte(text), bytes.ToUpper([]byte(text)))
	if bytes.Equal(corrupted, content) {
		t.Fatalf("%s does not contain %q", path, text)
	}
	if err := os.WriteFile(path, corrupted, 0o600); err != nil {
		t.Fatal(err)
	}
}

// corruptPages overwrites every page except the two meta pages and that of the list of free pages, without which the
// file is not even checked.
func corruptPages(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const freeList = 0x10 // in the flags of a page
	for page := range slices.Chunk(content[2*os.Getpagesize():], os.Getpagesize()) {
		if binary.NativeEndian.Uint16(page[8:]) == freeList {
			continue
		}
		for i := range page {
			page[i] = byte(i*i>>3) | 1
		}
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOfflineCommands(t *testing.T) {
	t.Parallel()
	dir, path := newDataDir(t, (*server).terminate)
	data := "--data-dir=" + dir
	wantOffline(t, 0, " 1 conversations, 1 messages, 0 records; 0 faults\n", "", "check", data)
	wantOffline(t, 0, "compacted "+path, "", "compact", data)
	wantOffline(t, 0, "; 0 faults\n", "", "check", path)

	spare := t.TempDir()
	copied := filepath.Join(spare, storeName)
	wantOffline(t, 0, "restored "+copied, "", "restore", path, "--data-dir="+spare)
	wantOffline(t, exitIO, "", "there is a store already: move it aside with --force", "restore", path, "--data-dir="+spare)
	wantOffline(t, 0, "previous store moved to "+copied+".before-", "", "restore", path, "--data-dir="+spare, "--force")

	corruptText(t, copied, "sugar")
	wantOffline(t, exitDamaged, `conversation "shop" of tenant "default": record is corrupt`,
		"parleyd: store "+copied+": file is damaged", "check", copied)
	wantOffline(t, exitDamaged, `conversation "shop"`, "file is damaged", "restore", copied, data, "--force")
	wantOffline(t, exitDamaged, `conversation "shop"`, "file is damaged", "compact", "--data-dir="+spare)
	wantOffline(t, exitUsage, "", "command line: accepts 1 arg(s), received 0; see 'parleyd restore --help'", "restore")
	wantOffline(t, exitIO, "", "no such file", "check", filepath.Join(spare, "none"))

	s := startServer(t, dir) // The failed commands did not change the store.
	for _, args := range [][]string{{"check"}, {"compact"}, {"restore", "--force", backupOf(t, s)}} {
		wantOffline(t, exitInUse, "", "another process has it open", append(args, data)...)
	}
	s.terminate()
	s.wantStop(t)
}

// TestStartAfterKill checks that a start reports the check of a file that was not closed in order.
func TestStartAfterKill(t *testing.T) {
	t.Parallel()
	const message = "store was not closed in order; its pages are sound"
	dir, path := newDataDir(t, (*server).kill)
	s := startServer(t, dir)
	if found, _ := s.log.Find(message); len(found) != 1 {
		t.Errorf("%q was logged %d times after a kill, want 1", message, len(found))
	}
	s.terminate()
	s.wantStop(t)
	s = startServer(t, dir)
	if found, _ := s.log.Find(message); len(found) != 0 {
		t.Errorf("%q was logged %d times after a stop, want 0", message, len(found))
	}
	s.kill()

	// The file of a killed server is complete only with its journal.
	spare, alone := t.TempDir(), filepath.Join(t.TempDir(), storeName)
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(alone, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantOffline(t, exitDamaged, "", "is missing", "restore", alone, "--data-dir="+spare)
	wantOffline(t, 0, "restored "+filepath.Join(spare, storeName), "", "restore", path, "--data-dir="+spare)
	wantOffline(t, 0, "its journal moved to "+path+".before-", "", "restore", filepath.Join(spare, storeName),
		"--data-dir="+dir, "--force")

	corruptPages(t, path)
	wantOffline(t, exitDamaged, "", "parleyd: store "+path+": file is damaged", "check", path)
	wantOffline(t, exitDamaged, "checked ", path+" has the faults above", "restore", path, "--data-dir="+t.TempDir())
	var stderr bytes.Buffer
	process := parleyd(t, "--data-dir="+dir)
	process.Stderr = &stderr
	if err := process.Run(); process.ProcessState == nil || process.ProcessState.ExitCode() != exitDamaged {
		t.Errorf("start with damaged pages = %v, want exit code %d", err, exitDamaged)
	}
	if got := stderr.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, path) ||
		!strings.Contains(got, "restore a backup") {
		t.Errorf("standard error = %q, want one line with the file and what to do", got)
	}
}

// TestCheckProcessEnds checks that a check process ends when its parent has ended, also while it
// waits for the file.
func TestCheckProcessEnds(t *testing.T) {
	t.Parallel()
	_, path := newDataDir(t, (*server).terminate)
	locked, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(locked.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	for name, test := range map[string]struct {
		openStdin bool
		code      int
	}{"parent has ended": {false, exitIO}, "parent runs": {true, exitInUse}} {
		process := parleyd(t)
		process.Args = append(process.Args[:1], "check-process", path)
		if test.openStdin {
			if _, err := process.StdinPipe(); err != nil {
				t.Fatal(err)
			}
		}
		if err := process.Run(); process.ProcessState == nil || process.ProcessState.ExitCode() != test.code {
			t.Errorf("%s: process ended with %v, want exit code %d", name, err, test.code)
		}
	}
}
