package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
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
	t.Cleanup(p.Close)
	return p
}

// post sends a request and returns the error, or the data of the first event.
func post(t *testing.T, p *agent.Provider) (data string, err error) {
	t.Helper()
	events, err := p.Stream(t.Context(), "chat", make(http.Header), bodyOf(map[string]any{"content": "<hi>"}))
	if err != nil {
		return "", err
	}
	defer events.Close()
	event, err := events.Next()
	return string(event.Data), err
}

// TestProxyOfTheEnvironment runs itself in another process, because the environment is read only
// once per process.
func TestProxyOfTheEnvironment(t *testing.T) {
	const childVariable = "PROVIDER_TEST_CHILD"
	p := newProvider(t, agent.Model{BaseURL: "http://models.test/v1"})
	if os.Getenv(childVariable) != "" {
		data, err := post(t, p)
		t.Logf("post = %q, %v", data, err)
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
	if want := `post = "http://models.test/v1/chat", <nil>`; err != nil || !strings.Contains(string(out), want) {
		t.Errorf("child process: %v: %s, want %s", err, out, want)
	}
}

// TestRequest: a request has the configured headers and query, and the body as JSON that is not escaped for
// HTML.
func TestRequest(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got = fmt.Sprint(r.Method, " ", r.RequestURI, " ", r.Header["Content-Type"], r.Header["User-Agent"], r.Header["X-A"],
			r.Header["X-B"], " ", string(body), err)
		_, _ = io.WriteString(w, "data: ok\n\n")
	}))
	t.Cleanup(server.Close)
	p := newProvider(t, agent.Model{BaseURL: server.URL + "/v1?k=a%20b", Headers: map[string]string{"x-a": "configured"}})
	header := http.Header{"X-A": {"of the API"}, "X-B": {"b"}}
	events, err := p.Stream(t.Context(), "chat", header, bodyOf(map[string]any{"content": "<hi>"}))
	if err != nil {
		t.Fatal(err)
	}
	events.Close()
	if want := "POST /v1/chat?k=a+b [application/json] [parley] [configured] [b] {\"content\":\"<hi>\"}\n<nil>"; got != want {
		t.Errorf("request = %s, want %s", got, want)
	}
	if value := header.Get("X-A"); value != "of the API" {
		t.Errorf("Stream changed the header to %q", value)
	}
}

// bodyOf returns a function that makes this body.
func bodyOf(body any) agent.MakeBody { return func(bool) (any, bool) { return body, false } }

// nativeOrNot makes the body 1 with native forms, or 2 without them.
func nativeOrNot(native bool) (body any, hasNative bool) {
	if native {
		return 1, true
	}
	return 2, false
}

// TestRefusedNativeIsRemembered: after the provider has refused native forms and accepted the request without them, none
// are sent for 10 minutes. A refusal with another cause is not remembered.
func TestRefusedNativeIsRemembered(t *testing.T) {
	var got []string
	accepts := "2"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = append(got, strings.TrimSpace(string(body)))
		if !strings.Contains(accepts, got[len(got)-1]) {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer server.Close()
	p := newProvider(t, agent.Model{BaseURL: server.URL})
	now := time.Unix(1_700_000_000, 0)
	agent.SetNow(p, func() time.Time { return now })
	for _, step := range []struct {
		after   time.Duration
		accepts string // the bodies that the provider accepts
		want    string
	}{
		{0, "", "1 2"}, // for another reason
		{0, "2", "1 2"},
		{0, "2", "2"},
		{10*time.Minute - 1, "12", "2"},
		{1, "2", "1 2"},
		{10 * time.Minute, "12", "1"},
	} {
		got, accepts, now = nil, step.accepts, now.Add(step.after)
		events, err := p.Stream(t.Context(), "chat", make(http.Header), nativeOrNot)
		if err == nil {
			events.Close()
		}
		if sent := strings.Join(got, " "); sent != step.want || (err == nil) != (step.accepts != "") {
			t.Errorf("%s later, %q accepted: requests %q, error %v, want %q", step.after, step.accepts, sent, err, step.want)
		}
	}
}

// TestNextBody: after a refusal of the content of a request with native forms, one without them is sent, and after no
// other status.
func TestNextBody(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusBadRequest: "1 2", http.StatusRequestEntityTooLarge: "1 2", http.StatusUnprocessableEntity: "1 2",
		http.StatusUnauthorized: "1", http.StatusNotFound: "1", http.StatusOK: "1",
	} {
		var got []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			got = append(got, strings.TrimSpace(string(body)))
			if string(body) == "1\n" {
				w.WriteHeader(status)
			}
			_, _ = io.WriteString(w, "data: ok\n\n")
		}))
		p := newProvider(t, agent.Model{BaseURL: server.URL})
		events, err := p.Stream(t.Context(), "chat", make(http.Header), nativeOrNot)
		if err == nil {
			events.Close()
		}
		server.Close()
		if sent := strings.Join(got, " "); sent != want || (err == nil) != (want == "1 2" || status == http.StatusOK) {
			t.Errorf("status %d: requests %q, error %v, want %q", status, sent, err, want)
		}
	}
}

// TestRetryWait: the wait before a retry, or that there is none.
func TestRetryWait(t *testing.T) {
	none := []time.Duration{-1, -1, -1}
	usual := []time.Duration{500 * time.Millisecond, time.Second, -1}
	for name, test := range map[string]struct {
		reply []string // The status and headers; empty for a connection error.
		waits []time.Duration
	}{
		"connection error":           {nil, usual},
		"timeout":                    {[]string{"408"}, usual},
		"conflict":                   {[]string{"409"}, usual},
		"rate limit":                 {[]string{"429"}, usual},
		"server error":               {[]string{"500"}, usual},
		"overloaded":                 {[]string{"529"}, usual},
		"refused":                    {[]string{"400"}, none},
		"refused, wait":              {[]string{"400", "Retry-After", "1"}, none},
		"refused, asks for retries":  {[]string{"400", "X-Should-Retry", "true"}, usual},
		"redirect":                   {[]string{"302", "X-Should-Retry", "true"}, none},
		"server error, but no retry": {[]string{"500", "X-Should-Retry", "false"}, none},
		"seconds": {
			[]string{"429", "Retry-After", "2.5"}, []time.Duration{2500 * time.Millisecond, 2500 * time.Millisecond, -1},
		},
		"at most": {
			[]string{"429", "Retry-After", "10"}, []time.Duration{10 * time.Second, 10 * time.Second, -1},
		},
		"too long": {[]string{"429", "Retry-After", "10.1"}, none},
		"infinite": {[]string{"429", "Retry-After", "1e999"}, none},
		"milliseconds": {
			[]string{"503", "Retry-After-Ms", "7", "Retry-After", "60"},
			[]time.Duration{7 * time.Millisecond, 7 * time.Millisecond, -1},
		},
		"too many milliseconds":  {[]string{"503", "Retry-After-Ms", "10001", "Retry-After", "1"}, none},
		"malformed milliseconds": {[]string{"503", "Retry-After-Ms", "soon", "Retry-After", "60"}, none},
		"negative milliseconds": {
			[]string{"503", "Retry-After-Ms", "-1", "Retry-After", "2"}, []time.Duration{2 * time.Second, 2 * time.Second, -1},
		},
		"not a number": {[]string{"503", "Retry-After", "NaN"}, usual},
		"negative":     {[]string{"503", "Retry-After", "-1"}, usual},
		"malformed":    {[]string{"503", "Retry-After", "soon"}, usual},
		"a date in the past": {
			[]string{"503", "Retry-After", "Fri, 31 Dec 1999 00:00:00 GMT"}, []time.Duration{0, 0, -1},
		},
		"a date in the far future": {[]string{"503", "Retry-After", "Fri, 31 Dec 2100 23:59:59 GMT"}, none},
		"a date in some seconds": {
			[]string{"503", "Retry-After", "Sat, 01 Jan 2000 00:00:05 GMT"}, []time.Duration{5 * time.Second, 0, -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var waits []time.Duration
				last := time.Now() // Midnight on 1 January 2000 in a bubble.
				p := newProvider(t, agent.Model{BaseURL: "http://models.test"})
				agent.SetTransport(p, roundTripper(func(r *http.Request) (*http.Response, error) {
					waits, last = append(waits, time.Since(last)), time.Now()
					if body, err := io.ReadAll(r.Body); err != nil || string(body) != "{\"content\":\"<hi>\"}\n" {
						t.Errorf("body = %q, %v", body, err)
					}
					if len(test.reply) == 0 {
						return nil, errors.New("broken")
					}
					response := &http.Response{Header: make(http.Header), Body: http.NoBody, Request: r}
					response.StatusCode, _ = strconv.Atoi(test.reply[0])
					for i := 1; i < len(test.reply); i += 2 {
						response.Header.Set(test.reply[i], test.reply[i+1])
					}
					return response, nil
				}))
				if _, err := post(t, p); err == nil {
					t.Error("Stream succeeded, want an error")
				}
				for i, want := range test.waits {
					got := time.Duration(-1)
					if i+1 < len(waits) {
						got = waits[i+1]
					}
					if got > want || got < min(want, want*3/4) {
						t.Errorf("wait %d = %v, want %v or up to a quarter less", i+1, got, want)
					}
				}
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
