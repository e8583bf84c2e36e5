package command

import (
	"context"
	"log/slog"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inherits reports whether orphaned processes become children of this one, because it is process 1,
// as in a container, or a subreaper.
func Inherits() bool {
	if os.Getpid() == 1 {
		return true
	}
	var subreaper int32
	//nolint:gosec // prctl returns the value through a pointer
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0)
	return err == nil && subreaper != 0
}

// Died returns the signal that reports the end of a child.
func Died() os.Signal { return unix.SIGCHLD }

// Reap reaps inherited processes that have ended, which would otherwise stay zombies, until ctx
// ends. It checks for them at the start and at each signal on died. While Reap runs, only the
// agents of p may start processes, because Reap would consume the exit status of any other child.
func (p *Processes) Reap(ctx context.Context, died <-chan os.Signal, log *slog.Logger) {
	for {
		again := p.reapAll(log)
		select {
		case <-ctx.Done():
			return
		case <-died:
		case <-again:
		}
	}
}

// reapAll reaps ended processes. If the first one may be a program of an agent, reapAll stops and
// returns a channel that is closed when that may have changed.
func (p *Processes) reapAll(log *slog.Logger) (again <-chan struct{}) {
	for {
		pid := firstEnded()
		if pid == 0 {
			return nil
		}
		if again := p.unlessOurs(pid, func() { reap(pid, log) }); again != nil {
			return again
		}
	}
}

// reap reaps a process that has ended. If it is no longer a child, its agent has waited for it in
// the meantime.
func reap(pid int, log *slog.Logger) {
	if reaped, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err == nil && reaped == pid {
		log.Debug("orphaned process reaped", "pid", pid)
	}
}

// firstEnded returns the process id of a child that has ended and was not waited for, or 0 if there
// is none. It does not reap the child.
func firstEnded() (pid int) {
	// info is the kernel's siginfo_t of SIGCHLD, 128 bytes. The union in it has the alignment of a
	// pointer.
	var info struct {
		_     [3]int32 // si_signo, si_errno, si_code
		union struct {
			_   [0]uintptr
			pid int32
		}
		_ [112]byte
	}
	for {
		//nolint:gosec // waitid fills it through a pointer; x/sys declares only the common part
		err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return int(info.union.pid)
		}
	}
}
