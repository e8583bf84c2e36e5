package boltstore

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// modelRecord is a record as TestRandom expects it.
type modelRecord struct {
	value    string
	revision int64
}

// expiringKey is the key of the records with a ttl. The model does not have them: when the clock is set back, they may
// exist or not.
const expiringKey = "ttl"

// drawWrites draws writes of different records of both scopes.
func drawWrites(r *rapid.T) []*parleyv1.RecordWrite {
	draw := func(r *rapid.T) *parleyv1.RecordWrite {
		w := &parleyv1.RecordWrite{
			Key:         rapid.SampledFrom([]string{"a", "a/b", "b", "c", "d"}).Draw(r, "key"),
			TenantScope: rapid.Bool().Draw(r, "of the tenant"),
		}
		switch rapid.SampledFrom([]string{"put", "put", "large", "delete"}).Draw(r, "write") {
		case "delete":
			w.Delete = true
			return w
		case "large":
			w.Value = make([]byte, rapid.SampledFrom([]int{20, 90, maxJournaledRecords}).Draw(r, "size"))
		default:
			w.Value = []byte(rapid.StringN(0, 9, -1).Draw(r, "value"))
		}
		if w.GetTenantScope() && rapid.IntRange(0, 2).Draw(r, "expires") == 0 {
			w.Key = expiringKey
			w.Ttl = durationpb.New(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(r, "ttl"))
		}
		if rapid.IntRange(0, 9).Draw(r, "requires a revision") == 0 {
			w.IfRevision = new(int64)
		}
		return w
	}
	return rapid.SliceOfNDistinct(rapid.Custom(draw), 1, 4, func(w *parleyv1.RecordWrite) string {
		return fmt.Sprint(w.GetTenantScope(), w.GetKey())
	}).Draw(r, "writes")
}

// writeRecords writes records of a conversation and its tenant, or of a tenant alone.
func (w *randomRun) writeRecords(r *rapid.T) {
	write := &store.WriteRecords{Writes: drawWrites(r)}
	write.Tenant, write.ConversationID = w.name(r)
	if rapid.IntRange(0, 2).Draw(r, "of the tenant alone") == 0 {
		write.ConversationID = ""
		write.Writes = slices.DeleteFunc(write.Writes, func(w *parleyv1.RecordWrite) bool { return !w.GetTenantScope() })
	} else if write.ConversationID == "" {
		return // It would be a write of the tenant alone.
	}
	if rapid.Bool().Draw(r, "with a request") {
		write.Request = &store.Request{ID: fmt.Sprint("r", w.clock.Now(), len(write.Writes)), Method: "WriteRecords"}
	}
	if len(write.Writes) == 0 {
		return
	}
	written, err := w.store.WriteRecords(w.t.Context(), write)
	w.logRefused(r, err)
	if err == nil && !written.Replayed {
		w.wrote(write.Tenant, written.Conversation.GetUid(), written.Revision, written.TenantRevision, write.Writes)
	}
}

// wrote makes writes in the model. uid is that of the conversation.
func (w *randomRun) wrote(
	tenant, uid string, revision, tenantRevision int64, writes []*parleyv1.RecordWrite,
) {
	for _, write := range writes {
		scope, m := uid, modelRecord{value: string(write.GetValue()), revision: revision}
		if write.GetTenantScope() {
			scope, m.revision = "tenant "+tenant, tenantRevision
		}
		if write.GetKey() == expiringKey {
			continue
		}
		if write.GetDelete() {
			delete(w.records[scope], write.GetKey())
		} else {
			w.set(scope, write.GetKey(), m)
		}
	}
	if tenantRevision != 0 {
		if tenantRevision != w.revisions[tenant]+1 {
			w.Fatalf("tenant %q got revision %d after %d", tenant, tenantRevision, w.revisions[tenant])
		}
		w.revisions[tenant] = tenantRevision
	}
}

func (w *randomRun) set(scope, key string, m modelRecord) {
	if w.records[scope] == nil {
		w.records[scope] = map[string]modelRecord{}
	}
	w.records[scope][key] = m
}

// recordsOf returns the records that a store.Create with this RecordsOf copies.
func (w *randomRun) recordsOf(tenant, id string) map[string]modelRecord {
	if id == "" {
		return nil
	}
	s, err := w.store.Read(w.t.Context(), &store.Read{Tenant: tenant, ConversationID: id})
	if err != nil {
		return nil
	}
	return maps.Clone(w.records[s.Conversation.GetUid()])
}

// wantRecords checks that all records are those of the model, in both directions, and in one read with the
// conversation.
func (w *randomRun) wantRecords() {
	for _, tenant := range tenants() {
		w.wantList(tenant, "", w.records["tenant "+tenant])
		for _, id := range conversationIDs() {
			s, err := w.store.Read(w.t.Context(), &store.Read{Tenant: tenant, ConversationID: id, RecordPrefixes: []string{""}})
			if err != nil || id == "" {
				continue
			}
			want := w.records[s.Conversation.GetUid()]
			w.wantSame(tenant+" "+id, s.Records, want, false)
			w.wantList(tenant, id, want)
		}
	}
}

func (w *randomRun) wantList(tenant, id string, want map[string]modelRecord) {
	for _, descending := range []bool{false, true} {
		l := &store.ListRecords{Tenant: tenant, ConversationID: id, Limit: 2, MaxBytes: 1 << 20, Descending: descending}
		var found []*parleyv1.Record
		for more := true; more; {
			var page []*parleyv1.Record
			var err error
			if page, more, err = w.store.ListRecords(w.t.Context(), l); err != nil {
				w.Fatalf("list records of %q: %v", id, err)
			}
			if found = append(found, page...); more {
				l.After = page[len(page)-1].GetKey()
			}
		}
		w.wantSame(tenant+" "+id, found, want, descending)
	}
}

func (w *randomRun) wantSame(name string, found []*parleyv1.Record, want map[string]modelRecord, descending bool) {
	found = slices.DeleteFunc(found, func(r *parleyv1.Record) bool { return r.GetKey() == expiringKey })
	keys := slices.Sorted(maps.Keys(want))
	if descending {
		slices.Reverse(keys)
	}
	got := make([]string, len(found))
	for i, r := range found {
		got[i] = r.GetKey()
		m := want[r.GetKey()]
		if string(r.GetValue()) != m.value || r.GetRevision() != m.revision {
			w.Fatalf("record %q of %s = %.20q at %d, want %.20q at %d", r.GetKey(), name, r.GetValue(), r.GetRevision(), m.value,
				m.revision)
		}
	}
	if !slices.Equal(got, keys) {
		w.Fatalf("records of %s = %q, want %q", name, got, keys)
	}
}
