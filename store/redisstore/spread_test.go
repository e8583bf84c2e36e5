package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// TestSpreadSchema: the spread of a store is that of its first start.
func TestSpreadSchema(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	for i, test := range []struct {
		schema          string // empty for none
		buckets, spread int
		want            string // schema after Open, or its error
	}{
		{"", 0, 0, "1 64"},
		{"", 64, 1, "1 64"},
		{"", 0, 4, "2 64 4"},
		{"", 12, 3, "2 12 3"},
		{"1 64", 0, 1, "1 64"},
		{"2 64 4", 64, 4, "2 64 4"},
		{"", 0, 3, "3 buckets a tenant do not divide the 64 buckets evenly: choose a divisor of 64"},
		{"", 0, 17, "17 buckets a tenant: choose 1 to 16"},
		{"", 0, -1, "1 64"},
		{"1 64", 0, 4, "has a spread of 1, which cannot be changed to 4: set 1"},
		{"2 64 4", 0, 0, "has a spread of 4, which cannot be changed to 1: set 4"},
		{"2 64 4", 0, 8, "has a spread of 4, which cannot be changed to 8: set 4"},
		{"2 64 4", 16, 4, "has 64 buckets, which cannot be changed to 16"},
		{"2 64", 0, 1, "it is not a store of this program"},
		{"2 64 3", 0, 3, "it is not a store of this program"},
		{"1 64 4", 0, 4, "it is not a store of this program"},
		{"3 64 4", 0, 4, "has version 3, this program reads versions 1 and 2"},
	} {
		o := Options{Client: clientOf(t, engine.URL(), Access{}), Prefix: fmt.Sprint("p", i), Buckets: test.buckets}
		o.Spread = test.spread
		if test.schema != "" {
			if _, err := engine.Do("SET", o.Prefix+":schema", test.schema); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(t.Context(), o)
		if err == nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := engine.Do("GET", o.Prefix+":schema")
			if err != nil || got != test.want {
				t.Errorf("Open with schema %q, %d buckets and spread %d makes the schema %q, %v, want %q", test.schema,
					test.buckets, test.spread, got, err, test.want)
			}
			continue
		}
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Open with schema %q, %d buckets and spread %d = %v, want %q", test.schema, test.buckets, test.spread, err,
				test.want)
		}
	}
}

// TestSpreadBuckets: the buckets of a tenant are evenly spread, and each conversation has one of them.
func TestSpreadBuckets(t *testing.T) {
	t.Parallel()
	for _, spread := range []int{1, 4, 16} {
		s := &Store{buckets: newBuckets("p", 64), spread: spread}
		first := map[int]bool{}
		for i := range 2000 {
			tenant, lanes := fmt.Sprint("tenant", i), map[int]bool{}
			all := s.spaces(tenant)
			if s.space(tenant) != all[0] || s.spaceOf(tenant, "") != all[0] || len(all) != spread {
				t.Fatalf("spaces(%q) = %v, want %d with the first bucket first", tenant, all, spread)
			}
			for j, p := range all {
				if want := (all[0].index + j*64/spread) % 64; p.index != want || p.tenant != tenant {
					t.Errorf("spaces(%q)[%d] = %v, want bucket %d", tenant, j, p, want)
				}
				lanes[s.lane(p.bucket)] = true
			}
			if len(lanes) != spread {
				t.Errorf("the buckets of %q have the lanes %v, want each of %d", tenant, lanes, spread)
			}
			id := fmt.Sprint("id", i)
			if p := s.spaceOf(tenant, id); p != all[checksum(id)%spread] {
				t.Errorf("spaceOf(%q, %q) = %v, want one of %v", tenant, id, p, all)
			}
			first[all[0].index] = true
		}
		if len(first) != 64 {
			t.Errorf("spread %d: %d buckets are the first of a tenant, want all", spread, len(first))
		}
	}
}

// across is a write of a conversation and of records of its tenant, which are in different buckets.
type across struct {
	*Store
	id     string
	before *transaction
	args   []string
	change *pending
}

// newAcross decides a write that sets the record k of the tenant to "new", and adds a message.
func newAcross(t *testing.T, s *Store) *across {
	t.Helper()
	home := s.space("acme")
	a := &across{Store: s, id: "c"}
	for s.spaceOf("acme", a.id).index == home.index {
		a.id += "!"
	}
	if _, err := s.WriteRecords(t.Context(), &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{{Key: "k", Value: []byte("old")}},
	}); err != nil {
		t.Fatal(err)
	}
	appendTo(t, s, a.id, "old")
	q := &store.Append{Tenant: "acme", ConversationID: a.id, Messages: message("new"), Records: []*parleyv1.RecordWrite{
		{Key: "k", Value: []byte("new"), TenantScope: true}, {Key: "own", Value: []byte("new")},
	}}
	drafts, err := record.NewDrafts(q.Messages)
	if err != nil {
		t.Fatal(err)
	}
	w := &write{tenant: "acme", id: a.id, records: q.Records}
	a.before, err = s.readFor(t.Context(), &attempt{write: w, space: s.spaceOf("acme", a.id)})
	if err != nil {
		t.Fatal(err)
	}
	in := a.before.input()
	a.before.outcome, err = record.Append(in.old, q, drafts, in.records, uuid.NewString(), in.now, &s.options)
	if err != nil {
		t.Fatal(err)
	}
	if a.args, err = a.before.command(); err != nil || !a.before.isAcross() {
		t.Fatalf("command() = %v, want one of a write across buckets", err)
	}
	a.change = s.pendingOf(a.before, home, partOf(a.before.outcome.Records, true))
	return a
}

// lock begins the write, and commits the conversation if made is set.
func (a *across) lock(t *testing.T, made bool) {
	t.Helper()
	if err := a.lockRecords(t.Context(), a.before, a.space("acme"), a.change); err != nil {
		t.Fatal(err)
	}
	if made {
		if err := a.commit(t.Context(), a.before, a.args); err != nil {
			t.Fatal(err)
		}
	}
}

// want checks that the write was made completely, or not at all.
func (a *across) want(t *testing.T, s *Store, what, value string, messages int) {
	t.Helper()
	q := &store.ListRecords{Tenant: "acme", Prefix: "k", Limit: 9, MaxBytes: 1 << 20}
	found, _, err := s.ListRecords(t.Context(), q)
	if err != nil || len(found) != 1 || string(found[0].GetValue()) != value || found[0].GetRevision() != int64(messages) {
		t.Errorf("%s: records of the tenant = %v, %v, want %s", what, found, err, value)
	}
	if n := readAll(t, s, a.id).Messages.Count(); n != messages {
		t.Errorf("%s: %d messages, want %d", what, n, messages)
	}
	stats, err := s.TenantStats(t.Context(), "acme")
	if err != nil || stats.Records != int64(messages) {
		t.Errorf("%s: TenantStats = %+v, %v, want %d records", what, stats, err, messages)
	}
	if _, err := s.WriteRecords(t.Context(), &store.WriteRecords{
		Tenant: "acme", Writes: []*parleyv1.RecordWrite{{Key: "later", Value: []byte("1")}},
	}); err != nil {
		t.Errorf("%s: WriteRecords = %v", what, err)
	}
}

// TestSpreadCrash: if a process ends while it writes a conversation and records of the tenant in another bucket,
// another process completes the write, or drops it, when the lease has ended. Until then no call reads the records.
func TestSpreadCrash(t *testing.T) {
	t.Parallel()
	for what, made := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			engine := redistest.Start(t)
			o := Options{Buckets: 8, Spread: 4, leaseTime: 3 * time.Second, Timeout: time.Minute}
			s := openWith(t, o, engine.Addr())
			a := newAcross(t, s)
			other := openWith(t, o, engine.Addr())
			a.lock(t, made)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			found, _, err := other.ListRecords(ctx, &store.ListRecords{Tenant: "acme", Prefix: "k", Limit: 9, MaxBytes: 1 << 20})
			if err == nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("ListRecords while the process lives = %v, %v, want it to wait", found, err)
			}
			s.stop() // The lease is no longer renewed.
			if !other.leaseEnds(t, s) {
				t.Fatal("the lease of the process does not end")
			}
			value, messages := "old", 1
			if made {
				value, messages = "new", 2
			}
			a.want(t, other, what, value, messages)
		})
	}
}

// TestSpreadLateCommit: a commit that reaches the engine after another process has dropped the change of the records is
// refused.
func TestSpreadLateCommit(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s := openWith(t, Options{Buckets: 8, Spread: 4}, engine.Addr())
	a := newAcross(t, s)
	a.lock(t, false)
	a.want(t, s, "a dropped write", "old", 1)
	if err := s.commit(t.Context(), a.before, a.args); !errors.Is(err, errMoved) {
		t.Errorf("late commit = %v, want errMoved", err)
	}
	wantTexts(t, s, a.id, "old")
	key := s.spaceOf("acme", a.id).key("ac")
	s.options.Now = func() time.Time { return time.Now().Add(2 * decisionTime) }
	if err := s.forgetDecisions(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if n, err := engine.Do("HLEN", key); err != nil || n != "0" {
		t.Errorf("decisions after %v = %s, %v, want none", 2*decisionTime, n, err)
	}
}

// TestSpreadLeftover: a process that could not complete a write across buckets does so at the next read.
func TestSpreadLeftover(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s := openWith(t, Options{Buckets: 8, Spread: 4}, engine.Addr())
	a := newAcross(t, s)
	a.lock(t, true)
	a.want(t, s, "the same process", "new", 2)
}

// TestSpreadMoved: a write across buckets whose conversation has changed leaves the records unlocked and unchanged.
func TestSpreadMoved(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s := openWith(t, Options{Buckets: 8, Spread: 4}, engine.Addr())
	a := newAcross(t, s)
	appendTo(t, s, a.id, "in between")
	if err := s.commitAll(t.Context(), a.before, a.args); !errors.Is(err, errMoved) {
		t.Errorf("commitAll of a changed conversation = %v, want errMoved", err)
	}
	key := s.space("acme").key("t")
	if lock, err := engine.Do("HGET", key, "lock"); err != nil || lock != "" {
		t.Errorf("lock = %q, %v, want none", lock, err)
	}
	found, _, err := s.ListRecords(t.Context(), &store.ListRecords{Tenant: "acme", Limit: 9, MaxBytes: 1 << 20})
	if err != nil || len(found) != 1 || string(found[0].GetValue()) != "old" {
		t.Errorf("ListRecords = %v, %v, want the old one", found, err)
	}
	if revision, err := engine.Do("HGET", key, "v"); err != nil || revision != a.before.tenant.revision {
		t.Errorf("revision = %q, %v, want that before the write", revision, err)
	}
}

// TestSpreadLists: pages are merged by create time, with one round trip for the next pages of all buckets.
func TestSpreadLists(t *testing.T) {
	t.Parallel()
	now := time.Now()
	engine := redistest.Start(t)
	s := openWith(t, Options{
		Buckets: 8, Spread: 4, Options: store.Options{Now: func() time.Time { now = now.Add(time.Millisecond); return now }},
	}, engine.Addr())
	var want []string
	for i := range 3 * rowPage {
		id := fmt.Sprint("c", i)
		appendTo(t, s, id, "hello")
		want = append(want, id)
	}
	for _, size := range []int{3, 100, 1000} {
		var got []string
		for token, more := "", true; more; more = token != "" {
			page, err := s.List(t.Context(), &store.List{Tenant: "acme", PageSize: size, PageToken: token, OldestFirst: true})
			if err != nil || page.Total != int64(len(want)) {
				t.Fatalf("List = %+v, %v, want a total of %d", page, err, len(want))
			}
			for _, e := range page.Entries {
				got = append(got, e.GetConversation().GetId())
			}
			token = page.NextPageToken
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d = %v, want the order of creation", size, got)
		}
	}
	m := newMerged(t.Context(), s, s.spaces("acme"), "ix", "-", false)
	for n := 0; ; {
		page, more, err := m.page(50)
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, b := range m.buckets {
			kept += len(b.left)
		}
		if kept > 4*50 {
			t.Errorf("%d members are kept after %d, want at most a page of each bucket", kept, n)
		}
		if n += len(page); !more {
			break
		}
	}
}

// TestSweepAfterLimitIsLifted: if a tenant loses the limit of its conversations while a sweep runs, the sweep removes
// none of them.
func TestSweepAfterLimitIsLifted(t *testing.T) {
	t.Parallel()
	o := Options{Buckets: 8, Spread: 4}
	limit := 10
	o.Limits = func(string) store.Limits { return store.Limits{MaxConversations: limit} }
	s := openWith(t, o, redistest.Start(t).Addr())
	for i := range 20 {
		appendTo(t, s, fmt.Sprint("c", i), "hello")
	}
	for _, test := range []struct{ limit, want int }{{0, 0}, {10, 10}} {
		limit = test.limit
		if removed, err := s.sweepExcess(t.Context(), "acme", 100); removed != test.want || err != nil {
			t.Errorf("with limit %d, the sweep removed %d conversations, %v, want %d", limit, removed, err, test.want)
		}
	}
}
