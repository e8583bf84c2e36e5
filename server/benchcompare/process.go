package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// startTime is the time limit for a process to serve.
	startTime = time.Minute
	// stopTime is the time limit for a process to end after a signal. Then it is killed.
	stopTime = 20 * time.Second
	// pollInterval is the time between two checks whether a process serves.
	pollInterval = 20 * time.Millisecond
)

// process is a started program. It is killed when this program ends.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // path of its output
	done chan struct{}
	err  error // valid when done is closed
}

// startProcess starts a program. Its output goes to a file in dir. startProcess must be called from the
// goroutine that main has locked to its thread, because the kernel kills the program when the thread
// that started it ends.
func startProcess(dir string, owner *syscall.Credential, program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), done: make(chan struct{})}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program, args...) //nolint:noctx // stop ends it.
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// It has its own process group, so that an interrupt of the terminal reaches only this program.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: owner}
	if err := errors.Join(p.cmd.Start(), log.Close()); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

// pid returns the process id.
func (p *process) pid() int { return p.cmd.Process.Pid }

// awaitReady calls serves until it succeeds. If that takes longer than startTime, awaitReady stops the
// process and returns an error.
func (p *process) awaitReady(ctx context.Context, serves func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := serves(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
			continue
		case <-p.done:
			err = fmt.Errorf("process ended: %w", errors.Join(p.err, err))
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
		}
		return errors.Join(fmt.Errorf("%s does not serve: %w; output: %s", p.name, err, p.outputEnd()),
			p.stop(syscall.SIGTERM))
	}
}

// outputEnd returns the end of the output.
func (p *process) outputEnd() string {
	output, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(output[max(0, len(output)-500):]))
}

// stop sends a signal to the process and waits for its end. After stopTime it kills the process.
func (p *process) stop(signal syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(stopTime)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	err := p.cmd.Process.Kill()
	<-p.done
	return errors.Join(fmt.Errorf("%s did not end within %v and was killed", p.name, stopTime), err)
}

// freePort returns a port of the loopback address that is free at the moment.
func freePort(ctx context.Context) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// credential returns the credential of a user, for programs that refuse to run as root. It returns nil if
// this program does not run as root.
func credential(name string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// missingError is the error that a program is not installed.
type missingError struct {
	program, pkg string
}

// Error returns the message, with the command that installs the program.
func (e *missingError) Error() string {
	return fmt.Sprintf("%s is not installed; on Debian: apt-get install %s", e.program, e.pkg)
}

// find returns the path of a program, which is the first of its names that exists. An absolute name may be
// a pattern.
func find(pkg string, names ...string) (string, error) {
	for _, name := range names {
		matches, err := filepath.Glob(name)
		if err == nil && len(matches) > 0 {
			return matches[len(matches)-1], nil
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &missingError{program: filepath.Base(names[0]), pkg: pkg}
}

// firstLine runs a program and returns the first line of its output, or "unknown version" on errors.
func firstLine(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "unknown version"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
