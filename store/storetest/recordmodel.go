package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// recordModel is model with calls that write records, and fewer of the others.
func (s Subject) recordModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := s.openFor(t, r, func(o *store.Options) {
			// A conversation has space for three of the four records, two of which have labels.
			o.MaxMessages, o.MaxConversations, o.MaxRecordBytes = 3, s.modelCapacity(3), 3*store.RecordOverhead+40
		})
		m := &machine{fixture: f, oracle: newOracle(f.options), uids: make(map[string]string)}
		actions := map[string]func(*rapid.T){
			"":       m.check,
			"create": m.create, "append": m.append, "turn": m.turn, "update": m.update,
			"append records": m.appendRecords, "append records again": m.appendRecords, "write records": m.writeRecords,
			"write records again": m.writeRecords, "write records of the tenant": m.writeTenantRecords,
			"import": m.importWithRecords, "fork": m.forkWithRecords, "hold": m.hold, "release": m.release,
			"delete": m.delete, "purge": m.purge, "sweep": m.sweepBoth, "advance clock": m.advanceClock,
			"list records": m.listSome,
		}
		if s.Durable {
			actions["reopen"] = m.reopenBoth
		}
		r.Repeat(actions)
		m.deleteAll()
	})
}

func drawKey(r *rapid.T) string {
	return rapid.SampledFrom([]string{"k", "k/1", "k/2", "l"}).Draw(r, "key")
}

// drawWrites draws writes of different records. If allTenant is set, all are of the tenant's records.
func (m *machine) drawWrites(r *rapid.T, id string, allTenant bool) []*parleyv1.RecordWrite {
	var writes []*parleyv1.RecordWrite
	for range rapid.IntRange(1, 3).Draw(r, "writes") {
		m.counter++
		w := put(drawKey(r), fmt.Sprint(m.counter))
		w.MediaType = ""
		w.TenantScope = rapid.IntRange(0, 2).Draw(r, "tenant_scope") == 0
		if slices.ContainsFunc(writes, func(other *parleyv1.RecordWrite) bool {
			return other.GetKey() == w.GetKey() && (allTenant || other.GetTenantScope() == w.GetTenantScope())
		}) {
			continue
		}
		switch rapid.IntRange(0, 5).Draw(r, "kind") {
		case 0, 1:
			w = &parleyv1.RecordWrite{Key: w.GetKey(), Delete: true, TenantScope: w.GetTenantScope()}
		case 2:
			w.Labels = map[string]string{"label": "of some length"}
		case 3:
			if allTenant || w.GetTenantScope() {
				w = expiring(w, time.Duration(rapid.IntRange(1, 40).Draw(r, "ttl"))*time.Minute)
			}
		}
		m.drawIfRevision(r, id, w, allTenant || w.GetTenantScope())
		writes = append(writes, w)
	}
	return writes
}

// drawIfRevision draws no required revision, the present revision, or a random one.
func (m *machine) drawIfRevision(r *rapid.T, id string, w *parleyv1.RecordWrite, inTenant bool) {
	scope := m.oracle.conversations[id].recordsOf()
	if inTenant {
		scope = m.oracle.tenant.records
	}
	switch rapid.IntRange(0, 4).Draw(r, "if_revision") {
	case 0, 1:
		ifRevision(w, scope[w.GetKey()].GetRevision())
	case 2:
		ifRevision(w, int64(rapid.IntRange(0, 6).Draw(r, "revision")))
	}
}

// drawRecordsRequest draws no request, or one whose digest covers the writes.
func drawRecordsRequest(r *rapid.T, method string) *store.Request {
	q := drawRequest(r)
	if q != nil {
		q.Method = method
	}
	return q
}

func (m *machine) writeRecords(r *rapid.T) {
	id := drawID(r)
	m.recordsBoth(&store.WriteRecords{
		Tenant: tenant, ConversationID: id, Writes: m.drawWrites(r, id, false), IfVersion: m.drawVersion(r, id),
		Request: drawRecordsRequest(r, "WriteRecords"),
	})
}

func (m *machine) writeTenantRecords(r *rapid.T) {
	m.recordsBoth(&store.WriteRecords{
		Tenant: tenant, Writes: m.drawWrites(r, "", true), Request: drawRecordsRequest(r, "WriteRecords"),
	})
}

// appendRecords appends messages, or none, together with records.
func (m *machine) appendRecords(r *rapid.T) {
	w := m.drawAppend(r)
	w.Records = m.drawWrites(r, w.ConversationID, false)
	if w.Request == nil && rapid.IntRange(0, 3).Draw(r, "without messages") == 0 {
		w.Messages = nil
	}
	m.writeBoth(w)
}

func (m *machine) forkWithRecords(r *rapid.T) {
	m.writeBoth(&store.Create{
		Conversation: &parleyv1.Conversation{Id: drawID(r)}, RecordsOf: drawID(r), Request: drawRequest(r),
	})
}

func (m *machine) importWithRecords(r *rapid.T) {
	m.nextInstant()
	i := m.newImport(drawID(r), time.Minute)
	i.Overwrite, i.Conversation.SystemPrompt = true, ""
	for _, key := range []string{"k", "l"}[:rapid.IntRange(0, 2).Draw(r, "records")] {
		i.Records = append(i.Records, &parleyv1.Record{Key: key, Value: []byte("imported"), Revision: 5})
	}
	m.writeBoth(i)
}

// recordsBoth makes a write of records in the store and the oracle and compares the results.
func (m *machine) recordsBoth(w *store.WriteRecords) {
	now := m.nextInstant()
	want, wantErr := m.oracle.writeRecords(w, now)
	got, err := m.store.WriteRecords(m.t.Context(), w)
	if wantErr != nil || err != nil {
		if wantErr == nil || !errorIs(err, wantErr) || got != nil {
			m.t.Fatalf("WriteRecords(%+v) = %v, %v, want error %v", w, got, err, wantErr)
		}
		return
	}
	if want.Conversation != nil {
		want.Conversation.SizeBytes = got.Conversation.GetSizeBytes() // check compares it with the messages.
	}
	same(m.t, fmt.Sprintf("WriteRecords(%+v)", w), got, want)
}

// listSome compares a part of a list.
func (m *machine) listSome(r *rapid.T) {
	m.nextInstant()
	id, scope := "", m.oracle.tenant.records
	if ids := m.members(); len(ids) > 0 && rapid.Bool().Draw(r, "of a conversation") {
		id = drawID(r)
		if m.oracle.conversations[id] == nil {
			return
		}
		scope = m.oracle.conversations[id].records
	}
	l := store.ListRecords{
		ConversationID: id, Prefix: rapid.SampledFrom([]string{"", "k", "k/", "l"}).Draw(r, "prefix"),
		After:      rapid.SampledFrom([]string{"", "k", "k/1", "z"}).Draw(r, "after"),
		Descending: rapid.Bool().Draw(r, "descending"), Limit: rapid.IntRange(1, 4).Draw(r, "limit"),
	}
	want := slices.DeleteFunc(scope.sorted(), func(record *parleyv1.Record) bool { return !listed(l, record.GetKey()) })
	if l.Descending {
		slices.Reverse(want)
	}
	got, more := m.listRecords(l)
	same(m.t, fmt.Sprintf("ListRecords(%+v)", l), got, want[:min(l.Limit, len(want))])
	if more != (len(want) > l.Limit) {
		m.t.Fatalf("ListRecords(%+v) of %d records reports more = %v", l, len(want), more)
	}
}

// checkRecords compares all records and their counts. The store may have more of them that have expired.
func (m *machine) checkRecords() {
	total, size := len(m.oracle.tenant.records), m.oracle.tenant.records.size()
	same(m.t, "records of the tenant", m.records(""), m.oracle.tenant.records.sorted())
	for id, c := range m.oracle.conversations {
		want := c.records.sorted()
		snapshot, err := m.store.Read(m.t.Context(), &store.Read{
			Tenant: tenant, ConversationID: id, RecordPrefixes: []string{""},
		})
		if err != nil {
			m.t.Fatal(err)
		}
		same(m.t, "records of Read of "+id, snapshot.Records, want)
		same(m.t, "records of "+id, m.records(id), want)
		total, size = total+len(want), size+c.records.size()
	}
	if stats := m.stats(); stats.Records < int64(total) || stats.RecordBytes < size {
		m.t.Fatalf("Stats() = %+v, want at least %d records with %d bytes", stats, total, size)
	}
}

// deleteRecords deletes the records of the tenant.
func (m *machine) deleteRecords() {
	for _, record := range m.oracle.tenant.records.sorted() {
		m.recordsBoth(&store.WriteRecords{Tenant: tenant, Writes: []*parleyv1.RecordWrite{remove(record.GetKey())}})
	}
}
