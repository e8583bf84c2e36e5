// Package redistest starts Redis or Valkey for tests, alone or as a cluster. The programs are real, and
// their ports, data and settings are those of one test. Each ends with its test. Start at [Start] and
// [StartCluster].
package redistest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// requiredEnv is the environment variable that fails tests instead of skipping them when no program is
	// installed. Its value is then "1".
	requiredEnv = "REDIS_REQUIRED"
	// host is the address of all servers.
	host = "127.0.0.1"
	// The ports are below those that the kernel gives to connections, so that none of them takes the port of
	// a server between Kill and Restart. The port of an installed server, 6379, is not among them.
	firstPort, lastPort = 10_000, 32_000
	// portAttempts is the number of times that a start chooses other ports.
	portAttempts = 20
)

// Server is a running redis-server or valkey-server. Its methods may be called concurrently, also from
// goroutines other than that of the test: on failure they mark the test as failed and return.
type Server struct {
	// PasswordFile has the password and nothing else. It is empty without the option [Password].
	PasswordFile string
	// CAFile has the certificate of the authority, CertFile and KeyFile the certificate of the server, which
	// is also good for a client. They are empty without the option [TLS].
	CAFile, CertFile, KeyFile string

	tb            testing.TB
	program       string
	dir           string // of its data
	config        string // without ports
	port, busPort int    // busPort is 0 outside of a cluster
	client        client

	mu      sync.Mutex // guards what follows
	process *process   // of the last start
	paused  bool
}

// Start starts a server and waits until it serves. Its data is in a folder of the test. It has an
// append-only file, which it syncs each second, and writes no snapshots. If its memory is full, it refuses
// writes.
//
// A program that is not installed skips the test, or fails it if the environment has REDIS_REQUIRED=1.
//
// The server is stopped at the end of the test. On Linux, it also ends with the process of the test. If
// the test fails, Start logs the server's output.
func Start(tb testing.TB, options ...Option) *Server {
	tb.Helper()
	s := newServer(tb, findProgram(tb), applyOptions(tb, options), tb.TempDir())
	tb.Cleanup(func() {
		s.stop()
		s.logOutput()
	})
	if err := s.start(false, freePort); err != nil {
		tb.Fatal(err)
	}
	return s
}

// findProgram returns the path of redis-server, or of valkey-server if only that is installed.
func findProgram(tb testing.TB) string {
	tb.Helper()
	for _, name := range []string{"redis-server", "valkey-server"} {
		if program, err := exec.LookPath(name); err == nil {
			return program
		}
	}
	const message = "redis-server is missing: make tools installs it"
	if os.Getenv(requiredEnv) == "1" {
		tb.Fatal(message)
	}
	tb.Skip("SKIPPED: " + message)
	return ""
}

func newServer(tb testing.TB, program string, o settings, dir string) *Server {
	tb.Helper()
	return &Server{
		PasswordFile: o.passwordFile, CAFile: o.caFile, CertFile: o.certFile, KeyFile: o.keyFile,
		tb: tb, program: program, dir: dir, config: o.config(dir),
		client: client{password: o.password, tls: o.tls},
	}
}

// start chooses ports with pick, starts the server and waits until it serves. If another process has taken
// a port in between, start chooses others. inCluster is whether the server also needs a port of the cluster
// bus.
func (s *Server) start(inCluster bool, pick func() (int, error)) error {
	for range portAttempts {
		var err error
		if s.port, err = pick(); err != nil {
			return err
		}
		if inCluster {
			if s.busPort, err = pick(); err != nil {
				return err
			}
		}
		s.client.addr = net.JoinHostPort(host, strconv.Itoa(s.port))
		if err := s.launch(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return fmt.Errorf("no free ports after %d attempts: %w", portAttempts, errPortTaken)
}

// freePort returns a port that is free at the moment.
func freePort() (int, error) {
	for {
		port := firstPort + rand.N(lastPort-firstPort)
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
		if !isPortTaken(err.Error()) {
			return 0, err
		}
	}
}

// launch starts the process on the server's ports and waits until it serves.
func (s *Server) launch() error {
	config := s.config
	if s.client.tls != nil {
		config += directive("port", "0") + directive("tls-port", strconv.Itoa(s.port))
	} else {
		config += directive("port", strconv.Itoa(s.port))
	}
	if s.busPort != 0 {
		config += directive("cluster-port", strconv.Itoa(s.busPort))
	}
	p, err := startProcess(s.program, s.dir, config)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process, s.paused = p, false
	s.mu.Unlock()
	if err := p.awaitReady(); err != nil {
		return err
	}
	if _, err := s.client.do("PING"); err != nil {
		return fmt.Errorf("%s does not serve: %w", filepath.Base(s.program), err)
	}
	return nil
}

// current returns the process of the last start, nil before the first.
func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Addr returns the address, "127.0.0.1:12345".
func (s *Server) Addr() string { return s.client.addr }

// URL returns the address as "redis://127.0.0.1:12345", with TLS as "rediss://127.0.0.1:12345". It never
// has the password.
func (s *Server) URL() string { return s.scheme() + s.Addr() }

func (s *Server) scheme() string {
	if s.client.tls != nil {
		return "rediss://"
	}
	return "redis://"
}

// TLSConfig returns the TLS settings of a client that presents a certificate. It is nil without the option
// [TLS].
func (s *Server) TLSConfig() *tls.Config { return s.client.tls.Clone() }

// Pid returns the id of the server's process.
func (s *Server) Pid() int { return s.current().cmd.Process.Pid }

// Running reports whether the process has not ended. A paused one has not.
func (s *Server) Running() bool { return s.current().running() }

// Kill kills the server and waits for its end. Unless the server syncs always, it may lose what it
// acknowledged in the last seconds: it postpones writes to its file while a sync is in progress.
func (s *Server) Kill() {
	s.tb.Helper()
	if err := s.current().kill(); err != nil {
		s.tb.Errorf("Kill(): %v", err)
	}
}

// Restart starts the server again, on the same port and with the same data, and waits until it serves. A
// server that runs is stopped before, also a paused one, and loses nothing.
func (s *Server) Restart() {
	s.tb.Helper()
	s.stop()
	if err := s.launch(); err != nil {
		s.tb.Errorf("Restart(): %v", err)
	}
}

// Pause stops the server's execution until Resume: its connections stay open, and nothing is answered.
func (s *Server) Pause() {
	s.tb.Helper()
	if err := s.setPaused(true); err != nil {
		s.tb.Errorf("Pause(): %v", err)
	}
}

// Resume continues a paused server.
func (s *Server) Resume() {
	s.tb.Helper()
	if err := s.setPaused(false); err != nil {
		s.tb.Errorf("Resume(): %v", err)
	}
}

func (s *Server) setPaused(paused bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	signal := resumeSignal
	if paused {
		signal = pauseSignal
	}
	if err := s.process.cmd.Process.Signal(signal); err != nil {
		return err
	}
	s.paused = paused
	return nil
}

// answers reports whether the server runs and is not paused.
func (s *Server) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process.running() && !s.paused
}

// Config changes a setting until the next start.
func (s *Server) Config(key, value string) {
	s.tb.Helper()
	if _, err := s.Do("CONFIG", "SET", key, value); err != nil {
		s.tb.Errorf("Config(%q, %q): %v", key, value, err)
	}
}

// Do sends a command on a connection of its own and returns the reply as text: the elements of an array
// one a line, null as "". An error of the server is an error with its text. The time limit is 10 seconds.
func (s *Server) Do(args ...string) (string, error) { return s.client.do(args...) }

// stop stops the process, unless it has ended.
func (s *Server) stop() {
	if p := s.current(); p != nil {
		p.stop()
	}
}

// logOutput logs the output of the last process if the test failed.
func (s *Server) logOutput() {
	s.tb.Helper()
	if p := s.current(); p != nil && s.tb.Failed() {
		s.tb.Logf("output of %s at %s since its last start:\n%s", filepath.Base(s.program), s.Addr(), p.output.String())
	}
}

// poll calls done until it returns nil, at most startTime. Then it returns the last error.
func poll(done func() error) error {
	deadline := time.NewTimer(startTime)
	defer deadline.Stop()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			return fmt.Errorf("after %v: %w", startTime, err)
		}
	}
}

// directive returns a line of a configuration.
func directive(name string, values ...string) string {
	words := []string{name}
	for _, v := range values {
		words = append(words, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v)+`"`)
	}
	return strings.Join(words, " ") + "\n"
}
