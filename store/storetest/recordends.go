package storetest

import (
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// recordsEnd: the records of a conversation end with it, in whatever way, and a new conversation with the same id does
// not have them.
func recordsEnd(f *fixture) {
	f.reopen(func(o *store.Options) { o.MaxConversations = 2 })
	id := func() *store.WriteRecords {
		return &store.WriteRecords{ConversationID: "c", Writes: []*parleyv1.RecordWrite{put("a", "2")}}
	}
	for _, end := range []struct {
		name string
		end  func()
	}{
		{"Delete", func() { f.do(&store.Delete{ConversationID: "c"}) }},
		{"expiry", func() { f.clock.Advance(time.Hour) }},
		{"swept expiry", func() {
			f.clock.Advance(time.Hour)
			f.sweep()
		}},
		{"eviction", func() {
			f.create("d")
			f.create("e")
			f.settle()
		}},
		{"Purge", func() {
			if _, err := f.store.Purge(f.t.Context(), &store.Purge{Tenant: tenant}); err != nil {
				f.t.Fatal(err)
			}
		}},
		{"release", func() {
			hold := &store.Hold{Tenant: tenant, ConversationIDs: []string{"c"}}
			if err := f.store.Hold(f.t.Context(), hold); err != nil {
				f.t.Fatal(err)
			}
			if err := f.store.Release(f.t.Context(), hold); err != nil {
				f.t.Fatal(err)
			}
		}},
	} {
		f.create("c")
		f.writeRecords("c", put("a", "1"), put("b", "1"))
		f.writeRecords("c", put("a", "2"))
		end.end()
		f.refuseRecords(id(), store.ErrNotFound)
		f.noRecordsOf("c", end.name)
		f.append("c", user("one"))
		f.wantRecords("c")
		f.writeRecords("c", ifRevision(put("b", "3"), 0))
		f.wantRecords("c", "b=3@2")
		for id := range f.all() {
			f.do(&store.Delete{ConversationID: id})
		}
		f.sweep()
		if stats := f.stats(); stats.Records != 0 || stats.RecordBytes != 0 || stats.Bytes != 0 {
			f.t.Errorf("Stats after %s and deletion of everything = %+v, want no records and no bytes", end.name, stats)
		}
	}
	overwriteEnds(f)
}

// overwriteEnds: an import that replaces a conversation removes its records.
func overwriteEnds(f *fixture) {
	f.append("c", user("one"))
	f.writeRecords("c", put("a", "1"), put("b", "1"))
	header := f.header("c")
	f.do(&store.Import{Conversation: header, Records: []*parleyv1.Record{{Key: "b", Value: []byte("2")}}, Overwrite: true})
	f.wantRecords("c", "b=2@2")
	f.do(&store.Import{Conversation: header, Overwrite: true})
	f.wantRecords("c")
}

// noRecordsOf checks that reads of the records of a conversation return ErrNotFound.
func (f *fixture) noRecordsOf(id, after string) {
	f.t.Helper()
	found, omitted, err := getRecords(f.t.Context(), f.store, &store.GetRecords{
		Tenant: tenant, ConversationID: id, Keys: []string{"a"}, MaxBytes: allBytes,
	})
	if !errorIs(err, store.ErrNotFound) || len(found)+len(omitted) > 0 {
		f.t.Errorf("GetRecords after %s = %v, %v, %v, want ErrNotFound", after, found, omitted, err)
	}
	found, more, err := f.store.ListRecords(f.t.Context(), &store.ListRecords{
		Tenant: tenant, ConversationID: id, Limit: 10, MaxBytes: allBytes,
	})
	if !errorIs(err, store.ErrNotFound) || len(found) > 0 || more {
		f.t.Errorf("ListRecords after %s = %v, %v, %v, want ErrNotFound", after, found, more, err)
	}
}

// tenantRecordExpiry: a tenant's record is not found from its expire_time on, even before it is swept. The sweep
// removes it from the counts.
func tenantRecordExpiry(f *fixture) {
	f.writeRecords("", expiring(put("a", "1"), time.Minute), expiring(put("b", "1"), time.Hour), put("c", "1"))
	end := f.get("", "a")[0].GetExpireTime().AsTime()
	if want := f.clock.Now().Add(time.Minute); !end.Equal(want) || f.get("", "c")[0].GetExpireTime() != nil {
		f.t.Errorf("expire_time = %v, want %v, and none without a ttl", end, want)
	}
	f.clock.Advance(time.Minute - 1)
	f.wantRecords("", "a=1@1", "b=1@1", "c=1@1")
	f.clock.Advance(1)
	f.wantRecords("", "b=1@1", "c=1@1")
	if found := f.get("", "a", "b"); len(found) != 1 {
		f.t.Errorf("GetRecords = %v, want only b", found)
	}
	found, _ := f.listRecords(store.ListRecords{Descending: true, KeysOnly: true})
	same(f.t, "descending keys", keysOf(found), []string{"c", "b"})
	f.refuseRecords(&store.WriteRecords{
		Writes: []*parleyv1.RecordWrite{ifRevision(put("a", "2"), 1)},
	}, &store.RevisionError{Key: "a", TenantScope: true, Required: 1})
	f.writeRecords("", remove("a"))
	f.writeRecords("", ifRevision(expiring(put("a", "2"), time.Minute), 0))
	f.wantRecords("", "a=2@2", "b=1@1", "c=1@1")
	f.writeRecords("", put("a", "3")) // It does not expire any more.
	f.clock.Advance(time.Hour)
	f.wantRecords("", "a=3@3", "c=1@1")
	f.sweep()
	if stats := f.stats(); stats.Records != 2 || stats.Bytes != stats.RecordBytes {
		f.t.Errorf("Stats after the sweep = %+v, want 2 records", stats)
	}
	f.writeRecords("", remove("a"), remove("c"))
	if stats := f.stats(); stats.Records != 0 || stats.RecordBytes != 0 || stats.Bytes != 0 {
		f.t.Errorf("Stats after deletion of all records = %+v, want none", stats)
	}
}
