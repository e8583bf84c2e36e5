package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// redisFlags are the flags of a server with its conversations in an engine. The engine must have the option Password.
func redisFlags(t *testing.T, engine *redistest.Server) []string {
	t.Helper()
	return []string{
		"--store=redis", "--redis-url=" + engine.URL(), "--redis-password-file=" + engine.PasswordFile,
		"--http-address=127.0.0.1:0", agents(t, testAgents),
	}
}

// TestRedis: the data survives a stop and a kill of the server. After a kill, the next server waits for the lease of the
// killed one. Then it ends its turns, and removes the ephemeral conversations of its clients.
func TestRedis(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"))
	dataDir, flags := t.TempDir(), redisFlags(t, engine)
	s := startServer(t, dataDir, flags...)
	if answer := ask(t, s, "chat", "hello"); answer != "hello" {
		t.Errorf("answer = %q, want hello", answer)
	}
	add(t, s, "append", &parleyv1.Message{Content: "one"}, &parleyv1.Message{Content: "two"})
	if _, err := parleyv1.NewRecordServiceClient(s.conn).WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
		ConversationId: "append", Writes: []*parleyv1.RecordWrite{{Key: "city", Value: []byte("Lisbon")}},
	}); err != nil {
		t.Error(err)
	}
	wantRedisData(t, s)
	s.terminate()
	s.wantStop(t)

	s = startServer(t, dataDir, flags...)
	wantRedisData(t, s)
	if stats, err := s.GetStats(t.Context(), &parleyv1.GetStatsRequest{}); err != nil || stats.GetStore() != "redis" {
		t.Errorf("GetStats = %v, %v, want the store redis", stats, err)
	}
	turn := hold(t, s, "turn")
	client := watchEphemeral(t, s.conn.Target(), "ephemeral", time.Millisecond)
	ask(t, s, "ephemeral", "hello")
	s.kill()
	client.disconnect()

	s = startServer(t, dataDir, flags...)
	found, _ := s.log.Find("store warning")
	if !slices.ContainsFunc(found, func(e parleydtest.Entry) bool {
		return strings.Contains(fmt.Sprint(e["warning"]), "for the lease of server")
	}) {
		t.Errorf("warnings = %v, want that the server waits for the lease", found)
	}
	wantRedisData(t, s)
	reply, err := s.GetTurn(t.Context(), &parleyv1.GetTurnRequest{
		ConversationId: "turn", TurnId: turn.started.GetConversation().GetActiveTurnId(),
	})
	if err != nil || reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Errorf("GetTurn = %v, %v, want INTERRUPTED", reply, err)
	}
	if id := header(t, s, "turn").GetActiveTurnId(); id != "" {
		t.Errorf("turn %s is active, want none", id)
	}
	awaitNone(t, s, "ephemeral")
	if text := s.log.Text(); strings.Contains(text, "correct-horse") {
		t.Error("the log contains the password")
	}
}

// wantRedisData checks what TestRedis has stored.
func wantRedisData(t *testing.T, s *server) {
	t.Helper()
	if got := contents(history(t, s, "chat").GetMessages()); got != "USER hello\nASSISTANT hello\n" {
		t.Errorf("messages of chat = %q, want the question and its answer", got)
	}
	if got := contents(history(t, s, "append").GetMessages()); got != "USER one\nUSER two\n" {
		t.Errorf("messages of append = %q, want both", got)
	}
	if got := recordsOf(t, s, "append"); !slices.Equal(got, []string{"city@2 Lisbon"}) {
		t.Errorf("records = %q, want city", got)
	}
	list, err := s.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
	var ids []string
	for _, c := range list.GetConversations() {
		ids = append(ids, c.GetConversation().GetId())
	}
	if err != nil || !slices.Contains(ids, "chat") || !slices.Contains(ids, "append") {
		t.Errorf("ListConversations = %v, %v, want chat and append", ids, err)
	}
}

// TestRedisOutage: while the engine does not answer, calls and probes say so, and the server continues. An answer that
// ends in the meantime waits for the engine.
func TestRedisOutage(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"), redistest.Setting("appendfsync", "always"))
	s := startServer(t, t.TempDir(), redisFlags(t, engine)...)
	add(t, s, "c", &parleyv1.Message{Content: "before"})
	turn := hold(t, s, "turn")
	if code, body := httpGet(t, s, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz = %d %s, want 200", code, body)
	}

	engine.Kill()
	_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: "during"}},
	})
	wantError(t, err, codes.Unavailable, "STORE_UNAVAILABLE")
	_, err = s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"})
	wantError(t, err, codes.Unavailable, "STORE_UNAVAILABLE")
	if code, body := httpGet(t, s, "/v1/conversations"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, "STORE_UNAVAILABLE") {
		t.Errorf("GET /v1/conversations = %d %s, want 503 and STORE_UNAVAILABLE", code, body)
	}
	s.await(t, "store unavailable")
	awaitReady(t, s, http.StatusServiceUnavailable, "not ready: store unavailable\n",
		grpc_health_v1.HealthCheckResponse_NOT_SERVING)

	go func() {
		if _, err := s.process.Await("store unavailable, answer waits"); err != nil {
			t.Error(err)
		}
		engine.Restart()
	}()
	if end := turn.release(t, "answer"); end.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Errorf("turn = %v, want COMPLETED", end.GetTurn())
	}
	s.await(t, "store available again")
	awaitReady(t, s, http.StatusOK, "ok\n", grpc_health_v1.HealthCheckResponse_SERVING)
	add(t, s, "c", &parleyv1.Message{Content: "after"})
	if got := contents(history(t, s, "c").GetMessages()); got != "USER before\nUSER after\n" {
		t.Errorf("messages = %q, want before and after", got)
	}
	s.terminate()
	s.wantStop(t)
}

// awaitReady returns when the probes report this. They change after the entry in the log.
func awaitReady(
	t *testing.T, s *server, code int, body string, want grpc_health_v1.HealthCheckResponse_ServingStatus,
) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; {
		gotCode, gotBody := httpGet(t, s, "/readyz")
		reply, err := grpc_health_v1.NewHealthClient(s.conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if gotCode == code && gotBody == body && err == nil && reply.GetStatus() == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("probes = %d %q, %v, %v, want %d %q, %v", gotCode, gotBody, reply, err, code, body, want)
		}
	}
}

// TestRedisFaults: a server that cannot use an engine ends with one line that says why.
func TestRedisFaults(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t, redistest.Password("correct-horse"))
	flags := redisFlags(t, engine)
	wantEnd := func(code int, words string, more ...string) {
		t.Helper()
		got, output := failToStart(t, append(append([]string{"--data-dir=" + t.TempDir()}, flags...), more...)...)
		if got != code || !strings.Contains(output, words) || strings.Contains(output, "correct-horse") {
			t.Errorf("server ended with %d, want %d and %q:\n%s", got, code, words, output)
		}
	}
	wantEnd(exitUsage, "--redis-url: must not have a password", "--redis-url=redis://me:correct-horse@"+engine.Addr())
	wantEnd(exitUsage, "--durability: needs --store redis", "--store=memory", "--redis-url=", "--redis-password-file=",
		"--durability=replicated")
	wantEnd(exitIO, "refuses the user or the password", "--redis-password-file=")
	wantEnd(exitIO, "connect a replica, or use --durability local", "--durability=replicated")
	s := startServer(t, t.TempDir(), flags...)
	wantEnd(exitInUse, `another server uses the store "parley": server `)
	ask(t, s, "c", "hello")
	engine.Kill()
	wantEnd(exitIO, "engine at "+engine.Addr()+": store is unavailable")
}
