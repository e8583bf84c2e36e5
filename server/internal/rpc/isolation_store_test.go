package rpc

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// leakyStore is a store that uses the tenant b in place of a in one of its methods.
type leakyStore struct {
	store.Store

	method string
}

// tenant returns the tenant that a method uses.
func (s leakyStore) tenant(method, name string) string {
	if s.method == method && name == "a" {
		return "b"
	}
	return name
}

// Create implements store.Store.
func (s leakyStore) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	leaked := *c
	leaked.Tenant = s.tenant("Create", c.Tenant)
	return s.Store.Create(ctx, &leaked)
}

// Append implements store.Store.
func (s leakyStore) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	leaked := *a
	leaked.Tenant = s.tenant("Append", a.Tenant)
	return s.Store.Append(ctx, &leaked)
}

// Update implements store.Store.
func (s leakyStore) Update(ctx context.Context, u *store.Update) (*store.Result, error) {
	leaked := *u
	leaked.Tenant = s.tenant("Update", u.Tenant)
	return s.Store.Update(ctx, &leaked)
}

// Delete implements store.Store.
func (s leakyStore) Delete(ctx context.Context, d *store.Delete) error {
	leaked := *d
	leaked.Tenant = s.tenant("Delete", d.Tenant)
	return s.Store.Delete(ctx, &leaked)
}

// Purge implements store.Store.
func (s leakyStore) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	leaked := *p
	leaked.Tenant = s.tenant("Purge", p.Tenant)
	return s.Store.Purge(ctx, &leaked)
}

// Import implements store.Store.
func (s leakyStore) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	leaked := *i
	leaked.Tenant = s.tenant("Import", i.Tenant)
	return s.Store.Import(ctx, &leaked)
}

// Hold implements store.Store.
func (s leakyStore) Hold(ctx context.Context, h *store.Hold) error {
	leaked := *h
	leaked.Tenant = s.tenant("Hold", h.Tenant)
	return s.Store.Hold(ctx, &leaked)
}

// Release implements store.Store.
func (s leakyStore) Release(ctx context.Context, h *store.Hold) error {
	leaked := *h
	leaked.Tenant = s.tenant("Release", h.Tenant)
	return s.Store.Release(ctx, &leaked)
}

// Read implements store.Store.
func (s leakyStore) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	leaked := *r
	leaked.Tenant = s.tenant("Read", r.Tenant)
	return s.Store.Read(ctx, &leaked)
}

// List implements store.Store.
func (s leakyStore) List(ctx context.Context, l *store.List) (*store.Page, error) {
	leaked := *l
	leaked.Tenant = s.tenant("List", l.Tenant)
	return s.Store.List(ctx, &leaked)
}

// WriteRecords implements store.Store.
func (s leakyStore) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	leaked := *w
	leaked.Tenant = s.tenant("WriteRecords", w.Tenant)
	return s.Store.WriteRecords(ctx, &leaked)
}

// GetRecords implements store.Store.
func (s leakyStore) GetRecords(ctx context.Context, g *store.GetRecords) (store.RecordFrames, []string, error) {
	leaked := *g
	leaked.Tenant = s.tenant("GetRecords", g.Tenant)
	return s.Store.GetRecords(ctx, &leaked)
}

// ListRecords implements store.Store.
func (s leakyStore) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	leaked := *l
	leaked.Tenant = s.tenant("ListRecords", l.Tenant)
	return s.Store.ListRecords(ctx, &leaked)
}

// ListTurns implements store.Store.
func (s leakyStore) ListTurns(ctx context.Context, l *store.ListTurns) (*store.TurnPage, error) {
	leaked := *l
	leaked.Tenant = s.tenant("ListTurns", l.Tenant)
	return s.Store.ListTurns(ctx, &leaked)
}

// FindTurn implements store.Store.
func (s leakyStore) FindTurn(ctx context.Context, f *store.FindTurn) (*store.FoundTurn, error) {
	leaked := *f
	leaked.Tenant = s.tenant("FindTurn", f.Tenant)
	return s.Store.FindTurn(ctx, &leaked)
}

// TenantStats implements store.Store.
func (s leakyStore) TenantStats(ctx context.Context, tenant string) (store.Stats, error) {
	return s.Store.TenantStats(ctx, s.tenant("TenantStats", tenant))
}

// TestIsolationNoticesLeaksOfStore: a store that ignores the tenant in one method makes the calls differ, or changes
// what b has. Each method of a store is tested or has a reason why not. With -short, a method that reads one
// conversation, one that reads many, and one that writes are tested.
func TestIsolationNoticesLeaksOfStore(t *testing.T) {
	exempt := map[string]string{
		"Abandoned":    "returns the turns of all tenants to the server, which ends them",
		"Close":        "has no tenant",
		"SaveProgress": "needs the id of a running turn, which is random and that of one tenant",
		"Stats":        "has no tenant, and callers that are bound to one cannot reach it",
		"Sweep":        "has no tenant",
		"Tenants":      "has no tenant, and no call reaches it",
	}
	all := mainVariants(t)
	for method := range reflect.TypeFor[store.Store]().Methods() {
		name := method.Name
		if exempt[name] != "" || testing.Short() && !slices.Contains([]string{"Append", "List", "Read"}, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := openIsolation(t, 2*len(all), func(s *setup) {
				s.wrap = func(inner store.Store) store.Store { return leakyStore{inner, name} }
			})
			if !i.leaks(t, all) {
				t.Errorf("a leak in %s was not noticed; if the method is new, make leakyStore leak in it or exempt it", name)
			}
		})
	}
}

const (
	timedRounds   = 31
	timedAttempts = 5
	// maxTimeRatio is the maximum ratio of two medians. It is wide, because a loaded machine is noisy; the
	// difference between a call that finds something and one that does not is a few microseconds.
	maxTimeRatio = 3
	// minTimeDifference is the difference of medians that counts.
	minTimeDifference = time.Millisecond
)

// TestIsolationOfTimes: the calls of a take as long whether b has the ids or not. Calls on the two servers alternate,
// so that a slow machine slows both. A difference must be seen in each of several attempts.
func TestIsolationOfTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("measures times")
	}
	var all []variant
	for _, m := range isolatedMethods() {
		if !m.IsStreamingClient() && !m.IsStreamingServer() {
			all = append(all, variants(t, m)[1])
		}
	}
	i := openIsolation(t, len(all), nil)
	for _, v := range all {
		request := v.request(t, i.nextIDs(t, false))
		median := func() (with, without time.Duration) {
			var times [2][]time.Duration
			for range timedRounds {
				for j, s := range []*isolatedServer{i.with, i.without} {
					start := time.Now()
					s.call(s.a, t, v.method, request)
					times[j] = append(times[j], time.Since(start))
				}
			}
			for _, all := range times {
				slices.Sort(all)
			}
			return times[0][timedRounds/2], times[1][timedRounds/2]
		}
		var with, without time.Duration
		for attempt := 0; ; attempt++ {
			with, without = median()
			least, most := min(with, without), max(with, without)
			if most <= maxTimeRatio*least || most-least < minTimeDifference {
				break
			}
			if attempt == timedAttempts {
				t.Errorf("%v takes %v if b has the ids and %v if not", v, with, without)
				break
			}
		}
	}
}
