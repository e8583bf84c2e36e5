package faulttest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestTwoProcesses checks that only one server uses a store. A second one ends and says why. The first
// one continues, also if it was stopped by a signal in the meantime.
func TestTwoProcesses(t *testing.T) {
	for name, test := range map[string]struct {
		stopFirst bool                                      // by SIGSTOP while the second one starts
		other     func(t *testing.T, dataDir string) string // creates the second one's data directory
	}{
		"same directory":           {other: sameDir},
		"first server stopped":     {other: sameDir, stopFirst: true},
		"through a link":           {other: linkedDir},
		"another name of the file": {other: linkedFile},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir, clients := t.TempDir(), newClients(4, 7)
			first := start(t, dataDir)
			work := startLoad(t, first, clients)
			if err := work.await(20, 0); err != nil {
				t.Fatal(err)
			}
			if test.stopFirst {
				first.signal(t, syscall.SIGSTOP)
			}
			other := test.other(t, dataDir)
			for range rounds(2, 20) {
				wantRefused(t, launch(t, other, nil))
				counts.add(t, "second servers refused", 1)
			}
			if code, out := check(t, filepath.Join(other, fileName)); code != exitInUse {
				t.Errorf("parleyd check = exit code %d, want %d; output:\n%s", code, exitInUse, quote(out))
			}
			if test.stopFirst {
				first.signal(t, syscall.SIGCONT)
			}
			if err := work.await(20, 0); err != nil {
				t.Fatal(err)
			}
			first.kill()
			counts.add(t, "steps acknowledged", 40+work.end())
			again := start(t, dataDir)
			if err := verifyAll(t, again, clients); err != nil {
				t.Fatal(err)
			}
			again.stop(t)
		})
	}
}

// TestTwoFirstStarts checks that of several servers which create a store at once, one gets it.
func TestTwoFirstStarts(t *testing.T) {
	for range rounds(5, 50) {
		const starting = 4
		dataDir := filepath.Join(t.TempDir(), "data")
		var all [starting]*server
		for i := range all {
			all[i] = launch(t, dataDir, nil)
		}
		var serving []*server
		for _, s := range all {
			if s.awaitServing() == nil {
				serving = append(serving, s)
			} else {
				wantRefused(t, s)
			}
		}
		if len(serving) != 1 {
			t.Fatalf("servers with the same store = %d, want 1", len(serving))
		}
		serving[0].stop(t)
		counts.add(t, "first starts at once", starting)
	}
}

// TestTwoProcessesWithoutLock is the control: without the lock of the file, a second server serves.
func TestTwoProcessesWithoutLock(t *testing.T) {
	requireProgram(t, "strace", "strace")
	dataDir := t.TempDir()
	start(t, dataDir)
	s, _ := launchTraced(t, dataDir, []string{"flock:retval=0"}, "--interaction-log=false")
	if err := s.awaitServing(); err != nil {
		t.Errorf("second server without the lock: %v, want it to serve; the test of two processes proves nothing", err)
	}
	counts.add(t, "control: second servers that served", 1)
}

// wantRefused checks that a server ends because its store is in use.
func wantRefused(t *testing.T, s *server) {
	t.Helper()
	line, err := s.awaitFailure(t, exitInUse)
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(line, "in use") || !strings.Contains(line, "use another") {
		t.Errorf("final line = %q, want the cause and what to do", line)
	}
}

// signal sends a signal to a server and its wrapper.
func (s *server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-s.process.Process.Pid, signal); err != nil {
		t.Fatal(err)
	}
}

// check runs parleyd check on a file. It returns the exit code and the output.
func check(t *testing.T, path string) (code int, out string) {
	t.Helper()
	b, err := exec.CommandContext(t.Context(), parleyd, "check", path).CombinedOutput()
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0, string(b)
	case !ended:
		t.Fatal(err)
	}
	return exit.ExitCode(), string(b)
}

func sameDir(_ *testing.T, dataDir string) string { return dataDir }

func linkedDir(t *testing.T, dataDir string) string {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dataDir, link); err != nil {
		t.Fatal(err)
	}
	return link
}

func linkedFile(t *testing.T, dataDir string) string {
	t.Helper()
	other := t.TempDir()
	if err := os.Link(filepath.Join(dataDir, fileName), filepath.Join(other, fileName)); err != nil {
		t.Fatal(err)
	}
	return other
}
