package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakFree{m}, map[string]func(){"parley": main})
}

// leakFree runs the tests and fails if goroutines are left.
type leakFree struct{ *testing.M }

func (l leakFree) Run() int {
	code := l.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScripts runs each script of testdata against its own real server, with server.yaml of the script as the
// configuration. In addition to the commands of testscript there are
//
//	exits CODE COMMAND...     fails unless the command ends with that exit code
//	capture NAME FILE REGEXP  sets $NAME to the group that REGEXP matches in stdout or stderr
//	restart                   kills the server and starts it again at the same address
func TestScripts(t *testing.T) {
	program := buildServer(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			s := &server{program: program, dir: env.WorkDir}
			env.Values[serverKey{}] = s
			env.Defer(s.kill)
			err := s.start()
			env.Setenv("PARLEY_ADDRESS", s.address)
			env.Setenv("GORACE", "atexit_sleep_ms=0") // Otherwise the race detector delays the exit of each command by 1 s.
			return err
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"capture": capture,
			"restart": restart,
		},
	})
}

// buildServer builds the server and returns the path of the program.
func buildServer(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "parleyd")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	output, err := exec.Command("go", "build", "-o", program, "../../../server").CombinedOutput()
	if err != nil {
		t.Fatalf("build the server: %v\n%s", err, output)
	}
	return program
}

// serverKey is the key of the server in the environment of a script.
type serverKey struct{}

// server is a running server program.
type server struct {
	program, dir string

	address string
	command *exec.Cmd
	reading sync.WaitGroup
}

// start starts the server and returns once it serves gRPC at s.address. A restarted server keeps its address.
func (s *server) start() error {
	args := []string{
		"--grpc-address", cmp.Or(s.address, "127.0.0.1:0"), "--http-address", "",
		"--data-dir", filepath.Join(s.dir, "data"), "--log-format", "text",
	}
	if config := filepath.Join(s.dir, "server.yaml"); exists(config) {
		args = append(args, "--config", config)
	}
	s.command = exec.Command(s.program, args...)
	s.command.Dir = s.dir
	stderr, err := s.command.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.command.Start(); err != nil {
		return err
	}
	log := bufio.NewReader(stderr)
	var output strings.Builder
	for {
		line, err := log.ReadString('\n')
		output.WriteString(line)
		if err != nil {
			return fmt.Errorf("the server ended before it served gRPC: %s", output.String())
		}
		if _, address, found := strings.Cut(line, "address="); found && strings.Contains(line, "serving grpc") {
			s.address, _, _ = strings.Cut(strings.TrimSpace(address), " ")
			s.reading.Go(func() { _, _ = io.Copy(io.Discard, log) })
			return nil
		}
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func (s *server) kill() {
	_ = s.command.Process.Kill()
	s.reading.Wait()
	_ = s.command.Wait()
}

func restart(ts *testscript.TestScript, _ bool, _ []string) {
	s, ok := ts.Value(serverKey{}).(*server)
	if !ok {
		ts.Fatalf("no server")
	}
	s.kill()
	ts.Check(s.start())
}

func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var failure *exec.ExitError
	got := 0
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &failure) {
		got = failure.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func capture(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: capture NAME FILE REGEXP")
	}
	pattern, err := regexp.Compile(args[2])
	ts.Check(err)
	match := pattern.FindStringSubmatch(ts.ReadFile(args[1]))
	if len(match) != 2 {
		ts.Fatalf("%s does not match %s", args[1], args[2])
	}
	ts.Setenv(args[0], match[1])
}
