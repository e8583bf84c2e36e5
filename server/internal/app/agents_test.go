package app

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent"
	"github.com/parleyhq/parley/server/internal/config"
	"github.com/parleyhq/parley/server/internal/config/configtest"
)

// TestNewAgents checks that agents of every kind are created with their configuration.
func TestNewAgents(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	c := loadConfig(t, []string{"--config", path}, environ)
	set, _, err := newAgents(c, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, info := range set.Infos() {
		got = append(got, info.GetName()+": "+info.GetKind()+" "+info.GetDescription())
	}
	want := []string{
		"claude: anthropic ", "echo: echo ", "gpt: openai Knows much.", "helper: a2a ", "local: openai ",
		"named: remote ", "neighbour: remote ", "parrot: echo ", "planner: remote ", "writer: command ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("newAgents(c).Infos() (-want +got):\n%s", d)
	}
	if got := set.Default().Name; got != "gpt" {
		t.Errorf("Default().Name = %q, want gpt", got)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}

	half := 0.5
	gpt := c.Agents[2]
	wantModel := agent.Model{
		BaseURL: "https://gateway.example:8443/openai/v1", Model: "gpt-x", Key: "sk-marked-env",
		Headers: map[string]string{"X-Team": "shop 5", "x-token": "Bearer marked-env", "x-other": "Bearer marked-file"},
		Tools:   gpt.Tools, MaxOutputTokens: 4096, Temperature: &half, ReasoningEffort: "high",
	}
	if d := cmp.Diff(wantModel, modelConfig(gpt)); d != "" {
		t.Errorf("modelConfig(gpt) (-want +got):\n%s", d)
	}
}

// TestNewAgentKinds checks the type of the agent of every kind.
func TestNewAgentKinds(t *testing.T) {
	for _, test := range []struct {
		agent config.Agent
		want  string
	}{
		{config.Agent{Kind: "echo"}, "*echo.Agent"},
		{config.Agent{Kind: "command", Command: []string{"cat"}, MaxConcurrent: 2}, "*command.Agent"},
		{config.Agent{Kind: "openai", Model: "m"}, "*openai.Agent"},
		{config.Agent{Kind: "anthropic", Model: "m"}, "*anthropic.Agent"},
		{config.Agent{Kind: "remote", Address: "localhost:1"}, "*remote.Agent"},
	} {
		made, err := newAgent(test.agent, nil)
		if err != nil {
			t.Errorf("newAgent(kind %s): %v", test.agent.Kind, err)
			continue
		}
		if got := fmt.Sprintf("%T", made); got != test.want {
			t.Errorf("newAgent(kind %s) = %s, want %s", test.agent.Kind, got, test.want)
		}
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNewAgentStructuredBlocks(t *testing.T) {
	const answer = "Here.\n\n```json type=list\n[1]\n```\n"
	made, err := newAgent(config.Agent{Kind: "command", Command: []string{"printf", "%s", answer}, StructuredBlocks: true},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	var text string
	var types []string
	for piece, err := range made.Respond(t.Context(), &parleyv1.RespondRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		text += piece.GetText()
		if data := piece.GetStructuredData(); data != nil {
			types = append(types, data.GetType())
		}
	}
	if text != "Here." || !slices.Equal(types, []string{"list"}) {
		t.Errorf("Respond() = text %q and data %q, want Here. and list", text, types)
	}
}

func TestNewAgentMaxConcurrent(t *testing.T) {
	request := &parleyv1.RespondRequest{Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "one two"}}}
	for _, a := range []config.Agent{
		{Kind: "echo", MaxConcurrent: 1},
		{Kind: "command", Command: []string{"sh", "-c", "echo one; exec sleep 60"}, MaxConcurrent: 1},
	} {
		t.Run(a.Kind, func(t *testing.T) {
			made, err := newAgent(a, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer made.Close()
			first, stopFirst := iter.Pull2(made.Respond(t.Context(), request))
			defer stopFirst()
			if piece, err, _ := first(); piece.GetText() == "" || err != nil {
				t.Fatalf("first piece of the first request = %v, %v; want a text", piece, err)
			}
			second, stopSecond := iter.Pull2(made.Respond(t.Context(), request))
			defer stopSecond()
			if piece, err, _ := second(); piece.GetProgress() == nil || err != nil {
				t.Errorf("first piece of the second request = %v, %v; want progress", piece, err)
			}
		})
	}
}

// tokenEcho is a remote agent that answers with the token that it received.
type tokenEcho struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (tokenEcho) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	sent, _ := metadata.FromIncomingContext(stream.Context())
	return stream.Send(&parleyv1.RespondResponse{
		Piece: &parleyv1.RespondResponse_Text{Text: strings.Join(sent["authorization"], ",")},
	})
}

// TestNewAgentRemote checks that a remote agent receives the configured certificates and headers.
func TestNewAgentRemote(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	c := loadConfig(t, []string{"--config", path}, environ)
	pair, err := tls.LoadX509KeyPair(dir+"/cert.pem", dir+"/key.pem")
	if err != nil {
		t.Fatal(err)
	}
	planner := c.Agents[slices.IndexFunc(c.Agents, func(a config.Agent) bool { return a.Name == "planner" })]
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: planner.TLS.Config().RootCAs,
	})))
	parleyv1.RegisterAgentServiceServer(service, tokenEcho{})
	go func() { _ = service.Serve(listener) }()
	defer service.Stop()

	planner.Address = listener.Addr().String()
	made, err := newAgent(planner, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	var text string
	for piece, err := range made.Respond(t.Context(), &parleyv1.RespondRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		text += piece.GetText()
	}
	if text != "Bearer marked-file" {
		t.Errorf("the agent received %q, want Bearer marked-file", text)
	}
}

// TestNewAgentsFaults checks that newAgents reports all settings which it cannot use.
func TestNewAgentsFaults(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // The agents that were created must be closed.
	set, _, err := newAgents(&config.Config{DefaultAgent: "echo", Agents: []config.Agent{
		{Name: "a", Kind: "command"},
		{Name: "b", Kind: "telepathy"},
		{Name: "echo", Kind: "echo"},
		{Name: "planner", Kind: "remote", Address: "127.0.0.1:1"},
	}}, nil, nil)
	bad, ok := errors.AsType[*config.Error](err)
	if set != nil || !ok || len(bad.Faults) != 2 || !strings.HasPrefix(bad.Faults[0], "agents.a: ") ||
		bad.Faults[1] != `agents.b: "telepathy" is not a kind of agent` {
		t.Errorf("newAgents() = %v, %v; want faults of a and b", set, err)
	}
}

func TestLogAgents(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	c := loadConfig(t, []string{"--config", path}, environ)
	c.Warnings = []config.Warning{
		{Setting: "PARLEY_TLL", Problem: "unknown environment variable ignored", Advice: "did you mean PARLEY_TTL?"},
	}
	var out bytes.Buffer
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logAgents(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: withoutTime})), c)
	want := `level=INFO msg="agent configured" agent=claude kind=anthropic default=false model=claude-x base_url=""
level=INFO msg="agent configured" agent=echo kind=echo default=false
level=INFO msg="agent configured" agent=gpt kind=openai default=true model=gpt-x base_url=https://gateway.example:8443/openai/v1
level=INFO msg="agent configured" agent=helper kind=a2a default=false url=https://helper.example:8443/cards/agent.json
level=INFO msg="agent configured" agent=local kind=openai default=false model=llama base_url=http://[::1]:11434/v1
level=INFO msg="agent configured" agent=named kind=remote default=false address=dns:///planner.example:7001 tls=false
level=INFO msg="agent configured" agent=neighbour kind=remote default=false address=unix:/run/agent.sock tls=true
level=INFO msg="agent configured" agent=parrot kind=echo default=false
level=INFO msg="agent configured" agent=planner kind=remote default=false address=planner.example:7001 tls=true
level=INFO msg="agent configured" agent=writer kind=command default=false program=cat
level=WARN msg="unknown environment variable ignored" setting=PARLEY_TLL advice="did you mean PARLEY_TTL?"
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("logAgents() (-want +got):\n%s", d)
	}
}

// TestRunHidesSecrets checks that the log of a start contains no secret, whether the start succeeds or
// fails.
func TestRunHidesSecrets(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	for name, address := range map[string]string{"successful start": "127.0.0.1:0", "failed start": "unix:" + dir} {
		serving, stop := context.WithCancel(t.Context())
		t.Cleanup(stop)
		var out bytes.Buffer
		log := slog.New(&stopHandler{
			slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}), "serving grpc", stop,
		})
		c := loadConfig(t, []string{"--config", path, "--store=memory", "--grpc-address=" + address, "--http-address="},
			environ)
		err := run(serving, c, options{log: log, onStop: func() {}})
		if (err != nil) != (name == "failed start") {
			t.Errorf("run() of a %s = %v", name, err)
		}
		text := out.String() + fmt.Sprint(err)
		if strings.Contains(text, "marked") || !strings.Contains(text, `"agent":"gpt"`) {
			t.Errorf("log of a %s = %q, want the agents without secrets", name, text)
		}
	}
}

// stopHandler is a handler that calls stop after a record with the message.
type stopHandler struct {
	slog.Handler
	message string
	stop    func()
}

func (s *stopHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == s.message {
		defer s.stop()
	}
	return s.Handler.Handle(ctx, r)
}
