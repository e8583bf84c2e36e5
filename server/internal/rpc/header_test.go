package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// largestHeader returns a header with every field at its limit.
func largestHeader(id string) *parleyv1.Conversation {
	text := func(n int) string { return strings.Repeat("x", n) }
	at := func() *timestamppb.Timestamp {
		return timestamppb.New(time.Now().Add(-time.Minute).Truncate(time.Second).Add(999_999_999))
	}
	c := &parleyv1.Conversation{
		Id: id + text(
			256-len(id),
		), Title: text(512), Agent: text(128), SystemPrompt: text(64 << 10), Labels: make(map[string]string),
		Retention: &parleyv1.Retention{MaxMessages: 1000, Ttl: durationpb.New(366*24*time.Hour - 1)},
		Version:   1 << 30, LastSequence: 1 << 30, CreateTime: at(), UpdateTime: at(), LastAppendTime: at(),
		ActiveAgent: &parleyv1.ActiveAgent{
			Agent:           text(128),
			Reason:          text(1024),
			StartTime:       at(),
			LeaseExpireTime: timestamppb.New(time.Date(9999, 12, 31, 0, 0, 0, 999_999_999, time.UTC)),
		},
		ForkedFrom: &parleyv1.ForkOrigin{ConversationId: text(256), Sequence: 1 << 30},
	}
	for i := range 64 {
		c.Labels[fmt.Sprintf("%064d", i)] = text(1024)
	}
	return c
}

// TestLargestHeader imports many of the largest headers, two of them with messages of the maximum total
// size. All stay far below the limit of headers, and every reply can contain them.
func TestLargestHeader(t *testing.T) {
	const count = 64
	f := open(t, nil)
	var files []*parleyv1.ExportConversationsResponse
	for i := range count {
		c, size := largestHeader(fmt.Sprint("c", i)), 1
		if i < 2 {
			size = 3<<20 - 100
		}
		files = append(files, &parleyv1.ExportConversationsResponse{Conversation: c, Messages: []*parleyv1.Message{{
			Id: "m", Sequence: 1, Role: parleyv1.Role_ROLE_USER, Content: strings.Repeat("x", size),
			CreateTime: c.GetCreateTime(),
		}}})
	}
	f.wantImport(t, false, count, 0, files...)
	for i, file := range files {
		id := file.GetConversation().GetId()
		got := f.get(t, id)
		size := proto.Size(got)
		if i == 0 {
			t.Logf("the largest header has %d bytes", size)
		}
		if size > 135<<10 || size <= proto.Size(file.GetConversation()) {
			t.Fatalf(
				"header of %d bytes, %d at the import; want the documented 135 KiB",
				size,
				proto.Size(file.GetConversation()),
			)
		}
		if i > 1 {
			continue
		}
		if reply, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id}); err != nil ||
			len(reply.GetMessages()) != 1 {
			t.Errorf("LoadConversation = %d messages, %v", len(reply.GetMessages()), err)
		}
		if reply, err := f.ListMessages(t.Context(), &parleyv1.ListMessagesRequest{ConversationId: id}); err != nil ||
			len(reply.GetMessages()) != 1 {
			t.Errorf("ListMessages = %d messages, %v", len(reply.GetMessages()), err)
		}
		f.mustExport(t, id)
		if _, err := f.chat(t, &parleyv1.ChatRequest{ConversationId: id, Agent: "echo", Content: "hello"}); err != nil {
			t.Errorf("Chat: %v", err)
		}
	}
	again := &parleyv1.UpdateConversationRequest{
		Conversation: files[0].GetConversation(),
		UpdateMask:   &fieldmaskpb.FieldMask{Paths: []string{"labels", "title"}},
	}
	again.GetConversation().Title = ""
	if _, err := f.UpdateConversation(t.Context(), again); err != nil {
		t.Errorf("UpdateConversation: %v", err)
	}
	listed, pages, token := 0, 0, ""
	for pages == 0 || token != "" {
		page, err := f.ListConversations(
			t.Context(),
			&parleyv1.ListConversationsRequest{PageSize: 1000, PageToken: token},
		)
		if err != nil {
			t.Fatal(err)
		}
		listed, pages, token = listed+len(page.GetConversations()), pages+1, page.GetNextPageToken()
	}
	if listed != count || pages < 2 {
		t.Errorf("ListConversations = %d conversations in %d pages, want %d", listed, pages, count)
	}
}

// rejectingStore rejects every import because of a header that is too large.
type rejectingStore struct{ store.Store }

// Import returns a HeaderTooLargeError.
func (rejectingStore) Import(context.Context, *store.Import) (*store.Result, error) {
	return nil, fmt.Errorf("conversation: %w", &store.HeaderTooLargeError{Bytes: 300_000})
}

// TestImportHeaderTooLarge checks that a conversation with a large header fails and the import
// continues.
func TestImportHeaderTooLarge(t *testing.T) {
	f := open(t, func(s *setup) { s.wrap = func(inner store.Store) store.Store { return rejectingStore{inner} } })
	failures := f.wantImport(t, false, 0, 0, exportOf("a", time.Now()), exportOf("b", time.Now()))
	const want = "conversation: the header has 300000 bytes in encoded form with its system prompt, the limit is 262144"
	if len(failures) != 2 || failures[0].GetReason() != want {
		t.Errorf("ImportConversations failed for %v, want %q", failures, want)
	}
}
