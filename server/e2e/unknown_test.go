package e2e

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// TestUnknownFields creates three conversations with one message each. All requests contain unknown fields
// and are nearly as large as gRPC accepts. All conversations can be listed, over gRPC and HTTP, also after
// a restart.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	const size = 4<<20 - 600
	dir := t.TempDir()
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), make([]byte, size))
	d := startHTTPServer(t, dir)
	for _, id := range []string{"a", "b", "c"} {
		ttl := durationpb.New(time.Hour)
		ttl.ProtoReflect().SetUnknown(unknown)
		_, err := d.CreateConversation(t.Context(), &parleyv1.CreateConversationRequest{
			Conversation: &parleyv1.Conversation{Id: id, Retention: &parleyv1.Retention{Ttl: ttl}},
		})
		if err != nil {
			t.Errorf("CreateConversation(%s): %v", id, err)
		}
		m := &parleyv1.Message{Role: parleyv1.Role_ROLE_USER, Content: "hello"}
		m.ProtoReflect().SetUnknown(unknown)
		_, err = d.AppendMessages(t.Context(), &parleyv1.AppendMessagesRequest{
			ConversationId: id, Messages: []*parleyv1.Message{m},
		})
		if err != nil {
			t.Errorf("AppendMessages(%s): %v", id, err)
		}
	}
	list := func(d *httpServer) {
		t.Helper()
		page, err := d.ListConversations(t.Context(), &parleyv1.ListConversationsRequest{})
		if n := len(page.GetConversations()); err != nil || n != 3 {
			t.Errorf("ListConversations = %d conversations, %v, want 3", n, err)
		}
		code, text := d.do(t, http.MethodGet, "/v1/conversations", "")
		var rows struct{ Conversations []any }
		if err := json.Unmarshal([]byte(text), &rows); err != nil || code != http.StatusOK || len(rows.Conversations) != 3 {
			t.Errorf("GET /v1/conversations = %d, %d conversations, want 3", code, len(rows.Conversations))
		}
	}
	list(d)
	d.kill()
	list(startHTTPServer(t, dir))
}
