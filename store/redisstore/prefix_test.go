package redisstore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestForeignKeys makes all kinds of calls beside another store and keys of others, which must stay as they are.
func TestForeignKeys(t *testing.T) {
	engine := redistest.Start(t)
	other := openWith(t, Options{Buckets: 1, Prefix: "parley2"}, engine.Addr())
	for _, c := range writeCalls() {
		if err := c.do(t.Context(), other); err != nil {
			t.Fatalf("%s = %v", c.name, err)
		}
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"parley", "parley2:", "parley-notes", "c:4:acme:c", "{3560}c:4:acme:c", "*"} {
		if _, err := engine.Do("SET", key, "foreign"); err != nil {
			t.Fatal(err)
		}
	}
	foreign := func() []string {
		return slices.DeleteFunc(dump(t, engine), func(line string) bool { return strings.HasPrefix(line, "parley:") })
	}
	before := foreign()
	now := time.Now()
	s := openAt(t, store.Options{Now: func() time.Time { return now }}, engine.Addr())
	for _, c := range slices.Concat(writeCalls(), readCalls()) {
		if err := c.do(t.Context(), s); err != nil {
			t.Errorf("%s = %v", c.name, err)
		}
	}
	now = now.Add(24 * time.Hour)
	for _, id := range []string{"c", "held"} {
		appendTo(t, s, id, "hello")
	}
	if err := lastError(s.Purge(t.Context(), &store.Purge{Tenant: "acme"})); err != nil {
		t.Errorf("Purge = %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if after := foreign(); len(before) < 10 || !slices.Equal(before, after) {
		t.Errorf("keys of others = %q, want %q", after, before)
	}
}

// TestWhatRemains deletes all that tenants have. Only these keys remain: the schema, the counts of each bucket, and what
// a tenant that had records of its own needs so that no revision is used again. They are bounded by the number of
// buckets and of tenants that ever had such records.
func TestWhatRemains(t *testing.T) {
	engine := redistest.Start(t)
	now := time.Now()
	s := openAt(t, store.Options{Now: func() time.Time { return now }}, engine.Addr())
	ctx := t.Context()
	for _, tenant := range []string{"acme", "plain", "asking"} {
		if tenant == "acme" {
			for _, c := range writeCalls() {
				if err := c.do(ctx, s); err != nil {
					t.Fatalf("%s = %v", c.name, err)
				}
			}
		}
		hold := &store.Hold{Tenant: tenant, ConversationIDs: []string{"held", "never"}}
		turn := &parleyv1.Turn{Id: "0198c0de-0000-7000-8000-000000000000"}
		if err := s.Hold(ctx, hold); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b", "held"} {
			a := &store.Append{
				Tenant: tenant, ConversationID: id, Messages: message("hello"), Begin: turn, Request: requestOf("r"),
				Records: []*parleyv1.RecordWrite{putRecord("k", "v")},
			}
			if id != "a" {
				a.Begin = nil
			}
			if _, err := s.Append(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.SaveProgress(ctx, &store.Progress{Tenant: tenant, ConversationID: "a", TurnID: turn.GetId()}); err != nil {
			t.Fatal(err)
		}
		if tenant != "plain" { // It remembers a request, without a record.
			if _, err := s.WriteRecords(ctx, &store.WriteRecords{
				Tenant: tenant, Writes: []*parleyv1.RecordWrite{{Key: "none", Delete: true}}, Request: requestOf("r"),
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Release(ctx, hold); err != nil {
			t.Fatal(err)
		}
		ids := []string{"a"} // The others expire.
		if tenant == "asking" {
			ids = append(ids, "b")
		}
		for _, id := range ids {
			if err := s.Delete(ctx, &store.Delete{Tenant: tenant, ConversationID: id}); err != nil {
				t.Fatal(err)
			}
		}
		if stats, err := s.TenantStats(ctx, tenant); err != nil || stats.Bytes <= 0 && tenant != "plain" {
			t.Errorf("TenantStats(%q) = %+v, %v; want the bytes of what is left, or of the request", tenant, stats, err)
		}
	}
	if _, err := s.WriteRecords(ctx, &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{{Key: "k", Delete: true}},
	}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(24 * time.Hour)
	for range 2 { // The first one removes conversations, and then requests.
		if more, err := s.Sweep(ctx, 100); more || err != nil {
			t.Fatalf("Sweep = %v, %v", more, err)
		}
	}
	if stats, err := s.Stats(ctx); err != nil || stats.Conversations != 0 || stats.Messages != 0 || stats.Bytes != 0 ||
		stats.Records != 0 || stats.RecordBytes != 0 {
		t.Errorf("Stats = %+v, %v; want zero counts", stats, err)
	}
	for _, tenant := range []string{"acme", "plain", "asking"} {
		if stats, err := s.TenantStats(ctx, tenant); err != nil || stats != (store.Stats{}) {
			t.Errorf("TenantStats(%q) = %+v, %v; want zero counts", tenant, stats, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	prefix := s.buckets[0].prefix
	var keys []string
	for _, line := range dump(t, engine) {
		key, _, _ := strings.Cut(line, " ")
		keys = append(keys, key)
	}
	if want := []string{"parley:schema", prefix + "cr", prefix + "st", prefix + "t:4:acme:"}; !slices.Equal(keys, want) {
		t.Errorf("keys = %q, want %q", keys, want)
	}
	if fields, err := engine.Do("HLEN", prefix+"t:4:acme:"); err != nil || fields > "9" {
		t.Errorf("%s fields of a tenant, %v; want 9 at most", fields, err)
	}
}

// TestDeadServers has leases of servers that were killed. Only those that ended long ago are removed.
func TestDeadServers(t *testing.T) {
	engine := redistest.Start(t)
	s := openAt(t, store.Options{}, engine.Addr())
	leases, addresses := s.buckets[0].prefix+"ls", s.buckets[0].prefix+"la"
	for server, end := range map[string]time.Time{"old": time.Unix(1000, 0), "new": time.Now().Add(-time.Hour)} {
		_, err := engine.Do("ZADD", leases, strconv.FormatInt(end.UnixMilli(), 10), server)
		_, err2 := engine.Do("HSET", addresses, server, "address")
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"ZRANGE", leases, "0", "-1"}, {"HKEYS", addresses}} {
		text, err := engine.Do(command...)
		if err != nil {
			t.Fatal(err)
		}
		got, want := strings.Split(text, "\n"), []string{"new", s.server}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s = %q, want %q", command[0], got, want)
		}
	}
}
