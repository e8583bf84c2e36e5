package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parleyhq/parley/server/internal/agent"
)

func TestFailures(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inDir := func(dir string) Config { return Config{Command: []string{self, programArgument, "cat"}, Dir: dir} }
	tests := []struct {
		name   string
		agent  *Agent
		text   string
		want   []string // Parts of the message; the first and the last are its beginning and its end.
		retry  bool
		maxLen int
	}{
		{
			"exit code", newProgramAgent(t, "failing"), "half an ",
			[]string{filepath.Base(self) + " ended with exit code 3: ", "chatter\nshop: no sugar left"},
			true, tailBytes + 100,
		},
		{
			"signal", newProgramAgent(t, "killed"), "",
			[]string{filepath.Base(self) + " was ended by a signal (killed)"},
			true,
			100,
		},
		{
			"no such program", newAgent(t, Config{Command: []string{"no-such-program-here"}}), "",
			[]string{"no-such-program-here could not be started: executable file not found in $PATH"},
			false, 200,
		},
		{
			"no such file", newAgent(t, Config{Command: []string{"/nowhere/agent"}}), "",
			[]string{"agent could not be started: no such file or directory"},
			false, 200,
		},
		{
			"not a program", newAgent(t, Config{Command: []string{os.DevNull}}), "",
			[]string{"null could not be started: permission denied"},
			false, 200,
		},
		{
			"no such directory", newAgent(t, inDir("/nowhere")), "",
			[]string{filepath.Base(self) + " could not be started: its dir does not exist"},
			false, 300,
		},
		{
			"not a directory", newAgent(t, inDir(self)), "",
			[]string{filepath.Base(self) + " could not be started: its dir is not a directory"},
			false, 300,
		},
		{
			"no such file in a directory", newAgent(t, Config{Command: []string{"./agent"}, Dir: t.TempDir()}), "",
			[]string{"agent could not be started: no such file or directory"},
			false, 200,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.agent.slots = agent.NewSlots(1)
			got, err := answer(t.Context(), test.agent, newRequest("Hi"))
			var failure *agent.Error
			if got != test.text || !errors.As(err, &failure) {
				t.Fatalf("Respond = %q, %v, want %q and an *agent.Error", got, err, test.text)
			}
			message := failure.Message
			if !strings.HasPrefix(message, test.want[0]) || !strings.HasSuffix(message, test.want[len(test.want)-1]) ||
				len(message) > test.maxLen {
				t.Errorf("message of %d bytes = %q, want %q", len(message), message, test.want)
			}
			if failure.Retryable != test.retry {
				t.Errorf("Retryable = %v, want %v", failure.Retryable, test.retry)
			}
			if !test.agent.slots.Acquire(t.Context(), stopConsumer) {
				t.Error("the slot was not released")
			}
		})
	}
}

func TestContextEndsTheProgram(t *testing.T) {
	enough := errors.New("enough")
	tests := []struct {
		program   string
		killAfter time.Duration
		want      string
	}{
		{"sigterm", time.Hour, "bye"}, // It has as much time as it needs.
		{"sigterm-with-output", time.Hour, "bye"},
		{"ignore-sigterm", time.Millisecond, ""},
		{"endless-output", time.Millisecond, ""},
	}
	for _, test := range tests {
		t.Run(test.program, func(t *testing.T) {
			path, wait := watchedPipe(t)
			a := newProgramAgent(t, test.program, path)
			a.killAfter = test.killAfter
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var last error
			for _, err := range a.Respond(ctx, newRequest("Hi")) {
				cancel(enough)
				last = err
			}
			if !errors.Is(last, enough) {
				t.Errorf("Respond = %v, want the cause of the context", last)
			}
			if got := wait(); got != test.want {
				t.Errorf("program wrote %q, want %q", got, test.want)
			}
		})
	}
}

func TestWaitForBlockedProcessIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := pipe(t)
		p := &process{name: "stuck", stdout: o, killAfter: killAfter, ended: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if err := p.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait = %v, want the error of the context", err)
		}
		if late := time.Since(start) - time.Minute; late < killAfter || late >= 5*time.Second {
			t.Errorf("wait returned %v after the end of the context, want %v to 5 s", late, killAfter)
		}
	})
}

func TestEarlyStopEndsTheProgram(t *testing.T) {
	for _, program := range []string{"sigterm", "sigterm-with-output"} {
		t.Run(program, func(t *testing.T) {
			path, wait := watchedPipe(t)
			a := newProgramAgent(t, program, path)
			a.killAfter = time.Hour
			for piece, err := range a.Respond(t.Context(), newRequest("Hi")) {
				if piece.GetText() != "ready" || err != nil {
					t.Fatalf("Respond yields %v, %v, want ready", piece, err)
				}
				break
			}
			if got := wait(); got != "bye" {
				t.Errorf("program wrote %q, want bye", got)
			}
		})
	}
}

func TestPanicEndsTheProgram(t *testing.T) {
	path, wait := watchedPipe(t)
	a := newProgramAgent(t, "sigterm", path)
	func() {
		defer func() {
			if r := recover(); r != "stop" {
				t.Errorf("recover() = %v, want the panic", r)
			}
		}()
		for _, err := range a.Respond(t.Context(), newRequest("Hi")) {
			if err == nil {
				panic("stop")
			}
		}
	}()
	if got := wait(); got != "bye" {
		t.Errorf("program wrote %q, want bye", got)
	}
}

func TestGroupEndsWithTheProgram(t *testing.T) {
	path, wait := watchedPipe(t)
	a := newProgramAgent(t, "parent", path)
	if got, err := answer(t.Context(), a, newRequest("Hi")); got != "parent done" || err != nil {
		t.Errorf("Respond = %q, %v, want parent done", got, err)
	}
	wait()
}

func TestDaemonDoesNotDelayTheTurn(t *testing.T) {
	pipePath := namedPipe(t)
	a := newProgramAgent(t, "parent-of-daemon", pipePath)
	if got, err := answer(t.Context(), a, newRequest(strings.Repeat("long ", 500_000))); got != "parent done" ||
		err != nil {
		t.Errorf("Respond = %q, %v, want parent done", got, err)
	}
	// Opening the pipe waits for the daemon, which still holds its end of all pipes, and ends it.
	if err := os.WriteFile(pipePath, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func TestSlowConsumerReceivesTheCompleteAnswer(t *testing.T) {
	path, wait := watchedPipe(t)
	a := newAgent(t, Config{
		Command: []string{"/bin/sh", "-c", `exec 3>"$0"; head -c 60000 /dev/zero | tr '\0' x; head -c 1 /dev/zero`, path},
	})
	got := 0
	for piece, err := range a.Respond(t.Context(), newRequest("Hi")) {
		if err != nil {
			t.Fatal(err)
		}
		if got == 0 {
			wait() // The program has ended before the second piece is read.
		}
		got += len(piece.GetText())
	}
	if got != 60_001 {
		t.Errorf("Respond = %d bytes, want 60001", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("PARLEY_TEST_PASSED", "g=1")
	t.Setenv("PARLEY_TEST_KEPT", "k")
	t.Setenv("LC_TEST", "c")
	t.Setenv("TZ", "UTC")
	t.Setenv("PATHOLOGY", "p")
	a := newProgramAgent(t, "environment")
	a.config.Env = []string{"PARLEY_TEST_PASSED", "PARLEY_TEST_UNSET", "GORACE"}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a.config.Dir = dir
	got, err := answer(t.Context(), a, newRequest("Hi"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got, "\n")
	if lines[0] != dir {
		t.Errorf("working directory = %q, want %q", lines[0], dir)
	}
	has := make(map[string]bool)
	for _, line := range lines[1:] {
		has[line] = true
	}
	for line, want := range map[string]bool{
		"PARLEY_TEST_PASSED=g=1": true, "LC_TEST=c": true, "TZ=UTC": true, "PATH=" + os.Getenv("PATH"): true,
		"PARLEY_TEST_KEPT=k": false, "PATHOLOGY=p": false,
	} {
		if has[line] != want {
			t.Errorf("%q in the environment: %v, want %v", line, has[line], want)
		}
	}
}

// TestEmptyEnvironment: if the server has none of the variables that each program receives, the
// program gets an empty environment and not the server's.
func TestEmptyEnvironment(t *testing.T) {
	passed, secrets := environment([]string{"SECRET_TOKEN=sk-live"}, []string{"UNSET"})
	if passed == nil || len(passed) > 0 || len(secrets) > 0 {
		t.Errorf("environment() = %#v, %#v, want an empty non-nil slice and no secrets", passed, secrets)
	}
}

func TestDescriptorsAreClosed(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // Otherwise finalizers close unused files.
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("SKIPPED, open descriptors cannot be counted here:", err)
		}
		return len(entries)
	}
	round := func() {
		for _, program := range []string{"cat", "ignore-input", "failing", "killed"} {
			_, _ = answer(t.Context(), newProgramAgent(t, program), newRequest(strings.Repeat("long ", 500_000)))
		}
		for _, err := range newProgramAgent(t, "cat").Respond(t.Context(), newRequest(strings.Repeat("long ", 500_000))) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		path, wait := watchedPipe(t)
		_, _ = answer(t.Context(), newProgramAgent(t, "parent", path), newRequest("Hi"))
		wait()
		_, _ = answer(t.Context(), newAgent(t, Config{Command: []string{"no-such-program-here"}}), newRequest("Hi"))
		_, _ = answer(t.Context(), newAgent(t, Config{Command: []string{"/nowhere/agent"}}), newRequest("Hi"))
	}
	round() // The first round opens descriptors that the runtime keeps.
	before := open()
	round()
	if after := open(); after != before {
		t.Errorf("open descriptors = %d, then %d, want no more", before, after)
	}
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("Wait4 = %d, %v, want no child", pid, err)
	}
}
