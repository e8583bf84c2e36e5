package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
)

var _ agent.Agent = (*Agent)(nil)

// running makes an agent of one of the test binary's programs.
func running(t *testing.T, program string, files ...string) *Agent {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return made(t, Config{Command: append([]string{self, programWord, program}, files...), Env: []string{"GORACE"}})
}

func made(t *testing.T, config Config) *Agent {
	t.Helper()
	a, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func saying(content string) *parleyv1.RespondRequest {
	return &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Role: user, Content: content}}}
}

// answer is all text that the agent says, and its error.
func answer(ctx context.Context, a *Agent, request *parleyv1.RespondRequest) (text string, err error) {
	for piece, err := range a.Respond(ctx, request) {
		if err != nil {
			return text, err
		}
		text += piece.GetText()
	}
	return text, nil
}

// namedPipe makes one in a directory of the test's.
func namedPipe(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// watched is a named pipe for a program to hold open. gone waits until the program is
// no more, and returns what it wrote there.
func watched(t *testing.T) (path string, gone func() string) {
	t.Helper()
	path = namedPipe(t)
	said := make(chan string, 1)
	go func() {
		b, err := os.ReadFile(path)
		said <- fmt.Sprint(string(b), err)
	}()
	return path, func() string { return strings.TrimSuffix(<-said, "<nil>") }
}

func TestNewTellsEveryFault(t *testing.T) {
	_, err := New(Config{Format: "xml", Dir: "a\x00b", Env: []string{"OK", "", "A=B"}, MaxConcurrent: -1})
	want := `command: is required
command: neither it nor dir can hold a NUL
format: "xml" is neither "text" nor "stream-json"
env: "" is not the name of an environment variable
env: "A=B" is not the name of an environment variable
max_concurrent: -1 is negative; 0 is 256`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
}

func TestProgramReadsTheConversation(t *testing.T) {
	a := running(t, "cat")
	request := saying(strings.Repeat("long ", 500_000) + "Zücker")
	request.SystemPrompt = "Be brief."
	want := input(request)
	got, err := answer(t.Context(), a, request)
	if got != want || err != nil {
		t.Errorf("%d bytes came back of %d, %v", len(got), len(want), err)
	}
}

func TestProgramNeedNotReadTheConversation(t *testing.T) {
	a := running(t, "deaf")
	if got, err := answer(t.Context(), a, saying(strings.Repeat("long ", 500_000))); got != "done" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestPiecesComeAtOnce(t *testing.T) {
	goAhead := namedPipe(t)
	a := running(t, "halting", goAhead)
	var pieces []string
	for piece, err := range a.Respond(t.Context(), saying("go")) {
		if err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece.GetText())
		if len(pieces) == 1 {
			// Waits for the program, which says no more before.
			if err := os.WriteFile(goAhead, nil, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]string{"one ", "two"}, pieces); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// enough is a consumer that wants no more.
func enough(*parleyv1.RespondResponse, error) bool { return false }

func TestWaitsForASlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := made(t, Config{Command: []string{"no-such-program-here"}, MaxConcurrent: 1})
		if !a.slots.Acquire(t.Context(), enough) {
			t.Fatal("there is no slot")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if _, err := answer(ctx, a, saying("Hi")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("without a slot: %v after %v", err, time.Since(began))
		}
		time.AfterFunc(time.Hour, a.slots.Release)
		var failure *agent.Error
		told := ""
		for piece, err := range a.Respond(t.Context(), saying("Hi")) {
			told += piece.GetProgress().GetText()
			if err != nil && !errors.As(err, &failure) {
				t.Error(err)
			}
		}
		if !strings.HasPrefix(told, "Waiting: ") || failure == nil {
			t.Errorf("told %q, and with a slot: %v, want that the program is not there", told, failure)
		}
		if !a.slots.Acquire(t.Context(), enough) {
			t.Error("the slot was kept")
		}
	})
}

func TestRunsAsManyAtOnceAsConfigured(t *testing.T) {
	for _, test := range []struct{ configured, want int }{{0, 256}, {1, 1}, {3, 3}} {
		a := made(t, Config{Command: []string{"program"}, MaxConcurrent: test.configured})
		slots := 0
		for slots < 1000 && a.slots.Acquire(t.Context(), enough) {
			slots++
		}
		if slots != test.want {
			t.Errorf("max_concurrent %d: %d at once, want %d", test.configured, slots, test.want)
		}
	}
}

func TestManyAtOnceNeverMix(t *testing.T) {
	a := running(t, "cat")
	a.slots = agent.NewSlots(4)
	var turns sync.WaitGroup
	for i := range 12 {
		turns.Go(func() {
			request := saying(fmt.Sprint("turn ", i))
			if got, err := answer(t.Context(), a, request); got != input(request) || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	turns.Wait()
}

func TestStreamOfARealProgram(t *testing.T) {
	lines := filepath.Join(t.TempDir(), "lines")
	write := func(text string) {
		if err := os.WriteFile(lines, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := made(t, Config{Command: []string{"/bin/sh", "-c", `cat "$0"; echo to the log >&2; exit "$1"`, lines, "0"}, Format: FormatStreamJSON})
	write(strings.Join([]string{initLine, messageStart, deltaHello, deltaLo, wholeHello, resultDone, ""}, "\n"))
	if got, err := answer(t.Context(), a, saying("Hi")); got != "Hello" || err != nil {
		t.Errorf("%q, %v", got, err)
	}

	// What the program reports comes before its exit code, which says less.
	a.config.Command[4] = "1"
	if _, err := answer(t.Context(), a, saying("Hi")); err == nil || err.Error() != "sh ended with exit code 1: to the log" {
		t.Errorf("exit code 1: %v", err)
	}
	write(wholeHello + "\n" + `{"type":"result","is_error":true,"result":"no credit left"}` + "\n")
	if _, err := answer(t.Context(), a, saying("Hi")); err == nil || err.Error() != "no credit left" {
		t.Errorf("reported failure: %v", err)
	}

	// Without a result, the exit code says more; exit code 0 does not make the answer whole.
	write(wholeHello + "\n")
	if _, err := answer(t.Context(), a, saying("Hi")); err == nil || err.Error() != "sh ended with exit code 1: to the log" {
		t.Errorf("exit code 1 without a result: %v", err)
	}
	a.config.Command[4] = "0"
	got, err := answer(t.Context(), a, saying("Hi"))
	var failure *agent.Error
	want := "sh ended with exit code 0, but without a result line: the answer may not be whole: to the log"
	if got != "Hello" || !errors.As(err, &failure) || failure.Message != want || !failure.Retryable {
		t.Errorf("exit code 0 without a result: %q, %v", got, err)
	}
}

func TestPythonProgramAnswersFromHistory(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, python3 is not there:", err)
	}
	a := made(t, Config{Command: []string{python, "testdata/shop.py"}})
	request := saying("Add a product")
	ask := func(want string) {
		t.Helper()
		got, err := answer(t.Context(), a, request)
		if got != want || err != nil {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		request.Messages = append(request.Messages, &parleyv1.Message{Role: assistant, Content: got})
	}
	ask("Which product, and for how much?\n")
	request.Messages = append(request.Messages, &parleyv1.Message{Role: user, Content: "Sugar for 50 cents"})
	ask("Added Sugar at 50 cents.\n")

	_, err = answer(t.Context(), a, saying("Sugar for 50 cents"))
	if want := "python3 ended with exit code 1: shop: nothing to go on"; err == nil || err.Error() != want {
		t.Errorf("without history: %v, want %q", err, want)
	}
}
