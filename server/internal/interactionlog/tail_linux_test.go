package interactionlog

import (
	"errors"
	"syscall"
	"testing"
	"time"
)

// TestNoFileDescriptor checks that the log recovers from a sync that failed without a file descriptor.
func TestNoFileDescriptor(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	none := limit
	none.Cur = 0
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none))
	err := s.log.sync()
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	if !errors.Is(err, syscall.EMFILE) {
		t.Fatalf("sync = %v, want %v", err, syscall.EMFILE)
	}
	s.now = s.now.Add(time.Hour)
	s.add("acme", "c1", "two")
	s.log.maintainOnce()
	if until := s.log.writer.pending.saved.CompleteUntil; !until.Equal(s.now) {
		t.Errorf("log complete until %v after the next sync, want %v", until, s.now)
	}
	must(t, s.log.Close())
	if c, _, err := readCheckpoint(s.log.writer.checkpointPath()); err != nil || !c.Clean {
		t.Errorf("checkpoint after Close = %+v, %v, want clean", c, err)
	}
}
