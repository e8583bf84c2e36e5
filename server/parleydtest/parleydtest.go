// Package parleydtest builds and starts parleyd for the tests and benchmarks of other packages and
// modules, and reads its log. Start at [Start].
package parleydtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Timeout is how long tests wait for parleyd to serve. Only a failing test takes that long.
const Timeout = time.Minute

// NotAnEntry is the message of the entries for lines that are not log entries, for example of a data
// race or a panic. Their text is in the field "text".
const NotAnEntry = "not a log entry"

// Build builds parleyd at path, without cgo and without debugging information, which halves the time of
// the link. flags are additional flags of go build. The module of the caller must be the main module of
// the repository or replace it with its directory.
func Build(ctx context.Context, path string, flags ...string) error {
	root, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go",
		slices.Concat([]string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", path}, flags, []string{"./server"})...)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build parleyd: %w\n%s", err, output)
	}
	return nil
}

// moduleDir returns the directory of the main module of the repository.
func moduleDir(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/parleyhq/parley").Output()
	if err != nil {
		return "", fmt.Errorf("find the module github.com/parleyhq/parley: %w", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// Command returns a command that runs program as parleyd on a data directory, on a free port, without
// HTTP, and with a log in JSON. If dataDir is empty, flags must choose a store that needs none. flags
// can override these settings. The command inherits no settings from the environment.
func Command(ctx context.Context, program, dataDir string, flags ...string) *exec.Cmd {
	args := []string{"--grpc-address=127.0.0.1:0", "--http-address=", "--log-format=json"}
	if dataDir != "" {
		args = append(args, "--data-dir="+dataDir)
	}
	cmd := exec.CommandContext(ctx, program, append(args, flags...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PARLEY_") || strings.HasPrefix(v, "OTEL_")
	})
	return cmd
}

// Process is a running parleyd.
type Process struct {
	*exec.Cmd

	Log   Log
	ended chan struct{}
}

// Start starts a command of parleyd and reads its log, unless standard error of the command is set. The
// caller must call Kill or wait for Ended.
func Start(cmd *exec.Cmd) (*Process, error) {
	p := &Process{Cmd: cmd, Log: Log{more: make(chan struct{})}, ended: make(chan struct{})}
	var stderr io.Reader = strings.NewReader("")
	if cmd.Stderr == nil {
		pipe, err := cmd.StderrPipe()
		if err != nil {
			return nil, err
		}
		stderr = pipe
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.ended)
		p.Log.Read(stderr)
		_ = cmd.Wait() // The error is in ProcessState.
	}()
	return p, nil
}

// Ended returns a channel that is closed when the process has ended and its log is read.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Kill kills the process, unless it has ended, and waits for its end.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.ended
}

// AwaitServing waits until parleyd serves, and returns its gRPC address.
func (p *Process) AwaitServing() (string, error) {
	entry, err := p.Await("serving grpc")
	if err != nil {
		return "", fmt.Errorf("parleyd does not serve: %w", err)
	}
	return fmt.Sprint(entry["address"]), nil
}

// Await waits for a log entry with this message and these fields, as "key=value", and returns the first
// one. It returns an error after Timeout, or if the process ends without such an entry.
func (p *Process) Await(message string, fields ...string) (Entry, error) {
	timeout := time.NewTimer(Timeout)
	defer timeout.Stop()
	for last := error(nil); ; {
		found, more := p.Log.Find(message, fields...)
		switch {
		case len(found) > 0:
			return found[0], nil
		case last != nil:
			return nil, fmt.Errorf("no log entry %q %q: %w:\n%s", message, fields, last, p.Log.Text())
		}
		select {
		case <-more:
		case <-p.ended: // The last entries may have come in between: check again.
			last = fmt.Errorf("parleyd ended with %v", p.ProcessState)
		case <-timeout.C:
			last = errors.New("timeout")
		}
	}
}

// Entry is a log entry by key. Numbers are of type [json.Number].
type Entry map[string]any

// Log is the log of a process. Its methods may be called concurrently.
type Log struct {
	mu      sync.Mutex
	text    strings.Builder
	entries []Entry
	more    chan struct{} // closed when there is another entry
}

// Read adds the lines of a process's standard error to the log, to their end. A last line without an end is no entry:
// the process was killed while it wrote it.
func (l *Log) Read(stderr io.Reader) {
	for lines := bufio.NewReader(stderr); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			l.mu.Lock()
			l.text.WriteString(line)
			l.mu.Unlock()
			return
		}
		l.add(strings.TrimSuffix(line, "\n"))
	}
}

func (l *Log) add(line string) {
	var entry Entry
	decoder := json.NewDecoder(strings.NewReader(line))
	decoder.UseNumber()
	if decoder.Decode(&entry) != nil {
		entry = Entry{"msg": NotAnEntry, "text": line}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(&l.text, line)
	l.entries = append(l.entries, entry)
	close(l.more)
	l.more = make(chan struct{})
}

// Find returns the entries with this message and these fields, as "key=value", and a channel that is
// closed when there are more entries.
func (l *Log) Find(message string, fields ...string) ([]Entry, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []Entry
	for _, entry := range l.entries {
		differs := func(field string) bool {
			key, value, _ := strings.Cut(field, "=")
			return fmt.Sprint(entry[key]) != value
		}
		if entry["msg"] == message && !slices.ContainsFunc(fields, differs) {
			found = append(found, entry)
		}
	}
	return found, l.more
}

// Entries returns all entries so far.
func (l *Log) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Text returns standard error so far.
func (l *Log) Text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
