package faulttest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// tracer is the strace that runs a server and makes its system calls fail.
type tracer struct {
	// first is closed when the first call has failed.
	first chan struct{}

	mu     sync.Mutex
	failed []string // the calls that have failed, as strace prints them
}

// launchTraced launches parleyd as launch does, and has system calls fail as faults say, in
// the words of strace's inject. Their when= counts the calls of each thread.
func launchTraced(t *testing.T, dataDir string, faults []string, flags ...string) (*server, *tracer) {
	t.Helper()
	return launchTracedAs(t, nil, dataDir, faults, flags...)
}

// launchTracedAs launches another program than the real one, see buildWith.
func launchTracedAs(t *testing.T, program []string, dataDir string, faults []string, flags ...string) (*server, *tracer) {
	t.Helper()
	need(t, "strace", "strace")
	// A pipe with a name tells at once what strace prints.
	path := filepath.Join(t.TempDir(), "trace")
	err := syscall.Mkfifo(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Without a writer there would be nothing to wait for until strace opens it.
	to, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tr, done := &tracer{first: make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(from); lines.Scan(); {
			tr.read(lines.Text())
		}
	}()
	t.Cleanup(func() { // After that of launch: strace has gone.
		if err := to.Close(); err != nil {
			t.Error(err)
		}
		<-done
		from.Close()
	})
	wrapper := []string{"strace", "-f", "-qq", "-o", path, "-e", "signal=none"}
	if !strings.Contains(strings.Join(faults, ""), "signal=") {
		// Stops at no call but these. Signals strace then sends at the first call only.
		wrapper = append(wrapper, "--seccomp-bpf")
	}
	calls := make([]string, len(faults))
	for i, fault := range faults {
		calls[i], _, _ = strings.Cut(fault, ":")
	}
	wrapper = append(wrapper, "-e", "trace="+strings.Join(calls, ","))
	for _, fault := range faults {
		wrapper = append(wrapper, "-e", "inject="+fault)
	}
	return launch(t, dataDir, append(wrapper, program...), flags...), tr
}

func (c *tracer) read(line string) {
	if !strings.Contains(line, "(INJECTED)") && !strings.Contains(line, "(DELAYED)") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = append(c.failed, line); len(c.failed) == 1 {
		close(c.first)
	}
}

// calls is how many calls have failed so far.
func (c *tracer) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.failed)
}

// lastWord returns the one line that a parleyd ends with which cannot go on: what is wrong,
// not where in the program. All else on standard error is its log.
func lastWord(stderr string) (string, error) {
	var words []string
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "{") {
			words = append(words, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(words) != 1 || !strings.HasPrefix(words[0], "parleyd: ") {
		return "", fmt.Errorf("it ended with %d lines beside its log, want one:\n%s", len(words), quote(stderr))
	}
	return words[0], nil
}

// The exit codes of parleyd.
const (
	exitDamaged = 65
	exitIO      = 74
	exitInUse   = 75
)

// endsWith waits for the end of a server that cannot go on, and says what is wrong with it.
func (s *server) endsWith(t *testing.T, want int) (word string, err error) {
	t.Helper()
	code, stderr := s.exit(t)
	word, err = lastWord(stderr)
	if code != want {
		err = errors.Join(fmt.Errorf("parleyd ended with %d, want %d: %s", code, want, word), err)
	}
	return word, err
}
