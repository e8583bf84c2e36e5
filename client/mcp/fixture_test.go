package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// programs is the directory of the two programs that the tests run.
var programs string

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(withPrograms{m})
}

// withPrograms builds the programs, then runs the tests.
type withPrograms struct{ *testing.M }

func (r withPrograms) Run() int {
	dir, err := os.MkdirTemp("", "parley-mcp-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	if err := parleydtest.Build(context.Background(), program("parleyd")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program("parley"), "../cmd/parley")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all programs are built
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build parley: %v\n%s", err, output)
		return 1
	}
	return r.M.Run()
}

// program returns the path of a program.
func program(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(programs, name)
}

// memory is an awk program that answers with the number of questions in the history and the first of them.
const memory = `/^\[USER\]: / { n++; if (n == 1) first = substr($0, 9) } END { printf "%d questions, the first: %s", n, first }`

// startParley starts a server with four agents. memory and broken are programs, and broken fails. puppet does what
// the question says and can hand over to other. startParley returns the address and a client of the server.
func startParley(t *testing.T) (address string, c *client.Client) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "server.yaml")
	settings, err := json.Marshal(map[string]any{
		"default_agent": "memory",
		"agents": map[string]any{
			"memory": map[string]any{"kind": "command", "command": []string{"awk", memory}},
			"broken": map[string]any{
				"kind": "command", "command": []string{"sh", "-c", "printf 'half an ans'; echo out of ideas >&2; exit 3"},
			},
			"puppet": map[string]any{"kind": "remote", "address": servePuppet(t)},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, settings, 0o600); err != nil {
		t.Fatal(err)
	}
	command := parleydtest.Command(context.WithoutCancel(t.Context()), program("parleyd"), t.TempDir(),
		"--store=memory", "--interaction-log", "--config="+config, "--max-message-bytes=1MiB")
	server, err := parleydtest.Start(command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)
	if address, err = server.AwaitServing(); err != nil {
		t.Fatal(err)
	}
	if c, err = client.Dial(address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return address, c
}

// servePuppet serves the agent puppet until the test ends, and returns the address.
func servePuppet(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	parleyv1.RegisterAgentServiceServer(server, puppet{})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return listener.Addr().String()
}

// puppet is an agent whose behaviour depends on the question.
type puppet struct {
	parleyv1.UnimplementedAgentServiceServer
}

// Respond answers according to the last message.
func (puppet) Respond(
	request *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	text := func(s string) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Text{Text: s}}
	}
	call := func(id, name string) *parleyv1.RespondResponse {
		return &parleyv1.RespondResponse{
			Piece: &parleyv1.RespondResponse_ToolCall{ToolCall: &parleyv1.ToolCall{Id: id, Name: name, Arguments: "{}"}},
		}
	}
	var pieces []*parleyv1.RespondResponse
	switch question := request.GetMessages()[len(request.GetMessages())-1].GetContent(); question {
	case "think":
		pieces = []*parleyv1.RespondResponse{text("half a thou")}
	case "silence":
	case "everything":
		list, err := structpb.NewValue([]any{"Redux"})
		if err != nil {
			return err
		}
		pieces = []*parleyv1.RespondResponse{
			{Piece: &parleyv1.RespondResponse_Progress{Progress: &parleyv1.TurnProgress{Text: "looking\nit up"}}},
			text("One moment."),
			call("c1", "price"),
			{
				Piece: &parleyv1.RespondResponse_ToolResult{
					ToolResult: &parleyv1.ToolResult{CallId: "c1", Name: "price", Content: "50"},
				},
			},
			{
				Piece: &parleyv1.RespondResponse_StructuredData{
					StructuredData: &parleyv1.StructuredData{Type: "library_list", Value: list},
				},
			},
			text("It is Redux."),
			{Piece: &parleyv1.RespondResponse_NextAgent{NextAgent: "other"}},
			text("And I agree."),
		}
	case "call":
		pieces = []*parleyv1.RespondResponse{call("c1", "price"), call("c2", "stock")}
	default:
		pieces = []*parleyv1.RespondResponse{text(question)}
	}
	for _, piece := range pieces {
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
	if request.GetMessages()[len(request.GetMessages())-1].GetContent() == "think" {
		<-stream.Context().Done() // The answer never ends.
	}
	return nil
}

// transport is a way to connect a client of the official SDK.
type transport struct {
	name    string
	connect func(*testing.T, *sdk.ClientOptions) *sdk.ClientSession
}

// transports returns all transports to the Parley server that c is connected to: a process on standard input and
// output, HTTP, and HTTP before protocol 2026-07-28.
func transports(address string, c *client.Client) []transport {
	return []transport{
		{"stdio", func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
			t.Helper()
			command := exec.Command(program("parley"), "mcp", "--address", address)
			command.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
			return connect(t, &sdk.CommandTransport{Command: command}, o, "")
		}},
		{"http", func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
			t.Helper()
			return connect(t, serveHTTP(t, c), o, "")
		}},
		{"http of 2025", func(t *testing.T, o *sdk.ClientOptions) *sdk.ClientSession {
			t.Helper()
			return connect(t, serveHTTP(t, c), o, "2025-06-18")
		}},
	}
}

// serveHTTP serves MCP over HTTP until the test ends, and returns the transport of a client.
func serveHTTP(t *testing.T, c *client.Client) *sdk.StreamableClientTransport {
	t.Helper()
	server := httptest.NewServer(New(c, Options{}).Handler())
	t.Cleanup(server.Close)
	return &sdk.StreamableClientTransport{Endpoint: server.URL, HTTPClient: server.Client(), MaxRetries: -1}
}

// connect returns the session of a client that speaks a version of the protocol, until the test ends.
func connect(t *testing.T, transport sdk.Transport, o *sdk.ClientOptions, protocol string) *sdk.ClientSession {
	t.Helper()
	c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, o)
	session, err := c.Connect(t.Context(), transport, &sdk.ClientSessionOptions{ProtocolVersion: protocol})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := session.Close(); err != nil {
			t.Errorf("close the session: %v", err)
		}
	})
	return session
}

// dialFake serves the services that register adds, and returns a client of them. Both end with the test.
func dialFake(t *testing.T, register func(*grpc.Server)) *client.Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	register(server)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	c, err := client.Dial(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
