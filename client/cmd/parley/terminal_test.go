package main

import (
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// terminal is the running program on a simulated terminal. Standard output and standard error are one screen.
type terminal struct {
	t          *testing.T
	keys       *io.PipeWriter
	interrupts chan os.Signal

	mu     sync.Mutex
	change *sync.Cond
	screen strings.Builder
	read   int // The length of the part that expect has read.
	ended  bool
	code   int
}

// openTerminal starts the program with args on a terminal.
func openTerminal(ctx context.Context, t *testing.T, args ...string) *terminal {
	t.Helper()
	in, keys := io.Pipe()
	s := &terminal{t: t, keys: keys, interrupts: make(chan os.Signal, 1)}
	s.change = sync.NewCond(&s.mu)
	var running sync.WaitGroup
	running.Go(func() {
		code := run(ctx, args, console{
			program: "bin/parley", in: in, out: s, err: s, inTerminal: true, outTerminal: true,
			interrupts: s.interrupts, getenv: func(string) string { return "" }, now: time.Now,
		})
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended, s.code = true, code
		s.change.Broadcast()
	})
	t.Cleanup(func() { keys.Close(); running.Wait() })
	return s
}

func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change.Broadcast()
	return s.screen.Write(p)
}

// expect waits until text is on the screen after the previously expected text.
func (s *terminal) expect(text string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		unread := s.screen.String()[s.read:]
		if at := strings.Index(unread, text); at >= 0 {
			s.read += at + len(text)
			return
		}
		if s.ended {
			s.t.Fatalf("the program ended without %q; screen after the previously expected text:\n%s", text, unread)
		}
		s.change.Wait()
	}
}

// expectEnd waits until the program ends and checks its exit code.
func (s *terminal) expectEnd(code int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		s.change.Wait()
	}
	if s.code != code {
		s.t.Errorf("exit code %d, want %d; screen:\n%s", s.code, code, s.screen.String())
	}
}

// enter types a line.
func (s *terminal) enter(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// interrupt presses Ctrl-C.
func (s *terminal) interrupt() { s.interrupts <- os.Interrupt }
