package storetest

import (
	"fmt"
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

// requestWindows: a conversation keeps its newest 32 requests of writes of records alone, and its newest 32 of all
// other calls. Many of the one do not make it forget those of the other.
func requestWindows(f *fixture) {
	const window = 32
	f.create("c")
	replayed := func(kind string, i int) bool {
		f.t.Helper()
		q := request(fmt.Sprint("r", i), kind)
		if q.Method = kind; kind == "WriteRecords" {
			written, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
				Tenant: tenant, ConversationID: "c", Writes: []*parleyv1.RecordWrite{put("a", "1")}, Request: q,
			})
			if err != nil {
				f.t.Fatal(err)
			}
			return written.Replayed
		}
		a := &store.Append{ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Request: q}
		if i%2 == 0 { // An append with records is no write of records alone.
			a.Records = []*parleyv1.RecordWrite{put("b", "1")}
		}
		return f.do(a).Replayed
	}
	want := func(kind string, from, to int, want bool) {
		f.t.Helper()
		for i := from; i < to; i++ {
			if got := replayed(kind, i); got != want {
				f.t.Fatalf("%s with request %d is replayed = %v, want %v", kind, i, got, want)
			}
		}
	}
	want("AppendMessages", 0, window, false)
	want("WriteRecords", 0, window+1, false)
	want("AppendMessages", 0, window, true)
	want("WriteRecords", 1, window+1, true)
	want("WriteRecords", 0, 1, false) // It was forgotten, and makes the conversation forget request 1.
	want("WriteRecords", 2, window+1, true)
	want("AppendMessages", window, 2*window+1, false)
	want("WriteRecords", 2, window+1, true)
	want("AppendMessages", window+1, 2*window+1, true)
	if f.subject.Durable {
		f.reopen(nil)
		want("WriteRecords", 2, window+1, true)
		want("AppendMessages", window+1, 2*window+1, true)
	}
	want("AppendMessages", window, window+1, false)
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
