package a2a

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	a2apb "github.com/a2aproject/a2a-go/v2/a2apb/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/auth"
)

// TestRefusedMessages: a message that the server cannot take is refused with the error of the protocol and a text that
// names the field, and nothing is stored.
func TestRefusedMessages(t *testing.T) {
	t.Parallel()
	message := func(change func(*a2a.Message)) *a2a.SendMessageRequest {
		m := question("", "hello")
		change(m)
		return &a2a.SendMessageRequest{Message: m}
	}
	tests := map[string]struct {
		request *a2a.SendMessageRequest
		want    error // nil: ErrInvalidParams, over HTTP+JSON ErrInvalidRequest
		text    string
	}{
		"no id":    {message(func(m *a2a.Message) { m.ID = "" }), nil, "message"},
		"role":     {message(func(m *a2a.Message) { m.Role = a2a.MessageRoleAgent }), nil, "role"},
		"no parts": {message(func(m *a2a.Message) { m.Parts = nil }), nil, "parts"},
		"bytes": {
			message(func(m *a2a.Message) { m.Parts = append(m.Parts, a2a.NewRawPart([]byte("x"))) }),
			a2a.ErrUnsupportedContentType, "parts[1].raw",
		},
		"references": {
			message(func(m *a2a.Message) { m.ReferenceTasks = []a2a.TaskID{"x"} }), a2a.ErrUnsupportedOperation,
			"referenceTaskIds",
		},
		"metadata": {
			message(func(m *a2a.Message) { m.Metadata = map[string]any{"x": strings.Repeat("x", 1024)} }), nil,
			"message.metadata",
		},
		"unknown task":  {message(func(m *a2a.Message) { m.TaskID = "none" }), a2a.ErrTaskNotFound, "none"},
		"result":        {message(func(m *a2a.Message) { m.Parts = a2a.ContentParts{result("c")} }), nil, "taskId"},
		"faulty result": {message(func(m *a2a.Message) { m.Parts = a2a.ContentParts{result("")} }), nil, "parts[0].data"},
		"context": {
			message(func(m *a2a.Message) { m.ContextID = strings.Repeat("x", 2000) }), nil, "conversation_id",
		},
		"modes": {
			&a2a.SendMessageRequest{
				Message: question("", "x"), Config: &a2a.SendMessageConfig{AcceptedOutputModes: []string{"image/png"}},
			},
			a2a.ErrUnsupportedContentType, "acceptedOutputModes",
		},
	}
	over(t, func(t *testing.T, f *fixture, c *a2aclient.Client) {
		t.Helper()
		for name, test := range tests {
			want := test.want
			_, err := c.SendMessage(t.Context(), test.request)
			if want == nil {
				want = a2a.ErrInvalidParams
				if errors.Is(err, a2a.ErrInvalidRequest) { // HTTP+JSON has one error for both.
					want = a2a.ErrInvalidRequest
				}
			}
			if !errors.Is(err, want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("%s: SendMessage = %v, want %v with %q", name, err, want, test.text)
			}
			for _, err := range c.SendStreamingMessage(t.Context(), test.request) {
				if !errors.Is(err, want) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("%s: SendStreamingMessage = %v, want %v with %q", name, err, want, test.text)
				}
			}
		}
		list, err := f.api.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
		if err != nil || len(list.GetConversations()) != 0 {
			t.Errorf("stored conversations = %v, %v, want none", list.GetConversations(), err)
		}
	})
}

func result(call string) *a2a.Part {
	return a2a.NewDataPart(map[string]any{"toolResult": map[string]any{"callId": call, "content": "x"}})
}

// TestMalformedRequests: a request that is none of the protocol is refused in the form of its binding.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const version = "A2A-Version: 1.0"
	const message = `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}`
	const whole = `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":` + message + `}`
	tests := map[string]struct {
		method, path, body, version string
		code                        int
		text                        string
	}{
		"unknown agent":    {"POST", "/a2a/none", "{}", version, 404, "echo, puppet"},
		"unknown path":     {"POST", "/a2a/echo/messages", "{}", version, 404, cardPath},
		"wrong method":     {"DELETE", "/a2a/echo/tasks", "", version, 404, "DELETE"},
		"no version":       {"POST", "/a2a/echo", "{}", "", 200, "-32009"},
		"other version":    {"POST", "/a2a/echo/message:send", "{}", "A2A-Version: 2.0", 400, "VERSION_NOT_SUPPORTED"},
		"no JSON":          {"POST", "/a2a/echo", "{", version, 200, "-32700"},
		"no JSON, REST":    {"POST", "/a2a/echo/message:send", "{", version, 400, "PARSE_ERROR"},
		"two values":       {"POST", "/a2a/echo", whole + "{}", version, 200, "-32700"},
		"two values, REST": {"POST", "/a2a/echo/message:send", message + "{}", version, 400, "PARSE_ERROR"},
		"no UTF-8":         {"POST", "/a2a/echo/message:send", strings.Replace(message, "x", "\xff", 1), version, 400, "PARSE_ERROR"},
		"no body":          {"POST", "/a2a/echo", "", version, 200, "-32700"},
		"history of list":  {"GET", "/a2a/echo/tasks?historyLength=x", "", version, 400, "historyLength"},
		"time of list":     {"GET", "/a2a/echo/tasks?statusTimestampAfter=x", "", version, 400, "statusTimestampAfter"},
		"no JSON-RPC":      {"POST", "/a2a/echo", `{"id":1,"method":"GetTask"}`, version, 200, "-32600"},
		"unknown method":   {"POST", "/a2a/echo", `{"jsonrpc":"2.0","id":1,"method":"x"}`, version, 200, "-32601"},
		"no message":       {"POST", "/a2a/echo/message:send", `{}`, version, 400, "message is required"},
		"unknown task":     {"GET", "/a2a/echo/tasks/none", "", version, 404, "TASK_NOT_FOUND"},
		"subscription":     {"POST", "/a2a/echo/tasks/none:subscribe", "", version, 404, "TASK_NOT_FOUND"},
		"subscription GET": {"GET", "/a2a/echo/tasks/none:subscribe", "", version, 404, "TASK_NOT_FOUND"},
		"GET of a cancel":  {"GET", "/a2a/echo/tasks/none:cancel", "", version, 404, "PATH_NOT_FOUND"},
		"page size":        {"GET", "/a2a/echo/tasks?pageSize=101", "", version, 400, "pageSize"},
		"page token":       {"GET", "/a2a/echo/tasks?pageToken=x", "", version, 400, "pageToken"},
		"state":            {"GET", "/a2a/echo/tasks?status=x", "", version, 400, "status"},
		"push":             {"GET", "/a2a/echo/tasks/x/pushNotificationConfigs", "", version, 404, "TASK_NOT_FOUND"},
		"history":          {"GET", "/a2a/echo/tasks/none?historyLength=-1", "", version, 400, "historyLength"},
		"extended card":    {"GET", "/a2a/echo/extendedAgentCard", "", version, 400, "EXTENDED_AGENT_CARD"},
		"body too large":   {"POST", "/a2a/echo/message:send", strings.Repeat("x", 5<<20), version, 413, "BODY_TOO_LARGE"},
		"no such context":  {"GET", "/a2a/echo/tasks?contextId=none", "", version, 200, `"tasks":[]`},
		"version in query": {"GET", "/a2a/echo/tasks?A2A-Version=1.0", "", "", 200, `"tasks":[]`},
	}
	for name, test := range tests {
		code, header, body := f.request(t, test.method, test.path, test.body, test.version)
		if code != test.code || !strings.Contains(body, test.text) {
			t.Errorf("%s: %d %s, want %d with %q", name, code, body, test.code, test.text)
		}
		if media := header.Get("Content-Type"); media != mediaJSON || !json.Valid([]byte(body)) {
			t.Errorf("%s: Content-Type %q with %q, want JSON", name, media, body)
		}
	}
	list, err := f.api.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	if err != nil || len(list.GetConversations()) != 0 {
		t.Errorf("stored conversations = %v, %v, want none", list.GetConversations(), err)
	}
}

// TestMediaTypes: a body that is declared as something else than JSON is refused, except with the type of curl -d.
func TestMediaTypes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for media, want := range map[string]string{
		"text/plain": "-32005", "application/json": "-32601", "application/a2a+json; charset=utf-8": "-32601",
		"application/x-www-form-urlencoded": "-32601",
	} {
		_, _, body := f.request(t, http.MethodPost, "/a2a/echo", `{"jsonrpc":"2.0","id":1,"method":"x"}`,
			"A2A-Version: 1.0", "Content-Type: "+media)
		if !strings.Contains(body, want) {
			t.Errorf("%s: %s, want %s", media, body, want)
		}
	}
}

// TestAgentCards: each agent has a card, which clients may keep, and the default agent's is at the root, too.
func TestAgentCards(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	code, header, body := f.request(t, http.MethodGet, "/a2a/echo"+cardPath, "")
	if code != http.StatusOK || header.Get("Etag") == "" || !strings.Contains(header.Get("Cache-Control"), "max-age=") {
		t.Fatalf("card = %d %v %s", code, header, body)
	}
	if code, _, body := f.request(t, http.MethodGet, "/a2a/echo"+cardPath, "", "If-None-Match: "+header.Get("Etag")); code !=
		http.StatusNotModified || body != "" {
		t.Errorf("card with its tag = %d %q, want 304", code, body)
	}
	if code, _, root := f.request(t, http.MethodGet, cardPath, ""); code != http.StatusOK || root != body {
		t.Errorf("card at the root = %d %s, want that of the default agent", code, root)
	}
	if code, header, _ := f.request(t, http.MethodPost, cardPath, ""); code != http.StatusMethodNotAllowed ||
		header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST of the card = %d, Allow %q, want 405", code, header.Get("Allow"))
	}
	card, err := agentcard.DefaultResolver.Resolve(t.Context(), f.url+Path+"puppet")
	if err != nil {
		t.Fatal(err)
	}
	var over []a2a.TransportProtocol
	for _, i := range card.SupportedInterfaces {
		over = append(over, i.ProtocolBinding)
		if i.ProtocolVersion != a2a.Version {
			t.Errorf("%s has version %s, want %s", i.ProtocolBinding, i.ProtocolVersion, a2a.Version)
		}
	}
	if card.Name != "puppet" || card.Version != "1.2.3" || !card.Capabilities.Streaming || !slices.Equal(over, bindings()) {
		t.Errorf("card = %+v with %v, want puppet over %v", card, over, bindings())
	}
}

// FuzzRequests: no body makes the handler fail otherwise than in the form of JSON-RPC.
func FuzzRequests(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER",` +
			`"parts":[{"text":"x"},{"data":{"toolResult":{"callId":"c"}}},{"url":"u"},{"raw":"eA=="}]}}}`,
		`{"jsonrpc":"2.0","id":"x","method":"GetTask","params":{"id":"t","historyLength":-1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{"pageToken":"eA","status":"x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{"parts":[null]}}}`, `{`, `[]`, `null`,
	} {
		f.Add(seed)
	}
	fixture := newFixture(f)
	f.Fuzz(func(t *testing.T, body string) {
		code, _, reply := fixture.request(t, http.MethodPost, "/a2a/echo", body, "A2A-Version: 1.0")
		_, data, isStream := strings.Cut(reply, "data: ")
		if isStream {
			reply, _, _ = strings.Cut(data, "\n")
		}
		var response struct {
			JSONRPC string `json:"jsonrpc"`
		}
		if err := json.Unmarshal([]byte(reply), &response); code != http.StatusOK || err != nil || response.JSONRPC != "2.0" {
			t.Errorf("%d %q (%v), want a response of JSON-RPC", code, reply, err)
		}
	})
}

// oneToken accepts one token.
type oneToken struct{}

// Verify accepts the token "valid".
func (oneToken) Verify(_ context.Context, c auth.Credentials) (auth.Identity, error) {
	if c.Token != "valid" {
		return auth.Identity{}, errors.New("not the token")
	}
	return auth.Identity{Name: "someone", Tenants: []string{"acme"}, Role: auth.Writer}, nil
}

// TestSignIn: everyone may read the cards, which say how to sign in. Operations need a credential, and its tenant has the
// tasks.
func TestSignIn(t *testing.T) {
	t.Parallel()
	for _, binding := range bindings() {
		t.Run(string(binding), func(t *testing.T) {
			f := newFixtureWith(t, auth.New(time.Now, oneToken{}))
			c := f.client(t, "echo", binding)
			_, err := c.SendMessage(t.Context(), &a2a.SendMessageRequest{Message: question("", "hello")})
			// Over HTTP, the SDK keeps the status or the text, and has no error for it.
			if text := fmt.Sprint(err); !strings.Contains(text, "no valid credential") && !strings.Contains(text, "401") {
				t.Errorf("SendMessage without a token = %v, want an error about the credential", err)
			}
			ctx := a2aclient.AttachServiceParams(t.Context(), a2aclient.ServiceParams{"authorization": {"Bearer valid"}})
			result, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: question("", "hello")})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: result.TaskInfo().TaskID}); err != nil {
				t.Errorf("GetTask = %v, want the task", err)
			}
			got := collect(t, c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: question("", "again")}))
			if got.task.Status.State != a2a.TaskStateCompleted {
				t.Errorf("stream ends with %v, want COMPLETED", got.task.Status.State)
			}
		})
	}
	f := newFixtureWith(t, auth.New(time.Now, oneToken{}))
	code, header, body := f.request(t, http.MethodPost, "/a2a/echo", strings.Repeat("x", 1000), "A2A-Version: 1.0")
	if code != http.StatusUnauthorized || header.Get("Www-Authenticate") != "Bearer" || !strings.Contains(body, "-31401") {
		t.Errorf("JSON-RPC without a token = %d %v %s, want 401 in its form", code, header, body)
	}
	if want := `"data":[{"@type":"type.googleapis.com/google.protobuf.Struct","reason":"UNAUTHENTICATED"`; !strings.Contains(
		body, want) {
		t.Errorf("JSON-RPC without a token = %s, want the details of A2A, %s", body, want)
	}
	code, _, body = f.request(t, http.MethodGet, "/a2a/echo/tasks", "", "A2A-Version: 1.0")
	if code != http.StatusUnauthorized || !strings.Contains(body, `"reason":"UNAUTHENTICATED","domain":"a2a-protocol.org"`) {
		t.Errorf("HTTP+JSON without a token = %d %s, want 401 with the reason of A2A", code, body)
	}
	card, err := agentcard.DefaultResolver.Resolve(t.Context(), f.url)
	if err != nil || len(card.SecurityRequirements) != 1 {
		t.Errorf("card = %+v, %v, want one that requires a token", card, err)
	}
}

// TestVersionOverGRPC: a call with another version of the protocol fails with the code of the protocol.
func TestVersionOverGRPC(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	conn, err := grpc.NewClient(f.grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), a2a.SvcParamVersion, "99.0")
	_, err = a2apb.NewA2AServiceClient(conn).GetTask(ctx, &a2apb.GetTaskRequest{Id: "x"})
	st := status.Convert(err)
	if st.Code() != codes.Unimplemented || len(st.Details()) != 1 || !strings.Contains(st.Message(), "99.0") {
		t.Errorf("GetTask with version 99.0 = %v %v, want Unimplemented with a reason", err, st.Details())
	}
}
