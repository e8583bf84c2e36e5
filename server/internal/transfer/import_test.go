package transfer

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// TestImportParts imports conversations of several requests.
func TestImportParts(t *testing.T) {
	f := open(t)
	clock := f.clock
	parts := func(id string, n int) []*parleyv1.ExportConversationsResponse {
		var all []*parleyv1.ExportConversationsResponse
		for i := range n {
			part := exportOf(id, clock.Now())
			part.Conversation.LastSequence, part.Messages[0].Sequence = int32(n), int32(i+1)
			all = append(all, part)
		}
		return all
	}
	// The same header with another uid is another conversation, and its id exists already.
	again := exportOf("complete", clock.Now())
	again.Conversation.Uid = "another"
	differs := parts("differs", 3)
	differs[1].Conversation.Title = "other"
	backward := parts("backward", 3)
	slices.Reverse(backward)
	late := parts("late", 3)
	late[2].Messages[0].Role = 0
	failures := f.wantImport(t, false, 2, 1, slices.Concat(
		parts("complete", 3), []*parleyv1.ExportConversationsResponse{again}, differs, backward, late, parts("last", 1),
	)...)
	var got []string
	for _, failure := range failures {
		got = append(got, failure.GetConversationId()+" "+failure.GetReason())
	}
	want := []string{
		"differs request 2: conversation: is not the same as in the previous request",
		"backward request 2: messages[0].sequence: is 2, must be more than 3, the sequence of the message before",
		"late request 3: messages[0].role: is required",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if got := exportedIDs(f.mustExport(t)); !slices.Equal(got, []string{"complete", "last"}) {
		t.Errorf("imported %v, want complete and last", got)
	}
	if got := sequences(f.mustExport(t, "complete")[0].GetMessages()); !slices.Equal(got, []int32{1, 2, 3}) {
		t.Errorf("sequences = %v, want 1, 2, 3", got)
	}

	// The last conversation of a broken stream may be incomplete and is not imported.
	broken := append(parts("done", 1), parts("broken", 2)...)
	result, err := f.importer.Import(t.Context(), tenant, receiveFrom(broken, false, io.ErrUnexpectedEOF))
	if !errors.Is(err, io.ErrUnexpectedEOF) || result.Reply.GetImportedCount() != 1 {
		t.Errorf("Import of a broken stream = %v, %v", result, err)
	}
	if _, err = f.export(t, "done", "broken"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Export = %v, want ErrNotFound", err)
	}
}

// TestManyImportFailures checks that the reply lists only the first failures.
func TestManyImportFailures(t *testing.T) {
	f := open(t)
	clock := f.clock
	var parts []*parleyv1.ExportConversationsResponse
	for i := range maxFailures + 5 {
		bad := exportOf(fmt.Sprint("c", i), clock.Now())
		bad.Messages = slices.Repeat([]*parleyv1.Message{{Metadata: entries(64, 100, 1)}}, 2)
		if i < 50 { // Without an id, each request is a conversation of its own.
			bad.Conversation.Id, bad.Conversation.Uid = "", ""
		}
		parts = append(parts, bad)
	}
	failures := f.wantImport(t, false, 1, 0, append(parts, exportOf("good", clock.Now()))...)
	if len(failures) != maxFailures || failures[99].GetConversationId() != "c99" {
		t.Errorf(
			"got %d failures, the last is %v, want %d",
			len(failures),
			failures[len(failures)-1],
			maxFailures,
		)
	}
	for _, failure := range failures {
		if n := len(failure.GetReason()); n == 0 || n > maxFailureReason {
			t.Fatalf("reason has %d bytes, want 1 to %d", n, maxFailureReason)
		}
	}
}

// TestImportStoreFailure checks imports into a store that fails for the second of three conversations.
func TestImportStoreFailure(t *testing.T) {
	unknown := errors.New("unknown error")
	for _, failure := range []error{store.ErrClosed, store.ErrNoSpace, store.ErrFailed, store.ErrOverloaded, unknown} {
		t.Run(failure.Error(), func(t *testing.T) {
			f := open(t)
			f.hooks.imported = func(i *store.Import) error {
				if i.Conversation.GetId() == "c2" {
					return failure
				}
				return nil
			}
			now := f.clock.Now()
			result, err := f.tryImport(t, false, exportOf("c1", now), exportOf("c2", now), exportOf("c3", now))
			var about *ConversationError
			if !errors.Is(err, failure) || !errors.As(err, &about) || about.ID != "c2" ||
				result.Reply.GetImportedCount() != 1 {
				t.Errorf("Import = %v, %v, want c1 imported and %v about c2", result, err, failure)
			}
			if got := exportedIDs(f.mustExport(t)); !slices.Equal(got, []string{"c1"}) {
				t.Errorf("imported before the failure = %v, want c1", got)
			}
		})
	}
	t.Run("overloaded three times", func(t *testing.T) {
		f := open(t)
		var calls atomic.Int32
		f.hooks.imported = func(*store.Import) error {
			if calls.Add(1) <= 3 {
				return store.ErrOverloaded
			}
			return nil
		}
		f.wantImport(t, false, 2, 0, exportOf("c1", f.clock.Now()), exportOf("c2", f.clock.Now()))
	})
	t.Run("damaged", func(t *testing.T) {
		f := open(t)
		f.hooks.imported = func(i *store.Import) error {
			if i.Conversation.GetId() == "c1" {
				return store.ErrCorrupt
			}
			return nil
		}
		failures := f.wantImport(t, false, 1, 0, exportOf("c1", f.clock.Now()), exportOf("c2", f.clock.Now()))
		if len(failures) != 1 || !strings.HasPrefix(failures[0].GetReason(), "RECORD_CORRUPT: ") {
			t.Errorf("failures = %v, want RECORD_CORRUPT", failures)
		}
	})
}

// TestTooManyImports starts the maximum number of imports. One more fails without receiving a request.
func TestTooManyImports(t *testing.T) {
	f := open(t)
	var running sync.WaitGroup
	received, end := make(chan struct{}), make(chan struct{})
	for range MaxImports {
		running.Go(func() {
			_, err := f.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
				received <- struct{}{}
				<-end
				return nil, io.EOF
			})
			if err != nil {
				t.Errorf("Import = %v", err)
			}
		})
		<-received
	}
	if n := f.importer.Running(); n != MaxImports {
		t.Errorf("Running() = %d, want %d", n, MaxImports)
	}
	_, err := f.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
		t.Error("the import received a request")
		return nil, io.EOF
	})
	if !errors.Is(err, ErrTooManyImports) {
		t.Errorf("Import = %v, want ErrTooManyImports", err)
	}
	close(end)
	running.Wait()
	f.wantImport(t, false, 1, 0, exportOf("a", f.clock.Now()))
	if n := f.importer.Running(); n != 0 {
		t.Errorf("Running() = %d, want 0", n)
	}
}

// TestImportStoresConcurrently checks that an import stores conversations with different ids and create
// times concurrently, and those with the same create time one after the other.
func TestImportStoresConcurrently(t *testing.T) {
	f := open(t)
	var running sync.Map
	allRunning := make(chan struct{})
	var count atomic.Int32
	f.hooks.imported = func(i *store.Import) error {
		createTime := i.Conversation.GetCreateTime().AsTime()
		if _, exists := running.LoadOrStore(createTime, nil); exists {
			t.Errorf("two concurrent imports with create time %v", createTime)
		}
		defer running.Delete(createTime)
		if count.Add(1) == maxConcurrentStores {
			close(allRunning)
		}
		<-allRunning // If not all run concurrently, the test does not end.
		return nil
	}
	now := f.clock.Now()
	var files []*parleyv1.ExportConversationsResponse
	for n := range maxConcurrentStores {
		files = append(files, exportOf(fmt.Sprint("c", n), now.Add(-time.Duration(n)*time.Second)))
	}
	for n := range 3 {
		files = append(files, exportOf(fmt.Sprint("same", n), now))
	}
	f.wantImport(t, false, maxConcurrentStores+3, 0, files...)
}

// TestImportBytes imports into a tenant that has no bytes left. The conversations are skipped.
func TestImportBytes(t *testing.T) {
	f := open(t)
	f.hooks.imported = func(i *store.Import) error {
		if i.Conversation.GetId() == "large" {
			return &store.TenantBytesError{Bytes: 10, Limit: 9}
		}
		return nil
	}
	got, err := f.tryImport(t, false, exportOf("a", f.clock.Now()), exportOf("large", f.clock.Now()),
		exportOf("b", f.clock.Now()))
	if err != nil {
		t.Fatalf("Import = %v", err)
	}
	want := &parleyv1.ImportConversationsResponse{ImportedCount: 2, SkippedCount: 1, NoRoomCount: 1}
	if diff := cmp.Diff(want, got.Reply, protocmp.Transform()); diff != "" {
		t.Errorf("reply (-want +got):\n%s", diff)
	}
}

// TestImportKeepAll exports and imports conversations that keep all messages: many, more than the limit of a
// conversation, and more than an import accepts.
func TestImportKeepAll(t *testing.T) {
	f := open(t)
	kept := func(id string, count, size int) *parleyv1.ExportConversationsResponse {
		file := exportOf(id, f.clock.Now())
		file.Conversation.Retention.KeepAll, file.Conversation.Retention.NoExpiry = true, true
		file.Conversation.Retention.MaxMessages, file.Conversation.LastSequence = 2, int32(count)
		first := file.GetMessages()[0]
		file.Messages = nil
		for i := range count {
			m := proto.CloneOf(first)
			m.Id, m.Sequence, m.Content = fmt.Sprint("m", i), int32(i)+1, strings.Repeat("x", size)
			file.Messages = append(file.Messages, m)
		}
		return file
	}
	if failures := f.wantImport(t, false, 2, 0, kept("many", 3000, 10), kept("large", 5, 1<<20)); len(failures) > 0 {
		t.Fatalf("failures = %v", failures)
	}
	for id, count := range map[string]int32{"many": 3000, "large": 5} {
		parts, err := f.export(t, id)
		if err != nil {
			t.Fatal(err)
		}
		var messages int32
		for _, part := range parts {
			messages += int32(len(part.GetMessages()))
		}
		if c := parts[0].GetConversation(); messages != count || c.GetMessageCount() != count || c.GetExpireTime() != nil {
			t.Errorf("export of %s has %d messages and the header %v, want %d messages", id, messages, c, count)
		}
		if failures := f.wantImport(t, true, 1, 0, parts...); len(failures) > 0 {
			t.Errorf("failures of a second import = %v", failures)
		}
	}
	failures := f.wantImport(t, false, 0, 0, kept("too-large", 7, 1<<20))
	if len(failures) != 1 || !strings.Contains(failures[0].GetReason(), "CONVERSATION_FULL: the conversation keeps all messages") {
		t.Errorf("failures = %v, want CONVERSATION_FULL", failures)
	}
}

// largeImport returns the 10 requests of a conversation with 10 MiB of messages. It needs a slot from the sixth on.
func largeImport(id string, now time.Time) []*parleyv1.ImportConversationsRequest {
	var parts []*parleyv1.ImportConversationsRequest
	header := exportOf(id, now).Conversation
	header.LastSequence, header.MessageCount = 10, 10
	for n := range int32(10) {
		m := proto.CloneOf(exportOf(id, now).GetMessages()[0])
		m.Id, m.Sequence, m.Content = fmt.Sprint("m", n), n+1, strings.Repeat("x", 1<<20)
		parts = append(parts, &parleyv1.ImportConversationsRequest{Conversation: header, Messages: []*parleyv1.Message{m}})
	}
	return parts
}

// TestLargeImportSlots checks that imports of large conversations return their slots: after success, after a fault, and
// if the import ends in the middle of one. More of them than there are slots run one after the other.
func TestLargeImportSlots(t *testing.T) {
	f := open(t)
	f.importer.limit = store.MaxConversationBytes
	large := func(id string) []*parleyv1.ImportConversationsRequest { return largeImport(id, f.clock.Now()) }
	run := func(parts ...*parleyv1.ImportConversationsRequest) (Imported, error) {
		next := 0
		return f.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
			if next == len(parts) {
				return nil, io.EOF
			}
			next++
			return parts[next-1], nil
		})
	}
	all := slices.Concat(large("a"), large("b"), large("c"))
	if got, err := run(all...); err != nil || got.Reply.GetImportedCount() != 3 {
		t.Errorf("import of large conversations = %v, %v, want 3 imported", got.Reply, err)
	}
	if got, err := run(large("d")[:9]...); err != nil || got.Failed != 1 {
		t.Errorf("import without the last message = %v, %v, want 1 failure", got.Reply, err)
	}
	broken := errors.New("broken")
	next, parts := 0, large("e")
	_, err := f.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
		if next == 8 {
			return nil, broken
		}
		next++
		return parts[next-1], nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("cut import = %v, want %v", err, broken)
	}
	if n := len(f.importer.large.slots); n != 0 {
		t.Errorf("%d slots are in use after all imports, want 0", n)
	}
}
