package storetest

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// allBytes is a limit that no result of a test reaches.
const allBytes = 1 << 30

// put returns the write of a record.
func put(key, value string) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(value), MediaType: "text/plain"}
}

// remove returns the deletion of a record.
func remove(key string) *parleyv1.RecordWrite { return &parleyv1.RecordWrite{Key: key, Delete: true} }

// ifRevision returns the write with a required revision.
func ifRevision(w *parleyv1.RecordWrite, revision int64) *parleyv1.RecordWrite {
	w.IfRevision = &revision
	return w
}

// ofTenant returns the write as one of the tenant's records.
func ofTenant(w *parleyv1.RecordWrite) *parleyv1.RecordWrite {
	w.TenantScope = true
	return w
}

// expiring returns the write with a ttl.
func expiring(w *parleyv1.RecordWrite, ttl time.Duration) *parleyv1.RecordWrite {
	w.Ttl = durationpb.New(ttl)
	return w
}

// writeRecords writes records of a conversation, or of the tenant if id is empty, one millisecond after the previous
// step.
func (f *fixture) writeRecords(id string, writes ...*parleyv1.RecordWrite) *store.WrittenRecords {
	f.t.Helper()
	f.clock.Advance(time.Millisecond)
	written, err := f.store.WriteRecords(f.t.Context(), &store.WriteRecords{
		Tenant: tenant, ConversationID: id, Writes: writes,
	})
	if err != nil {
		f.t.Fatalf("WriteRecords of %q: %v", id, err)
	}
	return written
}

// refuseRecords makes a write that must fail with want and change nothing. A nil want means any error.
func (f *fixture) refuseRecords(w *store.WriteRecords, want error) {
	f.t.Helper()
	w.Tenant = orTenant(w.Tenant)
	f.unchanged(fmt.Sprintf("WriteRecords of %q", w.ConversationID), func() {
		f.t.Helper()
		if got, err := f.store.WriteRecords(f.t.Context(), w); !errorIs(err, want) || got != nil {
			f.t.Errorf("WriteRecords(%v) = %v, %v, want only error %v", w, got, err, want)
		}
	})
}

// refuse makes an append, create or import that must fail with want and change no conversation and no record.
func (f *fixture) refuse(write any, want error) {
	f.t.Helper()
	f.unchanged(fmt.Sprintf("%T", write), func() {
		f.t.Helper()
		f.expectError(write, want)
	})
}

// unchanged checks that step changes no conversation, no record and no counts, and reports no changes.
func (f *fixture) unchanged(what string, step func()) {
	f.t.Helper()
	conversations, records, stats := f.all(), f.allRecords(), f.stats()
	f.observer.drain()
	step()
	same(f.t, "conversations after "+what, f.all(), conversations)
	same(f.t, "records after "+what, f.allRecords(), records)
	after := f.stats()
	after.FileBytes, after.FileBytesInUse = stats.FileBytes, stats.FileBytesInUse // Upkeep may change them at any time.
	same(f.t, "Stats after "+what, after, stats)
	if changes := f.observer.drain(); len(changes) > 0 {
		f.t.Errorf("%s reported %v", what, summaries(changes))
	}
}

// allRecords returns the records of all conversations of the tenant and of the tenant, by conversation id.
func (f *fixture) allRecords() map[string][]*parleyv1.Record {
	f.t.Helper()
	all := map[string][]*parleyv1.Record{"": f.records("")}
	for id := range f.all() {
		all[id] = f.records(id)
	}
	return all
}

// records returns the records of a conversation, or of the tenant if id is empty.
func (f *fixture) records(id string) []*parleyv1.Record {
	f.t.Helper()
	found, more := f.listRecords(store.ListRecords{ConversationID: id})
	if more {
		f.t.Errorf("ListRecords(%q) without limits has more", id)
	}
	return found
}

// listRecords returns one page. A limit that is 0 is set to one that no test reaches.
func (f *fixture) listRecords(l store.ListRecords) (found []*parleyv1.Record, more bool) {
	f.t.Helper()
	l.Tenant = orTenant(l.Tenant)
	if l.Limit == 0 {
		l.Limit = allBytes
	}
	if l.MaxBytes == 0 {
		l.MaxBytes = allBytes
	}
	found, more, err := f.store.ListRecords(f.t.Context(), &l)
	if err != nil {
		f.t.Fatalf("ListRecords(%+v): %v", l, err)
	}
	if len(found) > l.Limit {
		f.t.Errorf("ListRecords(%+v) returned %d records", l, len(found))
	}
	return found, more
}

// get returns the records of keys.
func (f *fixture) get(id string, keys ...string) []*parleyv1.Record {
	f.t.Helper()
	found, omitted, err := getRecords(f.t.Context(), f.store, &store.GetRecords{
		Tenant: tenant, ConversationID: id, Keys: keys, MaxBytes: allBytes,
	})
	if err != nil || len(omitted) > 0 {
		f.t.Fatalf("GetRecords(%q, %v) omits %v, %v", id, keys, omitted, err)
	}
	return found
}

// shown returns records as "key=value@revision".
func shown(records []*parleyv1.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = fmt.Sprintf("%s=%s@%d", r.GetKey(), r.GetValue(), r.GetRevision())
	}
	return out
}

// keysOf returns the keys of records.
func keysOf(records []*parleyv1.Record) []string {
	keys := make([]string, len(records))
	for i, r := range records {
		keys[i] = r.GetKey()
	}
	return keys
}

// wantRecords checks the records of a conversation, or of the tenant if id is empty, as shown returns them, in lists
// and by their keys, and the counts in the header.
func (f *fixture) wantRecords(id string, want ...string) {
	f.t.Helper()
	found := f.records(id)
	same(f.t, fmt.Sprintf("records of %q", id), shown(found), want)
	same(f.t, fmt.Sprintf("GetRecords of %q", id), f.get(id, keysOf(found)...), found)
	size := int64(0)
	for _, r := range found {
		if r.GetConversationId() != id || int(r.GetSizeBytes()) != len(r.GetValue()) {
			f.t.Errorf("record %v has conversation_id %q and size_bytes %d", r, r.GetConversationId(), r.GetSizeBytes())
		}
		size += store.RecordBytes(r)
	}
	if id == "" {
		return
	}
	if c := f.header(id); int(c.GetRecordCount()) != len(found) || c.GetRecordBytes() != size {
		f.t.Errorf("header of %s has record_count %d and record_bytes %d, want %d and %d", id, c.GetRecordCount(),
			c.GetRecordBytes(), len(found), size)
	}
}

// getRecords returns the decoded records of [store.Store.GetRecords].
func getRecords(
	ctx context.Context, s store.Store, g *store.GetRecords,
) (records []*parleyv1.Record, omitted []string, err error) {
	found, omitted, err := s.GetRecords(ctx, g)
	if err == nil {
		records, err = found.Records()
	}
	return records, omitted, err
}
