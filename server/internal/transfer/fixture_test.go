package transfer

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

const tenant = "default"

// manualClock is a clock that moves only when advance is called.
type manualClock struct {
	mu  sync.Mutex
	now time.Time
}

// Now returns the time of the clock.
func (c *manualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fixture is a memstore and an Importer that uses it through hooks.
type fixture struct {
	hooks    *hookStore
	importer *Importer
	clock    *manualClock
}

// hookStore is a store that calls functions of a test. Functions that are nil are not called.
type hookStore struct {
	store.Store
	read     func(*store.Read) error   // before a read, which fails with its error
	imported func(*store.Import) error // before an import, which fails with its error
	listed   func()                    // before a list of records
	written  func() error              // before a write of records, which fails with its error
}

// Read reads a conversation.
func (s *hookStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if s.read != nil {
		if err := s.read(r); err != nil {
			return nil, err
		}
	}
	return s.Store.Read(ctx, r)
}

// ListRecords lists records.
func (s *hookStore) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	if s.listed != nil {
		s.listed()
	}
	return s.Store.ListRecords(ctx, l)
}

// WriteRecords writes records.
func (s *hookStore) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if s.written != nil {
		if err := s.written(); err != nil {
			return nil, err
		}
	}
	return s.Store.WriteRecords(ctx, w)
}

// Import imports a conversation.
func (s *hookStore) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	if s.imported != nil {
		if err := s.imported(i); err != nil {
			return nil, fmt.Errorf("conversation %q: %w", i.Conversation.GetId(), err)
		}
	}
	return s.Store.Import(ctx, i)
}

func open(t *testing.T) *fixture {
	t.Helper()
	clock := &manualClock{now: time.Date(2026, 2, 3, 4, 5, 6, 700, time.UTC)}
	hooks := &hookStore{Store: memstore.New(store.Options{Now: clock.Now})}
	t.Cleanup(func() { hooks.Close() })
	return &fixture{hooks: hooks, importer: NewImporter(hooks, store.MaxMessageBytes, clock.Now, rules.Retentions{}), clock: clock}
}

// receiveFrom returns a function that returns a request for each exported part, and then end.
func receiveFrom(
	parts []*parleyv1.ExportConversationsResponse, overwrite bool, end error,
) func() (*parleyv1.ImportConversationsRequest, error) {
	return func() (*parleyv1.ImportConversationsRequest, error) {
		if len(parts) == 0 {
			return nil, end
		}
		part := proto.CloneOf(parts[0])
		parts = parts[1:]
		return &parleyv1.ImportConversationsRequest{
			Conversation: part.GetConversation(), Messages: part.GetMessages(), Records: part.GetRecords(),
			Overwrite: overwrite,
		}, nil
	}
}

// tryImport imports exported conversations.
func (f *fixture) tryImport(
	t *testing.T, overwrite bool, parts ...*parleyv1.ExportConversationsResponse,
) (Imported, error) {
	t.Helper()
	return f.importer.Import(t.Context(), tenant, receiveFrom(parts, overwrite, io.EOF))
}

// wantImport imports exported conversations and returns the failures. It fails the test unless the result
// has these counts.
func (f *fixture) wantImport(
	t *testing.T, overwrite bool, imported, skipped int64, parts ...*parleyv1.ExportConversationsResponse,
) []*parleyv1.ImportFailure {
	t.Helper()
	got, err := f.tryImport(t, overwrite, parts...)
	if err != nil {
		t.Fatalf("Import = %v", err)
	}
	if got.Reply.GetImportedCount() != imported || got.Reply.GetSkippedCount() != skipped {
		t.Errorf("Import = %d imported, %d skipped, want %d and %d; failures = %v",
			got.Reply.GetImportedCount(), got.Reply.GetSkippedCount(), imported, skipped, got.Reply.GetFailures())
	}
	return got.Reply.GetFailures()
}

// export returns the parts that an export sends, and its error. It decodes them as a client does.
func (f *fixture) export(t *testing.T, ids ...string) ([]*parleyv1.ExportConversationsResponse, error) {
	t.Helper()
	var parts []*parleyv1.ExportConversationsResponse
	r := &parleyv1.ExportConversationsRequest{ConversationIds: ids, IncludeRecords: true}
	_, err := Export(t.Context(), f.hooks, NewLargeReads(1), tenant, r, func(part *parleyv1.ExportConversationsResponse) error {
		encoded, err := proto.Marshal(part)
		if err != nil {
			return err
		}
		received := new(parleyv1.ExportConversationsResponse)
		parts = append(parts, received)
		return proto.Unmarshal(encoded, received)
	})
	return parts, err
}

// mustExport returns the parts of an export. It fails the test if there is an error.
func (f *fixture) mustExport(t *testing.T, ids ...string) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	parts, err := f.export(t, ids...)
	if err != nil {
		t.Fatalf("Export(%q) = %v", ids, err)
	}
	return parts
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

func sequences(messages []*parleyv1.Message) []int32 {
	var all []int32
	for _, m := range messages {
		all = append(all, m.GetSequence())
	}
	return all
}

func data(kind string, value *structpb.Value) []*parleyv1.StructuredData {
	return []*parleyv1.StructuredData{{Type: kind, Value: value}}
}

func entries(n, keyBytes, valueBytes int) map[string]string {
	m := make(map[string]string)
	for i := range n {
		m[fmt.Sprintf("%0*d", keyBytes, i)] = strings.Repeat("v", valueBytes)
	}
	return m
}
