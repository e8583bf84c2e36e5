package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// chatPage is a front end. It begins a turn with fetch and shows it with EventSource. It reports
// its progress and, at the end, everything that it showed.
const chatPage = `<!DOCTYPE html><title>chat</title><script type="module">
const {server, proxy, agent, content} = await (await fetch("/settings")).json();
const report = (name, value) => fetch("/reports/" + name, {method: "POST", body: JSON.stringify(value)});
const shown = {fetched: "", text: "", ids: [], opened: 0};

const reply = await fetch(server + "/v1/chat", {method: "POST", body: JSON.stringify({conversationId: "c", agent, content})});
const lines = reply.body.pipeThrough(new TextDecoderStream()).getReader();
let left = "", turn = "";
async function nextLine() {
  while (!left.includes("\n")) {
    const {value, done} = await lines.read();
    if (done) return null;
    left += value;
  }
  const end = left.indexOf("\n"), line = left.slice(0, end);
  left = left.slice(end + 1);
  return JSON.parse(line);
}
const {event} = await nextLine();
const fetched = (async () => {
  for (let line; (line = await nextLine()); ) shown.fetched += line.event.textDelta?.text ?? "";
})();

const source = new EventSource(proxy + "/v1/conversations/c/turns/" + event.turnId + "/events");
source.onopen = () => { shown.opened++; };
source.onmessage = ({data, lastEventId}) => {
  const {event} = JSON.parse(data);
  shown.ids.push(lastEventId);
  shown.text += event.textDelta?.text ?? "";
  report("shown", shown.ids.length);
};
source.onerror = async () => {
  if (source.readyState !== EventSource.CLOSED) return; // EventSource reconnects.
  await fetched;
  report("end", shown);
};
</script>`

// otherOriginPage tries every kind of call and reports those that succeeded.
const otherOriginPage = `<!DOCTYPE html><title>another origin</title><script type="module">
const {server} = await (await fetch("/settings")).json();
const succeeded = [], body = JSON.stringify({conversation: {id: "other-origin"}});
const attempt = async (what, answer) => { try { const reply = await answer; succeeded.push(what + " " + (await reply.text())); } catch {} };
await attempt("read", fetch(server + "/v1/conversations"));
await attempt("write", fetch(server + "/v1/conversations", {method: "POST", body}));
await attempt("write as JSON", fetch(server + "/v1/conversations", {method: "POST", headers: {"Content-Type": "application/json"}, body}));
await fetch(server + "/v1/conversations", {method: "POST", mode: "no-cors", body}).catch(() => {}); // The browser sends it and hides the reply.
await new Promise((resolve) => {
  const source = new EventSource(server + "/v1/watch?deleteAfterDisconnect=0s&conversationIds=mine");
  source.onopen = () => { succeeded.push("watch"); source.close(); resolve(); };
  source.onerror = () => { source.close(); resolve(); };
});
fetch("/reports/end", {method: "POST", body: JSON.stringify(succeeded)});
</script>`

// TestBrowser begins a turn from a page in a browser, which reads it over a connection that breaks. The
// page receives every event exactly once, and the EventSource does not reconnect after the end of the
// turn.
func TestBrowser(t *testing.T) {
	t.Parallel()
	browser := findBrowser(t)
	p := newPuppet(t, t.TempDir(), "pipe")
	pages := servePages(t, chatPage)
	d := startHTTPServer(t, t.TempDir(), agents(t, puppetAgents), "--http-allowed-origins="+pages.url)
	proxy := startProxy(t, strings.TrimPrefix(d.url, "http://"), nil, new(resets))
	pages.settings = map[string]string{
		"server": d.url, "proxy": "http://" + proxy.listener.Addr().String(), "agent": "puppet", "content": p.path,
	}
	close(pages.ready)
	startBrowser(t, browser, pages.url)

	p.start(t)
	for i := range answerPieces {
		pages.awaitReport(t, "shown", fmt.Sprint(i+1)) // One at a time, so that the server merges no pieces.
		if i == answerPieces/2 {
			proxy.reset()
		}
		p.send(t, i+1, i+1)
	}
	pages.awaitReport(t, "shown", fmt.Sprint(answerPieces+1))
	p.finish()
	var shown struct {
		Fetched, Text string
		IDs           []string
		Opened        int
	}
	if err := json.Unmarshal([]byte(pages.awaitReport(t, "end", "")), &shown); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for i := range lastIndex {
		ids = append(ids, fmt.Sprint(i+1))
	}
	if shown.Fetched != completeAnswer() || shown.Text != completeAnswer() || !slices.Equal(shown.IDs, ids) {
		t.Errorf("the page showed %+v, want every piece once", shown)
	}
	if connections := proxy.counts.connections.Load(); shown.Opened != 2 || connections < 2 {
		t.Errorf("the source was opened %d times over %d connections, want 2 opens over at least 2 connections", shown.Opened,
			connections)
	}
	p.wantRuns(t, 1)
}

// TestPageOfAnotherOriginInBrowser checks that a page of an origin that is not allowed can neither read
// nor write, although its browser runs on the server's machine.
func TestPageOfAnotherOriginInBrowser(t *testing.T) {
	t.Parallel()
	browser := findBrowser(t)
	pages := servePages(t, otherOriginPage)
	d := startHTTPServer(t, t.TempDir(), "--http-allowed-origins=https://app.example")
	add(t, d.server, "mine", &parleyv1.Message{Content: "secret"})
	pages.settings = map[string]string{"server": d.url}
	close(pages.ready)
	startBrowser(t, browser, pages.url)
	if succeeded := pages.awaitReport(t, "end", ""); succeeded != "[]" {
		t.Errorf("calls of the page of another origin that succeeded: %s, want none", succeeded)
	}
	_, err := d.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: "other-origin"})
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	history(t, d.server, "mine")
}

// pages serves a page to a browser and receives the reports of the page.
type pages struct {
	url      string
	ready    chan struct{} // closed when settings is set
	settings map[string]string
	reports  map[string]chan string
}

func servePages(t *testing.T, page string) *pages {
	t.Helper()
	p := &pages{
		ready:   make(chan struct{}),
		reports: map[string]chan string{"shown": make(chan string, 2*lastIndex), "end": make(chan string, 1)},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, page)
	})
	mux.HandleFunc("GET /settings", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-p.ready:
			_ = json.NewEncoder(w).Encode(p.settings)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /reports/{name}", func(_ http.ResponseWriter, r *http.Request) {
		if text, err := io.ReadAll(r.Body); err == nil {
			p.reports[r.PathValue("name")] <- string(text)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.url = s.URL
	return p
}

// awaitReport returns the page's first report with this name whose text is want, or any text if want is
// empty. Reports may arrive in another order than they were sent.
func (p *pages) awaitReport(t *testing.T, name, want string) string {
	t.Helper()
	for late := time.After(timeout); ; {
		select {
		case text := <-p.reports[name]:
			if want == "" || text == want {
				return text
			}
		case <-late:
			t.Fatalf("no report %s %s from the page within %v", name, want, timeout)
		}
	}
}

// findBrowser returns the path of Chromium. If there is none, the test is skipped with a message;
// in CI it fails.
func findBrowser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("PARLEY_CHROMIUM"), "chromium", "chromium-headless-shell", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && name != "" {
			return path
		}
	}
	const missing = "no chromium, chromium-headless-shell or google-chrome is on the PATH, and $PARLEY_CHROMIUM names none"
	if os.Getenv("CI") == "true" {
		t.Fatal(missing)
	}
	t.Skip("SKIPPED: " + missing)
	return ""
}

// startBrowser opens a page in a browser that runs until the end of the test. more are more flags.
func startBrowser(t *testing.T, program, url string, more ...string) {
	t.Helper()
	flags := []string{
		"--headless", "--disable-gpu", "--disable-dev-shm-usage", "--disable-breakpad", "--no-first-run", "--mute-audio",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server",
		"--remote-debugging-port=0", // Without it, some builds of Chromium exit at once.
		"--user-data-dir=" + t.TempDir(),
	}
	flags = append(flags, more...)
	if os.Geteuid() == 0 {
		flags = append(flags, "--no-sandbox") // Chromium does not start with its sandbox as root.
	}
	ctx, stop := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, program, append(flags, url)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	var output bytes.Buffer // All processes of the browser hold it open, so that Wait waits for all of them.
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := cmd.Wait(); t.Failed() {
			t.Logf("%s ended with %v and printed:\n%s", program, err, output.String())
		}
	})
}
