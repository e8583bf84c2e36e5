package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/parleydtest"
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
// configuration. If the script has tokens.txt, the server uses TLS and sign-in; see server.signIn. In addition to the
// commands of testscript there are
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
			err := s.signIn()
			if err == nil {
				err = s.start()
			}
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
	if err := parleydtest.Build(t.Context(), program); err != nil {
		t.Fatal(err)
	}
	return program
}

// serverKey is the key of the server in the environment of a script.
type serverKey struct{}

// server is a running server program.
type server struct {
	program, dir string

	signInFlags []string
	address     string
	process     *parleydtest.Process
}

// signIn creates certificates and tokens in the folder of the script if it contains tokens.txt. A line of that file
// has the name of a file for a token and the flags of its creation.
func (s *server) signIn() error {
	lines, err := os.ReadFile(filepath.Join(s.dir, "tokens.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	files, signInErr := parleydtest.NewSignIn(s.dir)
	if err := errors.Join(err, signInErr); err != nil {
		return err
	}
	for line := range strings.Lines(string(lines)) {
		words := strings.Fields(line)
		token, err := files.CreateToken(parleydtest.Command(context.Background(), s.program, ""), words[1:]...)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.dir, words[0]), []byte(token+"\n"), 0o600); err != nil {
			return err
		}
	}
	s.signInFlags = append(files.ServerFlags(), "--tls-client-ca-file="+files.CAFile)
	return nil
}

// start starts the server and returns once it serves gRPC at s.address. A restarted server keeps its address. In the
// meantime, another process may have a connection from that port: then start tries again until it has ended.
func (s *server) start() error {
	flags := append(slices.Clone(s.signInFlags), "--grpc-address", cmp.Or(s.address, "127.0.0.1:0"))
	if config := filepath.Join(s.dir, "server.yaml"); exists(config) {
		flags = append(flags, "--config", config)
	}
	for deadline := time.Now().Add(parleydtest.Timeout); ; {
		command := parleydtest.Command(context.Background(), s.program, filepath.Join(s.dir, "data"), flags...)
		command.Dir = s.dir
		var err error
		if s.process, err = parleydtest.Start(command); err != nil {
			return err
		}
		address, err := s.process.AwaitServing()
		if err == nil {
			s.address = address
			return nil
		}
		if !strings.Contains(err.Error(), "address already in use") || time.Now().After(deadline) {
			return err
		}
	}
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

func (s *server) kill() {
	if s.process != nil {
		s.process.Kill()
	}
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
