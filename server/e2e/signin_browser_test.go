package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// signInPage is a page that signs in as server/http.md describes. It reports what it could do.
const signInPage = `<!DOCTYPE html><title>sign-in</title><script type="module">
const {server, token} = await (await fetch("/settings")).json();
const result = {};
result.without = (await fetch(server + "/v1/conversations")).status;
result.challenge = (await fetch(server + "/v1/conversations")).headers.get("WWW-Authenticate");
const reply = await fetch(server + "/v1/chat", {
  method: "POST",
  headers: {Authorization: "Bearer " + token, "Parley-Tenant": "acme", Accept: "text/event-stream"},
  body: JSON.stringify({content: "from a page"}),
});
result.status = reply.status;
result.text = "";
for await (const text of reply.body.pipeThrough(new TextDecoderStream())) result.text += text;
result.other = (await fetch(server + "/v1/conversations", {headers: {Authorization: "Bearer " + token, "Parley-Tenant": "globex"}})).status;
fetch("/reports/end", {method: "POST", body: JSON.stringify(result)});
</script>`

// TestSignInOfPage signs in from a page in a browser, over TLS.
func TestSignInOfPage(t *testing.T) {
	t.Parallel()
	browser := findBrowser(t)
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=acme", "--role=writer")
	pages := servePages(t, signInPage)
	s := startSecure(t, files, "--http-allowed-origins="+pages.url)
	pages.settings = map[string]string{"server": s.baseURL, "token": token}
	close(pages.ready)
	// The browser does not know the authority of the tests.
	startBrowser(t, browser, pages.url, "--ignore-certificate-errors")
	var got struct {
		Without, Status, Other int
		Challenge, Text        string
	}
	if err := json.Unmarshal([]byte(pages.awaitReport(t, "end", "")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Without != http.StatusUnauthorized || got.Challenge != "Bearer" || got.Other != http.StatusForbidden {
		t.Errorf("the page got %d with the challenge %q without a token, and %d for another tenant; want 401, Bearer, 403",
			got.Without, got.Challenge, got.Other)
	}
	if got.Status != http.StatusOK || !strings.Contains(got.Text, "id: ") || !strings.Contains(got.Text, "from a page") {
		t.Errorf("the page got %d with the events\n%s\nwant 200 and its own text", got.Status, got.Text)
	}
}
