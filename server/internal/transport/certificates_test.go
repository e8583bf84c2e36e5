package transport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/parleyhq/parley/server/internal/secretfile"
	"github.com/parleyhq/parley/server/parleydtest"
)

// newFiles creates certificates in a folder of the test.
func newFiles(t *testing.T) *parleydtest.SignIn {
	t.Helper()
	files, err := parleydtest.NewSignIn(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// follow returns the certificates of files. Its log is written to log.
func follow(t *testing.T, files TLSFiles, log *bytes.Buffer) *certificates {
	t.Helper()
	c, err := openCertificates(files, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// connected returns both ends of a connection.
func connected(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// serial makes a handshake and returns the serial number of the server's certificate.
func serial(t *testing.T, c *certificates, client *tls.Config) string {
	t.Helper()
	near, far := connected(t)
	defer near.Close()
	defer far.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if err := tls.Server(far, c.config("h2")).HandshakeContext(t.Context()); err != nil {
			t.Error(err)
		}
	})
	client = client.Clone()
	client.ServerName, client.NextProtos = "localhost", []string{"h2"}
	conn := tls.Client(near, client)
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// TestCertificatesFollowFiles checks that new connections use certificates that were replaced by a rename or by the swap
// of a symbolic link. A faulty pair changes nothing, and is logged once.
func TestCertificatesFollowFiles(t *testing.T) {
	source := newFiles(t)
	client, err := source.ClientTLS(false)
	if err != nil {
		t.Fatal(err)
	}
	// The files are in a folder that a link names, as Kubernetes mounts them.
	dir := t.TempDir()
	in := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	generation := func(name string) {
		t.Helper()
		if err := errors.Join(os.Mkdir(in(name), 0o700),
			source.WriteServer(in(name, "tls.crt"), in(name, "tls.key"))); err != nil {
			t.Fatal(err)
		}
	}
	generation("1")
	if err := errors.Join(os.Symlink("1", in("..data")), os.Symlink("..data/tls.crt", in("tls.crt")),
		os.Symlink("..data/tls.key", in("tls.key"))); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := follow(t, TLSFiles{CertFile: in("tls.crt"), KeyFile: in("tls.key")}, &log)
	first := serial(t, c, client)
	c.check()
	if got := serial(t, c, client); got != first || log.Len() > 0 {
		t.Errorf("certificate after a check without a change = %s, want %s; log: %s", got, first, &log)
	}

	generation("2")
	if err := errors.Join(os.Symlink("2", in("..new")), os.Rename(in("..new"), in("..data"))); err != nil {
		t.Fatal(err)
	}
	c.check()
	second := serial(t, c, client)
	if second == first || !strings.Contains(log.String(), "certificates reloaded") {
		t.Errorf("certificate after the swap of a link = %s, want another one; log: %s", second, &log)
	}

	for _, fault := range []string{"no certificate", "half"} {
		log.Reset()
		text := fault
		if fault == "half" { // A certificate without its key.
			whole, err := os.ReadFile(in("1", "tls.crt"))
			if err != nil {
				t.Fatal(err)
			}
			text = string(whole)
		}
		if err := os.WriteFile(in("2", "tls.crt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c.reload() == nil {
			t.Errorf("reload() of %q succeeded, want an error", fault)
		}
		for range 3 {
			c.check()
		}
		if warnings := strings.Count(log.String(), "level=WARN"); warnings != 1 {
			t.Errorf("%q: %d warnings, want 1: %s", fault, warnings, &log)
		}
		if got := serial(t, c, client); got != second {
			t.Errorf("certificate after the fault %q = %s, want %s", fault, got, second)
		}
	}
	if err := source.WriteServer(in("2", "tls.crt"), in("2", "tls.key")); err != nil { // It renames both files.
		t.Fatal(err)
	}
	c.check()
	if third := serial(t, c, client); third == second || third == first {
		t.Errorf("certificate after the repair = %s, want a new one", third)
	}
}

// TestReloadChecksFiles checks that a reload refuses the files that a start refuses, and blocks at none.
func TestReloadChecksFiles(t *testing.T) {
	for _, test := range []struct{ name, want string }{
		{"readable by all", "can be accessed by other users: its mode is 0644; run chmod 600"},
		{"pipe", "tls-key-file: must name a regular file"},
		{"large", "tls-client-ca-file: names a file of more than 1MiB"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := newFiles(t)
			var log bytes.Buffer
			c := follow(t, TLSFiles{CertFile: files.CertFile, KeyFile: files.KeyFile, ClientCAFile: files.CAFile}, &log)
			before := c.current.Load()
			err := files.WriteServer(files.CertFile, files.KeyFile)
			switch test.name {
			case "readable by all":
				err = errors.Join(err, os.Chmod(files.KeyFile, 0o644))
			case "pipe":
				err = errors.Join(err, os.Remove(files.KeyFile), syscall.Mkfifo(files.KeyFile, 0o600))
			case "large":
				err = errors.Join(err, os.Truncate(files.CAFile, secretfile.MaxPEMBytes+1))
			}
			if err != nil {
				t.Fatal(err)
			}
			c.check()
			if c.current.Load() != before || !strings.Contains(log.String(), test.want) {
				t.Errorf("certificates changed: %v, log = %q, want %q", c.current.Load() != before, &log, test.want)
			}
		})
	}
}

// TestRevokedAuthority checks that clients of an authority which is removed from the file are not signed in: neither
// over a connection that is open, nor in a session that is resumed.
func TestRevokedAuthority(t *testing.T) {
	files, other := newFiles(t), newFiles(t)
	client, err := files.ClientTLS(true)
	if err != nil {
		t.Fatal(err)
	}
	client.ServerName, client.NextProtos = "localhost", []string{"h2"}
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	var log bytes.Buffer
	c := follow(t, TLSFiles{CertFile: files.CertFile, KeyFile: files.KeyFile, ClientCAFile: files.CAFile}, &log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	security := c.grpcCredentials().Clone()
	// connect returns both ends of a connection, and whether the server has verified the client.
	connect := func() (near *tls.Conn, far net.Conn, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			var raw net.Conn
			if raw, err = l.Accept(); err != nil {
				return
			}
			var info credentials.AuthInfo
			if far, info, err = security.ServerHandshake(raw); err != nil {
				raw.Close()
				return
			}
			if info, ok := info.(credentials.TLSInfo); !ok || len(info.State.VerifiedChains) == 0 || info.State.DidResume {
				err = errors.New("the client is not verified, or its session was resumed")
			}
		}()
		raw, dialErr := net.Dial("tcp", l.Addr().String())
		if dialErr != nil {
			t.Fatal(dialErr)
		}
		near = tls.Client(raw, client)
		_ = near.HandshakeContext(t.Context()) // The server reports the error.
		<-done
		return near, far, err
	}
	near, far, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	near2, far2, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if len(c.clients) != 2 {
		t.Errorf("tracked connections = %d, want 2", len(c.clients))
	}
	far2.Close()
	near2.Close()
	if len(c.clients) != 1 {
		t.Errorf("tracked connections after one was closed = %d, want 1", len(c.clients))
	}

	// While the authority stays, its clients do.
	if err := files.WriteServer(files.CertFile, files.KeyFile); err != nil {
		t.Fatal(err)
	}
	if err := c.reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Write([]byte("x")); err != nil {
		t.Errorf("write after a new certificate of the server: %v", err)
	}
	if err := os.Rename(other.CAFile, files.CAFile); err != nil {
		t.Fatal(err)
	}
	if err := c.reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := far.Write([]byte("x")); err == nil {
		t.Error("write to the client of a removed authority succeeded, want an error")
	}
	far.Close()
	if _, _, err := connect(); err == nil {
		t.Error("handshake with a client of a removed authority succeeded, want an error")
	}
	if len(c.clients) != 0 {
		t.Errorf("tracked connections at the end = %d, want 0", len(c.clients))
	}
}

// stuckConn is a connection whose client stops to read.
type stuckConn struct {
	net.Conn
	stuck, written, closed atomic.Bool
}

func (s *stuckConn) Write(p []byte) (int, error) {
	if s.stuck.Load() {
		s.written.Store(true)
		return 0, os.ErrDeadlineExceeded
	}
	return s.Conn.Write(p)
}

func (s *stuckConn) Close() error {
	s.closed.Store(true)
	return s.Conn.Close()
}

// TestRevokedClientThatDoesNotRead checks that the end of a connection does not wait for its client, and that only the
// first request over a connection verifies the certificate.
func TestRevokedClientThatDoesNotRead(t *testing.T) {
	files, other := newFiles(t), newFiles(t)
	client, err := files.ClientTLS(true)
	if err != nil {
		t.Fatal(err)
	}
	client.ServerName = "localhost"
	var log bytes.Buffer
	c := follow(t, TLSFiles{CertFile: files.CertFile, KeyFile: files.KeyFile, ClientCAFile: files.CAFile}, &log)
	near, far := connected(t)
	defer near.Close()
	raw := &stuckConn{Conn: far}
	secured := tls.Server(raw, c.config())
	handshake := make(chan error, 1)
	go func() { handshake <- secured.HandshakeContext(t.Context()) }()
	if err := errors.Join(tls.Client(near, client).HandshakeContext(t.Context()), <-handshake); err != nil {
		t.Fatal(err)
	}
	state := secured.ConnectionState()
	h := &httpServer{certificates: c, deadClients: newDeadClients(time.Minute)}
	h.trackConn(secured, http.StateActive)
	if n := testing.AllocsPerRun(10, func() { c.track(secured, raw, state) }); n > 0 {
		t.Errorf("another request over a connection allocates %v times, as if it verified the certificate", n)
	}
	raw.stuck.Store(true)
	if err := os.Rename(other.CAFile, files.CAFile); err != nil {
		t.Fatal(err)
	}
	if err := c.reload(); err != nil {
		t.Fatal(err)
	}
	if raw.written.Load() || !raw.closed.Load() {
		t.Errorf("wrote to the client: %v, closed: %v, want it closed without a write", raw.written.Load(), raw.closed.Load())
	}
	h.trackConn(secured, http.StateClosed)
	if len(c.clients) != 0 {
		t.Errorf("tracked connections at the end = %d, want 0", len(c.clients))
	}
}

// TestClientAuth checks which clients a listener accepts.
func TestClientAuth(t *testing.T) {
	files := newFiles(t)
	for _, test := range []struct {
		name                    string
		authorities             string
		required, present, want bool
	}{
		{"off", "", false, false, true},
		{"off, certificate", "", false, true, true},
		{"optional", files.CAFile, false, false, true},
		{"optional, certificate", files.CAFile, false, true, true},
		{"required", files.CAFile, true, false, false},
		{"required, certificate", files.CAFile, true, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			c := follow(t, TLSFiles{
				CertFile: files.CertFile, KeyFile: files.KeyFile, ClientCAFile: test.authorities,
				RequireClientCert: test.required,
			}, &log)
			client, err := files.ClientTLS(test.present)
			if err != nil {
				t.Fatal(err)
			}
			client.ServerName = "localhost"
			near, far := connected(t)
			defer near.Close()
			handshake := make(chan error, 1)
			go func() {
				handshake <- tls.Server(far, c.config()).HandshakeContext(t.Context())
				far.Close()
			}()
			_ = tls.Client(near, client).HandshakeContext(t.Context())
			if err := <-handshake; (err == nil) != test.want {
				t.Errorf("handshake = %v, want success: %t", err, test.want)
			}
		})
	}
}
