package agui

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/auth"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
	"github.com/parleyhq/parley/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripts is an agent that answers by the script that the last message names. A nil piece waits for release.
type scripts struct {
	pieces  map[string][]*parleyv1.RespondResponse
	release chan struct{}
	started chan struct{} // Receives when a script waits.
}

func (s *scripts) Respond(
	ctx context.Context, request *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		last := request.GetMessages()[len(request.GetMessages())-1]
		for _, piece := range s.pieces[last.GetContent()+last.GetToolResult().GetContent()] {
			if piece == nil {
				s.started <- struct{}{}
				select {
				case <-s.release:
				case <-ctx.Done():
					yield(nil, context.Cause(ctx))
					return
				}
				continue
			}
			if piece.GetFinishReason() == "fail" {
				yield(nil, &agent.Error{Message: "the model is broken"})
				return
			}
			if !yield(piece, nil) {
				return
			}
		}
	}
}

func (s *scripts) Close() error { return nil }

// fixture is a handler over HTTP in front of a service on memstore with the agents echo and script.
type fixture struct {
	url     string
	client  *http.Client
	handler http.Handler
	api     parleyv1.ConversationServiceClient
	scripts *scripts
	store   *memstore.Store
}

// newFixture returns a fixture with its own service, which ends with the test.
func newFixture(tb testing.TB, pieces map[string][]*parleyv1.RespondResponse) *fixture {
	tb.Helper()
	return openFixture(tb, &fixture{scripts: &scripts{
		pieces: pieces, release: make(chan struct{}), started: make(chan struct{}, 1),
	}}, nil)
}

// restarted returns a second service on the store of a fixture, which has no running turns in memory.
func (f *fixture) restarted(tb testing.TB) *fixture {
	tb.Helper()
	return openFixture(tb, &fixture{scripts: f.scripts, store: f.store}, nil)
}

func openFixture(tb testing.TB, f *fixture, a *auth.Authenticator) *fixture {
	tb.Helper()
	service := rpctest.Open(tb, rpctest.Options{
		Agents: []agent.Entry{{Name: "script", Agent: f.scripts}}, Store: f.store,
		Change: func(o *rpc.Options) { o.Auth = a },
	})
	f.store, f.api = service.Store, parleyv1.NewConversationServiceClient(service.Conn)
	f.handler = New(service.Direct, service.Authorize, gateway.NewBodies())
	s := httptest.NewServer(f.handler)
	tb.Cleanup(s.Close)
	f.url, f.client = s.URL, s.Client()
	return f
}

// open sends a request. Each header is "Name: value".
func (f *fixture) open(tb testing.TB, method, path, body string, header ...string) *http.Response {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, f.url+path, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	response, err := f.client.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { response.Body.Close() })
	return response
}

// received is an event that a client has received.
type received struct {
	id    string
	event map[string]any
}

func (r received) kind() string { return textOf(r.event, "type") }

// textOf returns a text of a JSON object, "" if there is none.
func textOf(object map[string]any, name string) string {
	text, _ := object[name].(string)
	return text
}

// listOf returns a list of a JSON object.
func listOf(object map[string]any, name string) []any {
	list, _ := object[name].([]any)
	return list
}

// objectOf returns an object of a JSON object.
func objectOf(object map[string]any, name string) map[string]any {
	value, _ := object[name].(map[string]any)
	return value
}

// events reads the events of a response one by one. It fails the test if the response is no stream.
func events(tb testing.TB, response *http.Response) iter.Seq[received] {
	tb.Helper()
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(response.Body)
		tb.Fatalf("%s %q: %s; want a stream", response.Status, response.Header.Get("Content-Type"), text)
	}
	return func(yield func(received) bool) {
		var one received
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 10<<20)
		for lines.Scan() {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				one.id = id
			} else if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(data), &one.event); err != nil {
					tb.Fatalf("event %s: %v", data, err)
				}
				if !yield(one) {
					return
				}
				one = received{}
			}
		}
	}
}

// all reads all events of a request.
func (f *fixture) all(tb testing.TB, method, path, body string, header ...string) []received {
	tb.Helper()
	var list []received
	for one := range events(tb, f.open(tb, method, path, body, header...)) {
		list = append(list, one)
	}
	return list
}

// runInput returns a RunAgentInput with messages as JSON.
func runInput(threadID, runID string, messages ...string) string {
	text, _ := json.Marshal(map[string]string{"threadId": threadID, "runId": runID})
	return string(text[:len(text)-1]) + `,"messages":[` + strings.Join(messages, ",") +
		`],"tools":[],"context":[],"state":{},"forwardedProps":{}}`
}

// user returns a message of the user as JSON.
func user(id, content string) string {
	text, _ := json.Marshal(map[string]string{"id": id, "role": "user", "content": content})
	return string(text)
}

// run runs an agent for a message and returns all events.
func (f *fixture) run(tb testing.TB, name, threadID, runID string, messages ...string) []received {
	tb.Helper()
	return f.all(tb, http.MethodPost, PathPrefix+name, runInput(threadID, runID, messages...))
}

// connect returns the events of a connection to the thread "t".
func (f *fixture) connect(tb testing.TB, header ...string) []received {
	tb.Helper()
	return f.all(tb, http.MethodGet, PathPrefix+"echo?threadId=t", "", header...)
}

// stored returns the messages of the conversation "t", oldest first.
func (f *fixture) stored(tb testing.TB) []*parleyv1.Message {
	tb.Helper()
	reply, err := f.api.ListMessages(tb.Context(), &parleyv1.ListMessagesRequest{
		ConversationId: "t", Ascending: true, PageSize: 1000,
	})
	if err != nil {
		tb.Fatalf("ListMessages: %v", err)
	}
	return reply.GetMessages()
}

// failed returns the error of a response, which must have this status and this code.
func failed(tb testing.TB, response *http.Response, status int, code string) string {
	tb.Helper()
	var e failure
	if err := json.NewDecoder(response.Body).Decode(&e); err != nil {
		tb.Fatalf("%s: %v; want an event RUN_ERROR", response.Status, err)
	}
	if response.StatusCode != status || e.Type != "RUN_ERROR" || e.Code != code || e.Message == "" {
		tb.Errorf("got %d %+v, want %d and RUN_ERROR with the code %q", response.StatusCode, e, status, code)
	}
	return e.Message
}

// jsonText returns a value as JSON.
func jsonText(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}
