package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestChatAfterEphemeralConversation checks that after the expiry of an ephemeral conversation, Chat
// begins a new conversation with the same id at once. The sweep comes seconds later and the agent of the
// old turn still runs.
func TestChatAfterEphemeralConversation(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir(), agents(t, puppetAgents))
	dir := t.TempDir()
	for busy, name := range parleyv1.OnBusy_name {
		for _, version := range []*int32{nil, new(int32)} {
			id := fmt.Sprint(name, "-", version != nil)
			t.Run(id, func(t *testing.T) {
				c := watchEphemeral(t, s.conn.Target(), id, time.Millisecond)
				p := newPuppet(t, dir, id)
				old := chat(t, s, &parleyv1.ChatRequest{ConversationId: id, Content: p.path, Agent: "puppet"})
				p.start(t)
				c.disconnect()
				awaitNone(t, s, id)
				wantNew(t, s, &parleyv1.ChatRequest{
					ConversationId: id, Content: "new", OnBusy: parleyv1.OnBusy(busy), IfVersion: version,
				})
				var err error
				for err == nil {
					_, err = old.stream.Recv()
				}
				wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
				wantHistory(t, s, id)
			})
		}
	}
}

// awaitNone returns when no conversation has the id.
func awaitNone(t *testing.T, s *server, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	for {
		_, err := s.GetConversation(ctx, &parleyv1.GetConversationRequest{ConversationId: id})
		if status.Code(err) == codes.NotFound {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("GetConversation(%s) = %v, want NOT_FOUND", id, err)
		}
	}
}

// wantNew checks that the request begins a conversation and is answered.
func wantNew(t *testing.T, s *server, r *parleyv1.ChatRequest) {
	t.Helper()
	stream, err := s.Chat(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || !first.GetEvent().GetStarted().GetCreated() {
		t.Fatalf("Chat(%v) = %v, %v; want a new conversation", r, first, err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("Chat(%v) ends with %v, want EOF", r, err)
	}
}
