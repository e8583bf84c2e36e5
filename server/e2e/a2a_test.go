package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	a2agrpc "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// agentClient returns a client of an agent, made from the agent's card.
func agentClient(t *testing.T, s *httpServer, agent string, over a2a.TransportProtocol) *a2aclient.Client {
	t.Helper()
	card, err := agentcard.DefaultResolver.Resolve(t.Context(), s.url+"/a2a/"+agent)
	if err != nil {
		t.Fatal(err)
	}
	c, err := a2aclient.NewFromCard(t.Context(), card,
		a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{over}}),
		a2agrpc.WithGRPCTransport(grpc.WithTransportCredentials(insecure.NewCredentials())))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Destroy() })
	return c
}

// TestA2AKilled: the server is killed in the middle of a stream. Afterwards the client has the text that is stored.
func TestA2AKilled(t *testing.T) {
	t.Parallel()
	for _, over := range []a2a.TransportProtocol{
		a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON, a2a.TransportProtocolGRPC,
	} {
		t.Run(string(over), func(t *testing.T) {
			dataDir, config := t.TempDir(), agents(t, testAgents)
			s := startHTTPServer(t, dataDir, config, "--a2a")
			hold(t, s.server, "c")
			id := a2a.TaskID(header(t, s.server, "c").GetActiveTurnId())
			var last error
			text := ""
			c := agentClient(t, s, "hold", over)
			for event, err := range c.SubscribeToTask(t.Context(), &a2a.SubscribeToTaskRequest{ID: id}) {
				last = err
				update, ok := event.(*a2a.TaskArtifactUpdateEvent)
				if !ok {
					continue
				}
				if text += update.Artifact.Parts[0].Text(); text == "half an " {
					s.kill()
				}
			}
			if text != "half an " || over == a2a.TransportProtocolGRPC && last == nil {
				t.Errorf("stream = %q, %v, want the text and then an error", text, last)
			}

			s = startHTTPServer(t, dataDir, config, "--a2a")
			task, err := agentClient(t, s, "hold", over).GetTask(t.Context(), &a2a.GetTaskRequest{ID: id})
			if err != nil || task.ContextID != "c" || task.Status.State != a2a.TaskStateFailed {
				t.Fatalf("GetTask = %v, %v, want a failed task of context c", task, err)
			}
			got := ""
			for _, artifact := range task.Artifacts {
				got += artifact.Parts[0].Text()
			}
			stored, err := s.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: "c", Ascending: true})
			if err != nil {
				t.Fatal(err)
			}
			want := ""
			for _, m := range stored.GetMessages() {
				if m.GetRole() == parleyv1.Role_ROLE_ASSISTANT {
					want += m.GetContent()
				}
			}
			if got != want {
				t.Errorf("task has the text %q, the store %q", got, want)
			}
		})
	}
}

// TestA2AOff: without --a2a the server has neither agent cards nor the service.
func TestA2AOff(t *testing.T) {
	t.Parallel()
	s := startHTTPServer(t, t.TempDir())
	for _, path := range []string{"/.well-known/agent-card.json", "/a2a/echo", "/a2a/echo/.well-known/agent-card.json"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s = %s, want 404", path, response.Status)
		}
	}
	transport := a2agrpc.NewGRPCTransport(s.conn)
	_, err := transport.GetTask(t.Context(), nil, &a2a.GetTaskRequest{ID: "x"})
	if err == nil || !strings.Contains(err.Error(), "unknown service") {
		t.Errorf("GetTask over gRPC = %v, want an unknown service", err)
	}
}

// TestA2AURL: cards name the address that --a2a-url has.
func TestA2AURL(t *testing.T) {
	t.Parallel()
	s := startHTTPServer(t, t.TempDir(), "--a2a", "--a2a-url=https://agents.example")
	card, err := agentcard.DefaultResolver.Resolve(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range card.SupportedInterfaces {
		if !strings.HasPrefix(strings.TrimPrefix(i.URL, "https://"), "agents.example") {
			t.Errorf("card names %s, want a URL of agents.example", i.URL)
		}
	}
}
