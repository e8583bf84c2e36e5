// Package supervisor reports the state of the server to systemd, or to another supervisor with the same protocol
// (sd_notify). If no supervisor listens, it does nothing. Start at [New].
package supervisor

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Supervisor is the program that has started the server. Its methods may be called concurrently.
type Supervisor struct {
	log *slog.Logger
	// watchdog is the time without a watchdog notification after which the supervisor kills the server; 0: never.
	watchdog time.Duration

	mu       sync.Mutex // held while the supervisor is notified
	stopping bool       // the last state: a reload that ends during a stop is not reported
}

// New returns the supervisor that the variables NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID name.
func New(log *slog.Logger) *Supervisor {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("watchdog is off", "error", err)
	}
	return &Supervisor{log: log, watchdog: watchdog}
}

// Ready reports that the server serves, and after Reloading that the reload is complete. status is for people.
func (s *Supervisor) Ready(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.notify(daemon.SdNotifyReady + "\nSTATUS=" + status)
	}
}

// Reloading reports that the server reads its settings again. The supervisor waits for Ready.
func (s *Supervisor) Reloading() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.notify(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec() + "STATUS=reloading")
	}
}

// Stopping reports that the server stops, for any reason, and that this takes at most limit. The supervisor extends its
// own time limit to that.
func (s *Supervisor) Stopping(limit time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
	s.notify(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d\nSTATUS=stopping", daemon.SdNotifyStopping, limit.Microseconds()))
}

// Watch sends watchdog notifications until stop is called, which waits for the last one. Before each notification it
// calls alive. If alive hangs, there are no further notifications. Without a watchdog, Watch does nothing.
func (s *Supervisor) Watch(alive func()) (stop func()) {
	if s.watchdog <= 0 {
		return func() {}
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ticker := time.NewTicker(max(s.watchdog/2, time.Microsecond))
		defer ticker.Stop()
		for {
			alive()
			s.notify(daemon.SdNotifyWatchdog)
			select {
			case <-done:
				return
			case <-ticker.C:
			}
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		watching.Wait()
	})
}

func (s *Supervisor) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("supervisor not notified", "error", err)
	}
}
