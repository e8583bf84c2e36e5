package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/boltfile"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/internal/records"
)

// putOf returns the write of a record with a value of size bytes.
func putOf(key string, size int) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: bytes.Repeat([]byte{'v'}, size)}
}

// write writes records of a conversation of tenant "acme", or of the tenant if id is empty.
func write(t *testing.T, s *Store, id string, writes ...*parleyv1.RecordWrite) *store.WrittenRecords {
	t.Helper()
	written, err := s.WriteRecords(t.Context(), &store.WriteRecords{Tenant: "acme", ConversationID: id, Writes: writes})
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// recordKeys returns the keys and sizes of the records of a conversation of tenant "acme", or of the tenant.
func recordKeys(t *testing.T, s *Store, id string) (keys string) {
	t.Helper()
	found, more, err := s.ListRecords(t.Context(), &store.ListRecords{
		Tenant: "acme", ConversationID: id, Limit: 1 << 20, MaxBytes: 1 << 30,
	})
	if err != nil || more {
		t.Fatalf("ListRecords of %q: more %v, %v", id, more, err)
	}
	for _, r := range found {
		keys += fmt.Sprintf("%s:%d ", r.GetKey(), len(r.GetValue()))
	}
	return strings.TrimSpace(keys)
}

// TestRecordsSchema checks that the first record changes the schema, so that versions without records refuse the file,
// and that a file without records keeps the schema that they read.
func TestRecordsSchema(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		path := newPath(t)
		s := openJournaled(t, path, store.Options{}, budget)
		appendTo(t, s, "c", "hello")
		if got, want := schemaOf(t, s), boltfile.EncodeSchema(boltfile.SchemaOf(budget > 0, false, false)); !bytes.Equal(got, want) {
			t.Errorf("schema without records = %x, want %x", got, want)
		}
		write(t, s, "c", putOf("k", 1))
		if got, want := schemaOf(t, s), boltfile.EncodeSchema(boltfile.SchemaOf(budget > 0, true, false)); !bytes.Equal(got, want) {
			t.Errorf("schema with records = %x, want %x", got, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path, store.Options{})
		if got := schemaOf(t, s); !bytes.Equal(got, boltfile.EncodeSchema(boltfile.RecordsSchemaVersion)) {
			t.Errorf("schema after Close = %x", got)
		}
		wantConsistent(t, s)
	}
}

// TestJournaledRecords checks which writes of records the journal takes.
func TestJournaledRecords(t *testing.T) {
	var journaled atomic.Int64
	s, err := Open(newPath(t), Options{JournalBudget: 64 << 20, OnCommit: func(c store.Commit) {
		if c.Journal {
			journaled.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, id := range []string{"c", "d"} {
		appendTo(t, s, id, "hello")
	}
	wantTransaction := func(what string, want bool, do func()) {
		t.Helper()
		before := journaled.Load()
		do()
		if got := journaled.Load() == before; got != want {
			t.Errorf("%s was a transaction: %v, want %v", what, got, want)
		}
	}
	ofTenant := func(w *parleyv1.RecordWrite) *parleyv1.RecordWrite {
		w.TenantScope = true
		return w
	}
	wantTransaction("the first record of the file", true, func() { write(t, s, "c", putOf("k", 1)) })
	wantTransaction("a record of a conversation", false, func() { write(t, s, "c", putOf("k", 1000)) })
	wantTransaction("records of both scopes", false, func() { write(t, s, "d", putOf("k", 1), ofTenant(putOf("k", 1))) })
	wantTransaction("a record of the tenant", false, func() { write(t, s, "", putOf("k", 2)) })
	wantTransaction("a deletion", false, func() { write(t, s, "", &parleyv1.RecordWrite{Key: "k", Delete: true}) })
	wantTransaction("a large record", true, func() { write(t, s, "c", putOf("large", maxJournaledRecords)) })
	wantTransaction("the record of a tenant that the file does not name", true, func() {
		if _, err := s.WriteRecords(t.Context(), &store.WriteRecords{
			Tenant: "other", Writes: []*parleyv1.RecordWrite{putOf("k", 1)},
		}); err != nil {
			t.Fatal(err)
		}
	})
	const size = maxJournaledRecords - 1000
	for i := range maxPendingBytes / size {
		wantTransaction("a record within the limit of a scope", false, func() { write(t, s, "d", putOf(fmt.Sprint(i), size)) })
	}
	wantTransaction("the record beyond the limit of a scope", true, func() { write(t, s, "d", putOf("last", size)) })
	wantTransaction("the next one", false, func() { write(t, s, "d", putOf("next", size)) })
	wantConsistent(t, s)
}

// TestManyRecords removes conversations whose records are too many for one transaction. They are not found from then
// on, and do not count. Sweep removes them from the file.
func TestManyRecords(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		path := newPath(t)
		s := openJournaled(t, path, store.Options{}, budget)
		for c := range 2 {
			appendTo(t, s, fmt.Sprint(c), "hello")
			for i := range 11 {
				var writes []*parleyv1.RecordWrite
				for j := range 100 {
					writes = append(writes, putOf(fmt.Sprint(i, "/", j), 10))
				}
				write(t, s, fmt.Sprint(c), writes...)
			}
		}
		left := func() (n int) {
			_ = s.db.View(func(tx *bolt.Tx) error {
				n = countEntries(tx, layout.RecordsBucket) + countEntries(tx, layout.OrphansBucket)
				return nil
			})
			return n
		}
		for c := range 2 {
			if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: fmt.Sprint(c)}); err != nil {
				t.Fatal(err)
			}
		}
		wantConsistent(t, s)
		if n := left(); budget == 0 && n != 2*(1100-maxRemoved+1) { // With a journal, the file may have fewer.
			t.Errorf("%d records and orphans are left, want %d and 2", n, 2*(1100-maxRemoved))
		}
		if stats, err := s.Stats(t.Context()); err != nil || stats.Records != 0 || stats.Bytes != 0 {
			t.Errorf("Stats = %+v, %v, want no records", stats, err)
		}
		appendTo(t, s, "0", "hello again")
		if got := recordKeys(t, s, "0"); got != "" {
			t.Errorf("records of a new conversation with the same id = %s", got)
		}
		sweep(t, s)
		if n := left(); n != 0 {
			t.Errorf("%d records and orphans are left after Sweep, want none", n)
		}
		wantConsistent(t, s)
	}
}

// TestRecordsCopied checks that a backup, a restored copy of a killed store, and a compacted file have all records.
func TestRecordsCopied(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	appendTo(t, s, "c", "hello")
	write(t, s, "c", putOf("in the file", 2))
	write(t, s, "", putOf("in the file", 3))
	s.folder.fold()
	write(t, s, "c", putOf("in the journal", 4))
	written := write(t, s, "", putOf("in the journal", 5), &parleyv1.RecordWrite{
		Key: "with a ttl", Ttl: durationpb.New(time.Hour),
	})
	wantAll := func(what string, s *Store) {
		t.Helper()
		wantConsistent(t, s)
		if got := recordKeys(t, s, "c"); got != "in the file:2 in the journal:4" {
			t.Errorf("records of the conversation in %s = %s", what, got)
		}
		if got := recordKeys(t, s, ""); got != "in the file:3 in the journal:5 with a ttl:0" {
			t.Errorf("records of the tenant in %s = %s", what, got)
		}
	}
	wantAll("the store", s)
	backup, copied := newPath(t), newPath(t)
	b, err := s.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(b)
	if err := errors.Join(err, b.Close(), os.WriteFile(backup, content, boltfile.FileMode)); err != nil {
		t.Fatal(err)
	}
	kill(t, s)
	if done, err := Check(path, func(fault string) { t.Error(fault) }); err != nil || done.Records != 5 {
		t.Errorf("Check of the killed store = %+v, %v, want 5 records", done, err)
	}
	if _, err := Restore(t.Context(), path, copied, RestoreOptions{Check: checkSound}); err != nil {
		t.Fatal(err)
	}
	wantAll("the restored copy", open(t, copied, store.Options{}))
	wantAll("the backup", open(t, backup, store.Options{}))
	if _, err := Compact(path, checkSound); err != nil {
		t.Fatal(err)
	}
	s = openJournaled(t, path, store.Options{}, 1<<20)
	wantAll("the compacted file", s)
	if next := write(t, s, "", putOf("next", 1)); next.TenantRevision != written.TenantRevision+1 {
		t.Errorf("revision after the restart = %d, want %d", next.TenantRevision, written.TenantRevision+1)
	}
}

// TestCheckRecords damages records and the entries that belong to them.
func TestCheckRecords(t *testing.T) {
	change := func(bucket string, key []byte, edit func([]byte) []byte) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte(bucket))
			if key == nil {
				key, _ = b.Cursor().First()
			}
			if value := edit(bytes.Clone(b.Get(key))); value != nil {
				return b.Put(bytes.Clone(key), value)
			}
			return b.Delete(key)
		}
	}
	flip := func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
	drop := func([]byte) []byte { return nil }
	ofTenant := append(layout.TenantScope("acme"), "ttl"...)
	stray := append(layout.ConversationScope("acme", layout.InnerKey{1}), "k"...)
	sound := func([]byte) []byte {
		value, _ := records.Marshal(&parleyv1.Record{Key: "k", Revision: 1})
		return value
	}
	for name, test := range map[string]struct {
		write func(*bolt.Tx) error
		want  string
	}{
		"value":         {change(layout.RecordsBucket, ofTenant, flip), `record "ttl" in the records of tenant "acme": record is corrupt`},
		"lost":          {change(layout.RecordsBucket, ofTenant, drop), `records of tenant "acme": it has 0 records`},
		"no scope":      {change(layout.RecordsBucket, stray, sound), "their conversation does not exist"},
		"no key":        {change(layout.RecordsBucket, []byte{1}, sound), "is not the key of a record"},
		"state":         {change(layout.ScopesBucket, nil, flip), `records of tenant "acme": record is corrupt`},
		"state lost":    {change(layout.ScopesBucket, nil, drop), "or the tenant has no entry in scopes"},
		"end":           {change(layout.RecordEndsBucket, nil, flip), `it expires at`},
		"end lost":      {change(layout.RecordEndsBucket, nil, drop), `it expires at`},
		"another end":   {change(layout.RecordEndsBucket, layout.RecordEndKey(7, "acme", "k"), func([]byte) []byte { return layout.EncodeDue(layout.RecordEndKey(7, "acme", "k"), 7) }), "leads to no record"},
		"orphan":        {change(layout.OrphansBucket, []byte{1}, func([]byte) []byte { return []byte{1} }), "orphans: entry 01 is damaged"},
		"orphan exists": {orphanExisting, "they are orphans, but the conversation exists"},
		"lost of a conversation": {func(tx *bolt.Tx) error {
			key, _ := tx.Bucket([]byte(layout.RecordsBucket)).Cursor().Last()
			return tx.Bucket([]byte(layout.RecordsBucket)).Delete(key)
		}, `conversation "c" of tenant "acme": it has 0 records of 0 bytes, but counts 1 of`},
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			s := open(t, path, store.Options{})
			appendTo(t, s, "c", "hello")
			write(t, s, "c", putOf("k", 1))
			write(t, s, "", &parleyv1.RecordWrite{Key: "ttl", Ttl: durationpb.New(time.Hour)})
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			wantSound(t, path)
			updateFile(t, path, test.write)
			var reported []string
			if _, err := Check(path, func(fault string) { reported = append(reported, fault) }); !errors.Is(err, ErrDamaged) {
				t.Errorf("Check = %v, want ErrDamaged", err)
			}
			if !strings.Contains(strings.Join(reported, "\n"), test.want) {
				t.Errorf("reported faults = %q, want %q", reported, test.want)
			}
		})
	}
}

// orphanExisting makes the records of a conversation that exists orphans.
func orphanExisting(tx *bolt.Tx) error {
	key, _ := tx.Bucket([]byte(layout.ConversationsBucket)).Cursor().First()
	of := layout.ConversationScope("acme", layout.InnerKey(key[len(key)-record.KeySize:]))
	return tx.Bucket([]byte(layout.OrphansBucket)).Put(of, layout.EncodeOrphan(of))
}

// TestTenantRecordsRecovered checks that operations of the journal that a transaction has folded are not applied again
// after a kill, that records that expire are swept if only the journal has them, and that counts of 0 are kept while the
// file has a record whose deletion only the journal has.
func TestTenantRecordsRecovered(t *testing.T) {
	path, clock := newPath(t), newClock()
	s := openJournaled(t, path, store.Options{Now: clock.Now}, 1<<20)
	write(t, s, "", putOf("first", 1))
	write(t, s, "", putOf("journaled", 1))
	folded := write(t, s, "", putOf("large", maxJournaledRecords)) // It folds the others.
	write(t, s, "", &parleyv1.RecordWrite{Key: "ttl", Ttl: durationpb.New(time.Minute)})
	clock.advance(time.Hour)
	sweep(t, s)
	if stats, err := s.TenantStats(t.Context(), "acme"); err != nil || stats.Records != 3 {
		t.Errorf("TenantStats after Sweep = %+v, %v, want 3 records", stats, err)
	}
	kill(t, s)
	s = openJournaled(t, path, store.Options{Now: clock.Now}, 1<<20)
	wantConsistent(t, s)
	if next := write(t, s, "", putOf("next", 1)); next.TenantRevision != folded.TenantRevision+2 {
		t.Errorf("revision after the kill = %d, want %d", next.TenantRevision, folded.TenantRevision+2)
	}
	for _, key := range []string{"first", "journaled", "large", "next"} {
		write(t, s, "", &parleyv1.RecordWrite{Key: key, Delete: true})
	}
	appendTo(t, s, "c", "hello")
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "c"}); err != nil {
		t.Fatal(err)
	}
	kill(t, s)
	s = openJournaled(t, path, store.Options{Now: clock.Now}, 0)
	wantConsistent(t, s)
	if tenants, _, err := s.Tenants(t.Context(), "", 10); err != nil || len(tenants) != 0 {
		t.Errorf("Tenants = %v, %v, want none", tenants, err)
	}
}

// getRecords returns the decoded records of [store.Store.GetRecords]. It returns an error if keys are omitted.
func getRecords(ctx context.Context, s store.Store, g *store.GetRecords) ([]*parleyv1.Record, error) {
	frames, omitted, err := s.GetRecords(ctx, g)
	if err == nil && len(omitted) > 0 {
		err = fmt.Errorf("GetRecords omits %q", omitted)
	}
	if err != nil {
		return nil, err
	}
	return frames.Records()
}
