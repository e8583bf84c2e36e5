package main

import (
	"bytes"
	"os"
	"path/filepath"
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

// wantOffline fails the test unless a command ends with that code and writes these parts.
// Standard error is one line, or nothing.
func wantOffline(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := offline(t, args...)
	if gotCode != code || !strings.Contains(gotOut, stdout) || !strings.Contains(gotErr, stderr) ||
		strings.Count(gotErr, "\n") > 1 || (gotErr == "") != (code == 0) {
		t.Errorf("%q ended with %d, standard output %q, standard error %q; want %d, %q, %q", args, gotCode, gotOut, gotErr, code, stdout, stderr)
	}
}

// stopped makes a data directory with a conversation and a server that has stopped, in order
// or killed, and returns it.
func stopped(t *testing.T, end func(*server)) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	s := startServer(t, dir)
	if _, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "shop", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "two pounds of sugar"}},
	}); err != nil {
		t.Fatal(err)
	}
	end(s)
	<-s.ended
	return dir, filepath.Join(dir, storeName)
}

// spoil changes the file where this text is.
func spoil(t *testing.T, path, text string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := bytes.ReplaceAll(content, []byte(text), bytes.ToUpper([]byte(text)))
	if bytes.Equal(spoiled, content) {
		t.Fatalf("%q is not there", text)
	}
	if err := os.WriteFile(path, spoiled, 0o600); err != nil {
		t.Fatal(err)
	}
}

// spoilPages overwrites every page but the two meta pages.
func spoilPages(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range content[2*os.Getpagesize():] {
		content[2*os.Getpagesize()+i] = byte(i*i>>3) | 1
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOfflineCommands(t *testing.T) {
	dir, path := stopped(t, (*server).terminate)
	data := "--data-dir=" + dir
	wantOffline(t, 0, " 1 conversations, 1 messages; 0 faults\n", "", "check", data)
	wantOffline(t, 0, "compacted "+path, "", "compact", data)
	wantOffline(t, 0, "; 0 faults\n", "", "check", path)

	spare := t.TempDir()
	copied := filepath.Join(spare, storeName)
	wantOffline(t, 0, "restored "+copied, "", "restore", path, "--data-dir="+spare)
	wantOffline(t, exitIO, "", "there is a store already: move it aside with --force", "restore", path, "--data-dir="+spare)
	wantOffline(t, 0, "what was there before is "+copied+".before-", "", "restore", path, "--data-dir="+spare, "--force")

	spoil(t, copied, "sugar")
	wantOffline(t, exitDamaged, `conversation "shop" of tenant "default": record is corrupt`, "parleyd: store "+copied+": file is damaged", "check", copied)
	wantOffline(t, exitDamaged, `conversation "shop"`, "file is damaged", "restore", copied, data, "--force")
	wantOffline(t, exitDamaged, `conversation "shop"`, "file is damaged", "compact", "--data-dir="+spare)
	wantOffline(t, exitUsage, "", "command line: accepts 1 arg(s), received 0; see 'parleyd restore --help'", "restore")
	wantOffline(t, exitIO, "", "no such file", "check", filepath.Join(spare, "none"))

	s := startServer(t, dir) // What failed has left it alone.
	for _, args := range [][]string{{"check"}, {"compact"}, {"restore", "--force", backupOf(t, s)}} {
		wantOffline(t, exitInUse, "", "another process has it open", append(args, data)...)
	}
	s.terminate()
	s.wantStop(t)
}

// TestStartAfterKill: a file that was not closed in order is looked at.
func TestStartAfterKill(t *testing.T) {
	const message = "store was not closed in order; its pages are sound"
	dir, path := stopped(t, (*server).kill)
	s := startServer(t, dir)
	if found, _ := s.log.find(message); len(found) != 1 {
		t.Errorf("%d lines say that it was looked at, want 1", len(found))
	}
	s.terminate()
	s.wantStop(t)
	s = startServer(t, dir)
	if found, _ := s.log.find(message); len(found) != 0 {
		t.Error("it was looked at though it had been closed in order")
	}
	s.kill()

	spoilPages(t, path)
	wantOffline(t, exitDamaged, "", "parleyd: store "+path+": file is damaged", "check", path)
	var stderr bytes.Buffer
	process := parleyd(t, "--data-dir="+dir)
	process.Stderr = &stderr
	if err := process.Run(); process.ProcessState == nil || process.ProcessState.ExitCode() != exitDamaged {
		t.Errorf("started with %v on what is no store any more", err)
	}
	if said := stderr.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, path) || !strings.Contains(said, "restore a backup") {
		t.Errorf("it says %q, want one line with the file and what to do", said)
	}
}

// TestExamineEnds: the process that looks at a file ends with the one that wants to know, also
// while it waits.
func TestExamineEnds(t *testing.T) {
	_, path := stopped(t, (*server).terminate)
	held, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	for name, test := range map[string]struct {
		there bool
		code  int
	}{"nobody is there": {false, exitIO}, "somebody is there": {true, exitInUse}} {
		process := parleyd(t)
		process.Args = append(process.Args[:1], examineName, path)
		if test.there {
			if _, err := process.StdinPipe(); err != nil {
				t.Fatal(err)
			}
		}
		if err := process.Run(); process.ProcessState == nil || process.ProcessState.ExitCode() != test.code {
			t.Errorf("%s: ended with %v, want exit code %d", name, err, test.code)
		}
	}
}
