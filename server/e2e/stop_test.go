package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

func TestGracefulStop(t *testing.T) {
	t.Parallel()
	t.Run("running turns end", turnsEnd)
	t.Run("turns are interrupted after the grace period", turnsAreInterrupted)
}

func turnsEnd(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir, "--http-address=127.0.0.1:0", agents(t, testAgents))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantHealth := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if reply, err := watch.Recv(); err != nil || reply.GetStatus() != want {
			t.Errorf("health = %v, %v; want %v", reply.GetStatus(), err, want)
		}
	}
	wantHealth(grpc_health_v1.HealthCheckResponse_SERVING)
	k := hold(t, s, "c")
	waited := waitForChange(t, s, k.started.GetConversation())

	s.terminate()
	s.await(t, "stopping", "running_turns=1")
	wantHealth(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	cancel() // Otherwise the stop waits for this stream.
	if code, _ := httpGet(t, s, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz while stopping = %d, want 503", code)
	}
	if code, _ := httpGet(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("GET /healthz while stopping = %d, want 200", code)
	}
	// A call that waits for a change ends at once, not when the turn ends.
	wantError(t, <-waited, codes.Unavailable, "SHUTTING_DOWN")

	if turn := k.release(t, "answer").GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED ||
		k.text != "half an answer" {
		t.Errorf("the turn ended as %v with %q, want it completed", turn, k.text)
	}
	s.wantStop(t)
	stored := history(t, startServer(t, dataDir), "c").GetMessages()
	if m := stored[len(stored)-1]; m.GetContent() != "half an answer" ||
		m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE {
		t.Errorf("the stored answer = %v, want it complete", m)
	}
}

// waitForChange calls GetRoutingSummary in a goroutine and returns when the call waits for a change.
// The channel receives the call's error.
func waitForChange(t *testing.T, s *server, c *parleyv1.Conversation) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		reply, err := s.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: c.GetId(), KnownVersion: &c.Version, WaitTimeout: durationpb.New(timeout),
		})
		if err == nil {
			err = fmt.Errorf("got a change instead of an error: %v", reply)
		}
		result <- err
	}()
	for {
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if stats.GetWatcherCount() > 0 {
			return result
		}
	}
}

func turnsAreInterrupted(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, testAgents)
	s := startServer(t, dataDir, config, "--stop-grace=100ms", "--log-level=debug")
	k := hold(t, s, "c")
	s.terminate()
	turn := k.finish(t).GetTurn()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED || turn.GetError().GetReason() != "SHUTTING_DOWN" {
		t.Errorf("the turn ended as %v, want INTERRUPTED with SHUTTING_DOWN", turn)
	}
	s.wantStop(t)
	s.await(t, "message appended", "conversation_id=c", "message_count=2") // the partial answer

	s = startServer(t, dataDir, config)
	stored := history(t, s, "c")
	if got := contents(stored.GetMessages()); got != "USER "+k.request.GetContent()+"\nASSISTANT half an \n" ||
		stored.GetConversation().GetActiveTurnId() != "" {
		t.Fatalf("header after the stop = %v with the history\n%s, want the partial answer and no active turn",
			stored.GetConversation(), got)
	}
	if m := stored.GetMessages()[1]; m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		t.Errorf("the stored answer = %v, want it INCOMPLETE", m)
	}
	if found, _ := s.log.Find("turn interrupted by a stop of the server"); len(found) > 0 {
		t.Errorf("turns interrupted by the start instead of the stop: %v, want none", found)
	}
}

func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--http-address=127.0.0.1:0")
	reply, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health = %v, %v; want SERVING", reply, err)
	}
	reply, err = grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{
		Service: "parley.v1.ConversationService",
	})
	if err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health of ConversationService = %v, %v; want SERVING", reply, err)
	}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/": http.StatusOK, "/missing": http.StatusNotFound,
	} {
		if code, body := httpGet(t, s, path); code != want {
			t.Errorf("GET %s = %d with %q, want %d", path, code, body, want)
		}
	}
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err == nil {
		err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
			MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range list.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, want := range []string{"parley.v1.ConversationService", "parley.v1.AdminService", "parley.v1.InteractionLogService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services listed by reflection = %v, want %s among them", names, want)
		}
	}
}

// httpGet sends a GET request to a server.
func httpGet(t *testing.T, s *server, path string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		fmt.Sprintf("http://%s%s", s.await(t, "serving http")["address"], path), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, http.DefaultClient, request)
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dataDir, path := t.TempDir(), filepath.Join(t.TempDir(), "parley.sock")
	s := startServer(t, dataDir, "--grpc-address=unix:"+path)
	if answer := ask(t, s, "c", "hello"); answer != "hello" {
		t.Errorf("answer = %q, want %q", answer, "hello")
	}
	if info, err := os.Stat(path); err != nil {
		t.Error(err)
	} else if info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket = %v, want 0600", info.Mode())
	}
	if code, output := failToStart(t, "--data-dir="+t.TempDir(), "--grpc-address=unix:"+path); code != 74 ||
		!strings.Contains(output, path+" is in use") {
		t.Errorf("a second server at the socket ended with %d, want 74 and \"in use\":\n%s", code, output)
	}
	s.kill() // The socket stays, and the next server replaces it.
	s = startServer(t, dataDir, "--grpc-address=unix:"+path)
	history(t, s, "c")
	s.terminate()
	s.wantStop(t)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("Lstat of the socket after a stop = %v, want it removed", err)
	}
}
