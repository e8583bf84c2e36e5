package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// TestHealthByService checks that the health service knows each service that the server has, and no other.
func TestHealthByService(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	health := grpc_health_v1.NewHealthClient(s.conn)
	for _, service := range []string{
		"", "parley.v1.ConversationService", "parley.v1.AdminService", "parley.v1.InteractionLogService",
		"grpc.health.v1.Health",
	} {
		reply, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("Check(%q) = %v, %v; want SERVING", service, reply, err)
		}
	}
	reply, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "parley.v1.Missing"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("Check of an unknown service = %v, %v; want NOT_FOUND", reply, err)
	}
}

// TestHealthcheck checks that the command asks the server of its settings, on each kind of listener.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	t.Run("all addresses", func(t *testing.T) {
		t.Parallel()
		s := startServer(t, t.TempDir(), "--grpc-address=0.0.0.0:0", "--insecure", agents(t, testAgents),
			"--http-address=127.0.0.1:0")
		address := fmt.Sprint(s.await(t, "serving grpc")["address"])
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"", "0.0.0.0", "[::]", "localhost", "127.0.0.1"} {
			flag := "--grpc-address=" + host + ":" + port
			wantOffline(t, 0, host+":"+port+": serving\n", "", "healthcheck", flag)
		}
		// Faults in settings that the command does not need have no effect.
		file := filepath.Join(t.TempDir(), "parley.yaml")
		text := "grpc_address: 0.0.0.0:" + port + "\nmax_turns: none\nauth_token_file: missing\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		wantOffline(t, 0, "0.0.0.0:"+port+": serving\n", "", "healthcheck", "--config="+file)

		k := hold(t, s, "c")
		s.terminate()
		s.await(t, "stopping")
		for { // The state changes after the entry.
			if _, body := httpGet(t, s, "/readyz"); body == "not ready: stopping\n" {
				break
			}
		}
		wantOffline(t, 1, "", "parleyd: health check failed: 0.0.0.0:"+port+": not serving\n", "healthcheck",
			"--config="+file)
		k.release(t, "answer")
		s.wantStop(t)
		wantOffline(t, 1, "", "connection refused\n", "healthcheck", "--config="+file)
	})
	t.Run("unix socket", func(t *testing.T) {
		t.Parallel()
		address := "unix:" + filepath.Join(t.TempDir(), "parley.sock")
		startServer(t, t.TempDir(), "--grpc-address="+address)
		wantOffline(t, 0, address+": serving\n", "", "healthcheck", "--grpc-address="+address)
		wantOffline(t, 1, "", "no such file or directory\n", "healthcheck", "--grpc-address="+address+"2")
	})
	t.Run("TLS", healthcheckOverTLS)
	t.Run("no answer", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		address := l.Addr().String()
		wantOffline(t, 1, "", "parleyd: health check failed: "+address+": no answer in time\n", "healthcheck",
			"--grpc-address="+address, "--timeout=200ms")
	})
	t.Run("faults", func(t *testing.T) {
		t.Parallel()
		for _, test := range []struct {
			flags []string
			want  string
		}{
			{[]string{"--grpc-address=127.0.0.1:0"}, "grpc-address: port 0 is another port at each start; set a fixed port"},
			{[]string{"--timeout=0s"}, "--timeout: 0s is not positive"},
			{[]string{"--client-cert-file=a"}, "--client-cert-file, --client-key-file: set both or none"},
			{[]string{"--ttl=1h"}, "unknown flag: --ttl"},
			{[]string{"now"}, `unknown command "now"`},
		} {
			wantOffline(t, exitUsage, "", test.want, append([]string{"healthcheck"}, test.flags...)...)
		}
	})
}

// healthcheckOverTLS: the address need not be in the certificate of the server.
func healthcheckOverTLS(t *testing.T) {
	t.Parallel()
	for _, clientAuth := range []string{"optional", "required"} {
		t.Run(clientAuth, func(t *testing.T) {
			t.Parallel()
			files := newSignIn(t)
			files.createToken(t, "--tenant=acme", "--role=writer")
			s := startSecure(t, files, "--tls-client-ca-file="+files.CAFile, "--tls-client-auth="+clientAuth)
			flags := append([]string{"healthcheck", "--grpc-address=" + s.target, "--tls-client-auth=" + clientAuth},
				files.ServerFlags()[:2]...)
			certificate := []string{
				"--client-cert-file=" + files.ClientCertFile, "--client-key-file=" + files.ClientKeyFile,
			}
			wantOffline(t, 0, s.target+": serving\n", "", append(flags, certificate...)...)
			if clientAuth == "optional" {
				wantOffline(t, 0, s.target+": serving\n", "", flags...)
				wantOffline(t, 1, "", "health check failed: "+s.target+": ", "healthcheck", "--grpc-address="+s.target)
				return
			}
			wantOffline(t, 1, "", "the server requires a client certificate, which --client-cert-file sets", append(flags,
				"--timeout=20s")...)
		})
	}
}

// TestProfiles checks that profiles and stacks are on the debug address only, and there for this machine only.
func TestProfiles(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--http-address=127.0.0.1:0", "--debug-address=localhost:0")
	if code, _ := httpGet(t, s, "/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("GET /debug/pprof/ of the HTTP listener = %d, want 404", code)
	}
	base := fmt.Sprintf("http://%s/debug/pprof/", s.await(t, "serving profiles")["address"])
	get := func(path string, change func(*http.Request)) (code int, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(request)
		}
		return do(t, http.DefaultClient, request)
	}
	for path, want := range map[string]string{
		"": "goroutine", "goroutine?debug=2": "transport.(*debugServer).serve", "heap?debug=1": "@ heap/1048576",
		"mutex?debug=1": "cycles/second", "block?debug=1": "cycles/second", "cmdline": "--debug-address",
	} {
		if code, body := get(path, nil); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("GET %s = %d with\n%s\nwant 200 with %q in it", path, code, body, want)
		}
	}
	if code, _ := get("", func(r *http.Request) { r.Host = "parley.example" }); code != http.StatusForbidden {
		t.Errorf("GET with the host of another machine = %d, want 403", code)
	}
	if code, _ := get("", func(r *http.Request) { r.Header.Set("Origin", "https://app.example") }); code != http.StatusForbidden {
		t.Errorf("GET of a web page = %d, want 403", code)
	}
	// A profile that takes longer than a stop does not delay it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"trace?seconds=1000", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	s.terminate()
	s.wantStop(t)
}

// do sends a request and returns the reply.
func do(t *testing.T, client *http.Client, request *http.Request) (code int, body string) {
	t.Helper()
	reply, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

// TestProfilesOnSocket checks that the debug listener is a Unix socket if the setting says so.
func TestProfilesOnSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "debug.sock")
	s := startServer(t, t.TempDir(), "--debug-address=unix:"+path)
	s.await(t, "serving profiles", "address=unix:"+path)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/debug/pprof/cmdline", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := do(t, client, request); code != http.StatusOK || !strings.Contains(body, path) {
		t.Errorf("GET over the socket = %d with %q, want 200", code, body)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("Stat of the socket = %v, %v; want mode 0600", info, err)
	}
}
