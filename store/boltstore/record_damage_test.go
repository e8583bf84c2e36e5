package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/layout"
)

// damageLeaf damages the flags of each leaf page of an open file that contains mark and not except. repair undoes that.
func damageLeaf(t *testing.T, path, mark, except string) (repair func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before := map[int][]byte{}
	size := os.Getpagesize()
	for at := 0; at+size <= len(file); at += size {
		page := file[at : at+size]
		leaf := binary.NativeEndian.Uint16(page[8:]) == leafPageFlag &&
			binary.NativeEndian.Uint64(page) == uint64(at/size)
		if leaf && bytes.Contains(page, []byte(mark)) && !bytes.Contains(page, []byte(except)) {
			before[at+8] = page[8:10]
		}
	}
	if len(before) == 0 {
		t.Fatalf("no page contains %q without %q", mark, except)
	}
	put := func(at int, b []byte) {
		if _, err := f.WriteAt(b, int64(at)); err != nil {
			t.Error(err)
		}
	}
	for at := range before {
		put(at, []byte{0xff, 0xff})
	}
	return func() {
		for at, b := range before {
			put(at, b)
		}
		f.Close()
	}
}

// TestDamagedPageUnderFold damages a page that a fold of a tenant's records reads. The write that folds them fails, and
// the records in the journal stay.
func TestDamagedPageUnderFold(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 64<<20)
	for i := range 100 {
		write(t, s, "", putOf(fmt.Sprintf("k%03d", i), 1000))
	}
	write(t, s, "", putOf("k000", 2*maxJournaledRecords)) // It folds the others.
	want := write(t, s, "", putOf("k050", 7)).TenantRevision
	repair := damageLeaf(t, path, "k050", "k000")
	_, err := s.WriteRecords(t.Context(), &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{putOf("k001", 2*maxJournaledRecords)},
	})
	if !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("WriteRecords = %.99v, want ErrCorrupt", err)
	}
	repair()
	found, err := getRecords(t.Context(), s, &store.GetRecords{Tenant: "acme", Keys: []string{"k050"}, MaxBytes: 1 << 20})
	if err != nil || len(found) != 1 || found[0].GetRevision() != want || len(found[0].GetValue()) != 7 {
		t.Errorf("GetRecords = %.99v, %v, want 7 bytes of revision %d", found, err, want)
	}
	if next := write(t, s, "", putOf("next", 1)).TenantRevision; next != want+1 {
		t.Errorf("revision of the next write = %d, want %d", next, want+1)
	}
	wantConsistent(t, s)
}

// allocated returns how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestJournaledRecordsReadOnce checks that neither a fold nor a list reads an operation once for each of its records.
func TestJournaledRecordsReadOnce(t *testing.T) {
	const operations, each, size = 60, 64, 900
	s := openJournaled(t, newPath(t), store.Options{}, 64<<20)
	write(t, s, "", putOf("first", 1))
	for o := range operations {
		var writes []*parleyv1.RecordWrite
		for i := range each {
			writes = append(writes, putOf(fmt.Sprintf("%02d/%02d", i, o), size))
		}
		write(t, s, "", writes...)
	}
	const limit = 6 * operations * each * size // Reading operations once for each record takes 64 times their size.
	list := func() {
		found, _, err := s.ListRecords(t.Context(), &store.ListRecords{
			Tenant: "acme", KeysOnly: true, Limit: 1 << 20, MaxBytes: 1 << 30,
		})
		if err != nil || len(found) != operations*each+1 {
			t.Errorf("ListRecords = %d records, %v", len(found), err)
		}
	}
	if n := allocated(list); n > limit {
		t.Errorf("a list of keys has allocated %d bytes, want at most %d", n, limit)
	}
	if n := allocated(s.folder.fold); n > 2*limit {
		t.Errorf("a fold has allocated %d bytes, want at most %d", n, 2*limit)
	}
	wantConsistent(t, s)
}

// writeMany creates a conversation with 1100 records of 500 bytes, more than a transaction removes.
func writeMany(t *testing.T, s *Store, id string) {
	t.Helper()
	appendTo(t, s, id, "hello")
	for i := range 11 {
		var writes []*parleyv1.RecordWrite
		for j := range 100 {
			writes = append(writes, putOf(fmt.Sprintf("%s/%04d", id, 100*i+j), 500))
		}
		write(t, s, id, writes...)
	}
}

// TestDamagedOrphans damages the records of a removed conversation. Sweep reports them once in an hour, and removes those
// of other conversations.
func TestDamagedOrphans(t *testing.T) {
	path, clock := newPath(t), newClock()
	s := open(t, path, store.Options{Now: clock.Now})
	for _, id := range []string{"first", "second"} {
		writeMany(t, s, id)
		clock.advance(time.Second)
	}
	for _, id := range []string{"first", "second"} {
		if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
			t.Fatal(err)
		}
	}
	damageLeaf(t, path, "first/1050", "second/")
	for i, want := range []error{store.ErrCorrupt, nil, store.ErrCorrupt} {
		if _, err := s.Sweep(t.Context(), 10); !errors.Is(err, want) {
			t.Errorf("call %d of Sweep = %.99v, want %v", i, err, want)
		}
		if i > 0 {
			clock.advance(deferPeriod)
		}
	}
	_ = s.db.View(func(tx *bolt.Tx) error {
		if n := countEntries(tx, layout.OrphansBucket); n != 1 {
			t.Errorf("%d orphans are left, want that with damage", n)
		}
		return nil
	})
}

// TestCheckOrphans checks that Check does not count the records of a removed conversation.
func TestCheckOrphans(t *testing.T) {
	path := newPath(t)
	s := open(t, path, store.Options{})
	writeMany(t, s, "c")
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "c"}); err != nil {
		t.Fatal(err)
	}
	write(t, s, "", putOf("of the tenant", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if done, err := Check(path, func(fault string) { t.Error(fault) }); err != nil || done.Records != 1 {
		t.Errorf("Check = %+v, %v, want 1 record", done, err)
	}
}

// TestDamagedConversationCounts deletes a conversation that is damaged in the file and in the journal. Its records no
// longer count.
func TestDamagedConversationCounts(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	for _, id := range []string{"bad", "other"} {
		appendTo(t, s, id, "hello")
	}
	write(t, s, "bad", putOf("a", 10), putOf("c", 10))
	write(t, s, "bad", &parleyv1.RecordWrite{Key: "b", Value: []byte("text")})
	kill(t, s)
	s = openJournaled(t, path, store.Options{}, 1<<20) // It has no head of the conversation in memory.
	damage(t, s, layout.ConversationsBucket, badKey, flip(20))
	damageSegment(t, path, "text")
	if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: "bad"}); err != nil {
		t.Fatal(err)
	}
	stats, err := s.TenantStats(t.Context(), "acme")
	if err != nil || stats.Conversations != 1 || stats.Records != 0 || stats.RecordBytes != 0 {
		t.Errorf("TenantStats = %+v, %v, want 1 conversation without records", stats, err)
	}
}

// TestDamagedJournalUnderRead checks that a read of records which the journal cannot return fails with the error of the
// journal, not with that of a record without a value.
func TestDamagedJournalUnderRead(t *testing.T) {
	path := newPath(t)
	s := openJournaled(t, path, store.Options{}, 1<<20)
	appendTo(t, s, "c", "hello")
	write(t, s, "c", putOf("a", 10))
	write(t, s, "c", &parleyv1.RecordWrite{Key: "b", Value: []byte("text")})
	damageSegment(t, path, "text")
	_, err := s.Read(t.Context(), &store.Read{Tenant: "acme", ConversationID: "c", RecordPrefixes: []string{""}})
	if !errors.Is(err, store.ErrCorrupt) || !errors.Is(err, ErrDamaged) {
		t.Errorf("Read = %v, want ErrCorrupt because of the journal", err)
	}
}

// TestRefusedCopyReadsNoRecords checks that a create that exceeds a limit with the records that it copies is refused
// before they are read.
func TestRefusedCopyReadsNoRecords(t *testing.T) {
	const size = 8 << 20
	var maxBytes atomic.Int64
	s := open(t, newPath(t), store.Options{Limits: func(string) store.Limits {
		return store.Limits{MaxBytes: maxBytes.Load()}
	}})
	appendTo(t, s, "c", "hello")
	write(t, s, "c", putOf("k", size))
	create := func() (err error) {
		n := allocated(func() {
			_, err = s.Create(t.Context(), &store.Create{
				Tenant: "acme", Conversation: &parleyv1.Conversation{Id: "copy"}, RecordsOf: "c",
			})
		})
		if err != nil && n > size/8 {
			t.Errorf("a refused Create has allocated %d bytes", n)
		}
		return err
	}
	maxBytes.Store(size * 3 / 2)
	var tenantFull *store.TenantBytesError
	if err := create(); !errors.As(err, &tenantFull) || tenantFull.Bytes < 2*size {
		t.Errorf("Create above the limit of the tenant = %v, want TenantBytesError", err)
	}
	maxBytes.Store(0)
	s.options.MaxRecordBytes = size - 1
	var recordsFull *store.RecordsFullError
	if err := create(); !errors.As(err, &recordsFull) {
		t.Errorf("Create above the limit of records = %v, want RecordsFullError", err)
	}
	s.options.MaxRecordBytes = 2 * size
	if err := create(); err != nil {
		t.Errorf("Create within the limits = %v", err)
	}
	if got, want := recordKeys(t, s, "copy"), fmt.Sprintf("k:%d", size); got != want {
		t.Errorf("records of the copy = %s, want %s", got, want)
	}
	wantConsistent(t, s)
}
