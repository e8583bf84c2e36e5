package command

import (
	"errors"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReapKeepsAwayFromPrograms: a program that has ended is left to its agent, and what may be
// behind it is looked for when the agent has waited for it.
func TestReapKeepsAwayFromPrograms(t *testing.T) {
	var p Processes
	program := exec.CommandContext(t.Context(), "sh", "-c", "exit 3")
	if err := p.start(program); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, program)
	again := p.reapAll(slog.New(slog.DiscardHandler))
	if again == nil {
		t.Fatal("reapAll found nothing to wait for, want the program")
	}
	select {
	case <-again:
		t.Error("the program counts as waited for, and was not")
	default:
	}
	if err := p.wait(program); program.ProcessState == nil || program.ProcessState.ExitCode() != 3 {
		t.Errorf("the program's agent got %v, want exit code 3", err)
	}
	mustClose(t, again)
	if again := p.reapAll(slog.New(slog.DiscardHandler)); again != nil {
		t.Error("reapAll waits for a program that was waited for")
	}
}

// TestReapWhileAProgramStarts: a start that hangs keeps orphans from being reaped, and neither
// other programs from being started nor Reap from ending.
func TestReapWhileAProgramStarts(t *testing.T) {
	var p Processes
	p.starting++ // It hangs in exec.
	orphan := exec.CommandContext(t.Context(), "true")
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, orphan)
	again := p.reapAll(slog.New(slog.DiscardHandler))
	if again == nil {
		t.Fatal("reapAll found nothing to wait for, want the program that starts")
	}

	for name, fails := range map[string]bool{"true": false, "/nonexistent": true} {
		program := exec.CommandContext(t.Context(), name)
		if err := p.start(program); (err != nil) != fails {
			t.Fatalf("start of %s: %v", name, err)
		}
		mustClose(t, again)
		if !fails {
			if err := p.wait(program); err != nil {
				t.Error(err)
			}
		}
		if again = p.reapAll(slog.New(slog.DiscardHandler)); again == nil {
			t.Fatal("reapAll has reaped while a program starts")
		}
	}
	p.starting-- // It has failed.
	if again := p.reapAll(slog.New(slog.DiscardHandler)); again != nil {
		t.Error("reapAll waits though no program starts")
	}
	if err := orphan.Wait(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("Wait for the orphan = %v, want %v, for it was reaped", err, unix.ECHILD)
	}
}

// awaitZombie returns when the program has ended. It does not wait for it as its parent does.
func awaitZombie(t *testing.T, program *exec.Cmd) {
	t.Helper()
	for {
		switch err := unix.Waitid(unix.P_PID, program.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); {
		case err == nil:
			return
		case !errors.Is(err, unix.EINTR):
			t.Fatal(err)
		}
	}
}

func mustClose(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("whoever waits for a change is not woken")
	}
}
