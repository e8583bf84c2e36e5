package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/transfer"
	"github.com/parleyhq/parley/store"
)

// maxPartBytes is the maximum size of the messages in a response of an export, unless a single message is
// larger.
const maxPartBytes = 256 << 10

// export returns the responses of an export, and its error.
func (f *fixture) export(ctx context.Context, ids ...string) ([]*parleyv1.ExportConversationsResponse, error) {
	stream, err := f.ExportConversations(ctx, &parleyv1.ExportConversationsRequest{ConversationIds: ids})
	if err != nil {
		return nil, err
	}
	var parts []*parleyv1.ExportConversationsResponse
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return parts, nil
		}
		if err != nil {
			return parts, err
		}
		parts = append(parts, part)
	}
}

// mustExport returns the responses of an export. It fails the test if there is an error.
func (f *fixture) mustExport(t *testing.T, ids ...string) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	parts, err := f.export(t.Context(), ids...)
	if err != nil {
		t.Fatalf("ExportConversations(%q) = %v", ids, err)
	}
	return parts
}

// tryImport imports exported conversations.
func (f *fixture) tryImport(
	ctx context.Context, overwrite bool, parts ...*parleyv1.ExportConversationsResponse,
) (*parleyv1.ImportConversationsResponse, error) {
	stream, err := f.ImportConversations(ctx)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		err := stream.Send(
			&parleyv1.ImportConversationsRequest{
				Conversation: part.GetConversation(),
				Messages:     part.GetMessages(),
				Overwrite:    overwrite,
			},
		)
		if err != nil {
			break // CloseAndRecv returns the error.
		}
	}
	return stream.CloseAndRecv()
}

// wantImport imports exported conversations and returns the failures. It fails the test unless the reply
// has these counts.
func (f *fixture) wantImport(
	t *testing.T, overwrite bool, imported, skipped int64, parts ...*parleyv1.ExportConversationsResponse,
) []*parleyv1.ImportFailure {
	t.Helper()
	reply, err := f.tryImport(t.Context(), overwrite, parts...)
	if err != nil {
		t.Fatalf("ImportConversations = %v", err)
	}
	if reply.GetImportedCount() != imported || reply.GetSkippedCount() != skipped {
		t.Errorf("ImportConversations = %d imported, %d skipped, want %d and %d; failures = %v",
			reply.GetImportedCount(), reply.GetSkippedCount(), imported, skipped, reply.GetFailures())
	}
	return reply.GetFailures()
}

// exportedIDs returns the ids of the conversations of an export in their order.
func exportedIDs(parts []*parleyv1.ExportConversationsResponse) []string {
	var ids []string
	for _, part := range parts {
		ids = append(ids, part.GetConversation().GetId())
	}
	return slices.Compact(ids)
}

// exportOf returns an exported conversation with one message. Its times are ten minutes before now.
func exportOf(id string, now time.Time) *parleyv1.ExportConversationsResponse {
	at := timestamppb.New(now.Add(-10 * time.Minute))
	return &parleyv1.ExportConversationsResponse{
		Conversation: &parleyv1.Conversation{
			Id: id, Uid: "uid of " + id, Version: 7, LastSequence: 9, CreateTime: at, UpdateTime: at, LastAppendTime: at,
			Retention: &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)},
		},
		Messages: []*parleyv1.Message{{
			Id: "m", Sequence: 5, Role: parleyv1.Role_ROLE_USER, Content: "hello", Exchange: 3, CreateTime: at,
			Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE,
		}},
	}
}

func TestExport(t *testing.T) {
	f, script := openScripted(t, nil)
	if parts := f.mustExport(t); len(parts) != 0 {
		t.Errorf("export of an empty store = %v", parts)
	}
	for _, id := range []string{"b", "a", "c"} {
		f.create(t, fullConversation(id))
	}
	f.append(t, "a", user("1"), assistant("2"))
	run := f.startChat(
		t,
		t.Context(),
		&parleyv1.ChatRequest{ConversationId: "b", Agent: "main", Content: "a turn runs"},
	)
	all := f.mustExport(t)
	if got := exportedIDs(all); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Errorf("exported ids = %v, want b, a, c", got)
	}
	for _, part := range all {
		id := part.GetConversation().GetId()
		got, err := f.GetConversation(t.Context(), &parleyv1.GetConversationRequest{ConversationId: id})
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := f.LoadConversation(t.Context(), &parleyv1.LoadConversationRequest{ConversationId: id})
		if err != nil {
			t.Fatal(err)
		}
		want := &parleyv1.ExportConversationsResponse{
			Conversation: got.GetConversation(),
			Messages:     loaded.GetMessages(),
		}
		if want.Conversation.ActiveTurnId == "" && id == "b" || want.Conversation.GetSystemPrompt() == "" {
			t.Fatalf("conversation %s = %v, want a system prompt, and a turn on b", id, want.Conversation)
		}
		want.Conversation.ActiveTurnId, want.Conversation.SizeBytes = "", 0
		if diff := cmp.Diff(want, part, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	script.send(t, "b", end)
	run.wait(t)

	if got := exportedIDs(f.mustExport(t, "c", "a", "c", "a")); !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("export by ids = %v, want c, a", got)
	}
	parts, err := f.export(t.Context(), "c", "nobody", "a")
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c"}) || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("export with a missing id = %v, %v, want c and an error with the id", got, err)
	}
	_, err = f.export(t.Context(), "c", " a")
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if lines := f.log.lines("level=INFO", "msg=exported", "conversations=3", "messages=3", "complete=true"); len(
		lines,
	) != 1 {
		t.Errorf("got log lines %v, want 1", lines)
	}
}

// hookStore is a store that calls functions of a test. Functions that are nil are not called.
type hookStore struct {
	store.Store
	read     func(*store.Read) error                    // before a read, which fails with its error
	listed   func(*store.List, *store.Page)             // after a list
	imported func(*store.Import) error                  // before an import, which fails with its error
	appended func(context.Context, *store.Append) error // before an append, which fails with its error
}

func (s *hookStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if s.appended != nil {
		if err := s.appended(ctx, a); err != nil {
			return nil, err
		}
	}
	return s.Store.Append(ctx, a)
}

func (s *hookStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if s.read != nil {
		if err := s.read(r); err != nil {
			return nil, err
		}
	}
	return s.Store.Read(ctx, r)
}

func (s *hookStore) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	if s.listed != nil && err == nil {
		s.listed(l, page)
	}
	return page, err
}

func (s *hookStore) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	if s.imported != nil {
		if err := s.imported(i); err != nil {
			return nil, fmt.Errorf("conversation %q: %w", i.Conversation.GetId(), err)
		}
	}
	return s.Store.Import(ctx, i)
}

// openHooked starts a server with a hookStore.
func openHooked(t *testing.T) (*fixture, *hookStore) {
	t.Helper()
	hooks := new(hookStore)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			hooks.Store = inner
			return hooks
		}
	})
	return f, hooks
}

func TestExportDamaged(t *testing.T) {
	f, hooks := openHooked(t)
	for i := range 6 {
		f.append(t, fmt.Sprint("c", i), user("hello"))
	}
	damage := func(r *store.Read) error {
		if r.ConversationID == "c1" || r.ConversationID == "c5" {
			return fmt.Errorf("conversation %q: %w: messages", r.ConversationID, store.ErrCorrupt)
		}
		return nil
	}
	hooks.read = damage
	parts, err := f.export(t.Context())
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c0", "c2", "c3", "c4"}) {
		t.Errorf("exported ids = %v, want all but the damaged ones", got)
	}
	damaged := wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if damaged.metadata["conversation_ids"] != "c1,c5" || !strings.Contains(damaged.text, "2 conversations are damaged") {
		t.Errorf("damaged = %q, %v, want c1 and c5", damaged.text, damaged.metadata)
	}
	if lines := f.log.lines("msg=exported", "conversations=4", "damaged=2", "complete=false"); len(lines) != 1 {
		t.Errorf("got log lines %v, want 1", lines)
	}
	// The list counts damaged conversations without an id.
	hooks.listed = func(l *store.List, page *store.Page) {
		if l.OldestFirst {
			page.Damaged = 3
		}
	}
	_, err = f.export(t.Context())
	damaged = wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if !strings.Contains(damaged.text, "5 conversations are damaged") ||
		!strings.Contains(damaged.text, "c1, c5, 3 with damaged ids") {
		t.Errorf("text = %q, want c1, c5 and 3 others", damaged.text)
	}
	hooks.listed = nil
	parts, err = f.export(t.Context(), "c2", "c1", "c3")
	wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c2"}) || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("export by ids with a damaged one = %v, %v, want c2 and an error with c1", got, err)
	}
	// Another error of the store ends the export immediately.
	hooks.read = func(r *store.Read) error {
		if r.ConversationID == "c2" {
			return store.ErrClosed
		}
		return damage(r)
	}
	parts, err = f.export(t.Context())
	wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c0"}) {
		t.Errorf("exported ids before the store closed = %v, want c0", got)
	}
}

func TestExportParts(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = 3 << 20 })
	big := func(n int) *parleyv1.Message { return user(strings.Repeat("x", n)) }
	f.append(t, "small", user("1"), user("2"))
	f.append(t, "many", slices.Repeat([]*parleyv1.Message{big(50 << 10)}, 14)...)
	f.append(t, "large", big(100), big(2<<20), big(100), big(100))
	f.create(t, fullConversation("empty"))
	f.append(t, "last", user("1"))
	parts := f.mustExport(t)
	var got []string
	for _, part := range parts {
		got = append(got, fmt.Sprint(part.GetConversation().GetId(), " ", sequences(part.GetMessages())))
		size := proto.Size(&parleyv1.ExportConversationsResponse{Messages: part.GetMessages()})
		if size > maxPartBytes && len(part.GetMessages()) > 1 {
			t.Errorf(
				"response has %d bytes and %d messages, want at most %d bytes",
				size,
				len(part.GetMessages()),
				maxPartBytes,
			)
		}
	}
	want := []string{
		"small [1 2]", "many [1 2 3 4 5]", "many [6 7 8 9 10]", "many [11 12 13 14]",
		"large [1]", "large [2]", "large [3 4]", "empty []", "last [1]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("responses (-want +got):\n%s", diff)
	}
	for i := range 2 {
		if diff := cmp.Diff(parts[1].GetConversation(), parts[2+i].GetConversation(), protocmp.Transform()); diff != "" {
			t.Errorf("headers of the first and another response differ:\n%s", diff)
		}
	}
	other := open(t, nil) // MaxMessageBytes does not apply to imports.
	if failures := other.wantImport(t, false, 5, 0, parts...); len(failures) > 0 {
		t.Errorf("failures = %v, want none", failures)
	}
	if diff := cmp.Diff(parts, other.mustExport(t), protocmp.Transform(), ignoreUID()); diff != "" {
		t.Errorf("export after the import (-want +got):\n%s", diff)
	}
}

// TestTransferErrorKeepsStatus: the status of the error that ended a stream stays if the error names a conversation.
func TestTransferErrorKeepsStatus(t *testing.T) {
	cause := status.Error(codes.ResourceExhausted, "message too large")
	err := transferError(&transfer.ConversationError{ID: "a", Err: fmt.Errorf("%w; the part was deleted", cause)})
	_, direct := err.(interface{ GRPCStatus() *status.Status })
	if got := status.Convert(err); !direct || got.Code() != codes.ResourceExhausted ||
		!strings.HasSuffix(got.Message(), "; the part was deleted") {
		t.Errorf("transferError = %v, want RESOURCE_EXHAUSTED with the whole text", err)
	}
}
