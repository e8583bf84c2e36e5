package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules/ids"
)

// clientEncodings are the ways in which clients encode a segment of a path.
func clientEncodings() map[string]func(string) string {
	each := func(keep string) func(string) string {
		return func(id string) string {
			var encoded strings.Builder
			for _, b := range []byte(id) {
				if strings.IndexByte(keep, b) >= 0 {
					encoded.WriteByte(b)
				} else {
					fmt.Fprintf(&encoded, "%%%02x", b)
				}
			}
			return encoded.String()
		}
	}
	const unreserved = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~"
	return map[string]func(string) string{
		"url.PathEscape":        url.PathEscape,
		"encodeURIComponent":    each(unreserved + "!*'()"),
		"quote":                 each(unreserved), // With safe="".
		"every byte":            each(""),
		"as little as possible": each(unreserved + "!$&'()*+,;=:@"),
	}
}

// TestAnyIDInPath sends any valid id as a segment of paths, in each encoding. The call receives this id.
func TestAnyIDInPath(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	character := rapid.OneOf(rapid.Rune(), rapid.RuneFrom([]rune("/%.:?#+&;=@ \"\\ü")))
	valid := rapid.OneOf(rapid.StringOfN(character, 1, 40, ids.MaxBytes), rapid.SampledFrom([]string{
		":search", "a:load", "messages", "%2F", "%", "a/..", "../a", "/", "//", "+", strings.Repeat("ü", ids.MaxBytes/2),
	})).Filter(ids.IsConversation)
	rapid.Check(t, func(rt *rapid.T) {
		id := valid.Draw(rt, "id")
		for name, encode := range clientEncodings() {
			path := "/v1/conversations/" + encode(id)
			var reply struct {
				Summary struct{ ConversationID string }
			}
			summary := f.do(t, http.MethodGet, path+"/routing-summary?allowMissing=true", "")
			if err := json.Unmarshal([]byte(summary.body), &reply); err != nil || reply.Summary.ConversationID != id {
				rt.Errorf("GET %s/routing-summary (%s) = %d %s, want the summary of %q", path, name, summary.code, summary.body, id)
			}
			if missing := f.do(t, http.MethodGet, path, ""); Reason(missing.status(t)) != "CONVERSATION_NOT_FOUND" {
				rt.Errorf("GET %s (%s) = %d %s, want CONVERSATION_NOT_FOUND", path, name, missing.code, missing.body)
			}
		}
	})
}

// TestIDsOfOneSegment checks that an id is one segment of a path: what a client did not encode is part of the path.
func TestIDsOfOneSegment(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, id := range []string{"app", "app/1", "app/1/messages"} {
		f.do(t, http.MethodPost, "/v1/conversations:load", fmt.Sprintf(`{"conversationId": %q}`, id)).wantOK(t)
	}
	f.do(t, http.MethodGet, "/v1/conversations/app/1", "").wantError(t, http.StatusNotFound, reasonPathNotFound)
	for path, want := range map[string]string{
		"/v1/conversations/app":                "app",
		"/v1/conversations/app%2F1":            "app/1",
		"/v1/conversations/app%2f1/messages":   "app/1",
		"/v1/conversations/app%2F1%2Fmessages": "app/1/messages",
		"/v1/conversations/app%2F1/mess%61ges": "app/1",
		"/v1/%63onversations/app":              "app",
	} {
		a := f.do(t, http.MethodGet, path, "")
		var reply struct {
			Conversation struct{ ID string }
		}
		if err := json.Unmarshal([]byte(a.body), &reply); err != nil || reply.Conversation.ID != want {
			t.Errorf("GET %s = %d %s, want conversation %q", path, a.code, a.body, want)
		}
	}
	f.do(t, http.MethodPost, "/v1/conversations%3Aload", `{"conversationId": "app"}`).wantOK(t)
	f.do(t, http.MethodGet, "/v1%2Fconversations/app", "").wantError(t, http.StatusNotFound, reasonPathNotFound)
}

// TestBadIDsOverHTTP checks that an id that is not valid is named in the error, and that nothing is written.
func TestBadIDsOverHTTP(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const message = `{"messages": [{"role": "ROLE_USER", "content": "x"}]}`
	for _, segment := range []string{
		"", ".", "..", "%2e", "%2E%2E", "%20a", "a%20", "a%0Ab", "a%00b", "a%09", "a%C2%85", "%E2%80%A8", "%C2%A0a", "a%FFb", "%C3",
		"%ED%A0%80", strings.Repeat("x", 257), strings.Repeat("%C3%BC", 128) + "x",
	} {
		path := "/v1/conversations/" + segment
		for _, a := range []*answer{
			f.do(t, http.MethodPost, path+"/messages", message),
			f.do(t, http.MethodGet, path+"/turns", ""),
			f.do(t, http.MethodGet, path+"/turns/0198c0de-0000-7000-8000-000000000000", ""),
		} {
			a.wantError(t, http.StatusBadRequest, "INVALID_REQUEST", "conversationId")
		}
	}
	stored, err := parleyv1.NewConversationServiceClient(f.conn).ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || stored.GetTotalSize() != 0 {
		t.Errorf("ListConversations = %v, %v, want none", stored, err)
	}
}

// TestEmptyIDInPath: no path with the id of a conversation leads to a call if that id is empty. An empty id of a turn
// is up to the call.
func TestEmptyIDInPath(t *testing.T) {
	t.Parallel()
	var called string
	f := serveStub(t, func(_ context.Context, method string) error {
		called = method
		return NewStatus(codes.Aborted, "REACHED", "").Err()
	})
	for _, b := range bindings(t) {
		body := ""
		if b.body != "" {
			body = "{}"
		}
		for param, field := range map[string]string{"{conversation_id}": "conversationId", "{conversation.id}": "conversation.id"} {
			if !strings.Contains(b.path, param) {
				continue
			}
			path := strings.Replace(strings.Replace(b.path, param, "", 1), "{turn_id}", "t", 1)
			called = ""
			f.do(t, b.method, path, body).wantError(t, http.StatusBadRequest, "INVALID_REQUEST", field)
			if called != "" {
				t.Errorf("%s %s called %s, want no call", b.method, path, called)
			}
		}
	}
	f.do(t, http.MethodGet, "/v1/conversations/c/turns//events", "").wantError(t, http.StatusConflict, "REACHED")
}

// TestRawRequestLines sends request lines as they are, without a library that changes the path.
func TestRawRequestLines(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.do(t, http.MethodPost, "/v1/conversations:load", `{"conversationId": "a/../b ü?#%2F:clear"}`).wantOK(t)
	for target, want := range map[string]int{
		"/v1/conversations/a%2F..%2Fb%20%C3%BC%3F%23%252F:clear":                                                    http.StatusOK,
		"/v1/conversations/a%2f%2e%2e%2fb%20%c3%bc%3f%23%252f%3aclear/messages?x=%20":                               http.StatusBadRequest, // The query.
		"/v1/conversations/a%2F..%2Fb%20\xc3\xbc%3F%23%252F:clear":                                                  http.StatusOK,
		"http://" + strings.TrimPrefix(f.url, "http://") + "/v1/conversations/a%2F..%2Fb%20%C3%BC%3F%23%252F:clear": http.StatusOK,
		"/v1/conversations/a/../b%20%C3%BC%3F%23%252F:clear":                                                        http.StatusNotFound,
		"/v1/conversations/a%2": http.StatusBadRequest,
	} {
		if got := rawStatus(t, f, target); got != want {
			t.Errorf("GET %s = %d, want %d", target, got, want)
		}
	}
}

// rawStatus sends a GET with this target and returns the status of the response.
func rawStatus(t *testing.T, f *fixture, target string) int {
	t.Helper()
	host := strings.TrimPrefix(f.url, "http://")
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}
