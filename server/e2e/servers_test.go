package e2e

import (
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/parleydtest"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// startServers starts servers with their conversations in one engine.
func startServers(t *testing.T, engine *redistest.Server, n int) []*server {
	t.Helper()
	return startServersWith(t, engine, n, agents(t, testAgents))
}

// startServersWith is startServers with the flag of a configuration file, and others.
func startServersWith(t *testing.T, engine *redistest.Server, n int, config string, flags ...string) []*server {
	t.Helper()
	servers := make([]*server, n)
	for i := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		servers[i] = startServer(t, t.TempDir(), append([]string{
			"--store=redis", "--redis-url=" + engine.URL(), "--grpc-address=" + address, "--advertise-address=" + address, config,
		}, flags...)...)
	}
	return servers
}

// nextQueued receives the next event and checks that the turn waits.
func nextQueued(t *testing.T, stream *eventStream, position int32) (turnID string) {
	t.Helper()
	event, err := stream.next()
	if err != nil || event.GetQueued().GetPosition() != position {
		t.Fatalf("event = %v, %v, want queued at %d", event, err, position)
	}
	return event.GetTurnId()
}

// untilFinished receives the text and the end of a turn.
func untilFinished(t *testing.T, stream *eventStream) (text string, finished *parleyv1.TurnFinished) {
	t.Helper()
	for finished == nil {
		event, err := stream.next()
		if err != nil {
			t.Fatalf("stream ended after %q: %v, want a finished event", text, err)
		}
		text += event.GetTextDelta().GetText()
		finished = event.GetFinished()
	}
	return text, finished
}

// chatOf begins a turn, which may have to wait.
func chatOf(t *testing.T, s *server, r *parleyv1.ChatRequest) *eventStream {
	t.Helper()
	return streamOf(s.Chat(timeLimited(t), r))
}

// TestServersAnswerForOneAnother: a turn is resumed, followed by others in its queue, shown, listed and cancelled at any
// server.
func TestServersAnswerForOneAnother(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 3)
	a, b, c := servers[0], servers[1], servers[2]
	turn := hold(t, a, "c")
	runningID := header(t, b, "c").GetActiveTurnId()
	resumed := resume(t, b, "c", "", 0)

	second := chatOf(t, b, &parleyv1.ChatRequest{ConversationId: "c", Content: "two", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE})
	secondID := nextQueued(t, second, 1)
	third := chatOf(t, c, &parleyv1.ChatRequest{ConversationId: "c", Content: "three", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE})
	thirdID := nextQueued(t, third, 2)
	nextQueued(t, resume(t, c, "c", secondID, 0), 1)
	_, err := c.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c", TurnId: secondID})
	if err != nil {
		t.Errorf("GetTurn of a turn that waits elsewhere = %v, want the turn", err)
	}
	reply, err := c.GetTurn(t.Context(), &parleyv1.GetTurnRequest{TurnId: secondID})
	if err != nil || reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_QUEUED {
		t.Errorf("GetTurn without conversation_id = %v, %v, want QUEUED", reply, err)
	}
	for _, id := range []string{"c", ""} {
		wantTurns(t, c, id, thirdID, secondID, runningID)
	}
	_, err = c.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "rejected"})
	if err == nil {
		err = firstError(c.Chat(t.Context(), &parleyv1.ChatRequest{ConversationId: "c", Content: "rejected"}))
	}
	wantError(t, err, codes.Aborted, "CONVERSATION_BUSY")
	cancelled, err := b.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c", TurnId: thirdID})
	if err != nil || cancelled.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("CancelTurn of a turn that waits elsewhere = %v, %v, want CANCELLED", cancelled, err)
	}

	turn.release(t, "answer")
	if text, finished := untilFinished(t, resumed); text != "half an answer" || finished.GetTurn().GetId() != runningID {
		t.Errorf("resumed turn = %q, %v, want the whole answer", text, finished)
	}
	if text, _ := untilFinished(t, second); text != "two" {
		t.Errorf("answer of the turn in the queue = %q, want two", text)
	}
	if _, finished := untilFinished(t, third); finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("cancelled turn = %v, want CANCELLED", finished)
	}
}

// wantTurns checks the ids of the turns of a conversation, or of the tenant if id is empty.
func wantTurns(t *testing.T, s *server, id string, want ...string) {
	t.Helper()
	reply, err := s.ListTurns(t.Context(), &parleyv1.ListTurnsRequest{ConversationId: id})
	var got []string
	for _, turn := range reply.GetTurns() {
		got = append(got, turn.GetId())
	}
	if err != nil || len(got) != len(want) {
		t.Fatalf("ListTurns(%q) = %v, %v, want %v", id, got, err, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("ListTurns(%q) = %v, want %v", id, got, want)
			return
		}
	}
}

// TestServersCancelAndInterrupt: a running turn is cancelled and interrupted at another server.
func TestServersCancelAndInterrupt(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 2)
	a, b := servers[0], servers[1]
	turn := hold(t, a, "cancel")
	reply, err := b.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{
		ConversationId: "cancel", TurnId: header(t, b, "cancel").GetActiveTurnId(),
	})
	if err != nil || reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("CancelTurn = %v, %v, want CANCELLED", reply, err)
	}
	turn.finish(t)

	turn = hold(t, a, "interrupt")
	next := chatOf(t, b, &parleyv1.ChatRequest{
		ConversationId: "interrupt", Content: "new", OnBusy: parleyv1.OnBusy_ON_BUSY_INTERRUPT,
	})
	if text, _ := untilFinished(t, next); text != "new" {
		t.Errorf("answer of the turn that interrupts = %q, want new", text)
	}
	if state := turn.finish(t).GetTurn().GetState(); state != parleyv1.TurnState_TURN_STATE_INTERRUPTED &&
		state != parleyv1.TurnState_TURN_STATE_CANCELLED {
		t.Errorf("the turn that was interrupted = %v", state)
	}
}

// TestServersRequestOnce: a request that two servers receive at the same time starts one turn, which both stream.
func TestServersRequestOnce(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 2)
	request := func() *parleyv1.ChatRequest {
		return &parleyv1.ChatRequest{
			ConversationId: "c", Content: "hello", RequestId: "once", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
		}
	}
	for range 20 {
		first, second := chatOf(t, servers[0], request()), chatOf(t, servers[1], request())
		text, end := untilFinished(t, first)
		text2, end2 := untilFinished(t, second)
		if text != "hello" || text2 != "hello" || end.GetTurn().GetId() != end2.GetTurn().GetId() {
			t.Errorf("turns = %q %v, %q %v, want one turn", text, end.GetTurn(), text2, end2.GetTurn())
		}
		if _, err := servers[0].DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{
			ConversationId: "c",
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServersEndTurnsOfKilled: the turns of a server that was killed are interrupted by another one, and the streams of
// their readers elsewhere continue to that end.
func TestServersEndTurnsOfKilled(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 2)
	hold(t, servers[0], "c")
	reader := resume(t, servers[1], "c", "", 0)
	text := ""
	for text != "half an " {
		event, err := reader.next()
		if err != nil {
			t.Fatal(err)
		}
		text += event.GetTextDelta().GetText()
	}
	waiting := chatOf(t, servers[1], &parleyv1.ChatRequest{
		ConversationId: "c", Content: "waits", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	})
	nextQueued(t, waiting, 1)
	servers[0].kill()
	_, err := waiting.next()
	wantError(t, err, codes.Unavailable, "SERVER_UNREACHABLE") // It waited in the memory of the killed server.
	_, finished := untilFinished(t, reader)
	if turn := finished.GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Errorf("turn of a server that was killed = %v, want INTERRUPTED", turn)
	}
	if answer := ask(t, servers[1], "c", "next"); answer != "next" {
		t.Errorf("answer = %q, want next", answer)
	}
}

// TestServersPaused: a server that was stopped for longer than its lease does not change its turn any more, and its
// readers receive the stored end.
func TestServersPaused(t *testing.T) {
	t.Parallel()
	servers := startServers(t, redistest.Start(t), 2)
	a, b := servers[0], servers[1]
	turn := hold(t, a, "c")
	id := header(t, b, "c").GetActiveTurnId()
	if err := a.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.await(t, "turn interrupted by a stop of the server", "turn_id="+id)
	stored, err := b.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c", TurnId: id})
	if err != nil || stored.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Fatalf("GetTurn = %v, %v, want INTERRUPTED", stored, err)
	}
	if err := a.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := turn.finish(t).GetTurn(); !proto.Equal(got, stored.GetTurn()) {
		t.Errorf("finished turn = %v, want the stored one: %v", got, stored.GetTurn())
	}
	if answer := ask(t, a, "c", "next"); answer != "next" {
		t.Errorf("answer of the server that was paused = %q, want next", answer)
	}
}

// TestServerUnreachable: calls that need a turn of a server that cannot be called fail, and can be retried. Others do
// not.
func TestServerUnreachable(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	flags := []string{"--store=redis", "--redis-url=" + engine.URL(), agents(t, testAgents)}
	a := startServer(t, t.TempDir(), append(flags, "--grpc-address=127.0.0.1:0", "--advertise-address=127.0.0.1:1")...)
	b := startServers(t, engine, 1)[0]
	turn := hold(t, a, "c")
	id := header(t, b, "c").GetActiveTurnId()
	err := firstError(b.Chat(t.Context(), &parleyv1.ChatRequest{
		ConversationId: "c", Content: "new", OnBusy: parleyv1.OnBusy_ON_BUSY_QUEUE,
	}))
	wantError(t, err, codes.Unavailable, "SERVER_UNREACHABLE")
	_, err = resume(t, b, "c", id, 0).next()
	wantError(t, err, codes.Unavailable, "SERVER_UNREACHABLE")
	_, err = b.CancelTurn(t.Context(), &parleyv1.CancelTurnRequest{ConversationId: "c", TurnId: id})
	wantError(t, err, codes.Unavailable, "SERVER_UNREACHABLE")
	if reply, err := b.GetTurn(t.Context(), &parleyv1.GetTurnRequest{ConversationId: "c", TurnId: id}); err != nil ||
		reply.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_RUNNING {
		t.Errorf("GetTurn = %v, %v, want RUNNING", reply, err)
	}
	if answer := ask(t, b, "other", "hello"); answer != "hello" {
		t.Errorf("answer in another conversation = %q, want hello", answer)
	}
	turn.release(t, "answer")
}

// TestServersSignIn: a server answers for another one with the tenant and the role of the caller, whether the caller has
// a token or a certificate. No caller is a server.
func TestServersSignIn(t *testing.T) {
	t.Parallel()
	files := newSignIn(t)
	token := files.createToken(t, "--tenant=acme", "--role=writer")
	config := agents(t, testAgents+fmt.Sprintf("client_certificates: [{uri: %q, tenants: [acme], role: reader}]\n",
		parleydtest.ClientURI))
	servers := startServersWith(t, redistest.Start(t), 2, config, append(files.ServerFlags(),
		"--tls-client-ca-file="+files.CAFile, "--peer-ca-file="+files.CAFile)...)
	a, b := secureClient(t, files, servers[0], false), secureClient(t, files, servers[1], false)
	withToken := metadata.AppendToOutgoingContext(timeLimited(t), "authorization", "Bearer "+token)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	turn := streamOf(a.Chat(withToken, &parleyv1.ChatRequest{ConversationId: "c", Content: pipe, Agent: "hold"}))
	event, err := turn.next()
	if err != nil || event.GetStarted() == nil {
		t.Fatalf("event = %v, %v, want started", event, err)
	}
	id := event.GetTurnId()
	for name, stream := range map[string]*eventStream{
		"token": streamOf(b.ResumeTurn(withToken, &parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: id})),
		"certificate": streamOf(secureClient(t, files, servers[1], true).ResumeTurn(timeLimited(t),
			&parleyv1.ResumeTurnRequest{ConversationId: "c", TurnId: id})),
	} {
		if event, err := stream.next(); err != nil || event.GetStarted() == nil {
			t.Errorf("ResumeTurn with a %s at another server = %v, %v, want started", name, event, err)
		}
	}
	_, err = secureClient(t, files, servers[1], true).CancelTurn(timeLimited(t), &parleyv1.CancelTurnRequest{
		ConversationId: "c", TurnId: id,
	})
	wantError(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
	forged := metadata.AppendToOutgoingContext(timeLimited(t), "parley-server-key", "", "parley-client-certificate-bin",
		string(files.clientTLS(t, true).Certificates[0].Certificate[0]))
	_, err = b.GetTurn(forged, &parleyv1.GetTurnRequest{ConversationId: "c", TurnId: id})
	wantError(t, err, codes.Unauthenticated, "UNAUTHENTICATED")
	if _, err := b.CancelTurn(withToken, &parleyv1.CancelTurnRequest{ConversationId: "c", TurnId: id}); err != nil {
		t.Errorf("CancelTurn at another server = %v, want nil", err)
	}
}

// secureClient returns a client of a server with TLS. It may present the client certificate.
func secureClient(
	t *testing.T, files signInFiles, s *server, withCertificate bool,
) parleyv1.ConversationServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(s.conn.Target(),
		grpc.WithTransportCredentials(credentials.NewTLS(files.clientTLS(t, withCertificate))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return parleyv1.NewConversationServiceClient(conn)
}

// TestServersStop: streams that a server passes on end with a reason when it stops, and those of its own turns at other
// servers continue with what is stored.
func TestServersStop(t *testing.T) {
	t.Parallel()
	servers := startServersWith(t, redistest.Start(t), 2, agents(t, testAgents), "--stop-grace=0s")
	hold(t, servers[0], "c")
	hold(t, servers[1], "d")
	passedOn, stored := resume(t, servers[1], "c", "", 0), resume(t, servers[0], "d", "", 0)
	for _, reader := range []*eventStream{passedOn, stored} {
		if event, err := reader.next(); err != nil || event.GetStarted() == nil {
			t.Fatalf("event = %v, %v, want started", event, err)
		}
	}
	servers[1].terminate()
	wantError(t, passedOn.drain(), codes.Unavailable, "SHUTTING_DOWN")
	if text, finished := untilFinished(t, stored); text != "half an " ||
		finished.GetTurn().GetState() != parleyv1.TurnState_TURN_STATE_INTERRUPTED {
		t.Errorf("turn of a server that stops = %q, %v, want its text and INTERRUPTED", text, finished.GetTurn())
	}
	servers[1].wantStop(t)
}

// TestServersManyStreams: a server passes on more streams than one connection takes, and other calls do not wait for
// them.
func TestServersManyStreams(t *testing.T) {
	t.Parallel()
	const streams, connections, batch = 1200, 2, 50 // A machine is not busy for seconds with a batch of calls.
	servers := startServers(t, redistest.Start(t), 2)
	hold(t, servers[0], "c")
	id := header(t, servers[1], "c").GetActiveTurnId()
	readers := make([]*eventStream, 0, streams)
	for range connections {
		client := newSingleConn(t, servers[1])
		for range streams / connections / batch {
			for range batch {
				readers = append(readers, resume(t, client, "c", id, 0))
			}
			for _, reader := range readers[len(readers)-batch:] {
				if event, err := reader.next(); err != nil || event.GetStarted() == nil {
					t.Fatalf("event of one of the first %d streams = %v, %v, want started", len(readers), event, err)
				}
			}
		}
	}
	if _, err := servers[1].CancelTurn(timeLimited(t), &parleyv1.CancelTurnRequest{
		ConversationId: "c", TurnId: id,
	}); err != nil {
		t.Errorf("CancelTurn = %v, want nil", err)
	}
	for _, reader := range readers {
		untilFinished(t, reader)
	}
}
