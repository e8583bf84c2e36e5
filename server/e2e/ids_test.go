package e2e

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// allKindsOfIDs are ids of conversations that something between a client and the store may take for something else.
func allKindsOfIDs() []string {
	return []string{
		"user@example.com", "app/1", "app", "ü", "u\u0308", strings.Repeat("ü", 128), "*", "-", "...", "a/../b", "%2F", `"a\b"`,
		"a, b;c", "a?b#c", ":search", "a:load", "messages", "\u200f\ufeff", "👩\u200d🚀", "<script>", "'; --", "a  b",
	}
}

// TestIDs writes conversations with these ids. They are distinct, survive a kill, and an import into another server.
func TestIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := startServer(t, dir)
	for _, id := range allKindsOfIDs() {
		add(t, s, id, &parleyv1.Message{Id: id, Content: "the message of " + id})
		if got, want := ask(t, s, id, "hello "+id), "hello "+id; got != want {
			t.Errorf("Chat with %q = %q, want %q", id, got, want)
		}
	}
	before := export(t, s)
	if len(before) != len(allKindsOfIDs()) {
		t.Errorf("export has %d conversations, want %d", len(before), len(allKindsOfIDs()))
	}
	s.kill()
	d := startHTTPServer(t, dir)
	if diff := cmp.Diff(before, export(t, d.server), protocmp.Transform()); diff != "" {
		t.Errorf("export before (-) and after (+) a kill:\n%s", diff)
	}
	other := startHTTPServer(t, t.TempDir())
	importAll(t, other.server, before)
	if diff := cmp.Diff(before, export(t, other.server), protocmp.Transform(), exceptUID()); diff != "" {
		t.Errorf("export before (-) and after (+) an import:\n%s", diff)
	}
	log := parleyv1.NewInteractionLogServiceClient(d.conn)
	for _, id := range allKindsOfIDs() {
		wantOneExported(t, d, id)
		entries, err := log.ListInteractions(t.Context(), &parleyv1.ListInteractionsRequest{ConversationId: id})
		if err != nil || len(entries.GetInteractions()) != 3 || entries.GetInteractions()[0].GetConversationId() != id {
			t.Errorf("ListInteractions of %q = %v, %v, want its 3 entries", id, entries, err)
		}
		erased, err := log.DeleteInteractions(t.Context(), &parleyv1.DeleteInteractionsRequest{ConversationId: id})
		if err != nil || erased.GetDeletedCount() != 3 {
			t.Errorf("DeleteInteractions of %q = %v, %v, want 3 deleted", id, erased, err)
		}
		if _, err := d.DeleteConversation(t.Context(), &parleyv1.DeleteConversationRequest{ConversationId: id}); err != nil {
			t.Errorf("DeleteConversation(%q): %v", id, err)
		}
	}
	// The lines of an export over HTTP are the lines of an import.
	code, lines := other.do(t, http.MethodGet, "/v1/export", "")
	if code != http.StatusOK {
		t.Fatalf("GET /v1/export = %d %s", code, lines)
	}
	if code, text := d.do(t, http.MethodPost, "/v1/import", lines); code != http.StatusOK {
		t.Fatalf("POST /v1/import = %d %s", code, text)
	}
	if diff := cmp.Diff(before, export(t, d.server), protocmp.Transform(), exceptUID()); diff != "" {
		t.Errorf("export before (-) and after (+) an import over HTTP:\n%s", diff)
	}
}

// wantOneExported exports one conversation by its id in a query.
func wantOneExported(t *testing.T, d *httpServer, id string) {
	t.Helper()
	stream, err := d.ExportConversations(t.Context(), &parleyv1.ExportConversationsRequest{ConversationIds: []string{id}})
	if err != nil {
		t.Fatal(err)
	}
	if got := receive(t, stream); len(got) != 1 || got[0].GetConversation().GetId() != id {
		t.Errorf("ExportConversations of %q = %v, want this one", id, got)
	}
	code, text := d.do(t, http.MethodGet, "/v1/export?conversationIds="+url.QueryEscape(id), "")
	if lines := strings.Count(text, "\n"); code != http.StatusOK || lines != 1 {
		t.Errorf("GET /v1/export of %q = %d with %d lines, want one: %s", id, code, lines, text)
	}
}

// TestIDsOfWatches watches ids that differ in little, and makes one of them ephemeral.
func TestIDsOfWatches(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	watched := []string{"app/1", "ü", "a  b"}
	stream, err := s.WatchConversations(t.Context(), &parleyv1.WatchConversationsRequest{ConversationIds: watched})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // The heartbeat.
		t.Fatal(err)
	}
	for _, id := range []string{"app", "app/1", "app/1/", "u\u0308", "ü", "a b", "a  b"} {
		add(t, s, id, messageOf("hello"))
	}
	var got []string
	for len(got) < len(watched) {
		change, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if change.GetChange().GetKind() == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
			got = append(got, change.GetChange().GetConversationId())
		}
	}
	if diff := cmp.Diff(watched, got); diff != "" {
		t.Errorf("created conversations (-want +got):\n%s", diff)
	}
}

// TestBadIDs imports ids that are not valid, each with one that is. Only the valid ones are stored.
func TestBadIDs(t *testing.T) {
	t.Parallel()
	s := startServer(t, t.TempDir())
	add(t, s, "good", messageOf("hello"))
	line := export(t, s)[0]
	for _, id := range []string{"", ".", "..", " a", "a\u00a0", "a\nb", "a\x00", "a\u2028b", strings.Repeat("ü", 128) + "x"} {
		stream, err := s.ImportConversations(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		line.Conversation.Id = id
		request := &parleyv1.ImportConversationsRequest{Conversation: line.GetConversation(), Messages: line.GetMessages()}
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		reply, err := stream.CloseAndRecv()
		if failures := reply.GetFailures(); err != nil || reply.GetImportedCount() != 0 || len(failures) != 1 ||
			!strings.Contains(failures[0].GetReason(), "conversation.id: ") {
			t.Errorf("ImportConversations of %q = %v, %v, want a failure that names conversation.id", id, reply, err)
		}
	}
	if stored := export(t, s); len(stored) != 1 {
		t.Errorf("%d conversations are stored, want 1", len(stored))
	}
}
