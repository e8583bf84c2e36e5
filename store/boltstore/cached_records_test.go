package boltstore

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/boltstore/internal/cache"
	"github.com/parleyhq/parley/store/internal/records"
)

// openCached opens a store with a journal of that budget, or none, and a cache of that size.
func openCached(t *testing.T, o store.Options, budget int64, cacheBytes int) *Store {
	t.Helper()
	s, err := Open(newPath(t), Options{Options: o, JournalBudget: budget, segmentBytes: 16 << 10, CacheBytes: cacheBytes})
	if err != nil {
		t.Fatal(err)
	}
	s.db.NoSync = true // As in open.
	t.Cleanup(func() { s.Close() })
	return s
}

// putValue returns the write of a record.
func putValue(key, value string) *parleyv1.RecordWrite {
	return &parleyv1.RecordWrite{Key: key, Value: []byte(value)}
}

// valueIn returns the value of record "k" of a conversation of tenant "acme", or of the tenant; "none" if there is no
// record, and "ended" if there is no conversation.
func valueIn(t *testing.T, s *Store, id string) string {
	t.Helper()
	found, err := getRecords(t.Context(), s, &store.GetRecords{
		Tenant: "acme", ConversationID: id, Keys: []string{"k"}, MaxBytes: 1,
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "ended"
	case err != nil:
		t.Fatal(err)
	case len(found) == 0:
		return "none"
	case found[0].GetConversationId() != id || found[0].GetKey() != "k":
		t.Errorf("GetRecords(%q) = %v", id, found)
	}
	return string(found[0].GetValue())
}

// wantRecord checks a value, which it reads twice, and whether the cache has it for the second read.
func wantRecord(t *testing.T, s *Store, id, want string, cached bool) {
	t.Helper()
	first, hits := valueIn(t, s, id), s.State().Cache.Hits
	second := valueIn(t, s, id)
	if found := s.State().Cache.Hits > hits; first != want || second != want || found != cached {
		t.Errorf("record of %q is %q and %q, in the cache %t; want %q, %t", id, first, second, found, want, cached)
	}
}

// TestCachedRecords reads a record between writes of all kinds, with a journal and without.
func TestCachedRecords(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		for _, id := range []string{"c", ""} {
			t.Run(fmt.Sprintf("journal %d, conversation %q", budget, id), func(t *testing.T) {
				c := newClock()
				s := openCached(t, store.Options{Now: c.Now}, budget, 1<<20)
				appendTo(t, s, "c", "hello")
				write(t, s, id, putValue("k", "1"), putValue("other", "x"))
				wantRecord(t, s, id, "1", true)
				write(t, s, id, putValue("k", "2"))
				wantRecord(t, s, id, "2", true)
				appendTo(t, s, "c", "more")
				wantRecord(t, s, id, "2", true)
				large := string(make([]byte, maxCachedRecord))
				write(t, s, id, putValue("k", large))
				wantRecord(t, s, id, large, false)
				write(t, s, id, putValue("k", "3"))
				wantRecord(t, s, id, "3", true)
				if s.folder != nil {
					s.folder.fold()
				}
				wantRecord(t, s, id, "3", true)
				write(t, s, id, &parleyv1.RecordWrite{Key: "k", Delete: true})
				wantRecord(t, s, id, "none", false)
				write(t, s, id, putValue("k", "4"))
				wantRecord(t, s, id, "4", true)
				wantConsistent(t, s)
			})
		}
	}
}

// TestCachedRecordsEnd checks that cached records are not found after their conversation has ended, in all ways, nor in
// another conversation with the same id. The tenant's record has a ttl.
func TestCachedRecordsEnd(t *testing.T) {
	c := newClock()
	s := openCached(t, store.Options{Now: c.Now}, 1<<20, 1<<20)
	ends := map[string]func(id string) error{
		"delete": func(id string) error { return s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}) },
		"expire": func(string) error { c.advance(31 * 24 * time.Hour); return nil },
		"purge": func(string) error {
			_, err := s.Purge(t.Context(), &store.Purge{Tenant: "acme"})
			return err
		},
		"release": func(id string) error {
			h := &store.Hold{Tenant: "acme", ConversationIDs: []string{id}, DeleteAfter: time.Minute}
			if err := errors.Join(s.Hold(t.Context(), h), s.Release(t.Context(), h)); err != nil {
				return err
			}
			wantRecord(t, s, id, "1", true)
			c.advance(time.Minute)
			return nil
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			appendTo(t, s, name, "hello")
			write(t, s, name, putValue("k", "1"))
			wantRecord(t, s, name, "1", true)
			if err := end(name); err != nil {
				t.Fatal(err)
			}
			wantRecord(t, s, name, "ended", false)
			appendTo(t, s, name, "hello again")
			wantRecord(t, s, name, "none", false)
			write(t, s, name, putValue("k", "2"))
			wantRecord(t, s, name, "2", true)
		})
	}
	write(t, s, "", &parleyv1.RecordWrite{Key: "k", Value: []byte("1"), Ttl: durationpb.New(time.Minute)})
	wantRecord(t, s, "", "1", true)
	c.advance(time.Minute)
	if got := valueIn(t, s, ""); got != "none" {
		t.Errorf("record of the tenant = %q after its ttl, want none", got)
	}
	if _, err := s.Sweep(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	c.advance(-time.Minute) // The record was swept, so it does not come back when the clock is set back.
	if got := valueIn(t, s, ""); got != "none" {
		t.Errorf("record of the tenant = %q after it was swept, want none", got)
	}
}

// TestCachedRecordOvertaken checks that a record which was read before a write is not put into the cache after it.
func TestCachedRecordOvertaken(t *testing.T) {
	for _, budget := range []int64{0, 1 << 20} {
		s := openCached(t, store.Options{}, budget, 1<<20)
		uid := appendTo(t, s, "c", "hello").Conversation.GetUid()
		for _, id := range []string{"c", ""} {
			write(t, s, id, putValue("k", "1"))
			key := cachedRecordKey("acme", "", "k")
			if id != "" {
				key = cachedRecordKey("acme", uid, "k")
			}
			fill := s.tally.cache.Fill(key)
			if fill == nil {
				t.Fatalf("Fill(%q) = nil", key)
			}
			write(t, s, id, putValue("k", "2"))
			fill.Put(cache.State{Head: []byte("old")})
			wantRecord(t, s, id, "2", true)
		}
	}
}

// TestCachedRecordsConcurrently makes writers count in records while others read them, delete the conversations and
// fold the journal. A read returns what was written before it or later, with caches of all sizes.
func TestCachedRecordsConcurrently(t *testing.T) {
	for _, budget := range []int64{0, 8 << 10} {
		for _, cacheBytes := range []int{0, 8 << 10, 1 << 20} {
			t.Run(fmt.Sprintf("journal %d, cache %d", budget, cacheBytes), func(t *testing.T) {
				s := openCached(t, store.Options{}, budget, cacheBytes)
				var group sync.WaitGroup
				for _, id := range []string{"a", "b", ""} {
					group.Go(func() { countUp(t, s, id, 150) })
				}
				group.Wait()
				wantConsistent(t, s)
			})
		}
	}
}

// countUp writes rising numbers to a record. In the meantime, readers check that they find no number below the last one
// that was written before the read. From time to time, countUp deletes the record or the conversation.
func countUp(t *testing.T, s *Store, id string, steps int) {
	t.Helper()
	var written atomic.Int64           // the newest number that is not deleted, or 0
	var deleting, deleted atomic.Int64 // the newest number whose deletion has begun, or has ended
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			last := 0
			for {
				select {
				case <-done:
					return
				default:
				}
				least, gone := written.Load(), deleted.Load()
				switch got := valueIn(t, s, id); got {
				case "none", "ended":
					if least > 0 && deleting.Load() < least {
						t.Errorf("record of %q is %s, want at least %d", id, got, least)
					}
				default:
					n, _ := strconv.Atoi(got)
					if n < int(least) || n <= int(gone) || n < last {
						t.Errorf("record of %q = %d, want at least %d, more than %d, at least %d", id, n, least, gone, last)
					}
					last = n
				}
			}
		})
	}
	for n := 1; n <= steps; n++ {
		if id != "" && n%10 == 1 {
			appendTo(t, s, id, fmt.Sprint(n))
		}
		write(t, s, id, putValue("k", strconv.Itoa(n)))
		written.Store(int64(n))
		if n%5 == 0 {
			deleting.Store(int64(n))
			written.Store(0)
			deleteIn(t, s, id, n%10 == 0)
			deleted.Store(int64(n))
		}
	}
	close(done)
	readers.Wait()
}

// deleteIn deletes the record, or all of its conversation.
func deleteIn(t *testing.T, s *Store, id string, conversation bool) {
	t.Helper()
	if id == "" || !conversation {
		write(t, s, id, &parleyv1.RecordWrite{Key: "k", Delete: true})
	} else if err := s.Delete(t.Context(), &store.Delete{Tenant: "acme", ConversationID: id}); err != nil {
		t.Error(err)
	}
}

// checkCachedRecords checks that the cache has the records of a conversation as they are, or not at all. c is nil for
// those of the tenant.
func checkCachedRecords(r *reader, of scope, all *cache.Cache, tenant string, c *parleyv1.Conversation) error {
	for key, value := range r.ascend(of)("") {
		state, ok := all.Get(cachedRecordKey(tenant, c.GetUid(), key))
		if !ok {
			continue
		}
		frame, expires, err := records.Frame(c.GetId(), key, value)
		if err != nil || !bytes.Equal(state.Head, frame) || !state.Expires.Equal(expires) {
			return errors.Join(fmt.Errorf("the cache has another record %q", key), err)
		}
	}
	return nil
}
