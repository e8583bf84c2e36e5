package transfer

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/rules"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/memstore"
)

// fillRecords creates a conversation with two messages and records of this size.
func (f *fixture) fillRecords(t *testing.T, id string, count, size int) {
	t.Helper()
	user := &parleyv1.Message{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: "hello"}
	if _, err := f.hooks.Append(t.Context(), &store.Append{
		Tenant: tenant, ConversationID: id, Messages: []*parleyv1.Message{user, user},
	}); err != nil {
		t.Fatal(err)
	}
	for n := range count {
		if _, err := f.hooks.WriteRecords(t.Context(), &store.WriteRecords{
			Tenant: tenant, ConversationID: id, Writes: []*parleyv1.RecordWrite{recordOf(n, size)},
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func recordOf(n, size int) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{
		Key: fmt.Sprintf("k/%04d", n), Value: slices.Repeat([]byte{byte(n)}, size), MediaType: "application/json",
		Labels: map[string]string{"n": fmt.Sprint(n)},
	}
}

// stored returns the records of a conversation without what differs between servers, and their revisions.
func (f *fixture) stored(t *testing.T, id string) (writes []*parleyv1.RecordWrite, revisions []int64) {
	t.Helper()
	l := &store.ListRecords{Tenant: tenant, ConversationID: id, Limit: 10_000, MaxBytes: 1 << 30}
	records, more, err := f.hooks.Store.ListRecords(t.Context(), l)
	if err != nil || more {
		t.Fatalf("ListRecords = %d records, more %t, %v", len(records), more, err)
	}
	for _, r := range records {
		writes, revisions = append(writes, writeOf(r)), append(revisions, r.GetRevision())
	}
	return writes, revisions
}

// TestRecords exports conversations with few and many, small and large records, and imports them into another store.
func TestRecords(t *testing.T) {
	for _, test := range []struct{ count, size, parts, commits int }{
		{0, 0, 1, 1},
		{1, 0, 1, 1},
		{100, 10_000, 4, 1},      // 1 MB in parts of at most 256 KiB, the first two from 512 KiB of the snapshot
		{3, 3 << 20, 4, 3},       // each larger than a part
		{2500, 10, 3, 1},         // at most 1000 in a part
		{7000, 1000, 29, 1 + 47}, // 9 MB: 3 MiB in the first commit, then at most 100 records
	} {
		name := fmt.Sprintf("%d records of %d bytes", test.count, test.size)
		from, to := open(t), open(t)
		from.fillRecords(t, "a", test.count, test.size)
		from.fillRecords(t, "b", 1, 1)
		exported := from.mustExport(t)
		parts := slices.DeleteFunc(slices.Clone(exported), func(p *parleyv1.ExportConversationsResponse) bool {
			return p.GetConversation().GetId() != "a"
		})
		for i, p := range parts {
			if len(p.GetMessages()) > 0 != (i == 0) || len(p.GetRecords()) > 1000 || i > 0 && len(p.GetRecords()) == 0 ||
				len(p.GetRecords()) > 1 && proto.Size(p) > maxExportBytes+1000 {
				t.Errorf("%s: part %d has %d messages and %d records, %d bytes",
					name, i, len(p.GetMessages()), len(p.GetRecords()), proto.Size(p))
			}
		}
		commits := 1
		to.hooks.written = func() error { commits++; return nil }
		to.wantImport(t, false, 2, 0, exported...)
		if len(parts) != test.parts || commits != test.commits {
			t.Errorf("%s: %d parts, %d commits, want %d, %d", name, len(parts), commits, test.parts, test.commits)
		}
		want, _ := from.stored(t, "a")
		got, revisions := to.stored(t, "a")
		if !slices.EqualFunc(want, got, func(a, b *parleyv1.RecordWrite) bool { return proto.Equal(a, b) }) {
			t.Errorf("%s: imported %d other records", name, len(got))
		}
		if version := parts[0].GetConversation().GetVersion(); len(revisions) > 0 && revisions[0] != int64(version) ||
			!slices.IsSorted(revisions) {
			t.Errorf("%s: revisions = %v, want them from version %d on", name, revisions, version)
		}
		snapshot, err := to.hooks.Store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a", Newest: -1})
		if err != nil || snapshot.Conversation.GetRecordCount() != int32(test.count) || snapshot.Messages.Count() != 2 {
			t.Errorf("%s: imported %v, %v", name, snapshot.Conversation, err)
		}
	}
}

// TestRecordsOfOtherConversation: an export never sends the records of a later conversation with the same id.
func TestRecordsOfOtherConversation(t *testing.T) {
	f := open(t)
	f.fillRecords(t, "a", 100, 10_000)
	lists := 0
	f.hooks.listed = func() {
		lists++
		if lists == 2 {
			if err := f.hooks.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "a"}); err != nil {
				t.Fatal(err)
			}
			f.fillRecords(t, "a", 100, 10_000)
		}
	}
	parts, err := f.export(t, "a")
	if e := (*ConversationError)(nil); !errors.As(err, &e) || e.ID != "a" || !errors.Is(err, store.ErrNotFound) {
		t.Errorf("export = %v, want ErrNotFound of a", err)
	}
	for _, p := range parts {
		for _, r := range p.GetRecords() {
			if n := strings.TrimLeft(strings.TrimPrefix(r.GetKey(), "k/"), "0"); r.GetRevision() != 2 && n == "" {
				t.Errorf("exported %v", r.GetKey())
			}
		}
	}
	if len(parts) == 0 || len(parts) > 4 {
		t.Errorf("%d parts, want those before the deletion", len(parts))
	}
}

// recordsExport returns an exported conversation with these records in one response.
func recordsExport(f *fixture, keys ...string) *parleyv1.ExportConversationsResponse {
	part := exportOf("c", f.clock.Now())
	for _, key := range keys {
		part.Records = append(part.Records, &parleyv1.Record{Key: key, Value: []byte("v")})
	}
	return part
}

// TestBadRecords: a conversation with invalid records fails, and the others are imported.
func TestBadRecords(t *testing.T) {
	large := strings.Repeat("x", 3<<20+1)
	tests := map[string]func(part *parleyv1.ExportConversationsResponse){
		"records[1].key: must come after": func(p *parleyv1.ExportConversationsResponse) { p.Records[1].Key = "a" },
		"records[0].key: must have":       func(p *parleyv1.ExportConversationsResponse) { p.Records[0].Key = "" },
		"records[0].value: ":              func(p *parleyv1.ExportConversationsResponse) { p.Records[0].Value = []byte(large) },
		"records[0].media_type: ":         func(p *parleyv1.ExportConversationsResponse) { p.Records[0].MediaType = large[:257] },
		"records[0].conversation_id: ":    func(p *parleyv1.ExportConversationsResponse) { p.Records[0].ConversationId = "x" },
		"conversation.record_count: is 3, but 2 records arrived": func(p *parleyv1.ExportConversationsResponse) {
			p.Conversation.RecordCount = 3
		},
		"records: ": func(p *parleyv1.ExportConversationsResponse) {
			p.Records = slices.Repeat(p.GetRecords(), 501)
		},
	}
	for want, change := range tests {
		f := open(t)
		bad, good := recordsExport(f, "a", "b"), recordsExport(f, "a", "b")
		good.Conversation.Id = "good"
		change(bad)
		failures := f.wantImport(t, false, 1, 0, bad, good)
		if len(failures) != 1 || !strings.Contains(failures[0].GetReason(), want) {
			t.Errorf("failures = %v, want %q", failures, want)
		}
		if records, _ := f.stored(t, "good"); len(records) != 2 {
			t.Errorf("the other conversation has %d records, want 2", len(records))
		}
	}
}

// TestRecordsBeforeMessages: messages must come before the records of their conversation.
func TestRecordsBeforeMessages(t *testing.T) {
	f := open(t)
	first, second := recordsExport(f, "a"), recordsExport(f, "b")
	first.Conversation.MessageCount, second.Conversation.MessageCount = 2, 2
	second.Messages[0].Sequence = 6
	failures := f.wantImport(t, false, 0, 0, first, second)
	if len(failures) != 1 || !strings.Contains(failures[0].GetReason(), "messages: must come before the records") {
		t.Errorf("failures = %v", failures)
	}
}

// TestRecordsFailLater: a conversation that fails after its first commit is deleted, and the failure says so.
// A conversation that was skipped gets no records.
func TestRecordsFailLater(t *testing.T) {
	from := open(t)
	from.fillRecords(t, "a", 6, 1<<20)
	exported := from.mustExport(t)
	for want, change := range map[string]func(f *fixture) []*parleyv1.ExportConversationsResponse{
		"conversation.record_count: is 6, but 5 records arrived; the part that was imported was deleted": func(
			*fixture,
		) []*parleyv1.ExportConversationsResponse {
			return exported[:len(exported)-1]
		},
		"RECORDS_FULL: ": func(f *fixture) []*parleyv1.ExportConversationsResponse {
			f.hooks.Close()
			f.hooks.Store = memstore.New(store.Options{Now: f.clock.Now, MaxRecordBytes: 4 << 20})
			return exported
		},
		"CONVERSATION_NOT_FOUND: ": func(f *fixture) []*parleyv1.ExportConversationsResponse {
			f.hooks.written = func() error {
				return f.hooks.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "a"})
			}
			return exported
		},
	} {
		to := open(t)
		failures := to.wantImport(t, false, 0, 0, change(to)...)
		if len(failures) != 1 || !strings.HasPrefix(failures[0].GetReason(), want) {
			t.Errorf("failures = %v, want %q", failures, want)
		}
		to.wantMissing(t, "a")
	}
	to := open(t)
	to.fillRecords(t, "a", 1, 1)
	to.wantImport(t, false, 0, 1, exported...)
	if got, _ := to.stored(t, "a"); len(got) != 1 {
		t.Errorf("a skipped conversation has %d records, want its own", len(got))
	}
	failures := to.wantImport(t, true, 0, 0, exported...)
	if len(failures) != 1 || !strings.HasPrefix(failures[0].GetReason(), "CONVERSATION_EXISTS: ") {
		t.Errorf("failures with overwrite = %v, want CONVERSATION_EXISTS", failures)
	}
	if got, _ := to.stored(t, "a"); len(got) != 1 {
		t.Errorf("a conversation that cannot be replaced at once has %d records, want its own", len(got))
	}
	to = open(t)
	to.wantImport(t, true, 1, 0, exported...)
	if got, _ := to.stored(t, "a"); len(got) != 6 {
		t.Errorf("a new conversation has %d records, want 6", len(got))
	}
	// Nothing of a forbidden conversation is stored, however large it is.
	forbidding := NewImporter(to.hooks, store.MaxMessageBytes, to.clock.Now, rules.Retentions{ForbidNoExpiry: true})
	for _, p := range exported {
		p.Conversation.Id, p.Conversation.Retention = "b", &parleyv1.Retention{NoExpiry: true}
		for _, r := range p.GetRecords() {
			r.ConversationId = ""
		}
	}
	got, err := forbidding.Import(t.Context(), tenant, receiveFrom(exported, false, io.EOF))
	if err != nil || got.Failed != 1 || !strings.HasPrefix(got.Reply.GetFailures()[0].GetReason(), "RETENTION_FORBIDDEN") {
		t.Errorf("Import = %v, %v, want RETENTION_FORBIDDEN", got.Reply, err)
	}
	if _, err := to.hooks.Store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "b"}); !errors.Is(
		err, store.ErrNotFound) {
		t.Errorf("Read of a forbidden conversation = %v, want ErrNotFound", err)
	}
}

// TestRecordsOverloaded: an import retries a commit of records while the store is overloaded.
func TestRecordsOverloaded(t *testing.T) {
	from, to := open(t), open(t)
	from.fillRecords(t, "a", 6, 1<<20)
	calls := 0
	to.hooks.written = func() error {
		calls++
		if calls <= 2 {
			return store.ErrOverloaded
		}
		return nil
	}
	to.wantImport(t, false, 1, 0, from.mustExport(t)...)
	want, _ := from.stored(t, "a")
	got, _ := to.stored(t, "a")
	if d := cmp.Diff(len(want), len(got)); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}
