package e2e

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// chatCall is a Chat call in progress and the events received from it.
type chatCall struct {
	stream   grpc.ServerStreamingClient[parleyv1.ChatResponse]
	started  *parleyv1.TurnStarted
	text     string // of all deltas
	finished *parleyv1.TurnFinished
}

// chat begins a turn and returns after its start.
func chat(t *testing.T, s *server, r *parleyv1.ChatRequest) *chatCall {
	t.Helper()
	stream, err := s.Chat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	k := &chatCall{stream: stream}
	k.receiveUntil(t, func() bool { return k.started != nil })
	return k
}

// receiveUntil receives events until enough returns true.
func (k *chatCall) receiveUntil(t *testing.T, enough func() bool) {
	t.Helper()
	for !enough() {
		response, err := k.stream.Recv()
		if err != nil {
			t.Fatalf("after %q: %v", k.text, err)
		}
		event := response.GetEvent()
		k.text += event.GetTextDelta().GetText()
		if started := event.GetStarted(); started != nil {
			k.started = started
		}
		if finished := event.GetFinished(); finished != nil {
			k.finished = finished
		}
	}
}

// finish receives all remaining events, checks that the stream ends with EOF, and returns the last
// event.
func (k *chatCall) finish(t *testing.T) *parleyv1.TurnFinished {
	t.Helper()
	k.receiveUntil(t, func() bool { return k.finished != nil })
	if response, err := k.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("Recv() after finished = %v, %v; want EOF", response, err)
	}
	return k.finished
}

// ask sends a user's message, waits for the turn to complete and returns the answer.
func ask(t *testing.T, s *server, id, content string) string {
	t.Helper()
	k := chat(t, s, &parleyv1.ChatRequest{ConversationId: id, Content: content})
	if turn := k.finish(t).GetTurn(); turn.GetState() != parleyv1.TurnState_TURN_STATE_COMPLETED {
		t.Fatalf("%q: %v", content, turn)
	}
	return k.text
}

// history returns an existing conversation with all its messages.
func history(t *testing.T, s *server, id string) *parleyv1.LoadConversationResponse {
	t.Helper()
	limit := int32(1000)
	reply, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{
		ConversationId: id, MessageLimit: &limit,
	})
	if err != nil {
		t.Fatal(err)
	}
	if reply.GetCreated() {
		t.Fatalf("LoadConversation(%q) created it, want an existing conversation", id)
	}
	return reply
}

// add appends messages. A message without a role is a user's message.
func add(t *testing.T, s *server, id string, messages ...*parleyv1.Message) *parleyv1.AppendMessagesResponse {
	t.Helper()
	for _, m := range messages {
		if m.GetRole() == parleyv1.Role_ROLE_UNSPECIFIED {
			m.Role = parleyv1.Role_ROLE_USER
		}
	}
	reply, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{ConversationId: id, Messages: messages})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// firstError returns the error with which a stream begins, or nil.
func firstError(stream grpc.ServerStreamingClient[parleyv1.ChatResponse], err error) error {
	if err == nil {
		_, err = stream.Recv()
	}
	return err
}

// wantError checks the code and reason of an error and returns the metadata of its ErrorInfo.
func wantError(t *testing.T, err error, code codes.Code, reason string) map[string]string {
	t.Helper()
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && status.Code(err) == code && info.GetReason() == reason {
			return info.GetMetadata()
		}
	}
	t.Fatalf("error = %v with details %v, want %v with reason %s", err, status.Convert(err).Details(), code, reason)
	return nil
}

// agents returns the flag for a configuration file with these agents.
func agents(t *testing.T, yaml string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parleyd.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--config=" + path
}

// The agents of these tests are programs in testdata/agents. The answers of hold and fail begin
// with "half an ".
const testAgents = `
agents:
  hold: {kind: command, command: [sh, testdata/agents/hold.sh]}
  fail: {kind: command, command: [sh, testdata/agents/fail.sh]}
  absent: {kind: command, command: [testdata/agents/there-is-no-such-program]}
`

// held is a turn whose agent has sent the beginning of its answer and waits.
type held struct {
	*chatCall
	request *parleyv1.ChatRequest
}

// hold begins a turn with the agent hold and returns when the agent waits.
func hold(t *testing.T, s *server, id string) *held {
	t.Helper()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Opening the pipe ends an agent that outlived its server; removing it stops one that starts late.
		if f, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil {
			os.Remove(pipe)
			f.Close()
		}
	})
	request := &parleyv1.ChatRequest{ConversationId: id, Content: pipe, Agent: "hold", RequestId: "hold"}
	h := &held{chatCall: chat(t, s, request), request: request}
	h.receiveUntil(t, func() bool { return h.text == "half an " })
	return h
}

// release lets the agent send the rest of its answer and returns the end of the turn.
func (h *held) release(t *testing.T, rest string) *parleyv1.TurnFinished {
	t.Helper()
	f, err := os.OpenFile(h.request.GetContent(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(rest + "\n"); err != nil {
		t.Fatal(err)
	}
	return h.finish(t)
}

// TestCompressedCall checks that clients may compress requests with gzip.
func TestCompressedCall(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	content, compressed := strings.Repeat("all happy families are alike ", 1000), grpc.UseCompressor(gzip.Name)
	_, err := s.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
		ConversationId: "c", Messages: []*parleyv1.Message{{Role: parleyv1.Role_ROLE_USER, Content: content}},
	}, compressed)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := s.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: "c"}, compressed)
	if err != nil || len(loaded.GetMessages()) != 1 || loaded.GetMessages()[0].GetContent() != content {
		t.Errorf("LoadConversation = %v, %v, want the message", loaded, err)
	}
}

// needPython skips a test with a message if Python is missing. In CI it fails the test.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("python3"); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("python3 is missing")
	}
	t.Skip("SKIPPED: the agent of this test needs python3, which is not installed")
}

// contents returns one line for each message, with its role and content.
func contents(messages []*parleyv1.Message) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(strings.TrimPrefix(m.GetRole().String(), "ROLE_") + " " + m.GetContent() + "\n")
	}
	return b.String()
}
