package storetest

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// forkRecords: a create with RecordsOf copies the records of another conversation, which then change apart.
func forkRecords(f *fixture) {
	f.append("c", user("one"))
	f.writeRecords("c", &parleyv1.RecordWrite{
		Key: "a", Value: []byte("1"), MediaType: "text/plain", Labels: map[string]string{"l": "v"},
	}, put("b", ""))
	f.writeRecords("c", put("d", "2"))
	source, uid := f.records("c"), f.header("c").GetUid()
	f.observer.drain()
	f.clock.Advance(time.Second)
	fork := &store.Create{
		Conversation: &parleyv1.Conversation{Id: "fork"}, RecordsOf: "c", RecordsOfUID: uid, Request: request("r", "content"),
	}
	result := f.do(fork)
	if c := result.Conversation; c.GetRecordCount() != 3 || c.GetRecordBytes() != f.header("c").GetRecordBytes() {
		f.t.Errorf("Create = %v, want the counts of the copied records", c)
	}
	same(f.t, "changes", summaries(f.observer.drain()), []string{"CREATED fork version 1 count 0 trimmed 0"})
	f.wantRecords("fork", "a=1@1", "b=@1", "d=2@1")
	for i, r := range f.records("fork") {
		want := proto.CloneOf(source[i])
		want.ConversationId, want.Revision, want.UpdateTime = "fork", 1, f.header("fork").GetCreateTime()
		same(f.t, "copy", r, want)
	}
	f.writeRecords("fork", put("a", "3"), remove("b"))
	f.wantRecords("c", "a=1@2", "b=@2", "d=2@3")
	f.do(&store.Delete{ConversationID: "c"})
	f.wantRecords("fork", "a=3@2", "d=2@1")
	fork.RecordsOf = "fork"
	f.unchanged("a retry of a fork", func() { f.do(fork) })
	f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "second"}, RecordsOf: "c", RecordsOfUID: uid},
		store.ErrNotFound)
	f.append("c", user("another one"))
	f.refuse(&store.Create{Conversation: &parleyv1.Conversation{Id: "second"}, RecordsOf: "c", RecordsOfUID: uid},
		store.ErrNotFound)
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "second"}, RecordsOf: "c"})
	f.wantRecords("second")
	f.append("expired", user("one"))
	f.writeRecords("expired", put("a", "1"))
	f.clock.Advance(time.Hour)
	f.do(&store.Create{Conversation: &parleyv1.Conversation{Id: "third"}, RecordsOf: "expired"})
	f.wantRecords("third")
}

// forkManyRecords: a create with RecordsOf copies at most store.MaxCopiedRecords.
func forkManyRecords(f *fixture) {
	i := f.newImport("c", time.Minute)
	for n := range store.MaxCopiedRecords + 1 {
		i.Records = append(i.Records, &parleyv1.Record{Key: fmt.Sprint(n)})
	}
	f.do(i)
	fork := &store.Create{Conversation: &parleyv1.Conversation{Id: "fork"}, RecordsOf: "c"}
	c := f.header("c")
	_, err := f.try(fork)
	want := &store.CopyTooLargeError{Records: store.MaxCopiedRecords + 1, Bytes: c.GetRecordBytes()}
	if !errorIs(err, want) {
		f.t.Errorf("Create = %v, want %v", err, want)
	}
	f.missing("fork")
	f.writeRecords("c", remove("7"))
	if got := f.do(fork).Conversation; got.GetRecordCount() != store.MaxCopiedRecords {
		f.t.Errorf("Create = %v, want a copy of %d records", got, store.MaxCopiedRecords)
	}
}

// importRecords: imported records have the version of the conversation as their revision.
func importRecords(f *fixture) {
	i := f.newImport("c", time.Minute)
	i.Conversation.RecordCount, i.Conversation.RecordBytes = 7, 7 // These are those of the source.
	i.Records = []*parleyv1.Record{
		{ConversationId: "other", Key: "a", Value: []byte("1"), Revision: 3, Labels: map[string]string{"l": "v"}},
		{Key: "b", MediaType: "text/plain", ExpireTime: i.Conversation.GetCreateTime(), SizeBytes: 99},
	}
	result := f.do(i)
	f.wantRecords("c", "a=1@41", "b=@41")
	same(f.t, "result", result.Conversation.GetRecordBytes(), int64(2*store.RecordOverhead+len("a1lv")+len("btext/plain")))
	same(f.t, "changes", summaries(f.observer.drain()), []string{"CREATED c version 41 count 4 trimmed 0"})
	for _, r := range f.records("c") {
		if !r.GetUpdateTime().AsTime().Equal(f.clock.Now()) || r.GetExpireTime() != nil {
			f.t.Errorf("imported record = %v, want the time of the import and no expire_time", r)
		}
	}
	if got := f.writeRecords("c", put("a", "2")); got.Revision != 42 {
		f.t.Errorf("WriteRecords after the import = %+v, want revision 42", got)
	}
}

// recordScopes: the records of each conversation, of the tenant and of other tenants are apart.
func recordScopes(f *fixture) {
	for i, id := range []string{"c", "cc", "d", ""} {
		if id != "" {
			f.create(id)
		}
		f.writeRecords(id, put("k", fmt.Sprint(i)))
	}
	other := &store.WriteRecords{
		Tenant: tenant + "2", Writes: []*parleyv1.RecordWrite{put("k", "other"), put("l", "other")},
	}
	if got, err := f.store.WriteRecords(f.t.Context(), other); err != nil || got.TenantRevision != 1 {
		f.t.Errorf("WriteRecords of another tenant = %+v, %v, want revision 1", got, err)
	}
	if _, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: tenant + "2", ConversationID: "c", Writes: []*parleyv1.RecordWrite{remove("k")},
	}); !errorIs(err, store.ErrNotFound) {
		f.t.Errorf("WriteRecords to a conversation of another tenant = %v, want ErrNotFound", err)
	}
	f.writeRecords("c", remove("k"))
	f.wantRecords("c")
	f.wantRecords("cc", "k=1@2")
	f.wantRecords("d", "k=2@2")
	f.wantRecords("", "k=3@1")
	found, _ := f.listRecords(store.ListRecords{Tenant: tenant + "2"})
	same(f.t, "records of the other tenant", shown(found), []string{"k=other@1", "l=other@1"})
}

// recordMemory: the store shares no memory with arguments and results.
func recordMemory(f *fixture) {
	f.create("c")
	writes := func() []*parleyv1.RecordWrite {
		labeled := put("k", "value")
		labeled.Labels = map[string]string{"l": "v"}
		common := ofTenant(expiring(put("k", "value"), time.Hour))
		return []*parleyv1.RecordWrite{labeled, common}
	}
	w := &store.WriteRecords{
		Tenant: tenant, ConversationID: "c", Writes: writes(), Request: request("r", "content"), IfVersion: new(int32(1)),
	}
	result, err := f.store.WriteRecords(f.t.Context(), w)
	if err != nil {
		f.t.Fatal(err)
	}
	before := f.allRecords()
	i := f.newImport("imported", time.Minute)
	i.Records = []*parleyv1.Record{{Key: "k", Value: []byte("value"), Labels: map[string]string{"l": "v"}}}
	f.do(i)
	imported := f.records("imported")
	modify(result.Conversation)
	*w.Request = store.Request{}
	for _, r := range slices.Concat(w.Writes[:1:1], w.Writes[1:]) {
		clear(r.Value)
		modify(r)
	}
	clear(i.Records[0].Value)
	modify(i.Records[0])
	read, err := f.store.Read(f.t.Context(), &store.Read{
		Tenant: tenant, ConversationID: "c", RecordPrefixes: []string{""},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, found := range [][]*parleyv1.Record{f.records("c"), f.records(""), f.get("c", "k"), read.Records} {
		for _, r := range found {
			clear(r.GetValue())
			modify(r)
		}
	}
	for _, change := range f.observer.drain() {
		if change.Record != nil {
			modify(change.Record)
		}
	}
	same(f.t, "records after the import was modified", f.records("imported"), imported)
	f.do(&store.Delete{ConversationID: "imported"})
	same(f.t, "records after arguments and results were modified", f.allRecords(), before)
}
