package main

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

// Every kind can be made, and what was configured reaches it.
func TestNewAgents(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	c := load(t, []string{"--config", path}, environ)
	set, err := newAgents(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, info := range set.Infos() {
		got = append(got, info.GetName()+": "+info.GetKind()+" "+info.GetDescription())
	}
	want := []string{
		"claude: anthropic ", "echo: echo ", "gpt: openai Knows much.", "local: openai ", "named: remote ",
		"neighbour: remote ", "parrot: echo ", "planner: remote ", "writer: command ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if set.Default().Name != "gpt" {
		t.Errorf("the default is %s", set.Default().Name)
	}
	if err := set.Close(); err != nil {
		t.Error(err)
	}

	half := 0.5
	gpt := c.Agents[2]
	wantModel := agent.Model{
		BaseURL: "https://gateway.example:8443/openai/v1", Model: "gpt-x", Key: "sk-marked-env",
		Headers: map[string]string{"X-Team": "shop 5", "x-token": "Bearer marked-env", "x-other": "Bearer marked-file"},
		Tools:   gpt.Tools, MaxOutputTokens: 4096, Temperature: &half,
	}
	if d := cmp.Diff(wantModel, modelOf(gpt)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// What is configured for every kind is around the kind's own agent.
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
			t.Errorf("%s: %v", test.agent.Kind, err)
			continue
		}
		if got := fmt.Sprintf("%T", made); got != test.want {
			t.Errorf("%s: %s", test.agent.Kind, got)
		}
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNewAgentStructuredBlocks(t *testing.T) {
	const answer = "Here.\n\n```json type=list\n[1]\n```\n"
	made, err := newAgent(config.Agent{Kind: "command", Command: []string{"printf", "%s", answer}, StructuredBlocks: true}, nil)
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
		t.Errorf("text %q, data %q", text, types)
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
				t.Fatalf("got %v, %v", piece, err)
			}
			second, stopSecond := iter.Pull2(made.Respond(t.Context(), request))
			defer stopSecond()
			if piece, err, _ := second(); piece.GetProgress() == nil || err != nil {
				t.Errorf("got %v, %v; want to be told to wait", piece, err)
			}
		})
	}
}

// planner is a remote agent that says which token it was sent.
type planner struct {
	parleyv1.UnimplementedAgentServiceServer
}

func (planner) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	sent, _ := metadata.FromIncomingContext(stream.Context())
	return stream.Send(&parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: strings.Join(sent["authorization"], ",")}})
}

// Certificates and headers of the configuration are those that a remote agent sees.
func TestNewAgentRemote(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	c := load(t, []string{"--config", path}, environ)
	pair, err := tls.LoadX509KeyPair(dir+"/cert.pem", dir+"/key.pem")
	if err != nil {
		t.Fatal(err)
	}
	of := c.Agents[slices.IndexFunc(c.Agents, func(a config.Agent) bool { return a.Name == "planner" })]
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: of.TLS.Config().RootCAs,
	})))
	parleyv1.RegisterAgentServiceServer(service, planner{})
	go func() { _ = service.Serve(listener) }()
	defer service.Stop()

	of.Address = listener.Addr().String()
	made, err := newAgent(of, nil)
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
		t.Errorf("it was sent %q", text)
	}
}

// What the settings let through and an agent does not is a fault as well, with the others.
func TestNewAgentsFaults(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent()) // Those that were made are closed.
	set, err := newAgents(&config.Config{DefaultAgent: "echo", Agents: []config.Agent{
		{Name: "a", Kind: "command"},
		{Name: "b", Kind: "telepathy"},
		{Name: "echo", Kind: "echo"},
		{Name: "planner", Kind: "remote", Address: "127.0.0.1:1"},
	}}, nil)
	bad, ok := errors.AsType[*config.Error](err)
	if set != nil || !ok || len(bad.Faults) != 2 || !strings.HasPrefix(bad.Faults[0], "agents.a: ") || bad.Faults[1] != `agents.b: "telepathy" is not a kind of agent` {
		t.Errorf("got %v, %v", set, err)
	}
}

func TestLogAgents(t *testing.T) {
	path, _, environ := configtest.Agents(t)
	c := load(t, []string{"--config", path}, environ)
	c.Warnings = []config.Warning{{Setting: "PARLEY_TLL", Problem: "unknown environment variable ignored", Advice: "did you mean PARLEY_TTL?"}}
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
level=INFO msg="agent configured" agent=local kind=openai default=false model=llama base_url=http://[::1]:11434/v1
level=INFO msg="agent configured" agent=named kind=remote default=false address=dns:///planner.example:7001 tls=false
level=INFO msg="agent configured" agent=neighbour kind=remote default=false address=unix:/run/agent.sock tls=true
level=INFO msg="agent configured" agent=parrot kind=echo default=false
level=INFO msg="agent configured" agent=planner kind=remote default=false address=planner.example:7001 tls=true
level=INFO msg="agent configured" agent=writer kind=command default=false program=cat
level=WARN msg="unknown environment variable ignored" setting=PARLEY_TLL advice="did you mean PARLEY_TTL?"
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A real start says nothing of a key, whether it comes up or not.
func TestStartHidesSecrets(t *testing.T) {
	path, dir, environ := configtest.Agents(t)
	serving, stop := context.WithCancel(t.Context())
	defer stop()
	var out bytes.Buffer
	log := slog.New(&stopAt{slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}), "serving grpc", stop})
	c := load(t, []string{"--config", path, "--store=memory", "--grpc-address=127.0.0.1:0", "--http-address="}, environ)
	if err := run(serving, c, log, 0, func() {}); err != nil {
		t.Errorf("run: %v", err)
	}
	failing := parleyd(t, "--config", path, "--store=memory", "--grpc-address=unix:"+dir)
	failing.Env = append(failing.Env, environ...)
	failed, err := failing.CombinedOutput()
	if code := failing.ProcessState.ExitCode(); code != exitIO {
		t.Errorf("%v, exit code %d: %s", err, code, failed)
	}
	for name, text := range map[string]string{"a run": out.String(), "a failed start": string(failed)} {
		if strings.Contains(text, "marked") || !strings.Contains(text, `"agent":"gpt"`) {
			t.Errorf("%s wrote %s", name, text)
		}
	}
}

// stopAt passes records on and calls stop when the message has come.
type stopAt struct {
	slog.Handler
	message string
	stop    func()
}

func (s *stopAt) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == s.message {
		defer s.stop()
	}
	return s.Handler.Handle(ctx, r)
}
