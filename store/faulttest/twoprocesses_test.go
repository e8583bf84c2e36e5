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

// Whoever has the store has it alone: another server ends and says why, and the first goes on
// as if nothing had been, even if it stood still meanwhile.
func TestTwoProcesses(t *testing.T) {
	for name, test := range map[string]struct {
		still bool                                      // the first one, meanwhile
		other func(t *testing.T, dataDir string) string // makes the second one's data directory
	}{
		"same directory":           {other: sameDir},
		"the first stands still":   {other: sameDir, still: true},
		"through a link":           {other: linkedDir},
		"another name of the file": {other: linkedFile},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir, clients := t.TempDir(), newClients(4, 7)
			first := start(t, dataDir)
			work := begin(t, first, clients)
			if err := work.await(20, 0); err != nil {
				t.Fatal(err)
			}
			if test.still {
				first.signal(t, syscall.SIGSTOP)
			}
			other := test.other(t, dataDir)
			for range rounds(2, 20) {
				refused(t, launch(t, other, nil))
				counts.add(t, "second servers refused", 1)
			}
			if code, out := check(t, filepath.Join(other, fileName)); code != exitInUse {
				t.Errorf("parleyd check ended with %d, want %d:\n%s", code, exitInUse, quote(out))
			}
			if test.still {
				first.signal(t, syscall.SIGCONT)
			}
			if err := work.await(20, 0); err != nil {
				t.Fatal(err)
			}
			first.kill()
			counts.add(t, "steps acknowledged", 40+work.end())
			again := start(t, dataDir)
			if err := recoverAll(t, again, clients); err != nil {
				t.Fatal(err)
			}
			again.stop(t)
		})
	}
}

// Of several that make the store at once, one has it.
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
			if s.serves(t) == nil {
				serving = append(serving, s)
			} else {
				refused(t, s)
			}
		}
		if len(serving) != 1 {
			t.Fatalf("%d servers have the same store", len(serving))
		}
		serving[0].stop(t)
		counts.add(t, "first starts at once", starting)
	}
}

// The control: a server that does not lock its file is not refused, and it shows.
func TestTwoProcessesWithoutLock(t *testing.T) {
	need(t, "strace", "strace")
	dataDir := t.TempDir()
	start(t, dataDir)
	s, _ := launchTraced(t, dataDir, []string{"flock:retval=0"}, "--interaction-log=false")
	if err := s.serves(t); err != nil {
		t.Errorf("without its lock a second server is refused all the same: the test of two processes proves nothing: %v", err)
	}
	counts.add(t, "control: second servers that served", 1)
}

// refused checks that a server ends because its store is in use.
func refused(t *testing.T, s *server) {
	t.Helper()
	word, err := s.endsWith(t, exitInUse)
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(word, "in use") || !strings.Contains(word, "use another") {
		t.Errorf("it says neither the cause nor what to do: %s", word)
	}
}

// signal sends a signal to a server and what runs it.
func (s *server) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-s.process.Process.Pid, signal); err != nil {
		t.Fatal(err)
	}
}

// check runs parleyd check on a file, and returns its exit code and what it wrote.
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
