package command

import (
	"errors"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReapLeavesProgramsToAgents: Reap does not reap an ended program of an agent. Processes after
// it are checked when the agent has waited for it.
func TestReapLeavesProgramsToAgents(t *testing.T) {
	var p Processes
	program := exec.CommandContext(t.Context(), "sh", "-c", "exit 3")
	if err := p.start(program); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, program)
	again := p.reapAll(slog.New(slog.DiscardHandler))
	if again == nil {
		t.Fatal("reapAll() = nil, want to wait for the program")
	}
	select {
	case <-again:
		t.Error("channel is closed before the program was waited for")
	default:
	}
	if err := p.wait(program); program.ProcessState == nil || program.ProcessState.ExitCode() != 3 {
		t.Errorf("wait() = %v, want exit code 3", err)
	}
	mustClose(t, again)
	if again := p.reapAll(slog.New(slog.DiscardHandler)); again != nil {
		t.Error("reapAll waits for a program that was already waited for")
	}
}

// TestReapWhileAProgramStarts: while a program hangs during its start, orphans are not reaped,
// other programs can start, and Reap can end.
func TestReapWhileAProgramStarts(t *testing.T) {
	var p Processes
	p.starting++ // A program that hangs in exec.
	orphan := exec.CommandContext(t.Context(), "true")
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	awaitZombie(t, orphan)
	again := p.reapAll(slog.New(slog.DiscardHandler))
	if again == nil {
		t.Fatal("reapAll() = nil, want to wait for the program that starts")
	}

	for name, fails := range map[string]bool{"true": false, "/nonexistent": true} {
		program := exec.CommandContext(t.Context(), name)
		if err := p.start(program); (err != nil) != fails {
			t.Fatalf("start of %s = %v", name, err)
		}
		mustClose(t, again)
		if !fails {
			if err := p.wait(program); err != nil {
				t.Error(err)
			}
		}
		if again = p.reapAll(slog.New(slog.DiscardHandler)); again == nil {
			t.Fatal("reapAll reaped while a program starts")
		}
	}
	p.starting-- // The start has failed.
	if again := p.reapAll(slog.New(slog.DiscardHandler)); again != nil {
		t.Error("reapAll waits though no program starts")
	}
	if err := orphan.Wait(); !errors.Is(err, unix.ECHILD) {
		t.Errorf("Wait of the orphan = %v, want %v because it was reaped", err, unix.ECHILD)
	}
}

// awaitZombie waits until the program has ended and does not reap it.
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
		t.Fatal("channel not closed after the change")
	}
}
