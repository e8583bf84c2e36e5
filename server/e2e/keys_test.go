package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
)

// secretMark is the beginning of every secret of TestKeysStayHidden.
const secretMark = "sk-MARKED"

// TestKeysStayHidden runs agents that have keys and providers that return the keys in errors. The
// provider receives the keys; no log entry, reply or stored file contains one.
func TestKeysStayHidden(t *testing.T) {
	t.Parallel()
	echoes := `{"error": {"message": "Incorrect API key provided: ` + secretMark + `-env. You sent header ` + secretMark + `-header and ` + secretMark + `-bearer"}}`
	openai := openaitest.New(t)
	anthropic := anthropictest.New(t)
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest} {
		openai.Then(providertest.Fail(code, echoes))
		anthropic.Then(providertest.Fail(code, strings.ReplaceAll(echoes, "-env", "-file")))
	}
	openai.Then(openaitest.Events(openaitest.Words("half")[1], echoes))
	openai.Then(openaitest.Text("well"))
	anthropic.Then(providertest.Parts(anthropictest.Message{}.Start(), anthropictest.TextDelta(0, "half"),
		anthropictest.Error("api_error", secretMark+"-file, "+secretMark+"-header and "+secretMark+"-bearer")))
	anthropic.Then(anthropictest.Text("well"))
	openai.Always(providertest.Break)
	anthropic.Always(providertest.Break)
	const turns = 7
	service := &refusingAgent{sent: make(chan []string, turns)}
	address := service.serve(t)

	dir := t.TempDir()
	keyFile := filepath.Join(dir, "key")
	if err := os.WriteFile(keyFile, []byte(secretMark+"-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	printed := filepath.Join(dir, "printed")
	const onStderr = `printenv TEST_KEY_OF_COMMAND >>"$0"; printf half; echo "$TEST_KEY_OF_COMMAND is refused" >&2; exit 1`
	const inResult = `echo '{"type":"result","is_error":true,"result":"'"$TEST_KEY_OF_COMMAND"' is refused"}'`
	const noJSON = `echo "Error: $TEST_KEY_OF_COMMAND is refused"`
	config := encodeJSON(t, map[string]any{"agents": map[string]any{
		"openai": map[string]any{
			"kind": "openai", "base_url": openai.URL, "model": "m", "api_key_env": "TEST_KEY_OF_OPENAI",
			"headers": map[string]any{"X-Tenant": secretMark + "-header", "X-Gateway": "Bearer " + secretMark + "-bearer"},
		},
		"anthropic": map[string]any{
			"kind": "anthropic", "base_url": anthropic.URL, "model": "m", "api_key_file": keyFile,
			"headers": map[string]any{"X-Tenant": secretMark + "-header", "Authorization": "Bearer " + secretMark + "-bearer"},
		},
		"remote": map[string]any{
			"kind": "remote", "address": address, "headers": map[string]any{"authorization": "Bearer " + secretMark + "-remote"},
		},
		"stderr": map[string]any{
			"kind": "command", "command": []string{"sh", "-c", onStderr, printed}, "env": []string{"TEST_KEY_OF_COMMAND"},
		},
		"result": map[string]any{
			"kind": "command", "command": []string{"sh", "-c", inResult}, "env": []string{"TEST_KEY_OF_COMMAND"},
			"format": "stream-json",
		},
		"noJSON": map[string]any{
			"kind": "command", "command": []string{"sh", "-c", noJSON}, "env": []string{"TEST_KEY_OF_COMMAND"},
			"format": "stream-json",
		},
	}})
	data := filepath.Join(dir, "data")
	process := parleyd(t, "--data-dir="+data, agents(t, config), "--log-level=debug")
	process.Env = append(process.Env, "TEST_KEY_OF_OPENAI="+secretMark+"-env", "TEST_KEY_OF_COMMAND="+secretMark+"-command")
	s := startProcess(t, process)
	var seen []string
	for _, agent := range []string{"openai", "anthropic", "remote", "stderr", "result", "noJSON"} {
		for i := range turns {
			events, text := events(t, s, &parleyv1.ChatRequest{
				ConversationId: agent, Content: fmt.Sprint("hello ", i), Agent: agent,
			})
			seen = append(seen, events, text)
		}
		seen = append(seen, prototext.Format(history(t, s, agent)))
	}
	infos, err := s.ListAgents(t.Context(), &parleyv1.ListAgentsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen = append(seen, prototext.Format(infos))
	s.terminate()
	s.wantStop(t)

	gave, err := os.ReadFile(printed)
	if err != nil {
		t.Fatal(err)
	}
	sent := fmt.Sprint(openai.Requests()[0].Header, anthropic.Requests()[0].Header, <-service.sent, string(gave))
	for _, secret := range []string{"-env", "-file", "-header", "-bearer", "-remote", "-command"} {
		if !strings.Contains(sent, secretMark+secret) {
			t.Errorf("%s%s was not sent to its provider", secretMark, secret)
		}
	}
	for _, line := range s.log.Entries() {
		seen = append(seen, fmt.Sprint(line))
	}
	for _, text := range seen {
		if strings.Contains(text, secretMark) {
			t.Errorf("secret in %s, want none", text)
		}
	}
	db, err := os.ReadFile(filepath.Join(data, "parley.db"))
	if err != nil || bytes.Contains(db, []byte(secretMark)) {
		t.Errorf("the store contains a secret, or ReadFile failed: %v", err)
	}
}

// events runs a turn and returns all responses of its stream and the text of its answer.
func events(t *testing.T, s *server, r *parleyv1.ChatRequest) (all, text string) {
	t.Helper()
	stream, err := s.Chat(t.Context(), r)
	for err == nil {
		var response *parleyv1.ChatResponse
		if response, err = stream.Recv(); err == nil {
			all += prototext.Format(response)
			text += response.GetEvent().GetTextDelta().GetText()
		}
	}
	if !errors.Is(err, io.EOF) || !strings.Contains(all, "finished") {
		t.Fatalf("stream ended with %v, want EOF after finished: %s", err, all)
	}
	return all, text
}

// refusingAgent is an AgentService that fails every call with an error that contains the authorization header.
type refusingAgent struct {
	parleyv1.UnimplementedAgentServiceServer
	sent chan []string // the authorization header of each call
}

func (s *refusingAgent) serve(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	go func() { _ = server.Serve(listener) }() // Serve returns after Stop.
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func (s *refusingAgent) Respond(
	_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse],
) error {
	sent := metadata.ValueFromIncomingContext(stream.Context(), "authorization")
	s.sent <- sent
	return status.Errorf(codes.Unauthenticated, "%q is refused", sent)
}
