package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
)

// recordPiece is the piece of a record.
func recordPiece(key, value string, tenantScope bool) *parleyv1.RespondResponse {
	return &parleyv1.RespondResponse{Piece: &parleyv1.RespondResponse_Record{
		Record: &parleyv1.RecordWrite{Key: key, Value: []byte(value), TenantScope: tenantScope},
	}}
}

// recordsOf returns the records of a conversation, or of the tenant, as "key@revision value".
func recordsOf(t *testing.T, s *server, id string) (all []string) {
	t.Helper()
	r := &parleyv1.ListRecordsRequest{ConversationId: id, PageSize: 2}
	for more := true; more; more = r.GetPageToken() != "" {
		page, err := parleyv1.NewRecordServiceClient(s.conn).ListRecords(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range page.GetRecords() {
			all = append(all, fmt.Sprintf("%s@%d %.8s", record.GetKey(), record.GetRevision(), record.GetValue()))
		}
		r.PageToken = page.GetNextPageToken()
	}
	return all
}

// TestRecordsOfAgent: the records that come with a message, and those that a remote agent sends, survive a kill of the
// server, and move to another server with their conversation.
func TestRecordsOfAgent(t *testing.T) {
	t.Parallel()
	agent := &thinker{next: make(chan struct{}), pieces: []*parleyv1.RespondResponse{
		recordPiece("step/1", "one", false), wordPiece("Done."), recordPiece("cities", "Lisbon", true),
		recordPiece("step/2", "two", false),
	}}
	close(agent.next)
	dataDir := t.TempDir()
	config := agents(t, encodeJSON(t, map[string]any{"agents": map[string]any{"remote": thinkerConfig(t, agent)}}))
	s := startServer(t, dataDir, config)
	stream, err := s.Chat(t.Context(), &parleyv1.ChatRequest{
		ConversationId: "c", Content: "Plan a trip", Agent: "remote",
		Records: []*parleyv1.RecordWrite{{Key: "step/0", Value: []byte("zero")}},
	})
	var keys []string
	for err == nil {
		var reply *parleyv1.ChatResponse
		if reply, err = stream.Recv(); reply.GetEvent().GetRecord() != nil {
			keys = append(keys, reply.GetEvent().GetRecord().GetKey())
		}
	}
	if want := []string{"step/1", "cities", "step/2"}; !errors.Is(err, io.EOF) || !slices.Equal(keys, want) {
		t.Errorf("Chat = %v, records %q, want %q", err, keys, want)
	}
	writer := parleyv1.NewRecordServiceClient(s.conn)
	for i := range 3 { // 6 MB, which an import stores in several commits
		if _, err := writer.WriteRecords(t.Context(), &parleyv1.WriteRecordsRequest{
			ConversationId: "c", Writes: []*parleyv1.RecordWrite{
				{Key: fmt.Sprint("large/", i), Value: []byte(strings.Repeat("x", 2<<20))},
			},
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"large/0@3 xxxxxxxx", "large/1@4 xxxxxxxx", "large/2@5 xxxxxxxx", "step/0@1 zero", "step/1@2 one", "step/2@2 two",
	}
	s.kill()
	s = startServer(t, dataDir, config)
	if d := cmp.Diff(want, recordsOf(t, s, "c")); d != "" {
		t.Errorf("records after a kill (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cities@1 Lisbon"}, recordsOf(t, s, "")); d != "" {
		t.Errorf("records of the tenant after a kill (-want +got):\n%s", d)
	}

	other := startServer(t, t.TempDir())
	copyConversations(t, t.Context(), s, other, 1)
	withoutRevisions := func(records []string) (all []string) {
		for _, r := range records {
			key, _, _ := strings.Cut(r, "@")
			_, value, _ := strings.Cut(r, " ")
			all = append(all, key+" "+value)
		}
		return all
	}
	if d := cmp.Diff(withoutRevisions(want), withoutRevisions(recordsOf(t, other, "c"))); d != "" {
		t.Errorf("imported records (-want +got):\n%s", d)
	}
	stats, err := other.GetStats(t.Context(), &parleyv1.GetStatsRequest{})
	if err != nil || stats.GetRecordCount() != 6 || stats.GetRecordBytes() < 6<<20 {
		t.Errorf("GetStats = %v, %v, want 6 records of 6 MiB", stats, err)
	}
}

// copyConversations exports all conversations of a server, as many as want, and imports them into another one.
func copyConversations(t *testing.T, ctx context.Context, from, to *server, want int64) {
	t.Helper()
	out, err := from.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{IncludeRecords: true})
	if err != nil {
		t.Fatal(err)
	}
	in, err := to.ImportConversations(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for {
		part, err := out.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = in.Send(&parleyv1.ImportConversationsRequest{
				Conversation: part.GetConversation(), Messages: part.GetMessages(), Records: part.GetRecords(),
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := in.CloseAndRecv(); err != nil || reply.GetImportedCount() != want || len(reply.GetFailures()) > 0 {
		t.Fatalf("ImportConversations = %v, %v, want %d conversations", reply, err, want)
	}
}
