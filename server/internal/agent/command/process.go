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
)

const (
	// tailBytes is how much of the end of standard error an error shows.
	tailBytes = 4 << 10
	// giveUpAfter is how long after SIGKILL a turn waits: a process that is still there
	// is stuck in the kernel. It keeps its slot, and is cleaned up after when it goes.
	giveUpAfter = 500 * time.Millisecond
)

// process is one run of the program.
type process struct {
	name      string
	all       *Processes
	cmd       *exec.Cmd
	stdin     io.WriteCloser
	stdout    *output
	stderr    *output
	said      tail     // the end of standard error
	secrets   []string // that nobody is shown
	killAfter time.Duration

	ended chan struct{} // closed when the program is gone; said and err are final then
	err   error         // of cmd.Wait
}

// start starts the program, which the end of ctx stops, and has release called once:
// when the program has ended, or before an error. The caller must end ctx.
func (a *Agent) start(ctx context.Context, input string, release func()) (*process, error) {
	p := &process{
		name:      filepath.Base(a.config.Command[0]), // its directory is nobody's business
		all:       a.processes,
		cmd:       exec.CommandContext(ctx, a.config.Command[0], a.config.Command[1:]...),
		killAfter: a.killAfter,
		ended:     make(chan struct{}),
	}
	p.cmd.Dir = a.config.Dir
	p.cmd.Env, p.secrets = environment(os.Environ(), a.config.Env)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return p.signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = a.killAfter
	if err := p.launch(); err != nil {
		release()
		return nil, p.unstarted(err)
	}
	// A program that has been told to end must not hang in a write that nobody reads,
	// nor the reader in a read of what no longer counts.
	context.AfterFunc(ctx, p.stdout.close)
	go func() {
		p.supervise(input)
		release()
		close(p.ended)
	}()
	return p, nil
}

// unstarted is why the program could not be started, without the paths that the error has.
func (p *process) unstarted(err error) error {
	lasting := errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
	if fault, ok := errors.AsType[*fs.PathError](err); ok {
		err = fault.Err
	} else if fault, ok := errors.AsType[*exec.Error](err); ok {
		err = fault.Err
	}
	why := err.Error()
	// The system tells of a directory in the very words in which it does of a program.
	if p.cmd.Dir != "" {
		dir, err := os.Stat(p.cmd.Dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			lasting, why = true, "its dir does not exist"
		case err == nil && !dir.IsDir():
			lasting, why = true, "its dir is not a directory"
		}
	}
	return &agent.Error{Message: fmt.Sprintf("%s could not be started: %s", p.name, why), Retryable: !lasting}
}

// launch makes the pipes and starts the program. After an error no descriptor is left.
//
// Standard output and error are not left to the Cmd, which reads them until everybody
// who holds them has gone, or closes them before all is read.
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

// supervise feeds the program, keeps the end of its standard error, waits for it to end
// and cleans up after it.
func (p *process) supervise(input string) {
	var pipes sync.WaitGroup
	pipes.Go(func() {
		// A program need not read what it is given, so a broken pipe is no fault.
		_, _ = io.WriteString(p.stdin, input)
		_ = p.stdin.Close()
	})
	pipes.Go(func() { _, _ = io.Copy(&p.said, p.stderr) })

	// Wait looks after SIGTERM and SIGKILL when the context ends. It returns when the
	// program itself has ended, whoever else holds its pipes, and then closes stdin.
	p.err = p.all.wait(p.cmd)
	// The rest of the group. Its number is not another's yet: one that has members is
	// not given out, and otherwise numbers go round in a circle first.
	_ = p.signal(syscall.SIGKILL)
	p.stdout.noMore()
	p.stderr.noMore()
	pipes.Wait()
	p.stderr.close()
}

// signal sends to every process of the group.
func (p *process) signal(s syscall.Signal) error {
	err := syscall.Kill(-p.cmd.Process.Pid, s)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// wait waits for the program to end, which takes killAfter and a little more at most
// after ctx's end. It returns an error unless the exit code is 0.
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

// failure tells what became of a program that has ended, and the end of what it said on
// standard error.
func (p *process) failure(what string) error {
	message := p.name + " " + what
	if said := p.said.text(p.secrets); said != "" {
		message += ": " + said
	}
	return &agent.Error{Message: message, Retryable: true}
}

// redact is the text without the secrets that the program was given.
func (p *process) redact(text string) string { return agent.Redact(text, p.secrets...) }

// environment is the part of the server's environment that the program gets, and which values
// of it are secrets: those that it gets by name only. The part is never nil, since os/exec
// passes the whole environment for nil.
func environment(all, names []string) (given, secrets []string) {
	given = []string{}
	for _, entry := range all {
		name, value, _ := strings.Cut(entry, "=")
		switch {
		case strings.HasPrefix(name, "LC_") || slices.Contains([]string{"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"}, name):
			given = append(given, entry)
		case slices.Contains(names, name):
			given = append(given, entry)
			// As the program may write it, and as control characters are taken out of what it wrote.
			secrets = append(secrets, value, printable(value))
		}
	}
	return given, secrets
}

// tail keeps the last bytes written to it.
type tail struct{ kept []byte }

// Write never fails.
func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if extra := len(t.kept) - tailBytes; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(b), nil
}

// text is what was kept as text for people: printable, without the secrets, and without white
// space around it.
func (t *tail) text(secrets []string) string {
	kept := t.kept
	if len(kept) == tailBytes {
		// The cut may have left the end of a rune in front.
		kept = bytes.TrimLeftFunc(kept, func(r rune) bool { return r == utf8.RuneError })
	}
	text := agent.RedactTail(printable(string(kept)), secrets...)
	if extra := len(text) - tailBytes; extra > 0 { // short secrets make it longer
		for !utf8.RuneStart(text[extra]) {
			extra++
		}
		text = text[extra:]
	}
	return strings.TrimSpace(text)
}

// printable is the text in valid UTF-8 without control characters, save tabs and line feeds.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' && r != '\n' {
			return -1
		}
		return r
	}, text)
}
