package redistest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// do is Do for commands that succeed.
func do(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("Do(%q): %v", args, err)
	}
	return reply
}

// config returns a setting of a server.
func config(t *testing.T, s *Server, key string) string {
	t.Helper()
	name, value, _ := strings.Cut(do(t, s, "CONFIG", "GET", key), "\n")
	if name != key {
		t.Fatalf("CONFIG GET %s = %q", key, name)
	}
	return value
}

func TestStart(t *testing.T) {
	t.Parallel()
	s := Start(t)
	for key, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction", "bind": host,
		"cluster-enabled": "no",
	} {
		if got := config(t, s, key); got != want {
			t.Errorf("CONFIG GET %s = %q, want %q", key, got, want)
		}
	}
	if want := "redis://" + s.Addr(); s.URL() != want {
		t.Errorf("URL() = %q, want %q", s.URL(), want)
	}
	if s.port < firstPort || s.port >= lastPort || s.port == 6379 {
		t.Errorf("port %d, want one of %d to %d", s.port, firstPort, lastPort)
	}
	s.Config("maxmemory", "100mb")
	if got := config(t, s, "maxmemory"); got != "104857600" {
		t.Errorf("CONFIG GET maxmemory after Config = %q, want 104857600", got)
	}
}

// TestDo checks the text of all kinds of replies.
func TestDo(t *testing.T) {
	t.Parallel()
	s := Start(t)
	do(t, s, "SET", "key", "two\r\nlines")
	do(t, s, "RPUSH", "list", "a", "b")
	for _, test := range []struct {
		command   []string
		want, err string
	}{
		{[]string{"PING"}, "PONG", ""},
		{[]string{"STRLEN", "key"}, "10", ""},
		{[]string{"GET", "key"}, "two\r\nlines", ""},
		{[]string{"GET", "none"}, "", ""},
		{[]string{"LRANGE", "list", "0", "-1"}, "a\nb", ""},
		{[]string{"LRANGE", "none", "0", "-1"}, "", ""},
		{[]string{"EVAL", "return {1, {2, 'x'}}", "0"}, "1\n2\nx", ""},
		{[]string{"GET", "list"}, "", "WRONGTYPE Operation against a key holding the wrong kind of value"},
	} {
		got, err := s.Do(test.command...)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("Do(%q) = %q, %v, want %q, %q", test.command, got, err, test.want, test.err)
		}
	}
}

// TestKillAndRestart: a server that was killed or stopped starts again at the same address with its data.
func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	s := Start(t, Setting("appendfsync", "always"))
	addr, pid := s.Addr(), s.Pid()
	do(t, s, "SET", "key", "value")
	s.Kill()
	if s.Running() {
		t.Error("Running() after Kill() = true, want false")
	}
	if _, err := s.Do("PING"); err == nil {
		t.Error("Do(PING) after Kill() succeeded, want an error")
	}
	s.Kill() // A second one does nothing.
	for _, state := range []string{"killed", "running", "paused"} {
		if state == "paused" {
			s.Pause()
		}
		s.Restart()
		if got := do(t, s, "GET", "key"); got != "value" {
			t.Errorf("GET key after Restart() of a server that was %s = %q, want value", state, got)
		}
		if s.Addr() != addr || s.Pid() == pid || !s.Running() {
			t.Errorf("Restart() = address %s, pid %d, want %s and another than %d", s.Addr(), s.Pid(), addr, pid)
		}
	}
}

// TestPause: a paused server accepts connections and commands, and replies when it is resumed.
func TestPause(t *testing.T) {
	t.Parallel()
	s := Start(t)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	replies := bufio.NewReader(conn)
	if got, err := exchange(conn, replies, "PING"); got != "PONG" {
		t.Fatalf("PING = %q, %v, want PONG", got, err)
	}
	s.Pause()
	if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got, err := exchange(conn, replies, "PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("PING of a paused server = %q, %v, want a timeout", got, err)
	}
	if !s.Running() {
		t.Error("Running() of a paused server = false, want true")
	}
	s.Resume()
	if err := conn.SetReadDeadline(time.Now().Add(commandTime)); err != nil {
		t.Fatal(err)
	}
	if got, err := readReply(replies); got != "PONG" {
		t.Errorf("reply after Resume() = %q, %v, want PONG", got, err)
	}
}

func TestPassword(t *testing.T) {
	t.Parallel()
	const password = `a "quoted\ word`
	s := Start(t, Password(password))
	if got, err := os.ReadFile(s.PasswordFile); string(got) != password {
		t.Errorf("password file = %q, %v, want %q", got, err, password)
	}
	do(t, s, "PING")
	for _, wrong := range []string{"", "wrong"} {
		c := s.client
		c.password = wrong
		if _, err := c.do("PING"); err == nil {
			t.Errorf("PING with password %q succeeded, want an error", wrong)
		}
	}
	s.Restart()
	do(t, s, "PING")
	if strings.Contains(s.URL(), "quoted") {
		t.Errorf("URL() = %q, want one without the password", s.URL())
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := Start(t, TLS())
	do(t, s, "PING")
	if want := "rediss://" + s.Addr(); s.URL() != want {
		t.Errorf("URL() = %q, want %q", s.URL(), want)
	}
	plain, anonymous, stranger := s.client, s.client, s.client
	plain.tls = nil
	if _, err := plain.do("PING"); err == nil {
		t.Error("PING without TLS succeeded, want an error")
	}
	anonymous.tls = s.TLSConfig()
	anonymous.tls.Certificates = nil
	if _, err := anonymous.do("PING"); err != nil {
		t.Errorf("PING without a certificate: %v", err)
	}
	stranger.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if _, err := stranger.do("PING"); err == nil {
		t.Error("PING without the authority succeeded, want an error")
	}
	s.Config("tls-auth-clients", "yes")
	do(t, s, "PING")
	if _, err := anonymous.do("PING"); err == nil {
		t.Error("PING without a certificate succeeded although one is required")
	}
}

func TestSetting(t *testing.T) {
	t.Parallel()
	s := Start(t, Setting("maxmemory", "3mb"), Setting("client-output-buffer-limit", "pubsub", "1mb", "1mb", "7"))
	if got := config(t, s, "client-output-buffer-limit"); !strings.Contains(got, "pubsub 1048576 1048576 7") {
		t.Errorf("CONFIG GET client-output-buffer-limit = %q", got)
	}
	var err error
	for i := 0; err == nil && i < 100; i++ {
		_, err = s.Do("SET", fmt.Sprint(i), strings.Repeat("x", 100_000))
	}
	if err == nil || !strings.HasPrefix(err.Error(), "OOM ") {
		t.Errorf("SET of 10 MB with maxmemory 3mb: %v, want an error OOM", err)
	}
}

// TestTakenPort: start chooses other ports if one is taken between its choice and the start.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	taken := Start(t)
	for _, test := range []struct {
		name    string
		takenAt int // number of the choice
		options []Option
	}{
		{"port", 1, nil},
		{"port of the cluster bus", 2, []Option{Setting("cluster-enabled", "yes")}},
	} {
		s := newServer(t, findProgram(t), applyOptions(t, test.options), t.TempDir())
		t.Cleanup(s.stop)
		choices := 0
		pick := func() (int, error) {
			choices++
			if choices == test.takenAt {
				return taken.port, nil
			}
			return freePort()
		}
		if err := s.start(len(test.options) > 0, pick); err != nil {
			t.Errorf("start() with a taken %s: %v", test.name, err)
			continue
		}
		do(t, s, "PING")
		if choices < 2 || s.port == taken.port || s.busPort == taken.port {
			t.Errorf("start() = ports %d and %d after %d choices, want others than %d", s.port, s.busPort, choices, taken.port)
		}
	}
}

// TestBadSetting: the error of a start has the output of the program.
func TestBadSetting(t *testing.T) {
	t.Parallel()
	s := newServer(t, findProgram(t), applyOptions(t, []Option{Setting("no-such-setting", "yes")}), t.TempDir())
	if err := s.start(false, freePort); err == nil || !strings.Contains(err.Error(), "no-such-setting") {
		t.Errorf("start() with an unknown setting: %v, want the output of the program", err)
	}
}

// TestMissing: without a program a test is skipped, or fails if the program is required.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, required := range []string{"", "1"} {
		t.Setenv(requiredEnv, required)
		tb := &recorder{TB: t}
		ended := make(chan struct{})
		go func() { // Skip and Fatal end a goroutine.
			defer close(ended)
			findProgram(tb)
		}()
		<-ended
		want := "skip SKIPPED: redis-server is missing: make tools installs it"
		if required == "1" {
			want = "fatal redis-server is missing: make tools installs it"
		}
		if tb.ended != want {
			t.Errorf("%s=%q: findProgram() = %q, want %q", requiredEnv, required, tb.ended, want)
		}
	}
}

// recorder records how a test ends.
type recorder struct {
	testing.TB

	ended string
}

func (r *recorder) Skip(args ...any) {
	r.ended = "skip " + fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.ended = "fatal " + fmt.Sprint(args...)
	runtime.Goexit()
}

// TestEndsWithTest: no process is left after a test, running, paused or killed, alone or in a cluster.
func TestEndsWithTest(t *testing.T) {
	t.Parallel()
	var servers []*Server
	t.Run("test", func(t *testing.T) {
		running, paused, killed := Start(t), Start(t), Start(t)
		paused.Pause()
		killed.Kill()
		servers = append(servers, running, paused, killed)
		servers = append(servers, StartCluster(t, 1, 1).Nodes...)
	})
	for _, s := range servers {
		if s.Running() {
			t.Errorf("process %d runs after its test", s.Pid())
		}
		if conn, err := net.Dial("tcp", s.Addr()); err == nil {
			_ = conn.Close()
			t.Errorf("server accepts connections at %s after its test", s.Addr())
		}
	}
}

// TestEndsWithProcess: a server ends when the process of its test is killed.
func TestEndsWithProcess(t *testing.T) {
	const childEnv = "REDISTEST_CHILD"
	if os.Getenv(childEnv) == "1" {
		fmt.Println("child serves", Start(t).Addr())
		select {} // until it is killed
	}
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("SKIPPED: only Linux kills the server")
	}
	findProgram(t)
	child := exec.Command(os.Args[0], "-test.run=^TestEndsWithProcess$", "-test.v")
	child.Env = append(os.Environ(), childEnv+"=1")
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(output); addr == "" && lines.Scan(); {
		_, addr, _ = strings.Cut(lines.Text(), "child serves ")
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(errors.Join(err, child.Process.Kill(), child.Wait()))
	}
	defer conn.Close()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // It reports the kill.
	// The connection ends with the server.
	if err := conn.SetReadDeadline(time.Now().Add(stopTime)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("server of a killed test: %v, want the end of its connection", err)
	}
}
