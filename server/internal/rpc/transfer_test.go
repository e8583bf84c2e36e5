package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// export returns all that an export sends, and how it ends.
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

// exported is an export that must go well.
func (f *fixture) exported(t *testing.T, ids ...string) []*parleyv1.ExportConversationsResponse {
	t.Helper()
	parts, err := f.export(t.Context(), ids...)
	if err != nil {
		t.Fatalf("export %q: %v", ids, err)
	}
	return parts
}

// importing imports what was exported.
func (f *fixture) importing(ctx context.Context, overwrite bool, parts ...*parleyv1.ExportConversationsResponse) (*parleyv1.ImportConversationsResponse, error) {
	stream, err := f.ImportConversations(ctx)
	if err != nil {
		return nil, err
	}
	for _, part := range parts {
		err := stream.Send(&parleyv1.ImportConversationsRequest{Conversation: part.GetConversation(), Messages: part.GetMessages(), Overwrite: overwrite})
		if err != nil {
			break // CloseAndRecv says why.
		}
	}
	return stream.CloseAndRecv()
}

// wantImport imports, and fails the test unless that gives these counts.
func (f *fixture) wantImport(t *testing.T, overwrite bool, imported, skipped int64, parts ...*parleyv1.ExportConversationsResponse) []*parleyv1.ImportFailure {
	t.Helper()
	reply, err := f.importing(t.Context(), overwrite, parts...)
	if err != nil {
		t.Fatalf("import: %v", err)
	}
	if reply.GetImportedCount() != imported || reply.GetSkippedCount() != skipped {
		t.Errorf("%d were imported and %d skipped, want %d and %d; failures %v", reply.GetImportedCount(), reply.GetSkippedCount(), imported, skipped, reply.GetFailures())
	}
	return reply.GetFailures()
}

// exportedIDs names the conversations of an export in order.
func exportedIDs(parts []*parleyv1.ExportConversationsResponse) []string {
	var ids []string
	for _, part := range parts {
		ids = append(ids, part.GetConversation().GetId())
	}
	return slices.Compact(ids)
}

// steps is a clock that moves when it is told to.
type steps struct {
	mu  sync.Mutex
	now time.Time
}

func newSteps() *steps { return &steps{now: time.Date(2026, 2, 3, 4, 5, 6, 700, time.UTC)} }

func (s *steps) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *steps) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// onClock has server and store read this clock.
func onClock(clock *steps) func(*setup) {
	return func(s *setup) { s.Now, s.stored.Now = clock.Now, clock.Now }
}

// fileOf is a conversation of one message as a file of a while ago holds it.
func fileOf(id string, now time.Time) *parleyv1.ExportConversationsResponse {
	at := timestamppb.New(now.Add(-10 * time.Minute))
	return &parleyv1.ExportConversationsResponse{
		Conversation: &parleyv1.Conversation{
			Id: id, Uid: "uid of " + id, Version: 7, LastSequence: 9, CreateTime: at, UpdateTime: at, LastAppendTime: at,
			Retention: &parleyv1.Retention{MaxMessages: 20, Ttl: durationpb.New(time.Hour)},
		},
		Messages: []*parleyv1.Message{{
			Id: "m", Sequence: 5, Role: parleyv1.Role_ROLE_USER, Content: "hello", Exchange: 3, CreateTime: at, Status: parleyv1.MessageStatus_MESSAGE_STATUS_COMPLETE,
		}},
	}
}

func TestExport(t *testing.T) {
	f, words := openScripted(t, nil)
	if parts := f.exported(t); len(parts) != 0 {
		t.Errorf("export of nothing: %v", parts)
	}
	for _, id := range []string{"b", "a", "c"} {
		f.create(t, chosen(id))
	}
	f.append(t, "a", user("1"), assistant("2"))
	run := f.begin(t, t.Context(), &parleyv1.ChatRequest{ConversationId: "b", Agent: "main", Content: "a turn runs"})
	all := f.exported(t)
	if got := exportedIDs(all); !slices.Equal(got, []string{"b", "a", "c"}) {
		t.Errorf("exported %v", got)
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
		want := &parleyv1.ExportConversationsResponse{Conversation: got.GetConversation(), Messages: loaded.GetMessages()}
		if want.Conversation.ActiveTurnId == "" && id == "b" || want.Conversation.GetSystemPrompt() == "" {
			t.Fatalf("%s is %v", id, want.Conversation)
		}
		want.Conversation.ActiveTurnId, want.Conversation.SizeBytes = "", 0
		if diff := cmp.Diff(want, part, protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", id, diff)
		}
	}
	words.say(t, "b", end)
	run.drain(t)

	if got := exportedIDs(f.exported(t, "c", "a", "c", "a")); !slices.Equal(got, []string{"c", "a"}) {
		t.Errorf("exported by name: %v", got)
	}
	parts, err := f.export(t.Context(), "c", "nobody", "a")
	wantError(t, err, codes.NotFound, "CONVERSATION_NOT_FOUND")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c"}) || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("ahead of one that is missing: %v, %v", got, err)
	}
	_, err = f.export(t.Context(), "c", "../a")
	wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
	if lines := f.log.lines("level=INFO", "msg=exported", "conversations=3", "messages=3", "complete=true"); len(lines) != 1 {
		t.Errorf("log lines: %v", lines)
	}
}

// spied is a store that a test looks into.
type spied struct {
	store.Store
	read     func(*store.Read) error
	listed   func(*store.List, *store.Page)
	imported func(*store.Import) error
}

func (s *spied) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	if s.read != nil {
		if err := s.read(r); err != nil {
			return nil, err
		}
	}
	return s.Store.Read(ctx, r)
}

func (s *spied) List(ctx context.Context, l *store.List) (*store.Page, error) {
	page, err := s.Store.List(ctx, l)
	if s.listed != nil && err == nil {
		s.listed(l, page)
	}
	return page, err
}

func (s *spied) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	if s.imported != nil {
		if err := s.imported(i); err != nil {
			return nil, fmt.Errorf("conversation %q: %w", i.Conversation.GetId(), err)
		}
	}
	return s.Store.Import(ctx, i)
}

// openSpied opens a server on a store that is looked into.
func openSpied(t *testing.T, change func(*setup)) (*fixture, *spied) {
	t.Helper()
	spy := new(spied)
	f := open(t, func(s *setup) {
		s.wrap = func(inner store.Store) store.Store {
			spy.Store = inner
			return spy
		}
		if change != nil {
			change(s)
		}
	})
	return f, spy
}

func TestExportWhileOthersWrite(t *testing.T) {
	clock := newSteps()
	f, spy := openSpied(t, onClock(clock))
	const n = 2*exportPage + 10
	var want []string
	for i := range n {
		f.create(t, &parleyv1.Conversation{Id: fmt.Sprint("c", i)})
		if i%5 != 3 {
			want = append(want, fmt.Sprint("c", i))
		}
	}
	made := 0
	spy.read = func(r *store.Read) error {
		// Without an end to what is exported it would go on for ever.
		clock.advance(time.Millisecond)
		made++
		_, err := spy.Create(t.Context(), &store.Create{Tenant: r.Tenant, Conversation: &parleyv1.Conversation{Id: fmt.Sprint("new", made)}})
		var i int
		if _, scan := fmt.Sscanf(r.ConversationID, "c%d", &i); scan == nil && i%5 == 2 {
			err = errors.Join(err, spy.Delete(t.Context(), &store.Delete{Tenant: r.Tenant, ConversationID: fmt.Sprint("c", i+1)}))
		}
		return err
	}
	if diff := cmp.Diff(want, exportedIDs(f.exported(t))); diff != "" {
		t.Errorf("exported (-want +got):\n%s", diff)
	}
	if made != n {
		t.Errorf("%d conversations were looked at, want %d", made, n)
	}
}

func TestExportOfDamage(t *testing.T) {
	f, spy := openSpied(t, nil)
	for i := range 6 {
		f.append(t, fmt.Sprint("c", i), user("hello"))
	}
	damage := func(r *store.Read) error {
		if r.ConversationID == "c1" || r.ConversationID == "c5" {
			return fmt.Errorf("conversation %q: %w: messages", r.ConversationID, store.ErrCorrupt)
		}
		return nil
	}
	spy.read = damage
	parts, err := f.export(t.Context())
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c0", "c2", "c3", "c4"}) {
		t.Errorf("exported beside what is damaged: %v", got)
	}
	told := wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if told.metadata["conversation_ids"] != "c1,c5" || !strings.Contains(told.text, "2 conversations are damaged") {
		t.Errorf("told %q, %v", told.text, told.metadata)
	}
	if lines := f.log.lines("msg=exported", "conversations=4", "damaged=2", "complete=false"); len(lines) != 1 {
		t.Errorf("log lines: %v", lines)
	}
	// Of some not even the ids can be told: the list has met them.
	spy.listed = func(l *store.List, page *store.Page) {
		if l.OldestFirst {
			page.Damaged = 3
		}
	}
	_, err = f.export(t.Context())
	if told := wantError(t, err, codes.DataLoss, "RECORD_CORRUPT"); !strings.Contains(told.text, "5 conversations are damaged") || !strings.Contains(told.text, "c1, c5, 3 whose ids cannot be told") {
		t.Errorf("told %q", told.text)
	}
	spy.listed = nil
	parts, err = f.export(t.Context(), "c2", "c1", "c3")
	wantError(t, err, codes.DataLoss, "RECORD_CORRUPT")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c2"}) || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("by name, ahead of what is damaged: %v, %v", got, err)
	}
	// What ends the whole ends it at once.
	spy.read = func(r *store.Read) error {
		if r.ConversationID == "c2" {
			return store.ErrClosed
		}
		return damage(r)
	}
	parts, err = f.export(t.Context())
	wantError(t, err, codes.Unavailable, "SHUTTING_DOWN")
	if got := exportedIDs(parts); !slices.Equal(got, []string{"c0"}) {
		t.Errorf("ahead of the end of the store: %v", got)
	}
}

func TestExportParts(t *testing.T) {
	f := open(t, func(s *setup) { s.MaxMessageBytes = 3 << 20 })
	big := func(n int) *parleyv1.Message { return user(strings.Repeat("x", n)) }
	f.append(t, "small", user("1"), user("2"))
	f.append(t, "many", slices.Repeat([]*parleyv1.Message{big(50 << 10)}, 14)...)
	f.append(t, "large", big(100), big(2<<20), big(100), big(100))
	f.create(t, chosen("empty"))
	f.append(t, "last", user("1"))
	parts := f.exported(t)
	var got []string
	for _, part := range parts {
		got = append(got, fmt.Sprint(part.GetConversation().GetId(), " ", sequences(part.GetMessages())))
		size := proto.Size(&parleyv1.ExportConversationsResponse{Messages: part.GetMessages()})
		if size > maxExportBytes && len(part.GetMessages()) > 1 {
			t.Errorf("a response has %d bytes of %d messages", size, len(part.GetMessages()))
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
			t.Errorf("headers of one conversation differ:\n%s", diff)
		}
	}
	other := open(t, nil) // Its limit for new messages does not matter.
	if failures := other.wantImport(t, false, 5, 0, parts...); len(failures) > 0 {
		t.Errorf("failures: %v", failures)
	}
	if diff := cmp.Diff(parts, other.exported(t), protocmp.Transform(), exceptUID()); diff != "" {
		t.Errorf("after an import (-want +got):\n%s", diff)
	}
}
