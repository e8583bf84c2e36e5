package storetest

import (
	"fmt"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// law19Records tests law 19, each guarantee in a test of its own.
func (s Subject) law19Records(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(f *fixture)
	}{
		{"OneCommit", oneCommit},
		{"BothScopes", bothScopes},
		{"NothingOfARefusedBatch", refusedBatch},
		{"RevisionOfAConversation", conversationRevision},
		{"RevisionOfATenant", tenantRevision},
		{"RevisionAfterDeletion", revisionAfterDeletion},
		{"IfRevision", ifRevisions},
		{"EndWithTheConversation", recordsEnd},
		{"ExpiryOfATenantsRecord", tenantRecordExpiry},
		{"WriteRenewsExpiry", recordRenewsExpiry},
		{"Requests", recordRequests},
		{"RequestWindows", requestWindows},
		{"RequestsOfATenant", tenantRequests},
		{"NoChange", noRecordChange},
		{"Reopen", reopenRecords},
		{"Order", recordOrder},
		{"Pages", recordPages},
		{"Bounds", recordBounds},
		{"ReadPrefixes", readPrefixes},
		{"Full", fullRecords},
		{"Checks", recordChecks},
		{"Stats", recordStats},
		{"Fork", forkRecords},
		{"ForkOfMany", forkManyRecords},
		{"Import", importRecords},
		{"Scopes", recordScopes},
		{"NoSharedMemory", recordMemory},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(s.open(t, nil)) })
	}
}

// oneCommit: the records of an append have the version of its messages, and all are found or none.
func oneCommit(f *fixture) {
	f.append("c", user("one"))
	f.observer.drain()
	got := f.do(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{user("two")}, Records: []*parleyv1.RecordWrite{
			put("b", "2"), put("a", "1"),
		},
	})
	if got.Conversation.GetVersion() != 2 || got.TenantRevision != 0 || got.Conversation.GetRecordCount() != 2 {
		f.t.Errorf("Append with records = %v, want version 2, no revision of the tenant, 2 records", got)
	}
	f.wantRecords("c", "a=1@2", "b=2@2")
	same(f.t, "changes", summaries(f.observer.drain()), []string{
		"MESSAGE_APPENDED c version 2 count 2 trimmed 0",
		"RECORD c version 2 count 2 trimmed 0, record b@2", "RECORD c version 2 count 2 trimmed 0, record a@2",
	})
	created := f.do(&store.Append{
		ConversationID: "new", Messages: []*parleyv1.Message{user("one")}, Records: []*parleyv1.RecordWrite{put("a", "1")},
	})
	if !created.Created {
		f.t.Errorf("Append = %v, want a new conversation", created)
	}
	f.wantRecords("new", "a=1@1")
	f.observer.drain()
	f.writeRecords("c", put("a", "3"), remove("b"))
	f.wantRecords("c", "a=3@3")
	same(f.t, "changes", summaries(f.observer.drain()), []string{
		"UPDATED c version 3 count 2 trimmed 0",
		"RECORD c version 3 count 2 trimmed 0, record a@3", "RECORD c version 3 count 2 trimmed 0, record b@3 deleted",
	})
}

// bothScopes: a call may write records of a conversation and of its tenant, with a revision in each scope.
func bothScopes(f *fixture) {
	f.writeRecords("", put("x", "0"))
	f.create("c")
	got := f.writeRecords("c", put("k", "own"), ofTenant(put("k", "common")))
	if got.Revision != 2 || got.TenantRevision != 2 || got.Conversation.GetVersion() != 2 || got.Replayed {
		f.t.Errorf("WriteRecords = %+v, want revisions 2 and 2, version 2", got)
	}
	f.wantRecords("c", "k=own@2")
	f.wantRecords("", "k=common@2", "x=0@1")
	appended := f.do(&store.Append{
		ConversationID: "c", Messages: []*parleyv1.Message{user("one")},
		Records: []*parleyv1.RecordWrite{ofTenant(remove("x")), ofTenant(put("y", "1"))},
	})
	if appended.TenantRevision != 3 || appended.Conversation.GetVersion() != 3 {
		f.t.Errorf("Append = %+v, want revision 3 of the tenant and version 3", appended)
	}
	f.wantRecords("", "k=common@2", "y=1@3")
	f.wantRecords("c", "k=own@2")
	f.do(&store.Delete{ConversationID: "c"})
	f.wantRecords("", "k=common@2", "y=1@3")
}

// refusedBatch: if one write of a batch is refused, nothing is written, neither records nor messages.
func refusedBatch(f *fixture) {
	f.create("c")
	f.writeRecords("c", put("a", "1"), ofTenant(put("a", "1")))
	for _, test := range []struct {
		writes []*parleyv1.RecordWrite
		want   *store.RevisionError
	}{
		{[]*parleyv1.RecordWrite{ifRevision(put("a", "2"), 1)}, &store.RevisionError{Key: "a", Current: 2, Required: 1}},
		{
			[]*parleyv1.RecordWrite{put("b", "2"), ifRevision(put("a", "2"), 0)},
			&store.RevisionError{Key: "a", Current: 2},
		},
		{
			[]*parleyv1.RecordWrite{ifRevision(put("a", "2"), 2), ifRevision(put("b", "2"), 1), ifRevision(put("z", "2"), 7)},
			&store.RevisionError{Key: "b", Required: 1},
		},
		{
			[]*parleyv1.RecordWrite{ofTenant(put("b", "2")), put("b", "2"), ifRevision(ofTenant(remove("a")), 9)},
			&store.RevisionError{Key: "a", TenantScope: true, Current: 1, Required: 9},
		},
	} {
		f.refuseRecords(&store.WriteRecords{ConversationID: "c", Writes: test.writes}, test.want)
		f.refuseRecords(&store.WriteRecords{
			ConversationID: "c", Writes: test.writes, Request: request("r", "content"),
		}, test.want)
		f.refuse(&store.Append{
			ConversationID: "c", Messages: []*parleyv1.Message{user("one")}, Records: test.writes,
		}, test.want)
	}
	f.refuseRecords(&store.WriteRecords{
		Writes: []*parleyv1.RecordWrite{put("b", "2"), ifRevision(put("a", "2"), 3)}, Request: request("r", "content"),
	}, &store.RevisionError{Key: "a", TenantScope: true, Current: 1, Required: 3})
	f.refuse(&store.Append{
		ConversationID: "new", Messages: []*parleyv1.Message{user("one")},
		Records: []*parleyv1.RecordWrite{ifRevision(put("a", "2"), 1)},
	}, &store.RevisionError{Key: "a", Required: 1})
	f.missing("new")
}

// conversationRevision: the revision of a conversation's record is the version of the conversation.
func conversationRevision(f *fixture) {
	f.create("c")
	for i := range 3 {
		f.append("c", user(fmt.Sprint("message ", i)))
		got := f.writeRecords("c", put(fmt.Sprint("k", i), "v"))
		if want := int64(3 + 2*i); got.Revision != want || int64(got.Conversation.GetVersion()) != want {
			f.t.Errorf("WriteRecords = %+v, want revision and version %d", got, want)
		}
	}
	f.wantRecords("c", "k0=v@3", "k1=v@5", "k2=v@7")
	if r := f.get("c", "k0")[0]; !r.GetUpdateTime().AsTime().Before(f.clock.Now()) || r.GetMediaType() != "text/plain" {
		f.t.Errorf("record = %v, want its media type and the time of its write", r)
	}
	f.clock.Advance(-time.Minute)
	at := f.writeRecords("c", put("late", "v"), ofTenant(put("late", "v"))).Conversation.GetUpdateTime().AsTime()
	if r := f.get("c", "late")[0]; !r.GetUpdateTime().AsTime().Equal(at) || !at.After(f.clock.Now()) {
		f.t.Errorf("record = %v after the clock was set back, want the update_time of the conversation, %v", r, at)
	}
	if r := f.get("", "late")[0]; !r.GetUpdateTime().AsTime().Equal(f.clock.Now()) {
		f.t.Errorf("record of the tenant = %v, want the time of the clock, %v", r, f.clock.Now())
	}
}

// tenantRevision: each write of a tenant's records has the next number, for all of its records.
func tenantRevision(f *fixture) {
	for i := range int64(3) {
		got := f.writeRecords("", put(fmt.Sprint("k", i), "v"), put("all", "v"))
		if got.TenantRevision != i+1 || got.Revision != 0 || got.Conversation != nil {
			f.t.Errorf("WriteRecords = %+v, want revision %d of the tenant only", got, i+1)
		}
	}
	f.wantRecords("", "all=v@3", "k0=v@1", "k1=v@2", "k2=v@3")
}

// revisionAfterDeletion: no revision is used again, even after the deletion of the newest record and of all records.
func revisionAfterDeletion(f *fixture) {
	f.create("c")
	f.writeRecords("c", put("a", "1"), put("b", "1"))
	if got := f.writeRecords("c", remove("b")); got.Revision != 3 {
		f.t.Errorf("WriteRecords that deletes = %+v, want revision 3", got)
	}
	f.writeRecords("c", put("b", "2"))
	f.wantRecords("c", "a=1@2", "b=2@4")

	f.writeRecords("", put("a", "1"))
	if got := f.writeRecords("", remove("a")); got.TenantRevision != 2 {
		f.t.Errorf("WriteRecords that deletes = %+v, want revision 2 of the tenant", got)
	}
	f.do(&store.Delete{ConversationID: "c"}) // The tenant has neither conversations nor records.
	f.sweep()
	if f.subject.Durable {
		f.reopen(nil)
	}
	f.writeRecords("", put("a", "2"))
	f.wantRecords("", "a=2@3")
}

// ifRevisions: a write with if_revision succeeds exactly if the record has this revision; 0 is that of a missing one.
func ifRevisions(f *fixture) {
	f.create("c")
	for _, id := range []string{"c", ""} {
		write := func(w *parleyv1.RecordWrite) int64 {
			got := f.writeRecords(id, w)
			return max(got.Revision, got.TenantRevision)
		}
		first := write(ifRevision(put("a", "1"), 0))
		second := write(ifRevision(put("a", "2"), first))
		third := write(ifRevision(remove("a"), second))
		if first >= second || second >= third {
			f.t.Errorf("revisions of %q are %d, %d, %d, want them to rise", id, first, second, third)
		}
		fourth := write(ifRevision(put("a", "3"), 0))
		for _, wrong := range []int64{0, first, second, third, fourth + 1} {
			f.refuseRecords(&store.WriteRecords{
				ConversationID: id, Writes: []*parleyv1.RecordWrite{ifRevision(put("a", "4"), wrong)},
			}, &store.RevisionError{Key: "a", TenantScope: id == "", Current: fourth, Required: wrong})
		}
	}
}

// recordRenewsExpiry: a write of a conversation's records counts as an append for the expiry.
func recordRenewsExpiry(f *fixture) {
	f.append("c", user("one"))
	f.append("other", user("one"))
	f.clock.Advance(59 * time.Minute)
	got, want := f.writeRecords("c", put("a", "1")).Conversation, f.clock.Now()
	f.writeRecords("other", ofTenant(put("a", "1")))
	if !got.GetLastAppendTime().AsTime().Equal(want) ||
		!got.GetExpireTime().AsTime().Equal(want.Add(time.Hour)) {
		f.t.Errorf("WriteRecords at %v = %v, want the expiry of an append", want, got)
	}
	f.clock.Advance(2 * time.Minute)
	f.wantRecords("c", "a=1@2")
	f.missing("other") // Only a record of the tenant was written.
	f.clock.Advance(time.Hour)
	f.missing("c")
}

// noRecordChange: to delete records that do not exist changes nothing, unless the call has a request.
func noRecordChange(f *fixture) {
	f.create("c")
	for _, id := range []string{"c", ""} {
		f.unchanged("a deletion of nothing", func() {
			got := f.writeRecords(id, remove("a"), ifRevision(remove("b"), 0))
			if got.Revision != 0 || got.TenantRevision != 0 || got.Replayed {
				f.t.Errorf("WriteRecords that deletes nothing = %+v, want no revision", got)
			}
			if id != "" && got.Conversation.GetVersion() != 1 {
				f.t.Errorf("WriteRecords that deletes nothing = %v, want version 1", got.Conversation)
			}
		})
	}
	got, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: tenant, ConversationID: "c", Writes: []*parleyv1.RecordWrite{remove("a")}, Request: request("r", "content"),
	})
	if err != nil || got.Revision != 0 || got.Conversation.GetVersion() != 2 {
		f.t.Errorf("WriteRecords that deletes nothing with a request = %+v, %v, want version 2", got, err)
	}
	got, err = f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: tenant, Writes: []*parleyv1.RecordWrite{remove("a")}, Request: request("r", "content"),
	})
	if err != nil || got.TenantRevision != 0 {
		f.t.Errorf("WriteRecords of the tenant that deletes nothing with a request = %+v, %v, want no revision", got, err)
	}
	f.writeRecords("", put("a", "1"))
	f.wantRecords("", "a=1@1")
}

// reopenRecords: records survive Close in stores that write to disk.
func reopenRecords(f *fixture) {
	if !f.subject.Durable {
		return
	}
	f.append("c", user("one"))
	f.writeRecords("c", put("a", "1"), ofTenant(put("t", "1")))
	f.writeRecords("c", put("b", ""), remove("a"))
	f.writeRecords("", expiring(put("u", "2"), time.Hour), remove("t"))
	before, stats := f.allRecords(), f.stats()
	f.reopen(nil)
	same(f.t, "records after reopen", f.allRecords(), before)
	after := f.stats()
	if after.Records != stats.Records || after.RecordBytes != stats.RecordBytes || after.Bytes != stats.Bytes {
		f.t.Errorf("Stats after reopen = %+v, want %+v", after, stats)
	}
	f.writeRecords("c", put("c", "3"))
	f.writeRecords("", put("t", "3"))
	f.wantRecords("c", "b=@3", "c=3@4")
	f.wantRecords("", "t=3@3", "u=2@2")
}
