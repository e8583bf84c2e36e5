package storetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// fullRecords: a write that would make the records of a conversation larger than MaxRecordBytes fails. Deletions and
// writes that make them smaller succeed, also above a limit that was lowered.
func fullRecords(f *fixture) {
	f.reopen(func(o *store.Options) { o.MaxRecordBytes = 300 })
	f.create("c")
	w := put("a", strings.Repeat("x", 300-store.RecordOverhead-len("a")-len("text/plain"))) // exactly the limit
	f.writeRecords("c", w)
	f.writeRecords("", put("of the tenant", strings.Repeat("x", 400))) // The limit is that of a conversation.
	for _, writes := range [][]*parleyv1.RecordWrite{
		{put("b", "")},
		{put("a", string(w.GetValue())+"x")},
		{ofTenant(put("b", "")), put("b", "")},
		{{Key: "a", Value: w.GetValue(), MediaType: "text/plain", Labels: map[string]string{"l": "v"}}},
	} {
		f.refuseRecords(&store.WriteRecords{ConversationID: "c", Writes: writes}, fullError(f, "c", writes))
		f.refuse(&store.Append{
			ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Records: writes,
		}, fullError(f, "c", writes))
	}
	f.writeRecords("c", put("b", "moved"), remove("a"))
	f.wantRecords("c", "b=moved@3")
	f.refuse(&store.Import{
		Conversation: f.header("c"), Records: []*parleyv1.Record{{Key: "k", Value: make([]byte, 200)}}, Overwrite: true,
	}, &store.RecordsFullError{Bytes: store.RecordOverhead + 201, Limit: 300})
	if !f.subject.Durable {
		return
	}
	f.writeRecords("c", put("c", "kept"))
	f.reopen(func(o *store.Options) { o.MaxRecordBytes = 10 })
	f.writeRecords("c", put("b", "new"))
	f.writeRecords("c", remove("b"))
	f.refuseRecords(&store.WriteRecords{ConversationID: "c", Writes: []*parleyv1.RecordWrite{put("c", "kept.")}},
		&store.RecordsFullError{Bytes: int64(store.RecordOverhead + len("ctext/plainkept.")), Limit: 10})
	f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "d"}, RecordsOf: "c"},
		&store.RecordsFullError{Bytes: int64(store.RecordOverhead + len("ctext/plainkept")), Limit: 10})
}

// fullError returns the error of writes to a conversation whose records have 300 bytes, all with the key b or a.
func fullError(f *fixture, id string, writes []*parleyv1.RecordWrite) error {
	f.t.Helper()
	size := int64(0)
	for _, r := range f.records(id) {
		size += store.RecordBytes(r)
	}
	for _, w := range writes {
		if w.GetTenantScope() {
			continue
		}
		size += store.RecordBytes(&parleyv1.Record{
			Key: w.GetKey(), Value: w.GetValue(), MediaType: w.GetMediaType(), Labels: w.GetLabels(),
		})
		for _, r := range f.get(id, w.GetKey()) {
			size -= store.RecordBytes(r)
		}
	}
	return &store.RecordsFullError{Bytes: size, Limit: 300}
}

// recordChecks: the checks of a write apply in the order of store.WriteRecords, and for an append after its own.
func recordChecks(f *fixture) {
	f.reopen(func(o *store.Options) { o.MaxRecordBytes, o.MaxConversations = 200, 1 })
	f.create("c")
	f.writeRecords("c", put("a", "1"))
	large, wrong := put("b", strings.Repeat("x", 100)), ifRevision(put("a", "2"), 1)
	uid := f.header("c").GetUid()
	both := func() []*parleyv1.RecordWrite { return []*parleyv1.RecordWrite{large, wrong} }
	if _, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: tenant, ConversationID: "c", Writes: []*parleyv1.RecordWrite{put("a", "2")}, Request: request("r", "content"),
	}); err != nil {
		f.t.Fatal(err)
	}
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", UID: "other", Writes: both(), IfVersion: new(int32(9)), Request: request("r", "other"),
	}, store.ErrRequestReused)
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", UID: "other", Writes: both(), IfVersion: new(int32(9)),
	}, store.ErrNotFound)
	f.refuseRecords(&store.WriteRecords{ConversationID: "d", Writes: both(), IfVersion: new(int32(9))}, store.ErrNotFound)
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", UID: uid, Writes: both(), IfVersion: new(int32(9)),
	}, &store.VersionError{Current: 3, Required: 9})
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", UID: uid, Writes: both(), IfVersion: new(int32(3)),
	}, &store.RevisionError{Key: "a", Current: 3, Required: 1})
	f.refuse(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Records: both(), IfVersion: new(int32(9)),
	}, &store.VersionError{Current: 3, Required: 9})
	f.refuse(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Records: both(),
		End: &parleyv1.Turn{Id: "t"},
	}, store.ErrTurnEnded)
	f.beginTurn("c", "t") // It prevents the eviction.
	f.refuse(&store.Append{
		ConversationID: "new", Messages: []*parleyv1.Message{user("one")}, Records: []*parleyv1.RecordWrite{large},
	}, &store.RecordsFullError{Bytes: int64(store.RecordOverhead + 101 + len("text/plain")), Limit: 200})
	f.whenFull("new", 1, func() {
		f.refuse(&store.Append{
			ConversationID: "new", Messages: []*parleyv1.Message{user("one")}, Records: []*parleyv1.RecordWrite{put("a", "1")},
		}, store.ErrFull)
	})
}

// law19Bytes: records count towards the limit of bytes of a tenant. Deletions succeed above it, and the end of a turn
// with records does not.
func (s Subject) law19Bytes(t *testing.T) {
	limit := new(int64)
	f := s.open(t, func(o *store.Options) {
		o.Limits = func(string) store.Limits { return store.Limits{MaxBytes: *limit} }
	})
	f.create("c")
	f.writeRecords("c", put("a", "1"))
	f.writeRecords("", put("a", "1"), put("b", "1"))
	before := f.stats().Bytes
	f.append("new", user("one"))
	*limit = f.stats().Bytes + 100 // Times may take more bytes.
	f.do(&store.Delete{ConversationID: "new"})
	f.refuse(&store.Append{
		ConversationID: "new", Messages: []*parleyv1.Message{user("one")},
		Records: []*parleyv1.RecordWrite{ofTenant(put("large", strings.Repeat("x", int(*limit-before))))},
	}, &store.TenantBytesError{})
	*limit = 0
	f.beginTurn("c", "t")
	*limit = f.stats().Bytes
	full := &store.TenantBytesError{}
	f.refuseRecords(&store.WriteRecords{Writes: []*parleyv1.RecordWrite{put("c", "1")}}, full)
	f.refuseRecords(&store.WriteRecords{ConversationID: "c", Writes: []*parleyv1.RecordWrite{put("b", "1")}}, full)
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", Writes: []*parleyv1.RecordWrite{ofTenant(put("c", "larger than a")), remove("a")},
	}, full)
	f.refuse(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{assistant("answer")},
		Records: []*parleyv1.RecordWrite{put("b", "1")},
		End:     &parleyv1.Turn{Id: "t", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	}, full)
	*limit = 1
	f.do(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{assistant("answer")},
		Records: []*parleyv1.RecordWrite{remove("x")},
		End:     &parleyv1.Turn{Id: "t", State: parleyv1.TurnState_TURN_STATE_COMPLETED},
	})
	f.writeRecords("", put("b", "")) // It becomes smaller.
	deletion := &store.WriteRecords{
		Tenant: tenant, Writes: []*parleyv1.RecordWrite{remove("b")}, Request: request("r", "content"),
	}
	if _, err := f.store.WriteRecords(t.Context(), deletion); err != nil {
		t.Errorf("deletion above the limit with a request = %v", err)
	}
	deletion = &store.WriteRecords{
		Tenant: tenant, ConversationID: "c", Writes: []*parleyv1.RecordWrite{remove("a"), ofTenant(remove("a"))},
		Request: request("r", "content"),
	}
	if _, err := f.store.WriteRecords(t.Context(), deletion); err != nil {
		t.Errorf("deletion above the limit with a request = %v", err)
	}
	f.wantRecords("c")
	f.wantRecords("")
}

// law19FullTenant: a write that would make the records of the tenant larger than MaxRecordBytes in Limits fails.
// Records of conversations do not count, and requests do. Deletions succeed.
func (s Subject) law19FullTenant(t *testing.T) {
	const limit = 1000
	f, limits := s.openLimited(t)
	limits.set(store.Limits{MaxRecordBytes: limit})
	f.create("c")
	value := strings.Repeat("x", limit-store.RecordOverhead-len("a")-len("text/plain")) // exactly the limit
	f.writeRecords("", put("a", value))
	f.writeRecords("c", put("a", value), put("b", value))
	tooLarge := func(bytes int) error {
		return &store.RecordsFullError{TenantScope: true, Bytes: int64(bytes), Limit: limit}
	}
	empty := store.RecordOverhead + len("b") + len("text/plain")
	f.refuseRecords(&store.WriteRecords{Writes: []*parleyv1.RecordWrite{put("b", "")}}, tooLarge(limit+empty))
	f.refuseRecords(&store.WriteRecords{Writes: []*parleyv1.RecordWrite{put("a", value+"x")}}, tooLarge(limit+1))
	f.refuseRecords(&store.WriteRecords{
		ConversationID: "c", Writes: []*parleyv1.RecordWrite{remove("a"), ofTenant(put("b", ""))},
	}, tooLarge(limit+empty))
	f.refuseRecords(&store.WriteRecords{
		Writes: []*parleyv1.RecordWrite{put("a", value)}, Request: request("r", "content"),
	}, &store.RecordsFullError{TenantScope: true})
	a := &store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{user("one")},
		Records: []*parleyv1.RecordWrite{ofTenant(put("b", ""))},
	}
	f.refuse(a, tooLarge(limit+empty))
	a.ConversationID = "new"
	f.refuse(a, tooLarge(limit+empty))
	f.beginTurn("c", "t")
	a.ConversationID, a.End = "c", &parleyv1.Turn{Id: "t", State: parleyv1.TurnState_TURN_STATE_COMPLETED}
	f.refuse(a, tooLarge(limit+empty))
	if _, err := f.store.WriteRecords(t.Context(), &store.WriteRecords{Tenant: "other", Writes: a.Records}); err != nil {
		t.Errorf("WriteRecords of another tenant = %v", err)
	}
	limits.set(store.Limits{MaxRecordBytes: 10})
	f.writeRecords("", put("a", value))     // It does not become larger.
	f.writeRecords("", put("a", value[1:])) // It becomes smaller.
	f.writeRecords("", put("b", ""), remove("a"))
	if s.Durable {
		f.reopen(nil)
		f.refuseRecords(&store.WriteRecords{Writes: []*parleyv1.RecordWrite{put("b", "x")}},
			&store.RecordsFullError{TenantScope: true, Bytes: int64(empty) + 1, Limit: 10})
	}
	f.refuseRecords(&store.WriteRecords{
		Writes: []*parleyv1.RecordWrite{remove("missing")}, Request: request("r", "content"),
	}, &store.RecordsFullError{TenantScope: true}) // Otherwise requests that delete nothing would have no limit.
	deletion := &store.WriteRecords{
		Tenant: tenant, Writes: []*parleyv1.RecordWrite{remove("b")}, Request: request("r", "content"),
	}
	if _, err := f.store.WriteRecords(t.Context(), deletion); err != nil {
		t.Errorf("deletion above the limit with a request = %v", err)
	}
	limits.set(store.Limits{MaxRecordBytes: int64(empty)})
	f.refuseRecords(&store.WriteRecords{Writes: []*parleyv1.RecordWrite{put("b", "")}},
		&store.RecordsFullError{TenantScope: true})
	f.clock.Advance(store.RequestTTL)
	f.sweep()
	f.writeRecords("", expiring(put("b", ""), time.Minute))
	f.clock.Advance(time.Minute)
	f.sweep()
	f.writeRecords("", put("c", "")) // The expired record does not count.
}

// recordStats: counts include records, those of each tenant apart, and a tenant that has only records is in Tenants.
func recordStats(f *fixture) {
	want := func(tenantName string, records, size int64) {
		f.t.Helper()
		got, err := f.store.TenantStats(f.t.Context(), tenantName)
		if err != nil || got.Records != records || got.RecordBytes != size || got.Bytes < size {
			f.t.Errorf("TenantStats(%s) = %+v, %v, want %d records with %d bytes", tenantName, got, err, records, size)
		}
	}
	tenants := func(want ...string) {
		f.t.Helper()
		got, next, err := f.store.Tenants(f.t.Context(), "", 10)
		if err != nil || next != "" {
			f.t.Errorf("Tenants = %v, %q, %v", got, next, err)
		}
		slices.Sort(got)
		same(f.t, "Tenants", got, want)
	}
	record := int64(128 + len("a") + len("text/plain") + len("1")) // the size of each
	f.writeRecords("", put("a", "1"))
	want(tenant, 1, record)
	tenants(tenant)
	f.create("c")
	f.writeRecords("c", put("a", "1"), put("b", "2"), ofTenant(put("b", "2")))
	want(tenant, 4, 4*record)
	for _, name := range []string{"other", "third"} {
		if _, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
			Tenant: name, Writes: []*parleyv1.RecordWrite{expiring(put("a", "1"), time.Minute)},
		}); err != nil {
			f.t.Fatal(err)
		}
	}
	want("other", 1, record)
	tenants(tenant, "other", "third")
	if stats := f.stats(); stats.Records != 6 || stats.RecordBytes != 6*record {
		f.t.Errorf("Stats = %+v, want 6 records with %d bytes", stats, 6*record)
	}
	f.clock.Advance(time.Minute)
	want("other", 1, record)
	f.sweep()
	want("other", 0, 0)
	tenants(tenant)
	f.do(&store.Delete{ConversationID: "c"})
	want(tenant, 2, 2*record)
	tenants(tenant)
	f.writeRecords("", remove("a"), remove("b"))
	want(tenant, 0, 0)
	tenants()
}
