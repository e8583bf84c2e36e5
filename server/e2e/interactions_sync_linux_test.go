package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestInteractionLogSyncFails makes fsync of the log's files fail for a while. After a clean stop
// the log is complete, and the next start does not compare it with the store.
func TestInteractionLogSyncFails(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	l := startLogged(t, dataDir)
	restore := failCalls(t, l.process.Process.Pid, "fsync")
	ask(t, l.server, "c", "one")
	l.await(t, "interaction log may not survive a power cut")
	restore()
	ask(t, l.server, "c", "two")
	l.terminate()
	l.wantStop(t)
	text, err := os.ReadFile(filepath.Join(l.dir, "checkpoint.json"))
	if err != nil {
		t.Fatal(err)
	}
	var checkpoint struct{ Clean bool }
	if err := json.NewDecoder(strings.NewReader(string(text))).Decode(&checkpoint); err != nil || !checkpoint.Clean {
		t.Errorf("checkpoint = %s, %v, want a clean one", text, err)
	}
	wantEntries(t, "log", l.entries(t), "c 1 User: one", "c 2 echo: one", "c 3 User: two", "c 4 echo: two")
}

// failCalls makes every call of a system call by a process fail until restore is called.
func failCalls(t *testing.T, pid int, systemCall string) (restore func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "strace", "-f", "-p", fmt.Sprint(pid), "-e", "trace="+systemCall, "-e",
		"inject="+systemCall+":error=EIO")
	out, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Skipf("strace does not start: %v", err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.Contains(lines.Text(), "attached") {
		_ = cmd.Wait()
		t.Skipf("strace cannot trace: %s", lines.Text())
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines.Scan() { // A full pipe would block strace and the server.
		}
	}()
	stop := func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // strace detaches on SIGINT.
		<-read
		_ = cmd.Wait()
	}
	t.Cleanup(stop)
	return stop
}
