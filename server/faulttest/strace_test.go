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

// tracer is the strace process that runs a server and makes its system calls fail.
type tracer struct {
	// first is closed when the first call has failed.
	first chan struct{}
	// output is the pipe to which strace writes. drained receives when an endOfOutput was read from it.
	output  *os.File
	drained chan struct{}

	mu     sync.Mutex
	failed []string // failed calls as strace prints them
}

// endOfOutput is a line that is not of strace. It is written when strace has ended.
const endOfOutput = "end of output"

// onlyOn is the prefix of a path in a list of faults: only calls on these paths fail, if there are any.
const onlyOn = "only on "

// launchTraced is like launch and makes system calls fail. The faults are arguments of strace's inject
// option. Their when= counts the calls of each thread.
func launchTraced(t *testing.T, dataDir string, faults []string, flags ...string) (*server, *tracer) {
	t.Helper()
	return launchTracedAs(t, nil, dataDir, faults, flags...)
}

// launchTracedAs is launchTraced for another program than the real one; see buildWith.
func launchTracedAs(
	t *testing.T, program []string, dataDir string, faults []string, flags ...string,
) (*server, *tracer) {
	t.Helper()
	requireProgram(t, "strace", "strace")
	// A named pipe returns the output of strace at once.
	path := filepath.Join(t.TempDir(), "trace")
	err := syscall.Mkfifo(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Without a writer, reads would return at once until strace opens the pipe.
	to, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	tr := &tracer{first: make(chan struct{}), output: to, drained: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(from); lines.Scan(); {
			tr.read(lines.Text())
		}
	}()
	t.Cleanup(func() { // It runs after the cleanup of launch, when strace has ended.
		if err := to.Close(); err != nil {
			t.Error(err)
		}
		<-done
		from.Close()
	})
	wrapper := []string{"strace", "-f", "-qq", "-o", path, "-e", "signal=none"}
	if !strings.Contains(strings.Join(faults, ""), "signal=") {
		// strace then stops only at these calls. It is not used with signals, which strace would send only at the first call.
		wrapper = append(wrapper, "--seccomp-bpf")
	}
	var calls []string
	for _, fault := range faults {
		if path, ok := strings.CutPrefix(fault, onlyOn); ok {
			wrapper = append(wrapper, "-P", path)
			continue
		}
		call, _, _ := strings.Cut(fault, ":")
		calls, wrapper = append(calls, call), append(wrapper, "-e", "inject="+fault)
	}
	wrapper = append(wrapper, "-e", "trace="+strings.Join(calls, ","))
	return launch(t, dataDir, append(wrapper, program...), flags...), tr
}

// drain waits until everything is read that strace wrote before it ended.
func (c *tracer) drain(t *testing.T) {
	t.Helper()
	if _, err := c.output.WriteString(endOfOutput + "\n"); err != nil {
		t.Fatal(err)
	}
	<-c.drained
}

func (c *tracer) read(line string) {
	if strings.HasSuffix(line, endOfOutput) { // It follows a part of a line if strace was killed.
		c.drained <- struct{}{}
		return
	}
	if !strings.Contains(line, "(INJECTED)") && !strings.Contains(line, "(DELAYED)") {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed = append(c.failed, line); len(c.failed) == 1 {
		close(c.first)
	}
}

// calls returns how many calls have failed so far.
func (c *tracer) calls() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.failed)
}

// finalLine returns the line that a parleyd writes when it ends with an error. All other lines of
// standard error are its log. There must be exactly one line, and no stack.
func finalLine(stderr string) (string, error) {
	var final []string
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "{") {
			final = append(final, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(final) != 1 || !strings.HasPrefix(final[0], "parleyd: ") {
		return "", fmt.Errorf("standard error has %d lines that are not log entries, want one:\n%s", len(final), quote(stderr))
	}
	return final[0], nil
}

// The exit codes of parleyd.
const (
	exitDamaged = 65
	exitIO      = 74
	exitInUse   = 75
)

// awaitFailure waits for the end of a server that cannot continue. It returns the final line, and an
// error if the exit code or the output is wrong.
func (s *server) awaitFailure(t *testing.T, want int) (line string, err error) {
	t.Helper()
	if want == exitDamaged && s.awaitServing() == nil {
		return "", errors.New("the server serves, want it to end")
	}
	// In the control of failing calls, damage that is not noticed can make bbolt read pages in a circle.
	if err := s.awaitEnd(); err != nil {
		return "", err
	}
	code, stderr := s.awaitExit(t)
	line, err = finalLine(stderr)
	if code != want {
		err = errors.Join(fmt.Errorf("parleyd ended with %d, want %d: %s", code, want, line), err)
	}
	return line, err
}
