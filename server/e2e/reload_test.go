package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/parleyhq/parley/client"
	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
)

// TestReload checks that SIGHUP replaces agents and log level while a turn runs: the turn ends with its old agent, and
// the next one has the new agent.
func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flag := agents(t, puppetAgents)
	path := strings.TrimPrefix(flag, "--config=")
	s := startServer(t, dir, flag)
	p := newPuppet(t, dir, "pipe")
	running := chat(t, s, &parleyv1.ChatRequest{ConversationId: "a", Agent: "puppet", Content: p.path})
	p.start(t)

	s.reload(t, path, `
log_level: debug
log_calls: all
max_messages: 7
agents:
  puppet: {kind: echo}
  second: {kind: echo}
`, "settings reloaded")
	s.await(t, "setting changed but not applied; restart the server", "setting=max-messages")
	next := chat(t, s, &parleyv1.ChatRequest{ConversationId: "b", Agent: "puppet", Content: "hello"})
	next.finish(t)
	if next.text != "hello" {
		t.Errorf("answer of the new agent = %q, want hello", next.text)
	}
	s.await(t, "call", "method=/parley.v1.ConversationService/Chat", "level=INFO")
	s.await(t, "stream started", "level=DEBUG", "conversation_id=b")

	if _, err := p.pipe.WriteString("to the end"); err != nil {
		t.Fatal(err)
	}
	p.finish()
	running.finish(t)
	if running.text != "to the end" {
		t.Errorf("answer of the replaced agent = %q, want %q", running.text, "to the end")
	}
	s.terminate()
	s.wantStop(t)
}

// TestReloadFails checks that a file with a fault changes nothing, and that the log says where the fault is.
func TestReloadFails(t *testing.T) {
	t.Parallel()
	flag := agents(t, "agents:\n  first: {kind: echo}\n")
	path := strings.TrimPrefix(flag, "--config=")
	s := startServer(t, t.TempDir(), flag)

	s.reload(t, path, "log_level: debug\nagents:\n  second: {kind: echo}\n  third: {kind: telepathy}\n",
		"reload failed; nothing has changed")
	if found, _ := s.log.Find("reload failed; nothing has changed"); !strings.Contains(fmt.Sprint(found[0]["error"]), path+":4:") {
		t.Errorf("entry = %v, want the place of the fault", found[0])
	}
	if got := ask(t, s, "a", "hello"); got != "hello" {
		t.Errorf("answer = %q, want hello", got)
	}
	stream, err := s.Chat(timeLimited(t), &parleyv1.ChatRequest{ConversationId: "b", Agent: "second", Content: "hello"})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("Chat with an agent of the faulty file = %v, want INVALID_ARGUMENT", err)
	}
	found, _ := s.log.Find("call")
	for _, entry := range found {
		if entry["level"] == "DEBUG" {
			t.Errorf("log entry %v, want the level to stay info", entry)
		}
	}

	s.reload(t, path, "agents:\n  second: {kind: echo}\n", "settings reloaded")
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: "b", Agent: "second", Content: "hello"})
	k.finish(t)
}

// TestReloadLimits sets limits of the only tenant that has callers, and removes them again.
func TestReloadLimits(t *testing.T) {
	t.Parallel()
	flag := agents(t, "max_bytes: 1GiB\n")
	path := strings.TrimPrefix(flag, "--config=")
	s := startServer(t, t.TempDir(), flag)
	write := func() error {
		_, err := s.AppendMessages(timeLimited(t), &parleyv1.AppendMessagesRequest{
			ConversationId: "a", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
		})
		return err
	}
	for i, limited := range []struct{ yaml, reason string }{
		{"max_bytes: 1\n", "TENANT_BYTES"},
		{"max_bytes: 1\ntenants: {default: {max_bytes: 1GiB}}\n", ""},
		{"tenants: {default: {append_bytes_per_second: 1}, other: {max_bytes: 1}}\n", ""}, // within the burst
		{"tenants: {default: {max_bytes: 1}}\n", "TENANT_BYTES"},
		{"tenants: {}\n", ""},
	} {
		s.reload(t, path, limited.yaml, "settings reloaded")
		for found, more := s.log.Find("settings reloaded"); len(found) <= i; found, more = s.log.Find("settings reloaded") {
			<-more
		}
		if err := write(); (err == nil) != (limited.reason == "") || client.Reason(err) != limited.reason {
			t.Errorf("AppendMessages with %q = %v, want the reason %q", limited.yaml, err, limited.reason)
		}
	}
	if found, _ := s.log.Find("setting changed but not applied; restart the server"); len(found) > 0 {
		t.Errorf("entries = %v, want the limits applied", found)
	}
}

// TestReloadWithoutRules checks that the removal of the last rule for client certificates ends their sign-in.
func TestReloadWithoutRules(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	flag := agents(t, fmt.Sprintf("client_certificates: [{uri: %q, tenants: [acme], role: reader}]", parleydtest.ClientURI))
	s := startUnconnected(t, parleyd(t, append(files.ServerFlags(), flag, "--store=memory",
		"--tls-client-ca-file="+files.CAFile)...))
	secure := &secureServer{files: files, target: fmt.Sprint(s.await(t, "serving grpc")["address"])}
	list := &parleyv1.ListConversationsRequest{}
	if _, err := secure.grpcClient(t, true).ListConversations(timeLimited(t), list); err != nil {
		t.Fatal(err)
	}
	s.reload(t, strings.TrimPrefix(flag, "--config="), "log_level: info\n", "settings reloaded")
	_, err := secure.grpcClient(t, true).ListConversations(timeLimited(t), list)
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
}

// reload writes the file of settings, sends SIGHUP to the server, and waits for the log entry that ends the reload.
func (s *server) reload(t *testing.T, path, yaml, wantEntry string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.process.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.await(t, wantEntry)
}
