package openai

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/gateway"
	"github.com/parleyhq/parley/server/internal/rpc"
	"github.com/parleyhq/parley/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is the handler over HTTP in front of a service on memstore, with the agents echo and scripted.
type fixture struct {
	parleyv1.ConversationServiceClient
	url    string
	client *http.Client
	agent  *scriptedAgent
}

func newFixture(tb testing.TB) *fixture {
	tb.Helper()
	return newFixtureWith(tb, func(*rpc.Options) {})
}

// newFixtureWith is like newFixture, with changed options of the service.
func newFixtureWith(tb testing.TB, change func(*rpc.Options)) *fixture {
	tb.Helper()
	f := &fixture{agent: &scriptedAgent{pieces: make(chan piece)}}
	service := rpctest.Open(tb, rpctest.Options{
		Agents: []agent.Entry{{Name: "scripted", Kind: "test", Agent: f.agent}}, Change: change,
	})
	f.ConversationServiceClient = parleyv1.NewConversationServiceClient(service.Conn)
	server := httptest.NewServer(New(service.Direct, service.Authorize, gateway.NewBodies()))
	tb.Cleanup(server.Close)
	f.url, f.client = server.URL+Prefix, server.Client()
	return f
}

// piece is a piece of an answer, or its end if both fields are nil.
type piece struct {
	response *parleyv1.RespondResponse
	err      error
}

// scriptedAgent answers with the pieces that a test sends.
type scriptedAgent struct{ pieces chan piece }

// Respond yields the pieces that the test sends.
func (a *scriptedAgent) Respond(
	ctx context.Context, _ *parleyv1.RespondRequest,
) iter.Seq2[*parleyv1.RespondResponse, error] {
	return func(yield func(*parleyv1.RespondResponse, error) bool) {
		for {
			select {
			case p := <-a.pieces:
				if p.err != nil {
					yield(nil, p.err)
					return
				}
				if p.response == nil || !yield(p.response, nil) {
					return
				}
			case <-ctx.Done():
				yield(nil, context.Cause(ctx))
				return
			}
		}
	}
}

// Close does nothing.
func (a *scriptedAgent) Close() error { return nil }

// say sends pieces of text to the agent, call a tool call, and end ends its answer. They wait until the agent runs.
func (a *scriptedAgent) say(texts ...string) {
	for _, text := range texts {
		a.pieces <- piece{response: &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: text}}}
	}
}

func (a *scriptedAgent) call(id, name, arguments string) {
	a.pieces <- piece{response: &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolCall{
		ToolCall: &parleyv1.ToolCall{Id: id, Name: name, Arguments: arguments},
	}}}
}

func (a *scriptedAgent) result(id, content string) {
	a.pieces <- piece{response: &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_ToolResult{
		ToolResult: &parleyv1.ToolResult{CallId: id, Content: content},
	}}}
}

func (a *scriptedAgent) usage(u *parleyv1.Usage) {
	a.pieces <- piece{response: &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{Usage: u}}}
}

func (a *scriptedAgent) end() { a.pieces <- piece{} }

func (a *scriptedAgent) fail(err error) { a.pieces <- piece{err: err} }

// answer is the response that a client received.
type answer struct {
	code   int
	header http.Header
	body   string
}

// do sends a request. Each header is "Name: value".
func (f *fixture) do(tb testing.TB, method, path, body string, header ...string) *answer {
	tb.Helper()
	response := f.send(tb, tb.Context(), method, path, body, header...)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		tb.Fatalf("%s %s: %v", method, path, err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(text)}
}

func (f *fixture) send(
	tb testing.TB, ctx context.Context, method, path, body string, header ...string,
) *http.Response {
	tb.Helper()
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
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
	return response
}

// values is a decoded JSON object.
type values map[string]any

// ok fails the test unless the status is 200. It returns the body.
func (a *answer) ok(tb testing.TB) values {
	tb.Helper()
	if a.code != http.StatusOK {
		tb.Fatalf("got %d: %s", a.code, a.body)
	}
	return parse(tb, a.body)
}

func parse(tb testing.TB, text string) values {
	tb.Helper()
	var v values
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		tb.Fatalf("%q: %v", text, err)
	}
	return v
}

// wantError fails the test unless the answer is an error in the form of OpenAI with this status, code and parameter.
func (a *answer) wantError(tb testing.TB, status int, code, param string) {
	tb.Helper()
	var body struct {
		Error struct {
			Message, Type, Code string
			Param               *string
		}
	}
	err := json.Unmarshal([]byte(a.body), &body)
	got := ""
	if body.Error.Param != nil {
		got = *body.Error.Param
	}
	if err != nil || a.code != status || body.Error.Code != code || got != param || body.Error.Message == "" ||
		body.Error.Type == "" {
		tb.Errorf("got %d %s, want %d with the code %q and the parameter %q", a.code, a.body, status, code, param)
	}
}

// get returns a value inside of others: names of members and indexes of lists, separated by dots.
func (v values) get(path string) any {
	var at any = map[string]any(v)
	for part := range strings.SplitSeq(path, ".") {
		switch inner := at.(type) {
		case map[string]any:
			at = inner[part]
		case []any:
			var i int
			if _, err := fmt.Sscan(part, &i); err != nil || i >= len(inner) {
				return nil
			}
			at = inner[i]
		default:
			return nil
		}
	}
	return at
}

func (v values) text(path string) string {
	s, _ := v.get(path).(string)
	return s
}

// list returns a list, nil if there is none at the path.
func (v values) list(path string) []any {
	all, _ := v.get(path).([]any)
	return all
}

// object returns an object, nil if there is none at the path.
func (v values) object(path string) values {
	inner, _ := v.get(path).(map[string]any)
	return inner
}

// sequenceNumber returns the number of an event.
func (v values) sequenceNumber() float64 {
	n, _ := v.get("sequence_number").(float64)
	return n
}

// outputText returns the texts of a response.
func (v values) outputText() string {
	var b strings.Builder
	output, _ := v.get("output").([]any)
	for i := range output {
		b.WriteString(v.text(fmt.Sprintf("output.%d.content.0.text", i)))
	}
	return b.String()
}

// post sends a request that must succeed.
func (f *fixture) post(tb testing.TB, path, body string, header ...string) values {
	tb.Helper()
	return f.do(tb, http.MethodPost, path, body, header...).ok(tb)
}

func (f *fixture) get(tb testing.TB, path string) values {
	tb.Helper()
	return f.do(tb, http.MethodGet, path, "").ok(tb)
}

// stream reads server-sent events.
type stream struct {
	response *http.Response
	lines    *bufio.Reader
	leave    context.CancelFunc
}

// open sends a request whose response is a stream.
func (f *fixture) open(tb testing.TB, method, path, body string, header ...string) *stream {
	tb.Helper()
	ctx, leave := context.WithCancel(tb.Context())
	response := f.send(tb, ctx, method, path, body, header...)
	tb.Cleanup(func() {
		leave()
		response.Body.Close()
	})
	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(response.Body)
		tb.Fatalf("%s %s: %d %s", method, path, response.StatusCode, text)
	}
	return &stream{response, bufio.NewReader(response.Body), leave}
}

// next returns the next event, or nil at the end.
func (s *stream) next(tb testing.TB) values {
	tb.Helper()
	name := ""
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				tb.Fatalf("stream: %v", err)
			}
			return nil
		}
		line = strings.TrimSuffix(line, "\n")
		if event, found := strings.CutPrefix(line, "event: "); found {
			name = event
		}
		if data, found := strings.CutPrefix(line, "data: "); found {
			v := parse(tb, data)
			if v.text("type") != name {
				tb.Fatalf("event %q has the data %s", name, data)
			}
			return v
		}
	}
}

// all returns the remaining events.
func (s *stream) all(tb testing.TB) (events []values) {
	tb.Helper()
	for event := s.next(tb); event != nil; event = s.next(tb) {
		events = append(events, event)
	}
	return events
}

// until reads up to an event of this type, which it returns.
func (s *stream) until(tb testing.TB, kind string) values {
	tb.Helper()
	for event := s.next(tb); event != nil; event = s.next(tb) {
		if event.text("type") == kind {
			return event
		}
	}
	tb.Fatalf("no event %s", kind)
	return nil
}

// count returns the number of conversations.
func (f *fixture) count(tb testing.TB) int64 {
	tb.Helper()
	reply, err := f.ListConversations(tb.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	return reply.GetTotalSize()
}
