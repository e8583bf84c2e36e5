package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// startTime is the time limit for a server or a cluster to serve. Only a failing test takes that long.
	startTime = time.Minute
	// stopTime is the time limit for a server to end after SIGTERM. Then it is killed.
	stopTime = 10 * time.Second
	// pollInterval is the time between two checks of a state that no event announces.
	pollInterval = 20 * time.Millisecond
)

// errPortTaken is the error that another process listens on the port of a server.
var errPortTaken = errors.New("port taken by another process")

func isPortTaken(message string) bool {
	return strings.Contains(strings.ToLower(message), "address already in use")
}

// process is a started server.
type process struct {
	name   string
	cmd    *exec.Cmd
	output output
	done   chan struct{} // closed when it has ended and its output is read
}

// startProcess starts a program in a folder. Without arguments, it reads its configuration from standard input, so that
// the arguments, which all users of the machine see, do not contain the password.
func startProcess(program, dir, config string, args ...string) (*process, error) {
	if len(args) == 0 {
		args = []string{"-"}
	}
	p := &process{
		name: filepath.Base(program), cmd: exec.Command(program, args...),
		output: output{ready: make(chan struct{})}, done: make(chan struct{}),
	}
	p.cmd.Dir = dir
	p.cmd.Stdin = strings.NewReader(config)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	p.cmd.WaitDelay = stopTime // A child that rewrites the append-only file may hold the output open.
	p.cmd.SysProcAttr = endsWithParent()
	started := make(chan error)
	go func() {
		// The kernel kills the process when the thread that started it ends, so the thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // The error is in ProcessState.
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return p, nil
}

// awaitReady waits until the server says that it accepts connections. If it does not within startTime,
// awaitReady kills it. The error is errPortTaken if the server ended because of a port.
func (p *process) awaitReady() error {
	timer := time.NewTimer(startTime)
	defer timer.Stop()
	select {
	case <-p.output.ready:
		return nil
	case <-p.done:
		if isPortTaken(p.output.String()) {
			return fmt.Errorf("%s: %w", p.name, errPortTaken)
		}
		return fmt.Errorf("%s ended at its start with %v:\n%s", p.name, p.cmd.ProcessState, p.output.String())
	case <-timer.C:
		return errors.Join(fmt.Errorf("%s is not ready after %v", p.name, startTime), p.kill())
	}
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill kills the process, unless it has ended, and waits for its end.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// stop ends the process, also a paused one, and waits for its end. After stopTime it kills the process.
func (p *process) stop() {
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	// A server that writes its first append-only file ignores a SIGTERM, so it gets others.
	ticker := time.NewTicker(5 * pollInterval)
	defer ticker.Stop()
	for {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // If it fails, the process has ended or is killed below.
		_ = p.cmd.Process.Signal(resumeSignal)
		select {
		case <-p.done:
			return
		case <-ticker.C:
		case <-timer.C:
			_ = p.cmd.Process.Kill()
			<-p.done
			return
		}
	}
}

// output is the standard output of a process. It implements [io.Writer].
type output struct {
	ready chan struct{} // closed when the server has written that it accepts connections

	mu      sync.Mutex // guards what follows
	text    bytes.Buffer
	isReady bool
}

// Write adds to the text.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(b)
	if !o.isReady && bytes.Contains(o.text.Bytes(), []byte("Ready to accept connections")) {
		o.isReady = true
		close(o.ready)
	}
	return len(b), nil
}

// String returns the text so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
