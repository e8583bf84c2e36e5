package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// wantMissing fails the test if the conversation exists.
func (f *fixture) wantMissing(t *testing.T, id string) {
	t.Helper()
	r := &store.Read{Tenant: tenant, ConversationID: id}
	if got, err := f.hooks.Store.Read(t.Context(), r); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("Read of %s = %v, %v, want ErrNotFound", id, got, err)
	}
}

// TestRecordsChangedDuringExport: an export can be imported, whatever is written or deleted after its first page.
// Without its last response it cannot.
func TestRecordsChangedDuringExport(t *testing.T) {
	write := func(n int) *parleyv1.RecordWrite { return recordOf(n, 10_000) }
	for _, test := range []struct {
		name           string
		first, last    int // records to change
		remove         bool
		count, atLeast int // records expected, and responses
	}{
		{"nothing", 0, 0, false, 100, 3},
		{"more records", 100, 150, false, 150, 5},
		{"fewer records", 90, 100, true, 90, 3},
		{"no records after the first page", 40, 100, true, 52, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			from, to := open(t), open(t)
			from.fillRecords(t, "a", 100, 10_000)
			from.fillRecords(t, "b", 1, 1)
			lists := 0
			from.hooks.listed = func() {
				lists++
				if lists > 1 {
					return
				}
				for n := test.first; n < test.last; n++ {
					w := write(n)
					w.Delete = test.remove
					if test.remove {
						w.Value, w.MediaType, w.Labels = nil, "", nil
					}
					if _, err := from.hooks.Store.WriteRecords(t.Context(), &store.WriteRecords{
						Tenant: tenant, ConversationID: "a", Writes: []*parleyv1.RecordWrite{w},
					}); err != nil {
						t.Fatal(err)
					}
				}
			}
			parts, sent, ended := from.mustExport(t, "a", "b"), 0, 0
			for i, p := range parts {
				if p.GetConversation().GetId() == "b" {
					break
				}
				sent, ended = sent+len(p.GetRecords()), i
				isLast := parts[i+1].GetConversation().GetId() == "b"
				if n := int(p.GetConversation().GetRecordCount()); n < sent || (n == sent) != isLast {
					t.Errorf("response %d of %d has record_count %d after %d records", i, len(parts), n, sent)
				}
			}
			if ended+1 < test.atLeast {
				t.Errorf("%d responses, want at least %d", ended+1, test.atLeast)
			}
			to.wantImport(t, false, 2, 0, parts...)
			if got, _ := to.stored(t, "a"); len(got) != sent {
				t.Errorf("%d records imported of %d", len(got), sent)
			}
			if !test.remove && sent != test.count {
				t.Errorf("%d records exported, want %d", sent, test.count)
			}
			cut := slices.Concat(parts[:ended], parts[ended+1:])
			if failures := open(t).wantImport(t, false, 1, 0, cut...); len(failures) != 1 {
				t.Errorf("failures without the last response = %v, want one", failures)
			}
		})
	}
}

// TestLastRecordDeletedDuringExport: if no records are left to send, an empty response ends the conversation.
func TestLastRecordDeletedDuringExport(t *testing.T) {
	from, to := open(t), open(t)
	if _, err := from.hooks.Create(t.Context(), &store.Create{
		Tenant: tenant, Conversation: &parleyv1.Conversation{Id: "a"},
	}); err != nil {
		t.Fatal(err)
	}
	change := func(w *parleyv1.RecordWrite) {
		if _, err := from.hooks.Store.WriteRecords(t.Context(), &store.WriteRecords{
			Tenant: tenant, ConversationID: "a", Writes: []*parleyv1.RecordWrite{w},
		}); err != nil {
			t.Fatal(err)
		}
	}
	change(recordOf(0, 600_000))
	change(recordOf(1, 600_000))
	from.hooks.listed = func() { change(&parleyv1.RecordWrite{Key: recordOf(1, 0).GetKey(), Delete: true}) }
	parts := from.mustExport(t)
	if n := len(parts); n != 2 || parts[0].GetConversation().GetRecordCount() != 2 ||
		parts[1].GetConversation().GetRecordCount() != 1 || len(parts[1].GetRecords()) != 0 {
		t.Errorf("%d responses, want two, the last one without records and with record_count 1", n)
	}
	to.wantImport(t, false, 1, 0, parts...)
	if got, _ := to.stored(t, "a"); len(got) != 1 {
		t.Errorf("%d records imported, want 1", len(got))
	}
}

// TestRecordCounts: only the record_count of the last request of a conversation counts.
func TestRecordCounts(t *testing.T) {
	for _, test := range []struct {
		counts [3]int32
		fails  bool
	}{
		{[3]int32{0, 0, 3}, false},
		{[3]int32{0, 0, 0}, false},
		{[3]int32{1, 2, 3}, false},
		{[3]int32{9, 9, 3}, false},
		{[3]int32{3, 3, 2}, true},
		{[3]int32{0, 0, 4}, true},
	} {
		f := open(t)
		var parts []*parleyv1.ExportConversationsResponse
		for n, count := range test.counts {
			p := recordsExport(f, fmt.Sprint("k", n))
			p.Conversation.RecordCount, p.Conversation.MessageCount = count, 1
			if n > 0 {
				p.Messages = nil
			}
			parts = append(parts, p)
		}
		imported := int64(1)
		if test.fails {
			imported = 0
		}
		if failures := f.wantImport(t, false, imported, 0, parts...); (len(failures) == 1) != test.fails {
			t.Errorf("record_counts %v: failures = %v, want some: %t", test.counts, failures, test.fails)
		}
	}
}

// TestExportWithoutRecords: without include_records, an export has no records and does not count them.
func TestExportWithoutRecords(t *testing.T) {
	from, to := open(t), open(t)
	from.fillRecords(t, "a", 100, 10_000)
	var parts []*parleyv1.ExportConversationsResponse
	exported, err := Export(t.Context(), from.hooks, NewLargeReads(1), tenant, &parleyv1.ExportConversationsRequest{},
		func(p *parleyv1.ExportConversationsResponse) error { parts = append(parts, p); return nil })
	if err != nil || len(parts) != 1 || exported.Records != 0 {
		t.Fatalf("Export = %v, %v with %d responses, want one without records", exported, err, len(parts))
	}
	c := parts[0].GetConversation()
	if len(parts[0].GetRecords()) > 0 || c.GetRecordCount() != 0 || c.GetRecordBytes() != 0 {
		t.Errorf("exported %d records, header %v", len(parts[0].GetRecords()), c)
	}
	c.MessageCount = 0 // The messages are in their encoded form.
	to.wantImport(t, false, 1, 0, parts...)
}

// TestInterruptedImport: an import that ends with an error leaves no conversation without all of its records, except
// another one with the same id.
func TestInterruptedImport(t *testing.T) {
	from := open(t)
	from.fillRecords(t, "a", 6, 1<<20)
	parts := from.mustExport(t)
	for _, test := range []struct {
		name string
		run  func(to *fixture) (Imported, error)
		want error
		left bool
	}{
		{"broken stream", func(to *fixture) (Imported, error) {
			return to.importer.Import(t.Context(), tenant, receiveFrom(parts[:5], false, io.ErrUnexpectedEOF))
		}, io.ErrUnexpectedEOF, false},
		{"canceled", func(to *fixture) (Imported, error) {
			ctx, cancel := context.WithCancel(t.Context())
			receive := receiveFrom(parts[:5], false, context.Canceled)
			return to.importer.Import(ctx, tenant, func() (*parleyv1.ImportConversationsRequest, error) {
				r, err := receive()
				if err != nil {
					cancel()
				}
				return r, err
			})
		}, context.Canceled, false},
		{"the store fails", func(to *fixture) (Imported, error) {
			to.hooks.written = func() error { return store.ErrNoSpace }
			return to.importer.Import(t.Context(), tenant, receiveFrom(parts, false, io.EOF))
		}, store.ErrNoSpace, false},
		{"another conversation", func(to *fixture) (Imported, error) {
			receive := receiveFrom(parts[:5], false, io.ErrUnexpectedEOF)
			return to.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
				r, err := receive()
				if err != nil {
					if err := to.hooks.Delete(t.Context(), &store.Delete{Tenant: tenant, ConversationID: "a"}); err != nil {
						t.Fatal(err)
					}
					to.fillRecords(t, "a", 1, 1)
				}
				return r, err
			})
		}, io.ErrUnexpectedEOF, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := open(t)
			imported, err := test.run(to)
			e, ok := errors.AsType[*ConversationError](err)
			if !errors.Is(err, test.want) || !ok || e.ID != "a" || !strings.HasSuffix(err.Error(), discarded) ||
				imported.Reply.GetImportedCount() != 0 {
				t.Errorf("Import = %v, %v, want %v about a", imported.Reply, err, test.want)
			}
			if !test.left {
				to.wantMissing(t, "a")
			} else if got, _ := to.stored(t, "a"); len(got) != 1 {
				t.Errorf("the other conversation has %d records, want 1", len(got))
			}
		})
	}
}

// TestOverwriteWithManySmallRecords: a conversation is not replaced by one whose records need several commits, even if
// all of them arrive before the first one.
func TestOverwriteWithManySmallRecords(t *testing.T) {
	for count, want := range map[int]int{maxFirstRecords: maxFirstRecords, maxFirstRecords + 1: 1} {
		f := open(t)
		f.fillRecords(t, "c", 1, 1)
		var parts []*parleyv1.ExportConversationsResponse
		for n := range count {
			if n%maxExportRecords == 0 {
				p := recordsExport(f)
				if n > 0 {
					p.Messages = nil
				}
				parts = append(parts, p)
			}
			last := parts[len(parts)-1]
			last.Records = append(last.Records, &parleyv1.Record{Key: fmt.Sprintf("%05d", n)})
		}
		if _, err := f.tryImport(t, true, parts...); err != nil {
			t.Fatal(err)
		}
		if got := f.storedMany(t, "c"); got != want {
			t.Errorf("%d records stored after an import of %d, want %d", got, count, want)
		}
	}
}

// TestInterruptedImportOfChanged: an import deletes nothing that others have changed since its first commit, and says
// that the conversation is incomplete.
func TestInterruptedImportOfChanged(t *testing.T) {
	from := open(t)
	from.fillRecords(t, "a", 6, 1<<20)
	parts := from.mustExport(t)
	for _, at := range []int{4, 5} { // before the last commit, after it
		to := open(t)
		receive, n := receiveFrom(parts[:5], false, io.ErrUnexpectedEOF), 0
		_, err := to.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
			n++
			if n == at+1 {
				message := &parleyv1.Message{Id: "other", Role: parleyv1.Role_ROLE_USER, Content: "mine"}
				if _, err := to.hooks.Append(t.Context(), &store.Append{
					Tenant: tenant, ConversationID: "a", Messages: []*parleyv1.Message{message}, MustExist: true,
				}); err != nil {
					t.Fatal(err)
				}
			}
			return receive()
		})
		if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.HasSuffix(err.Error(), leftChanged) {
			t.Errorf("Import = %v, want %v; %s", err, io.ErrUnexpectedEOF, leftChanged)
		}
		s, err := to.hooks.Store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: "a"})
		if err != nil || s.Conversation.GetMessageCount() != 3 {
			t.Errorf("Read = %v, %v, want 3 messages", s, err)
		}
	}
}

// TestManySmallRecords: an import holds and commits a limited number of records, however small they are.
func TestManySmallRecords(t *testing.T) {
	f := open(t)
	var parts []*parleyv1.ExportConversationsResponse
	for n := range 20 {
		p := recordsExport(f)
		if n > 0 {
			p.Messages = nil
		}
		for k := range maxExportRecords {
			p.Records = append(p.Records, &parleyv1.Record{Key: fmt.Sprintf("%05d", n*maxExportRecords+k)})
		}
		parts = append(parts, p)
	}
	receive, received, stored := receiveFrom(parts, false, io.EOF), 0, 0
	f.hooks.imported = func(i *store.Import) error {
		stored = received
		if len(i.Records) != maxFirstRecords {
			t.Errorf("%d records in the first commit, want %d", len(i.Records), maxFirstRecords)
		}
		return nil
	}
	got, err := f.importer.Import(t.Context(), tenant, func() (*parleyv1.ImportConversationsRequest, error) {
		r, err := receive()
		received += len(r.GetRecords())
		return r, err
	})
	if err != nil || got.Reply.GetImportedCount() != 1 {
		t.Fatalf("Import = %v, %v", got.Reply, err)
	}
	if limit := maxCommitRecords/recordOverhead + maxExportRecords; stored > limit {
		t.Errorf("%d records held before the first commit, want at most %d", stored, limit)
	}
	if all := f.storedMany(t, "c"); all != 20*maxExportRecords {
		t.Errorf("%d records stored", all)
	}
}

// storedMany returns the record_count of a conversation.
func (f *fixture) storedMany(t *testing.T, id string) int {
	t.Helper()
	s, err := f.hooks.Store.Read(t.Context(), &store.Read{Tenant: tenant, ConversationID: id})
	if err != nil {
		t.Fatal(err)
	}
	return int(s.Conversation.GetRecordCount())
}
