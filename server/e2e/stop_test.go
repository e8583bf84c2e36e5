package e2e

import (
	"context"
	"fmt"
	"io"
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
	t.Run("beyond the grace they are cut off", turnsAreCutOff)
}

func turnsEnd(t *testing.T) {
	t.Parallel()
	dataDir := t.TempDir()
	s := startServer(t, dataDir, "--http-address=127.0.0.1:0", agents(t, testAgents))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	watch, err := grpc_health_v1.NewHealthClient(s.conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantHealth := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		if reply, err := watch.Recv(); err != nil || reply.GetStatus() != want {
			t.Errorf("health is %v, %v; want %v", reply.GetStatus(), err, want)
		}
	}
	wantHealth(grpc_health_v1.HealthCheckResponse_SERVING)
	k := hold(t, s, "c")
	waited := waitForChange(t, s, k.started.GetConversation())

	s.terminate()
	s.await(t, "stopping", "running_turns=1")
	wantHealth(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	leave() // The server would wait for it a little.
	if code, _ := get(t, s, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz while stopping is %d", code)
	}
	if code, _ := get(t, s, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz while stopping is %d", code)
	}
	// Who waits for a change is sent away at once, not when the turn ends.
	wantError(t, <-waited, codes.Unavailable, "SHUTTING_DOWN")

	if turn := k.release(t, "answer").GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED || k.text != "half an answer" {
		t.Errorf("the turn ended as %v with %q", turn, k.text)
	}
	s.wantStop(t)
	kept := history(t, startServer(t, dataDir), "c").GetMessages()
	if m := kept[len(kept)-1]; m.GetContent() != "half an answer" || m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE {
		t.Errorf("the answer is kept as %v", m)
	}
}

// waitForChange has a reader wait for a conversation to change, and returns when it does
// wait. The channel gets what it is told.
func waitForChange(t *testing.T, s *server, c *parleyv1.Conversation) <-chan error {
	t.Helper()
	told := make(chan error, 1)
	go func() {
		reply, err := s.GetRoutingSummary(t.Context(), &parleyv1.GetRoutingSummaryRequest{
			ConversationId: c.GetId(), KnownVersion: &c.Version, WaitTimeout: durationpb.New(patience),
		})
		if err == nil {
			err = fmt.Errorf("a change is reported: %v", reply)
		}
		told <- err
	}()
	for {
		stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if stats.GetWatcherCount() > 0 {
			return told
		}
	}
}

func turnsAreCutOff(t *testing.T) {
	t.Parallel()
	dataDir, config := t.TempDir(), agents(t, testAgents)
	s := startServer(t, dataDir, config, "--stop-grace=100ms", "--log-level=debug")
	k := hold(t, s, "c")
	s.terminate()
	turn := k.end(t).GetTurn()
	if turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED || turn.GetError().GetReason() != "SHUTTING_DOWN" {
		t.Errorf("the turn ended as %v", turn)
	}
	s.wantStop(t)
	s.await(t, "message appended", "conversation_id=c", "message_count=2") // what the turn left

	s = startServer(t, dataDir, config)
	kept := history(t, s, "c")
	if got := contents(kept.GetMessages()); got != "USER "+k.request.GetContent()+"\nASSISTANT half an \n" || kept.GetConversation().GetActiveTurnId() != "" {
		t.Fatalf("after the stop: %v with\n%s", kept.GetConversation(), got)
	}
	if m := kept.GetMessages()[1]; m.GetStatus() != parleyv1.MessageStatus_MESSAGE_STATUS_INCOMPLETE {
		t.Errorf("the answer is kept as %v", m)
	}
	if found, _ := s.log.find("turn interrupted by a stop of the server"); len(found) > 0 {
		t.Errorf("the stop left a turn running: %v", found)
	}
}

func TestHealthAndReflection(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), "--http-address=127.0.0.1:0")
	reply, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v, %v", reply, err)
	}
	reply, err = grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "parley.v1.ConversationService"})
	if err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health of the service is %v, %v", reply, err)
	}
	for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK, "/": http.StatusNotFound} {
		if code, body := get(t, s, path); code != want {
			t.Errorf("%s is %d, %q; want %d", path, code, body, want)
		}
	}
	stream, err := grpc_reflection_v1.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err == nil {
		err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
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
			t.Errorf("reflection lists %v, without %s", names, want)
		}
	}
}

// get asks a server over HTTP.
func get(t *testing.T, s *server, path string) (code int, body string) {
	t.Helper()
	reply, err := http.Get(fmt.Sprintf("http://%s%s", s.await(t, "serving http")["address"], path))
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(text)
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dataDir, path := t.TempDir(), filepath.Join(t.TempDir(), "parley.sock")
	s := startServer(t, dataDir, "--grpc-address=unix:"+path)
	if answer := say(t, s, "c", "hello"); answer != "hello" {
		t.Errorf("the answer is %q", answer)
	}
	if info, err := os.Stat(path); err != nil {
		t.Error(err)
	} else if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, want it for its owner only", info.Mode())
	}
	if code, said := failToStart(t, "--data-dir="+t.TempDir(), "--grpc-address=unix:"+path); code != 74 || !strings.Contains(said, path+" is in use") {
		t.Errorf("a second server at the socket ends with %d:\n%s", code, said)
	}
	s.kill() // It leaves its socket, which the next server replaces.
	s = startServer(t, dataDir, "--grpc-address=unix:"+path)
	history(t, s, "c")
	s.terminate()
	s.wantStop(t)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("a stop leaves the socket: %v", err)
	}
}
