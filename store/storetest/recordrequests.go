package storetest

import (
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// recordRequests: a write of a conversation's records with a request that was used writes nothing and returns the first
// revisions.
func recordRequests(f *fixture) {
	f.create("c")
	w := func() *store.WriteRecords {
		return &store.WriteRecords{
			Tenant: tenant, ConversationID: "c", Request: request("r", "content"),
			Writes: []*parleyv1.RecordWrite{put("a", "1"), ofTenant(put("a", "1"))},
		}
	}
	first, err := f.store.WriteRecords(f.t.Context(), w())
	if err != nil || first.Revision != 2 || first.TenantRevision != 1 || first.Replayed {
		f.t.Fatalf("WriteRecords = %+v, %v, want revisions 2 and 1", first, err)
	}
	f.writeRecords("c", put("a", "2"), ofTenant(remove("a")))
	f.unchanged("a retry", func() {
		again, err := f.store.WriteRecords(f.t.Context(), w())
		if err != nil || again.Revision != 2 || again.TenantRevision != 1 || !again.Replayed ||
			again.Conversation.GetVersion() != 3 {
			f.t.Errorf("retry = %+v, %v, want revisions 2 and 1, replayed, version 3", again, err)
		}
	})
	reused := w()
	reused.Request = request("r", "other content")
	f.refuseRecords(reused, store.ErrRequestReused)

	a := func() *store.Append {
		return &store.Append{
			ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Request: request("s", "content"),
			Records: []*parleyv1.RecordWrite{put("b", "1"), ofTenant(put("b", "1"))},
		}
	}
	if got := f.do(a()); got.TenantRevision != 3 || got.Replayed {
		f.t.Errorf("Append = %+v, want revision 3 of the tenant", got)
	}
	f.writeRecords("c", remove("b"))
	f.unchanged("a retry of an append", func() {
		if got := f.do(a()); got.TenantRevision != 3 || !got.Replayed {
			f.t.Errorf("retry of an append = %+v, want revision 3 of the tenant, replayed", got)
		}
	})
	if f.subject.Durable {
		f.reopen(nil)
		again, err := f.store.WriteRecords(f.t.Context(), w())
		if err != nil || again.Revision != 2 || again.TenantRevision != 1 || !again.Replayed {
			f.t.Errorf("retry after reopen = %+v, %v, want revisions 2 and 1, replayed", again, err)
		}
	}
}

// tenantRequests: a write of the tenant's records with a request that was used writes nothing for RequestTTL.
func tenantRequests(f *fixture) {
	w := func(content, method string) *store.WriteRecords {
		q := request("r", content)
		q.Method = method
		return &store.WriteRecords{Tenant: tenant, Request: q, Writes: []*parleyv1.RecordWrite{put("a", content)}}
	}
	write := func(w *store.WriteRecords, revision int64, replayed bool) {
		f.t.Helper()
		got, err := f.store.WriteRecords(f.t.Context(), w)
		if err != nil || got.TenantRevision != revision || got.Replayed != replayed || got.Conversation != nil {
			f.t.Errorf("WriteRecords = %+v, %v, want revision %d, replayed %v", got, err, revision, replayed)
		}
	}
	write(w("content", "WriteRecords"), 1, false)
	f.writeRecords("", remove("a"))
	if f.subject.Durable {
		f.reopen(nil)
	}
	f.clock.Advance(store.RequestTTL - time.Second)
	f.unchanged("a retry", func() { write(w("content", "WriteRecords"), 1, true) })
	f.refuseRecords(w("other content", "WriteRecords"), store.ErrRequestReused)
	write(w("other method", "Other"), 3, false)
	f.wantRecords("", "a=other method@3")
	if stats := f.stats(); stats.Records != 1 || stats.Bytes <= stats.RecordBytes {
		f.t.Errorf("Stats = %+v, want 1 record, and more bytes because of the requests", stats)
	}
	f.clock.Advance(time.Second)
	write(w("content", "WriteRecords"), 4, false)
	other := w("content", "WriteRecords")
	other.Tenant = "other"
	write(other, 1, false)
	f.writeRecords("", remove("a"))
	same(f.t, "tenants, one of which has only requests", f.tenantNames(10), []string{"other"})
	f.clock.Advance(store.RequestTTL)
	f.sweep()
	if _, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: "other", Writes: []*parleyv1.RecordWrite{remove("a")},
	}); err != nil {
		f.t.Fatal(err)
	}
	if stats := f.stats(); stats.Records != 0 || stats.RecordBytes != 0 || stats.Bytes != 0 {
		f.t.Errorf("Stats after the expiry of all requests = %+v, want no bytes", stats)
	}
}
