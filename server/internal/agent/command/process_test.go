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
	inDir := func(dir string) Config { return Config{Command: []string{self, programWord, "cat"}, Dir: dir} }
	tests := []struct {
		name   string
		agent  *Agent
		text   string
		want   []string // parts of the message, its beginning and its end among them
		retry  bool
		maxLen int
	}{
		{"exit code", running(t, "failing"), "half an ", []string{filepath.Base(self) + " ended with exit code 3: ", "chatter\nshop: no sugar left"}, true, tailBytes + 100},
		{"signal", running(t, "killed"), "", []string{filepath.Base(self) + " was ended by a signal (killed)"}, true, 100},
		{"no such program", made(t, Config{Command: []string{"no-such-program-here"}}), "", []string{"no-such-program-here could not be started: executable file not found in $PATH"}, false, 200},
		{"no such file", made(t, Config{Command: []string{"/nowhere/agent"}}), "", []string{"agent could not be started: no such file or directory"}, false, 200},
		{"not a program", made(t, Config{Command: []string{os.DevNull}}), "", []string{"null could not be started: permission denied"}, false, 200},
		{"no such directory", made(t, inDir("/nowhere")), "", []string{filepath.Base(self) + " could not be started: its dir does not exist"}, false, 300},
		{"no directory", made(t, inDir(self)), "", []string{filepath.Base(self) + " could not be started: its dir is not a directory"}, false, 300},
		{"no such file in a directory", made(t, Config{Command: []string{"./agent"}, Dir: t.TempDir()}), "", []string{"agent could not be started: no such file or directory"}, false, 200},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.agent.slots = agent.NewSlots(1)
			got, err := answer(t.Context(), test.agent, saying("Hi"))
			var failure *agent.Error
			if got != test.text || !errors.As(err, &failure) {
				t.Fatalf("%q, %v", got, err)
			}
			message := failure.Message
			if !strings.HasPrefix(message, test.want[0]) || !strings.HasSuffix(message, test.want[len(test.want)-1]) || len(message) > test.maxLen {
				t.Errorf("message of %d bytes: %q", len(message), message)
			}
			if failure.Retryable != test.retry {
				t.Errorf("retryable: %v", failure.Retryable)
			}
			if !test.agent.slots.Acquire(t.Context(), enough) {
				t.Error("the slot was kept")
			}
		})
	}
}

func TestContextEndsTheProgram(t *testing.T) {
	enough := errors.New("enough")
	tests := []struct {
		program   string
		killAfter time.Duration
		said      string
	}{
		{"polite", time.Hour, "bye"}, // has the time it needs
		{"wordy", time.Hour, "bye"},
		{"stubborn", time.Millisecond, ""},
		{"chatty", time.Millisecond, ""},
	}
	for _, test := range tests {
		t.Run(test.program, func(t *testing.T) {
			path, gone := watched(t)
			a := running(t, test.program, path)
			a.killAfter = test.killAfter
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var last error
			for _, err := range a.Respond(ctx, saying("Hi")) {
				cancel(enough)
				last = err
			}
			if !errors.Is(last, enough) {
				t.Errorf("error is %v, want the cause of the context's end", last)
			}
			if said := gone(); said != test.said {
				t.Errorf("the program's last word is %q, want %q", said, test.said)
			}
		})
	}
}

func TestTurnDoesNotWaitForAProcessStuckInTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _ := pipe(t)
		p := &process{name: "stuck", stdout: o, killAfter: killAfter, ended: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if err := p.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if late := time.Since(began) - time.Minute; late < killAfter || late >= 5*time.Second {
			t.Errorf("waited %v after the context's end", late)
		}
	})
}

func TestEarlyStopEndsTheProgram(t *testing.T) {
	for _, program := range []string{"polite", "wordy"} {
		t.Run(program, func(t *testing.T) {
			path, gone := watched(t)
			a := running(t, program, path)
			a.killAfter = time.Hour
			for piece, err := range a.Respond(t.Context(), saying("Hi")) {
				if piece.GetText() != "ready" || err != nil {
					t.Fatalf("%v, %v", piece, err)
				}
				break
			}
			if said := gone(); said != "bye" {
				t.Errorf("the program's last word is %q", said)
			}
		})
	}
}

func TestPanicEndsTheProgram(t *testing.T) {
	path, gone := watched(t)
	a := running(t, "polite", path)
	func() {
		defer func() {
			if r := recover(); r != "oh" {
				t.Errorf("recovered %v", r)
			}
		}()
		for _, err := range a.Respond(t.Context(), saying("Hi")) {
			if err == nil {
				panic("oh")
			}
		}
	}()
	if said := gone(); said != "bye" {
		t.Errorf("the program's last word is %q", said)
	}
}

func TestRestOfTheGroupGoesWithTheProgram(t *testing.T) {
	path, gone := watched(t)
	a := running(t, "parent", path)
	if got, err := answer(t.Context(), a, saying("Hi")); got != "parent done" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	gone()
}

func TestDeserterHoldsNothingUp(t *testing.T) {
	leash := namedPipe(t)
	a := running(t, "deserter", leash)
	if got, err := answer(t.Context(), a, saying(strings.Repeat("long ", 500_000))); got != "parent done" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// Waits for the deserter, which still holds its end of all pipes, and lets it go.
	if err := os.WriteFile(leash, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func TestResponseIsReadToTheEndThoughTheConsumerIsSlow(t *testing.T) {
	path, gone := watched(t)
	a := made(t, Config{Command: []string{"/bin/sh", "-c", `exec 3>"$0"; head -c 60000 /dev/zero | tr '\0' x; head -c 1 /dev/zero`, path}})
	got := 0
	for piece, err := range a.Respond(t.Context(), saying("Hi")) {
		if err != nil {
			t.Fatal(err)
		}
		if got == 0 {
			gone() // the program has ended before the second piece is asked for
		}
		got += len(piece.GetText())
	}
	if got != 60_001 {
		t.Errorf("%d bytes of 60001", got)
	}
}

func TestProgramSeesItsPartOfTheEnvironment(t *testing.T) {
	t.Setenv("PARLEY_TEST_GIVEN", "g=1")
	t.Setenv("PARLEY_TEST_KEPT", "k")
	t.Setenv("LC_TEST", "c")
	t.Setenv("TZ", "UTC")
	t.Setenv("PATHOLOGY", "p")
	a := running(t, "environment")
	a.config.Env = []string{"PARLEY_TEST_GIVEN", "PARLEY_TEST_UNSET", "GORACE"}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a.config.Dir = dir
	got, err := answer(t.Context(), a, saying("Hi"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(got, "\n")
	if lines[0] != dir {
		t.Errorf("it runs in %q, want %q", lines[0], dir)
	}
	has := make(map[string]bool)
	for _, line := range lines[1:] {
		has[line] = true
	}
	for line, want := range map[string]bool{
		"PARLEY_TEST_GIVEN=g=1": true, "LC_TEST=c": true, "TZ=UTC": true, "PATH=" + os.Getenv("PATH"): true,
		"PARLEY_TEST_KEPT=k": false, "PATHOLOGY=p": false,
	} {
		if has[line] != want {
			t.Errorf("%q in its environment: %v, want %v", line, has[line], want)
		}
	}
}

// TestProgramSeesNothingOfAnUnnamedEnvironment: if the server has none of the variables that every
// program gets, the program gets an empty environment, not the server's.
func TestProgramSeesNothingOfAnUnnamedEnvironment(t *testing.T) {
	given, secrets := environment([]string{"SECRET_TOKEN=sk-live"}, []string{"UNSET"})
	if given == nil || len(given) > 0 || len(secrets) > 0 {
		t.Errorf("environment() = %#v, %#v, want an empty non-nil slice and no secrets", given, secrets)
	}
}

func TestNothingIsLeftOpen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes files that nobody holds
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("SKIPPED, open descriptors cannot be counted here:", err)
		}
		return len(entries)
	}
	round := func() {
		for _, program := range []string{"cat", "deaf", "failing", "killed"} {
			_, _ = answer(t.Context(), running(t, program), saying(strings.Repeat("long ", 500_000)))
		}
		for _, err := range running(t, "cat").Respond(t.Context(), saying(strings.Repeat("long ", 500_000))) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		path, gone := watched(t)
		_, _ = answer(t.Context(), running(t, "parent", path), saying("Hi"))
		gone()
		_, _ = answer(t.Context(), made(t, Config{Command: []string{"no-such-program-here"}}), saying("Hi"))
		_, _ = answer(t.Context(), made(t, Config{Command: []string{"/nowhere/agent"}}), saying("Hi"))
	}
	round() // the first opens what the runtime then keeps
	before := open()
	round()
	if after := open(); after != before {
		t.Errorf("%d descriptors were open, then %d", before, after)
	}
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("a child is left: %d, %v", pid, err)
	}
}
