package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/tracing"
)

const (
	// tailBytes is the maximum length of the end of standard error in an error.
	tailBytes = 4 << 10
	// giveUpAfter is how long a turn waits after SIGKILL. A process that still exists then is
	// blocked in the kernel. It keeps its slot until it ends.
	giveUpAfter = 500 * time.Millisecond
)

// process is one run of the program.
type process struct {
	name       string
	all        *Processes
	cmd        *exec.Cmd
	stdin      io.WriteCloser
	stdout     *output
	stderr     *output
	stderrTail tail     // The end of standard error.
	secrets    []string // Values that errors must not contain.
	killAfter  time.Duration

	ended chan struct{} // Closed when the program has ended; stderrTail and err do not change afterwards.
	err   error         // The error of cmd.Wait.
}

// start starts the program, which is stopped when ctx ends. release is called once: when the
// program has ended, or before an error is returned. The caller must cancel ctx.
func (a *Agent) start(ctx context.Context, input string, release func()) (*process, error) {
	p := &process{
		name:      filepath.Base(a.config.Command[0]), // Errors must not contain the directory.
		all:       a.processes,
		cmd:       exec.CommandContext(ctx, a.config.Command[0], a.config.Command[1:]...),
		killAfter: a.killAfter,
		ended:     make(chan struct{}),
	}
	p.cmd.Dir = a.config.Dir
	p.cmd.Env, p.secrets = environment(os.Environ(), a.config.Env)
	tracing.Inject(ctx, func(key, value string) { p.cmd.Env = append(p.cmd.Env, strings.ToUpper(key)+"="+value) })
	p.cmd.SysProcAttr = ownGroup()
	p.cmd.Cancel = func() error { return p.signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = a.killAfter
	if err := p.launch(); err != nil {
		release()
		return nil, p.startError(err)
	}
	// After ctx has ended, the program must not block in a write, nor the reader in a read.
	context.AfterFunc(ctx, p.stdout.close)
	go func() {
		p.supervise(input)
		release()
		close(p.ended)
	}()
	return p, nil
}

// startError returns the error for a program that could not be started, without the paths in err.
func (p *process) startError(err error) error {
	permanent := errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
	if fault, ok := errors.AsType[*fs.PathError](err); ok {
		err = fault.Err
	} else if fault, ok := errors.AsType[*exec.Error](err); ok {
		err = fault.Err
	}
	cause := err.Error()
	// The system reports the same error for a missing directory as for a missing program.
	if p.cmd.Dir != "" {
		dir, err := os.Stat(p.cmd.Dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			permanent, cause = true, "its dir does not exist"
		case err == nil && !dir.IsDir():
			permanent, cause = true, "its dir is not a directory"
		}
	}
	return &agent.Error{Message: fmt.Sprintf("%s could not be started: %s", p.name, cause), Retryable: !permanent}
}

// launch creates the pipes and starts the program. After an error, no descriptor is open.
//
// launch does not let Cmd read standard output and error. Cmd would read until every process that
// uses the pipes has ended, or would close the pipes before everything is read.
func (p *process) launch() error {
	stdout, out, err := newOutput()
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	stderr, errs, err := newOutput()
	if err != nil {
		stdout.close()
		return err
	}
	defer func() { _ = errs.Close() }()
	p.stdout, p.stderr = stdout, stderr
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	if p.stdin, err = p.cmd.StdinPipe(); err == nil {
		err = p.all.start(p.cmd)
	}
	if err != nil {
		stdout.close()
		stderr.close()
	}
	return err
}

// supervise writes the input, collects the end of standard error, waits for the program and cleans
// up.
func (p *process) supervise(input string) {
	var pipes sync.WaitGroup
	pipes.Go(func() {
		// A program need not read its input, so a broken pipe is not an error.
		_, _ = io.WriteString(p.stdin, input)
		_ = p.stdin.Close()
	})
	pipes.Go(func() { _, _ = io.Copy(&p.stderrTail, p.stderr) })

	// Wait sends SIGTERM and SIGKILL when the context ends. It returns when the program itself has ended,
	// even if other processes use its pipes, and then closes stdin.
	p.err = p.all.wait(p.cmd)
	// Kill the rest of the group. Its id cannot belong to another group yet: an id with members is not
	// reused, and otherwise ids are assigned in a cycle.
	_ = p.signal(syscall.SIGKILL)
	p.stdout.finish()
	p.stderr.finish()
	pipes.Wait()
	p.stderr.close()
}

// signal sends a signal to each process of the group.
func (p *process) signal(s syscall.Signal) error {
	return signalGroup(p.cmd.Process.Pid, s)
}

// wait waits for the program to end, at most killAfter and giveUpAfter after the end of ctx. It
// returns an error unless the exit code is 0.
func (p *process) wait(ctx context.Context) error {
	defer p.stdout.close()
	select {
	case <-p.ended:
	case <-ctx.Done():
		select {
		case <-p.ended:
		case <-time.After(p.killAfter + giveUpAfter):
			return fmt.Errorf("%s does not end: %w", p.name, context.Cause(ctx))
		}
	}
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		return p.err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return p.failure(fmt.Sprintf("was ended by a signal (%v)", status.Signal()))
	}
	return p.failure(fmt.Sprintf("ended with exit code %d", exit.ExitCode()))
}

// failure returns an error that describes how the program ended, with the end of its standard
// error.
func (p *process) failure(what string) error {
	message := p.name + " " + what
	if output := p.stderrTail.text(p.secrets); output != "" {
		message += ": " + output
	}
	return &agent.Error{Message: message, Retryable: true}
}

// redact removes the secrets that were passed to the program from a text.
func (p *process) redact(text string) string { return agent.Redact(text, p.secrets...) }

// environment returns the part of the server's environment that the program receives, and the
// values in it that are secret: those of the variables in names. The part is never nil, because
// os/exec would then pass the complete environment.
func environment(all, names []string) (passed, secrets []string) {
	passed = []string{}
	for _, entry := range all {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "LC_") ||
			slices.Contains([]string{"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"}, name):
			passed = append(passed, entry)
		case slices.Contains(names, name):
			passed = append(passed, entry)
			// The value itself, and the value without control characters, which are removed from output.
			secrets = append(secrets, value, printable(value))
		}
	}
	return passed, secrets
}

// tail keeps the last bytes that were written to it.
type tail struct{ kept []byte }

// Write never returns an error.
func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if extra := len(t.kept) - tailBytes; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(b), nil
}

// text returns the kept bytes as text for people: printable, without secrets, and without
// surrounding white space.
func (t *tail) text(secrets []string) string {
	kept := t.kept
	if len(kept) == tailBytes {
		// The kept bytes may begin within a character.
		kept = bytes.TrimLeftFunc(kept, func(r rune) bool { return r == utf8.RuneError })
	}
	text := agent.RedactTail(printable(string(kept)), secrets...)
	if extra := len(text) - tailBytes; extra > 0 { // Replacing short secrets makes the text longer.
		for !utf8.RuneStart(text[extra]) {
			extra++
		}
		text = text[extra:]
	}
	return strings.TrimSpace(text)
}

// printable returns the text as valid UTF-8 without control characters except tabs and line feeds.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, text)
}
