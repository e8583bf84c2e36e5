package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/agent/anthropic/anthropictest"
	"github.com/parleyhq/parley/server/internal/agent/openai/openaitest"
	"github.com/parleyhq/parley/server/internal/agent/providertest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// marked is in every secret of TestKeysStayHidden.
const marked = "sk-MARKED"

// TestKeysStayHidden has agents with keys answer, and fail in the ways in which a key comes
// back: the counterpart gets it, and nothing that is logged, sent or kept has it.
func TestKeysStayHidden(t *testing.T) {
	echoes := `{"error": {"message": "Incorrect API key provided: ` + marked + `-env. You sent header ` + marked + `-header"}}`
	openai := openaitest.New(t)
	anthropic := anthropictest.New(t)
	for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusBadRequest} {
		openai.Then(providertest.Fail(code, echoes))
		anthropic.Then(providertest.Fail(code, strings.ReplaceAll(echoes, "-env", "-file")))
	}
	openai.Then(openaitest.Text("well"))
	anthropic.Then(anthropictest.Text("well"))
	openai.Always(providertest.Break)
	anthropic.Always(providertest.Break)
	service := &teller{told: make(chan []string, 6)}
	address := service.serve(t)

	dir := t.TempDir()
	keyFile := filepath.Join(dir, "key")
	if err := os.WriteFile(keyFile, []byte(marked+"-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_KEY_OF_OPENAI", marked+"-env") // which parleyd inherits
	config := encodeJSON(t, map[string]any{"agents": map[string]any{
		"openai": map[string]any{
			"kind": "openai", "base_url": openai.URL, "model": "m", "api_key_env": "TEST_KEY_OF_OPENAI",
			"headers": map[string]any{"X-Tenant": marked + "-header"},
		},
		"anthropic": map[string]any{
			"kind": "anthropic", "base_url": anthropic.URL, "model": "m", "api_key_file": keyFile,
			"headers": map[string]any{"X-Tenant": marked + "-header"},
		},
		"remote": map[string]any{"kind": "remote", "address": address, "headers": map[string]any{"authorization": "Bearer " + marked + "-remote"}},
	}})
	data := filepath.Join(dir, "data")
	s := startServer(t, data, agents(t, config), "--log-level=debug")
	var seen []string
	for _, agent := range []string{"openai", "anthropic", "remote"} {
		for i := range 6 {
			k := chat(t, s, &parleyv1.ChatRequest{ConversationId: agent, Content: fmt.Sprint("hello ", i), Agent: agent})
			seen = append(seen, prototext.Format(k.started), k.text, prototext.Format(k.end(t)))
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

	sent := fmt.Sprint(openai.Requests()[0].Header, anthropic.Requests()[0].Header, <-service.told)
	for _, secret := range []string{"-env", "-file", "-header", "-remote"} {
		if !strings.Contains(sent, marked+secret) {
			t.Errorf("%s%s was not sent to whom it is for", marked, secret)
		}
	}
	for _, line := range s.log.lines {
		seen = append(seen, fmt.Sprint(line))
	}
	for _, text := range seen {
		if strings.Contains(text, marked) {
			t.Errorf("a secret is in %s", text)
		}
	}
	db, err := os.ReadFile(filepath.Join(data, "parley.db"))
	if err != nil || bytes.Contains(db, []byte(marked)) {
		t.Errorf("a secret is in the store, or it cannot be read: %v", err)
	}
}

// teller is an AgentService that says what it was sent when it fails.
type teller struct {
	parleyv1.UnimplementedAgentServiceServer
	told chan []string // of what each call was sent
}

func (s *teller) serve(t *testing.T) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	parleyv1.RegisterAgentServiceServer(server, s)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

func (s *teller) Respond(_ *parleyv1.RespondRequest, stream grpc.ServerStreamingServer[parleyv1.RespondResponse]) error {
	sent := metadata.ValueFromIncomingContext(stream.Context(), "authorization")
	s.told <- sent
	return status.Errorf(codes.Unauthenticated, "%q will not do", sent)
}
