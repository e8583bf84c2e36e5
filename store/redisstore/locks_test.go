package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// spreadCluster is a store with a spread on a cluster. Conversations are named after the master of their bucket.
type spreadCluster struct {
	*Store

	cluster  *redistest.Cluster
	lost     *redistest.Server // a master that has no record of the tenant
	id, free string            // of conversations at lost and at another master, not in the bucket of the records
	home     string            // of a conversation in the bucket of the records
}

func newSpreadCluster(t *testing.T) *spreadCluster {
	t.Helper()
	c := redistest.StartCluster(t, 3, 0)
	limits := func(string) store.Limits { return store.Limits{MaxBytes: 1 << 30} }
	s := &spreadCluster{cluster: c, Store: openWith(t, Options{
		Options: store.Options{Limits: limits}, Buckets: 16, Spread: 4, Timeout: time.Minute,
	}, addressesIn(c.URL())...)}
	masterOf := func(id string) *redistest.Server { return c.Master(s.spaceOf("acme", id).prefix) }
	for i := 0; s.id == "" || s.free == "" || s.home == ""; i++ {
		id := fmt.Sprint("c", i)
		switch {
		case s.spaceOf("acme", id).index == s.space("acme").index:
			s.home = id
		case s.id == "" && masterOf(id) != masterOf(""):
			s.id, s.lost = id, masterOf(id)
		case s.lost != nil && masterOf(id) != s.lost:
			s.free = id
		}
	}
	return s
}

func (s *spreadCluster) get(ctx context.Context, key string) (string, error) {
	found, _, err := s.GetRecords(ctx, &store.GetRecords{Tenant: "acme", Keys: []string{key}, MaxBytes: 1 << 20})
	if err != nil {
		return "", err
	}
	records, err := found.Records()
	if err != nil || len(records) != 1 {
		return "", err
	}
	return string(records[0].GetValue()), nil
}

func (s *spreadCluster) put(ctx context.Context, key, value string) error {
	return lastError(s.WriteRecords(ctx, &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord(key, value)},
	}))
}

func (s *spreadCluster) append(ctx context.Context, id, key, value string) error {
	return lastError(s.Append(ctx, &store.Append{
		Tenant: "acme", ConversationID: id, Messages: message("more"),
		Records: []*parleyv1.RecordWrite{{Key: key, Value: []byte(value), TenantScope: true}},
	}))
}

// TestSpreadUnreachableBucket: while the bucket of a conversation cannot be reached, all records of its tenant can be
// read and written, except those that a write of the conversation has locked. Afterwards that write is complete, or
// dropped, and no other one is lost.
func TestSpreadUnreachableBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: starts two clusters")
	}
	t.Parallel()
	for what, made := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(what, func(t *testing.T) { testUnreachableBucket(t, made) })
	}
}

func testUnreachableBucket(t *testing.T, made bool) {
	t.Helper()
	s := newSpreadCluster(t)
	a := newAcrossOf(t, s.Store, s.id)
	a.lock(t, made)
	s.lost.Kill()
	// A call that waits for others ends with ctx.
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	home := s.space("acme").key("t")
	if err := s.writes.enter(ctx, home, nil); err != nil {
		t.Fatal(err)
	}
	wantError(t, "Append to the bucket, which must not keep others waiting", s.append(ctx, s.id, "w", "w"),
		store.ErrUnavailable)
	s.writes.leave(home)
	writes := map[string]func() error{
		"tenant":              func() error { return s.put(ctx, "tenant", "1") },
		"another bucket":      func() error { return s.append(ctx, s.free, "another bucket", "1") },
		"the same bucket":     func() error { return s.append(ctx, s.home, "the same bucket", "1") },
		"the tenant again":    func() error { return s.put(ctx, "the tenant again", "1") },
		"the same lock again": func() error { return s.append(ctx, s.free, "the same lock again", "1") },
	}
	for key, write := range writes {
		if err := write(); err != nil {
			t.Errorf("write of record %q = %v, want nil", key, err)
		}
		if got, err := s.get(ctx, key); err != nil || got != "1" {
			t.Errorf("record %q = %q, %v, want 1", key, got, err)
		}
	}
	list := &store.ListRecords{Tenant: "acme", Prefix: "the ", Limit: 9, MaxBytes: 1 << 20}
	if found, _, err := s.ListRecords(ctx, list); err != nil || len(found) != 3 {
		t.Errorf("ListRecords = %v, %v, want 3 records", found, err)
	}
	text := fmt.Sprintf(`record "k" of the tenant is locked by a write of conversation %q, whose bucket`, s.id)
	for call, err := range map[string]error{
		"GetRecords": second(s.get(ctx, "k")), "WriteRecords": s.put(ctx, "k", "no"),
		"Append": s.append(ctx, s.home, "k", "no"),
	} {
		if !isUnavailable(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s of a locked record = %v, want ErrUnavailable with %s", call, err, text)
		}
	}
	s.lost.Restart()
	s.cluster.AwaitComplete()
	s.wantComplete(t, made, keysOf(writes))
}

func keysOf[V any](m map[string]V) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

// wantComplete checks that a write that sets the record k is complete, or dropped, and that the records with these keys
// exist with revisions of their own.
func (s *spreadCluster) wantComplete(t *testing.T, made bool, keys []string) {
	t.Helper()
	value := "old"
	if made {
		value = "new"
	}
	if got, err := s.get(t.Context(), "k"); err != nil || got != value {
		t.Errorf("record k afterwards = %q, %v, want %q", got, err, value)
	}
	found, _, err := s.ListRecords(t.Context(), &store.ListRecords{Tenant: "acme", Limit: 99, MaxBytes: 1 << 20})
	if err != nil || len(found) != len(keys)+1 {
		t.Errorf("ListRecords afterwards = %v, %v, want k and %q", found, err, keys)
	}
	revisions, last := map[int64]string{}, int64(0)
	for _, r := range found {
		if other := revisions[r.GetRevision()]; other != "" {
			t.Errorf("records %q and %q have revision %d, want two", other, r.GetKey(), r.GetRevision())
		}
		revisions[r.GetRevision()], last = r.GetKey(), max(last, r.GetRevision())
	}
	written, err := s.WriteRecords(t.Context(), &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{putRecord("k", "last")},
	})
	if err != nil || written.TenantRevision <= last {
		t.Errorf("WriteRecords afterwards = %+v, %v, want a revision above %d", written, err, last)
	}
	l, err := s.readLocks(t.Context(), s.space("acme"))
	if err != nil || isLocked(l.revision) || len(l.pending) > 0 {
		t.Errorf("locks afterwards = %+v, %v, want none", l, err)
	}
}
