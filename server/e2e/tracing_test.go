package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// collector is a collector of OpenTelemetry.
type collector struct {
	*httptest.Server

	mu       sync.Mutex
	resource map[string]string
	spans    []*tracev1.Span
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{resource: map[string]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		request := new(collectorv1.ExportTraceServiceRequest)
		if err == nil {
			err = proto.Unmarshal(body, request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("request to the collector: %s %s, %v", r.Method, r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range request.GetResourceSpans() {
			for _, a := range of.GetResource().GetAttributes() {
				c.resource[a.GetKey()] = a.GetValue().GetStringValue()
			}
			for _, scope := range of.GetScopeSpans() {
				c.spans = append(c.spans, scope.GetSpans()...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// all returns the spans that have arrived.
func (c *collector) all() []*tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// tracedAgent is an agent that passes on the trace context of its calls.
type tracedAgent struct {
	parleyv1.UnimplementedAgentServiceServer
	received chan string
	ends     chan struct{} // the answer ends when this is closed
}

// Respond answers with a text and the number of tokens.
func (a *tracedAgent) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	a.received <- strings.Join(metadata.ValueFromIncomingContext(stream.Context(), "traceparent"), ",")
	if err := stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: "hello"}}); err != nil {
		return err
	}
	<-a.ends
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Usage{
		Usage: &parleyv1.Usage{InputTokens: 7, OutputTokens: 3},
	}})
}

func startTracedAgent(t *testing.T) (agent *tracedAgent, address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	agent = &tracedAgent{received: make(chan string, 1), ends: make(chan struct{})}
	service := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(service, agent)
	go func() { _ = service.Serve(listener) }()
	t.Cleanup(service.Stop)
	return agent, listener.Addr().String()
}

// knownAttributes are the attributes of spans: those of the conventions, and one of Parley.
func knownAttributes() []string {
	return []string{
		string(semconv.HTTPRequestMethodKey), string(semconv.HTTPResponseStatusCodeKey), string(semconv.URLPathKey),
		string(semconv.URLSchemeKey), string(semconv.RPCSystemNameKey), string(semconv.RPCMethodKey),
		string(semconv.RPCResponseStatusCodeKey), string(semconv.GenAIConversationIDKey),
		string(semconv.GenAIOperationNameKey), string(semconv.GenAIAgentNameKey), string(semconv.GenAIProviderNameKey),
		string(semconv.GenAIUsageInputTokensKey), string(semconv.GenAIUsageOutputTokensKey),
		string(semconv.DBSystemNameKey), string(semconv.DBOperationNameKey), string(semconv.ErrorTypeKey),
		"parley.turn.id",
	}
}

// callUntraced makes calls that have no spans: health checks, reflection and a scrape.
func (s *server) callUntraced(t *testing.T, httpAddress string) {
	t.Helper()
	if _, err := healthv1.NewHealthClient(s.conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/metrics", "/readyz"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+httpAddress+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
}

// TestTrace checks that a Chat over HTTP to a remote agent is one trace, from the listener to the agent and the store,
// and that the log entry of the call has its id.
func TestTrace(t *testing.T) {
	t.Parallel()
	const trace, caller = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	collector := startCollector(t)
	agent, address := startTracedAgent(t)
	close(agent.ends)
	command := parleyd(t, "--store=memory", "--http-address=127.0.0.1:0", "--log-calls=all",
		agents(t, "agents:\n  planner: {kind: remote, address: "+address+"}\n"))
	command.Env = append(command.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_SERVICE_NAME=chats",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test")
	s := startProcess(t, command)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		fmt.Sprintf("http://%s/v1/chat", s.await(t, "serving http")["address"]),
		strings.NewReader(`{"conversationId": "c", "content": "a secret", "agent": "planner"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Traceparent", "00-"+trace+"-"+caller+"-01")
	s.callUntraced(t, request.URL.Host)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(text), "hello") {
		t.Fatalf("Chat = %s, %v", text, err)
	}
	s.await(t, "call", "trace_id="+trace, "conversation_id=c", "code=OK")
	s.await(t, "conversation history", "trace_id="+trace, "conversation_id=c") // an entry of the turn
	s.terminate()
	s.wantStop(t)

	spans := map[string]*tracev1.Span{} // by id
	byName := map[string]*tracev1.Span{}
	stores := 0
	for _, span := range collector.all() {
		spans[hex.EncodeToString(span.GetSpanId())] = span
		byName[span.GetName()] = span
		if got := hex.EncodeToString(span.GetTraceId()); got != trace {
			t.Errorf("span %q is in the trace %s, want %s", span.GetName(), got, trace)
		}
		if strings.HasPrefix(span.GetName(), "store ") {
			stores++
		}
		for _, a := range span.GetAttributes() {
			if !slices.Contains(knownAttributes(), a.GetKey()) {
				t.Errorf("span %q has the attribute %q, which the conventions do not have", span.GetName(), a.GetKey())
			}
			if strings.Contains(a.String(), "a secret") {
				t.Errorf("span %q contains the message: %v", span.GetName(), a)
			}
		}
	}
	chain := []string{"POST", "parley.v1.ConversationService/Chat", "turn", "invoke_agent planner"}
	parent := caller
	for _, name := range chain {
		span := byName[name]
		if got := hex.EncodeToString(span.GetParentSpanId()); span == nil || got != parent {
			t.Fatalf("span %q = %v, want one below %s", name, span, parent)
		}
		parent = hex.EncodeToString(span.GetSpanId())
	}
	if got, want := <-agent.received, "00-"+trace+"-"+parent+"-01"; got != want {
		t.Errorf("traceparent of the agent = %q, want %q", got, want)
	}
	for name, want := range map[string]map[string]string{
		"turn": {"gen_ai.conversation.id": "c"},
		"invoke_agent planner": {
			"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner", "gen_ai.conversation.id": "c",
			"gen_ai.provider.name": "parley.remote", "gen_ai.usage.input_tokens": "7", "gen_ai.usage.output_tokens": "3",
		},
		"parley.v1.ConversationService/Chat": {"rpc.system.name": "grpc", "rpc.response.status_code": "OK"},
		"POST":                               {"http.request.method": "POST", "http.response.status_code": "200", "url.path": "/v1/chat"},
	} {
		got := map[string]string{}
		for _, a := range byName[name].GetAttributes() {
			got[a.GetKey()] = a.GetValue().GetStringValue()
			if got[a.GetKey()] == "" {
				got[a.GetKey()] = fmt.Sprint(a.GetValue().GetIntValue())
			}
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("span %q: %s = %q, want %q", name, key, got[key], value)
			}
		}
	}
	if stores < 2 { // The start and the end of the turn.
		t.Errorf("%d spans of the store, want 2 at least", stores)
	}
	collector.mu.Lock()
	defer collector.mu.Unlock()
	if collector.resource["service.name"] != "chats" || collector.resource["deployment.environment.name"] != "test" {
		t.Errorf("resource = %v, want the values of the environment", collector.resource)
	}
}

// TestTraceOfTurn checks that the span of a turn whose caller has disconnected is below that of the call and ends after
// it.
func TestTraceOfTurn(t *testing.T) {
	t.Parallel()
	collector := startCollector(t)
	agent, address := startTracedAgent(t)
	command := parleyd(t, "--store=memory",
		agents(t, "agents:\n  planner: {kind: remote, address: "+address+"}\n"))
	command.Env = append(command.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL, "OTEL_BSP_SCHEDULE_DELAY=10")
	s := startProcess(t, command)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := s.Chat(ctx, &parleyv1.ChatRequest{ConversationId: "c", Content: "hello", Agent: "planner"})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	<-agent.received
	leave()
	eventually(t, "ended spans", []string{"parley.v1.ConversationService/Chat"}, func() (ended []string) {
		for _, span := range collector.all() {
			if strings.HasPrefix(span.GetName(), "parley.") {
				ended = append(ended, span.GetName())
			}
		}
		return ended
	})
	close(agent.ends)
	s.terminate() // A stop waits for the turn.
	s.wantStop(t)
	byName := map[string]*tracev1.Span{}
	for _, span := range collector.all() {
		byName[span.GetName()] = span
	}
	call, turn := byName["parley.v1.ConversationService/Chat"], byName["turn"]
	if call == nil || turn == nil || !bytes.Equal(turn.GetParentSpanId(), call.GetSpanId()) {
		t.Fatalf("spans = %v and %v, want the turn below the call", call, turn)
	}
	if turn.GetEndTimeUnixNano() < call.GetEndTimeUnixNano() {
		t.Errorf("the span of the turn ended at %d, want after %d", turn.GetEndTimeUnixNano(), call.GetEndTimeUnixNano())
	}
}

// TestTraceOfFailures checks that the spans of a turn whose agent fails have the status error, and that those of a turn
// which its caller cancels do not.
func TestTraceOfFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		program, turn, agent string // fault in error.type of the spans
	}{
		"fails":     {"exit 3", "AGENT_FAILED", "AGENT_FAILED"},
		"cancelled": {"echo begun; exec sleep 60", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			collector := startCollector(t)
			command := parleyd(t, "--store=memory",
				agents(t, "agents:\n  program: {kind: command, command: [sh, -c, '"+test.program+"']}\n"))
			command.Env = append(command.Env, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.URL)
			s := startProcess(t, command)
			stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "x", Agent: "program"})
			for err == nil {
				var event *parleyv1.ChatResponse
				event, err = stream.Recv()
				if event.GetEvent().GetTextDelta() != nil {
					_, err = s.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{
						ConversationId: "c", TurnId: event.GetEvent().GetTurnId(),
					})
				}
			}
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			s.terminate()
			s.wantStop(t)
			faults := map[string]string{}
			for _, span := range collector.all() {
				for _, a := range span.GetAttributes() {
					if a.GetKey() == string(semconv.ErrorTypeKey) {
						faults[span.GetName()] = a.GetValue().GetStringValue()
					}
				}
			}
			if faults["turn"] != test.turn || faults["invoke_agent program"] != test.agent {
				t.Errorf("error.type of the spans = %v, want %q of the turn and %q of the agent", faults, test.turn, test.agent)
			}
		})
	}
}

// TestTraceContextOfAgents checks that programs and models receive the trace context, and none without a collector.
func TestTraceContextOfAgents(t *testing.T) {
	t.Parallel()
	received := make(chan string, 1)
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received <- r.Header.Get("Traceparent")
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer model.Close()
	config := agents(t, "agents:\n  program: {kind: command, command: [sh, -c, 'printf \"got %s\" \"$TRACEPARENT\"']}\n"+
		"  model: {kind: openai, model: m, base_url: '"+model.URL+"'}\n")
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	for name, environ := range map[string][]string{
		"on":  {"OTEL_EXPORTER_OTLP_ENDPOINT=" + startCollector(t).URL},
		"off": {"OTEL_SERVICE_NAME=parley"},
	} {
		want := "00-" + trace + "-"
		if name == "off" {
			want = ""
		}
		command := parleyd(t, "--store=memory", config)
		command.Env = append(command.Env, environ...)
		s := startProcess(t, command)
		ctx := metadata.AppendToOutgoingContext(timeLimited(t), "traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		text := ""
		for _, agent := range []string{"program", "model"} {
			stream, err := s.Chat(ctx, &parleyv1.ChatRequest{Content: "hello", Agent: agent})
			for err == nil {
				var reply *parleyv1.ChatResponse
				reply, err = stream.Recv()
				text += reply.GetEvent().GetTextDelta().GetText()
			}
			if !errors.Is(err, io.EOF) {
				t.Fatalf("Chat with the %s = %v", agent, err)
			}
		}
		if got := strings.TrimPrefix(text, "got "); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("tracing %s: TRACEPARENT of the program = %q, want the beginning %q", name, got, want)
		}
		if got := <-received; !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("tracing %s: traceparent of the model = %q, want the beginning %q", name, got, want)
		}
	}
}
