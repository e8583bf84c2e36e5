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

// terminal is the program with somebody in front of it. Standard output and standard error
// are one screen.
type terminal struct {
	t          *testing.T
	keys       *io.PipeWriter
	interrupts chan os.Signal

	mu     sync.Mutex
	change *sync.Cond
	screen strings.Builder
	seen   int // How far expect has read.
	ended  bool
	code   int
}

// open starts the program with args on a terminal.
func open(ctx context.Context, t *testing.T, args ...string) *terminal {
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

// expect waits until text is on the screen, behind what was expected before.
func (s *terminal) expect(text string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		fresh := s.screen.String()[s.seen:]
		if at := strings.Index(fresh, text); at >= 0 {
			s.seen += at + len(text)
			return
		}
		if s.ended {
			s.t.Fatalf("the program ended without %q; since the last thing expected:\n%s", text, fresh)
		}
		s.change.Wait()
	}
}

// expectEnd waits for the program's end.
func (s *terminal) expectEnd(code int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.ended {
		s.change.Wait()
	}
	if s.code != code {
		s.t.Errorf("exit code %d, want %d; the screen:\n%s", s.code, code, s.screen.String())
	}
}

func (s *terminal) enter(line string) {
	s.t.Helper()
	if _, err := io.WriteString(s.keys, line+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *terminal) interrupt() { s.interrupts <- os.Interrupt }
