package console

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	"github.com/parleyhq/parley/server/internal/auth"
)

// maxZippedBytes is the maximum size of all files of the page, compressed. Slow connections load it, too.
const maxZippedBytes = 150 << 10

func get(c *Console, path string, header ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, r)
	return w.Result()
}

func read(tb testing.TB, response *http.Response) string {
	tb.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return string(body)
}

// TestFilesAreSmall checks the size of the page.
func TestFilesAreSmall(t *testing.T) {
	sum := 0
	for _, f := range readFiles() {
		sum += len(f.zipped)
	}
	if sum > maxZippedBytes {
		t.Errorf("the files have %d bytes, want %d at most", sum, maxZippedBytes)
	}
	t.Logf("%d bytes of %d", sum, maxZippedBytes)
}

// TestPageNamesItsFiles checks that the server has every file that the page loads, and that the page has no script or
// style of its own, which the policy would refuse.
func TestPageNamesItsFiles(t *testing.T) {
	c := New(Options{})
	page := read(t, get(c, "/"))
	for _, match := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if response := get(c, match[1]); response.StatusCode != http.StatusOK || !IsFile(match[1]) {
			t.Errorf("GET %s: status %d", match[1], response.StatusCode)
		}
	}
	if strings.Contains(page, "<style") || strings.Contains(page, "style=") || strings.Contains(page, "<script>") {
		t.Errorf("the page has a script or a style of its own:\n%s", page)
	}
}

// TestFileHeaders checks the headers of a file, with and without compression.
func TestFileHeaders(t *testing.T) {
	c := New(Options{})
	plain := get(c, "/console/console.js")
	for name, want := range map[string]string{
		"Content-Security-Policy": policy, "Content-Type": "text/javascript; charset=utf-8",
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
		"Vary": "Accept-Encoding", "Content-Encoding": "",
	} {
		if got := plain.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	zipped := get(c, "/console/console.js", "Accept-Encoding", "br, gzip")
	r, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	unzipped, err := io.ReadAll(r)
	if err != nil || string(unzipped) != read(t, plain) || zipped.Header.Get("Content-Encoding") != "gzip" {
		t.Errorf("the compressed file differs from the plain one: %v", err)
	}
	if a, b := plain.Header.Get("Etag"), zipped.Header.Get("Etag"); a == "" || a == b {
		t.Errorf("tags = %s and %s, want two", a, b)
	}
	again := get(c, "/console/console.js", "If-None-Match", plain.Header.Get("Etag"))
	if again.StatusCode != http.StatusNotModified {
		t.Errorf("status %d with the tag, want %d", again.StatusCode, http.StatusNotModified)
	}
}

// TestAcceptsGzip checks which headers ask for compression.
func TestAcceptsGzip(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "br,GZIP": true, "gzip;q=0.5": true, "gzip; q=0": false, "gzip;q=0.000": false,
		"gzipped": false, "identity": false,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept-Encoding", header)
		if got := acceptsGzip(r); got != want {
			t.Errorf("acceptsGzip(%q) = %t, want %t", header, got, want)
		}
	}
}

// TestRefusesOthers checks requests that the console does not answer.
func TestRefusesOthers(t *testing.T) {
	c := New(Options{})
	for _, path := range []string{"/console/", "/console/missing.js", "/console/../console.go", "/console/index.html"} {
		if response := get(c, path); response.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: status %d, want %d", path, response.StatusCode, http.StatusNotFound)
		}
	}
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", http.NoBody))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST /: status %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
	for path, want := range map[string]bool{
		"/": true, "/console/x": true, sessionPath: false, settingsPath: false, "/v1/conversations": false, "/consoles": false,
	} {
		if got := IsFile(path); got != want {
			t.Errorf("IsFile(%q) = %t, want %t", path, got, want)
		}
	}
}

// signIn accepts the token "good" of a writer.
func signIn(ctx context.Context, _ string, sent metadata.MD) (auth.Principal, error) {
	c := auth.FromProcess(metadata.NewIncomingContext(ctx, sent))
	switch c.Token {
	case "good":
		return auth.Principal{Name: "ann", Role: auth.Writer, Tenant: "red"}, nil
	case "small":
		return auth.Principal{}, errors.New("needs the role admin")
	}
	return auth.Principal{}, auth.ErrUnauthenticated
}

// TestSession checks what callers learn of themselves. Without a credential they learn no more than that they need one.
func TestSession(t *testing.T) {
	c := New(Options{ReadOnly: true, Version: "v1", SignInRequired: true, SignIn: signIn})
	for name, test := range map[string]struct {
		token string
		code  int
		want  session
	}{
		"none": {"", http.StatusOK, session{SignInRequired: true, ReadOnly: true}},
		"good": {"Bearer good", http.StatusOK, session{
			SignInRequired: true, ReadOnly: true, Version: "v1", Caller: &caller{Name: "ann", Role: "writer", Tenant: "red"},
		}},
		"unknown": {"Bearer bad", http.StatusUnauthorized, session{}},
		"small":   {"Bearer small", http.StatusForbidden, session{}},
	} {
		t.Run(name, func(t *testing.T) {
			var header []string
			if test.token != "" {
				header = []string{"Authorization", test.token}
			}
			response := get(c, sessionPath, header...)
			body := read(t, response)
			if response.StatusCode != test.code {
				t.Fatalf("status %d, want %d: %s", response.StatusCode, test.code, body)
			}
			var got session
			if test.code == http.StatusOK {
				if err := json.Unmarshal([]byte(body), &got); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(test.want, got); d != "" {
				t.Errorf("session (-want +got):\n%s", d)
			}
			if response.Header.Get("Cache-Control") != "no-store" {
				t.Error("the reply may be stored")
			}
		})
	}
}

// TestRefusalNamesTheCredential checks that a caller without a token is not asked for another one.
func TestRefusalNamesTheCredential(t *testing.T) {
	c := New(Options{SignInRequired: true, SignIn: signIn})
	for token, want := range map[string]string{"Bearer bad": "this token", "": "client certificate"} {
		var header []string
		if token != "" {
			header = []string{"Authorization", token}
		}
		if got := read(t, get(c, settingsPath, header...)); !strings.Contains(got, want) {
			t.Errorf("GET %s with Authorization %q = %q, want %q in it", settingsPath, token, got, want)
		}
	}
}

// TestSettings checks that only those who may read them get the settings.
func TestSettings(t *testing.T) {
	c := New(Options{SignInRequired: true, SignIn: signIn, WriteSettings: func(w io.Writer) error {
		_, err := io.WriteString(w, "store: memory\n")
		return err
	}})
	if got := read(t, get(c, settingsPath, "Authorization", "Bearer good")); got != "store: memory\n" {
		t.Errorf("settings = %q", got)
	}
	if response := get(c, settingsPath); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("status %d without a token, want %d", response.StatusCode, http.StatusUnauthorized)
	}
	if response := get(c, settingsPath, "Authorization", "Bearer small"); response.StatusCode != http.StatusForbidden {
		t.Errorf("status %d, want %d", response.StatusCode, http.StatusForbidden)
	}
}
