package agent_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parleyhq/parley/server/internal/agent"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newProvider returns a provider for the model, which is closed at the end of the test.
func newProvider(t *testing.T, model agent.Model) *agent.Provider {
	t.Helper()
	model.Model = "m"
	p, err := agent.NewProvider(model, ownBaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Client.CloseIdleConnections)
	return p
}

// get sends a request and returns the response and as much of its body as can be read.
func get(t *testing.T, p *agent.Provider) (response *http.Response, body []byte, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.Base.String(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if response, err = p.Client.Do(request); err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// serve returns a provider that answers with handler.
func serve(t *testing.T, handler http.HandlerFunc) *agent.Provider {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return newProvider(t, agent.Model{BaseURL: server.URL})
}

// TestProxyOfTheEnvironment runs itself in another process, because the environment is read only
// once per process.
func TestProxyOfTheEnvironment(t *testing.T) {
	const childVariable = "PROVIDER_TEST_CHILD"
	p := newProvider(t, agent.Model{BaseURL: "http://models.test/v1"})
	if os.Getenv(childVariable) != "" {
		_, body, err := get(t, p)
		t.Logf("get = %q, %v", body, err)
		return
	}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: "+r.RequestURI+"\n\n")
	}))
	t.Cleanup(proxy.Close)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), childVariable+"=1", "HTTP_PROXY="+proxy.URL, "http_proxy=", "NO_PROXY=", "no_proxy=")
	out, err := command.CombinedOutput()
	if want := `get = "data: http://models.test/v1/\n\n", <nil>`; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("child process: %v: %s, want %s", err, out, want)
	}
}

// TestStreams: the errors of reading a body.
func TestStreams(t *testing.T) {
	const tooLarge, notStream = "an event has more than 4194304 bytes", "the body is not an event stream"
	line := strings.Repeat("x", 64<<10)
	for name, test := range map[string]struct {
		body, want string
	}{
		"many events":         {strings.Repeat("data: "+line+"\ndata: "+line+"\n\n", 40), ""},
		"many with CR LF":     {strings.Repeat("event: e\r\ndata: "+line+"\r\n\r\n", 80), ""},
		"large event":         {"data: " + strings.Repeat("x", 4<<20-7), ""},
		"too large":           {"data: " + strings.Repeat("x", 4<<20), tooLarge},
		"too many lines":      {strings.Repeat("data: "+line+"\n", 65), tooLarge},
		"leading comments":    {strings.Repeat(": wait\n\n", 1000) + "data:\n\n", ""},
		"no final line break": {"event: e\ndata:", ""},
		"nothing":             {"", notStream},
		"comments":            {": wait\n\n", notStream},
		"JSON":                {"{\n  \"data:\": 1\n}\n", notStream},
		"similar field names": {"ddata: x\n\ndat\nxyza:\n\n", notStream},
		"long page":           {strings.Repeat("<p>\n\n", 64<<10) + "data: x\n\n", notStream},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, test.body) })
			_, body, err := get(t, p)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if got != test.want || err == nil && string(body) != test.body {
				t.Errorf("read %d of %d bytes with error %q, want %q", len(body), len(test.body), got, test.want)
			}
		})
	}
}

// TestLongWaits: if a provider asks for a long wait, the client is told not to retry.
func TestLongWaits(t *testing.T) {
	for wait, want := range map[string]string{
		"Retry-After: 10": "", "Retry-After: 11": "false", "Retry-After: -1": "", "Retry-After: soon": "", "Retry-After: 1e999": "false",
		"Retry-After-Ms: 10000": "", "Retry-After-Ms: 10001": "false", "X-None: 0": "",
		"Retry-After: " + time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat): "",
		"Retry-After: " + time.Now().Add(time.Hour).UTC().Format(http.TimeFormat):  "false",
	} {
		p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			name, value, _ := strings.Cut(wait, ": ")
			w.Header().Set(name, value)
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
		})
		response, body, err := get(t, p)
		if got := response.Header.Get("X-Should-Retry"); got != want || len(body) != 64<<10 || err != nil {
			t.Errorf("%s: X-Should-Retry = %q, want %q; %d bytes, %v", wait, got, want, len(body), err)
		}
	}
}
