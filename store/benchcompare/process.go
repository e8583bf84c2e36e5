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
	// startTime is how long a process has until it serves.
	startTime = time.Minute
	// stopTime is how long one has to end when it is told to; then it is killed.
	stopTime = 20 * time.Second
	// startLook is how often one is asked whether it serves.
	startLook = 20 * time.Millisecond
)

// process is a program that was started here. It dies with this one, however that ends.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string // path of what it said
	done chan struct{}
	err  error // valid when done is closed
}

// startProcess starts a program, whose words go to a file in dir. Call it from the
// goroutine that main has locked to its thread: the program is killed when the thread that
// started it ends.
func startProcess(dir string, owner *syscall.Credential, program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), done: make(chan struct{})}
	p.log = filepath.Join(dir, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	p.cmd = exec.Command(program, args...) //nolint:noctx // stop ends it, in order.
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	// Its own group: an interrupt of the terminal is for this program, which stops it in order.
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

// pid is the process's id.
func (p *process) pid() int { return p.cmd.Process.Pid }

// until asks again and again whether the process serves, and stops it when it does not.
func (p *process) until(ctx context.Context, serves func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	ticker := time.NewTicker(startLook)
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
			err = fmt.Errorf("it ended: %w", errors.Join(p.err, err))
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
		}
		return errors.Join(fmt.Errorf("%s does not serve: %w; it said: %s", p.name, err, p.lastWords()), p.stop(syscall.SIGTERM))
	}
}

// lastWords are the end of what it said.
func (p *process) lastWords() string {
	words, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(words[max(0, len(words)-500):]))
}

// stop tells the process to end, waits, and kills it if it does not.
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

// freePort returns a port of the loopback address that nobody listens on right now.
func freePort(ctx context.Context) (string, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, errors.Join(err, l.Close())
}

// credential is that of a user, for programs that refuse to run as root; nil when this
// program does not run as root itself.
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

// missingError says that a program is not installed.
type missingError struct {
	program, pkg string
}

// Error says how to get it.
func (e *missingError) Error() string {
	return fmt.Sprintf("%s is not installed; on Debian: apt-get install %s", e.program, e.pkg)
}

// find returns the path of a program: the first of the names that exists.
func find(pkg string, names ...string) (string, error) {
	for _, name := range names {
		matches, err := filepath.Glob(name) // of absolute names
		if err == nil && len(matches) > 0 {
			return matches[len(matches)-1], nil
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", &missingError{program: filepath.Base(names[0]), pkg: pkg}
}

// firstLine runs a program and returns the first line of what it says, for its version.
func firstLine(ctx context.Context, program string, args ...string) string {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "unknown version"
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
