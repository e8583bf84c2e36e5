package client_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/client"
	"github.com/parleyhq/parley/server/parleydtest"
)

// programs builds the server at most once for each test run, and owns the servers of the examples,
// which have no test that could end them.
var programs = &serverPrograms{}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(cleanRun{m})
}

// cleanRun runs the tests, then ends the processes and removes the files of programs.
type cleanRun struct{ *testing.M }

func (r cleanRun) Run() (code int) {
	defer func() {
		if err := programs.close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	return r.M.Run()
}

type serverPrograms struct {
	once     sync.Once
	dir      string // The directory of the server program, if the build succeeded.
	buildErr error

	mu      sync.Mutex
	running []*serverProcess
}

// build returns the path of the server program.
func (p *serverPrograms) build() (string, error) {
	name := "parleyd"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	p.once.Do(func() {
		if p.dir, p.buildErr = os.MkdirTemp("", "parley-client-test-"); p.buildErr != nil {
			return
		}
		p.buildErr = parleydtest.Build(context.Background(), filepath.Join(p.dir, name))
	})
	return filepath.Join(p.dir, name), p.buildErr
}

// start starts a server that runs until close.
func (p *serverPrograms) start(args ...string) (*serverProcess, error) {
	s, err := startProcess(args...)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, s)
	return s, nil
}

// close ends the servers of start and removes the program.
func (p *serverPrograms) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.running {
		s.kill()
	}
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// serverProcess is a running server with the memory store.
type serverProcess struct {
	address string
	process *parleydtest.Process
}

// startProcess starts a server and returns once it serves gRPC. The caller must kill it.
func startProcess(args ...string) (*serverProcess, error) {
	program, err := programs.build()
	if err != nil {
		return nil, err
	}
	args = append([]string{"--store=memory", "--interaction-log=false"}, args...)
	process, err := parleydtest.Start(parleydtest.Command(context.Background(), program, "", args...))
	if err != nil {
		return nil, err
	}
	s := &serverProcess{process: process}
	if s.address, err = process.AwaitServing(); err != nil {
		s.kill()
		return nil, err
	}
	return s, nil
}

func (s *serverProcess) kill() { s.process.Kill() }

// dialServer starts a server with args and returns a client of it. Both end with the test.
func dialServer(t *testing.T, args ...string) *client.Client {
	t.Helper()
	s, err := startProcess(args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	c, err := client.Dial(s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
