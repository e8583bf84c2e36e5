package interactionlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

// turnOff starts a process without a log.
func (s *testService) turnOff(ctx context.Context, from store.Store) error {
	s.detached = true
	return TurnOff(ctx, Options{
		Dir: s.dir, Now: func() time.Time { return s.now }, Log: slog.New(slog.DiscardHandler),
	}, from)
}

// turnOn starts a process with a log.
func (s *testService) turnOn() {
	s.tb.Helper()
	s.detached = false
	s.open()
	must(s.tb, s.catchUp())
}

// TestTurnOff checks that TurnOff adds the entries that a crash lost and none of the time while the log was
// off, however often processes with and without a log crash.
func TestTurnOff(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	s.detached = true
	s.add("acme", "c1", "two")
	s.add("globex", "c1", "of another tenant")
	s.log.crash()
	for range 2 {
		must(t, s.turnOff(t.Context(), s.Store))
		s.add("acme", "c1", "sent while it was off")
		s.add("acme", "c2", "sent while it was off")
		s.add("globex", "c1", "sent while it was off")
		s.add("initech", "c1", "sent while it was off")
	}
	s.wantEntries("one", "two", "of another tenant")
	s.turnOn()
	s.add("acme", "c1", "three")
	s.restart()
	s.wantEntries("one", "two", "of another tenant", "three")
	must(t, s.log.Close())
}

// TestTurnOffFutureMessages checks that no entries are added for messages that were committed while the log
// was off, even if they are dated after the clock and a crash follows soon after the log is on again.
func TestTurnOffFutureMessages(t *testing.T) {
	for name, turnOn := range map[string]func(*testService){
		"at once": (*testService).turnOn,
		"after a crash at its start": func(s *testService) {
			s.open()
			s.log.crash()
			s.turnOn()
		},
		"after a start that was stopped": func(s *testService) {
			s.open()
			stopped, stop := context.WithCancel(s.tb.Context())
			stop()
			if err := s.log.CatchUp(stopped, s.Store); !errors.Is(err, context.Canceled) {
				s.tb.Errorf("CatchUp = %v, want %v", err, context.Canceled)
			}
			must(s.tb, s.log.Close())
			s.turnOn()
		},
		"for the first time": func(s *testService) {
			must(s.tb, os.RemoveAll(s.dir))
			s.turnOn()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestService(t, logDir(t))
			must(t, s.catchUp(), s.log.Close())
			for range 2 {
				must(t, s.turnOff(t.Context(), s.Store))
			}
			s.importAt("elsewhere", s.now.Add(50*time.Second))
			s.add("acme", "elsewhere", "sent while it was off")
			s.now = s.now.Add(time.Second)
			turnOn(s)
			s.detached = true
			s.add("acme", "elsewhere", "two")
			s.add("acme", "c1", "three")
			s.restart()
			s.wantEntries("three", "two")
			must(t, s.log.Close())
		})
	}
}

// TestTurnOffTwice checks that TurnOff does nothing if the log is off already, or if there is none.
func TestTurnOffTwice(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.add("acme", "c1", "one")
	must(t, s.log.Close(), s.turnOff(t.Context(), s.Store))
	before, err := os.ReadFile(s.log.writer.checkpointPath())
	must(t, err, s.turnOff(t.Context(), s.Store))
	if after, err := os.ReadFile(s.log.writer.checkpointPath()); err != nil || !bytes.Equal(after, before) {
		t.Errorf("checkpoint = %s, %v, want %s", after, err, before)
	}
	must(t, os.RemoveAll(s.dir), s.turnOff(t.Context(), s.Store))
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of the directory: %v, want none", err)
	}
}

// TestTurnOffFails checks that entries that TurnOff could not add are not added later, unless its context
// was canceled.
func TestTurnOffFails(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.detached = true
	s.add("acme", "c1", "one")
	s.log.crash()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	failing := &failingStore{Store: s.Store, err: io.ErrUnexpectedEOF}
	if err := s.turnOff(stopped, failing); err == nil {
		t.Error("TurnOff = nil, want an error of the store")
	}
	s.turnOn()
	s.wantEntries("one")
	s.detached = true
	s.add("acme", "c2", "two")
	s.log.crash()
	if err := s.turnOff(t.Context(), failing); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("TurnOff = %v, want %v", err, io.ErrUnexpectedEOF)
	}
	s.add("acme", "c3", "sent while it was off")
	s.turnOn()
	s.wantEntries("one")
	must(t, s.log.Close())
}
