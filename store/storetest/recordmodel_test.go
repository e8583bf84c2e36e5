package storetest_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// recordModel is the test that finds most bugs of records.
const recordModel = "ModelRecords"

// faultyRecordStores returns stores with one bug of their records each, by the name of the bug.
func faultyRecordStores() map[string]faultyStore {
	wrap := func(wrap func(store.Store, *callCounter) store.Store) faultyStore {
		return faultyStore{open: wrapMemory(wrap), test: recordModel}
	}
	stores := map[string]faultyStore{
		"a message is stored without its record": wrap(func(s store.Store, counter *callCounter) store.Store {
			return dropsRecords{s, counter}
		}),
		"a record is stored without its message": wrap(func(s store.Store, _ *callCounter) store.Store {
			return recordsFirst{s}
		}),
		"a revision is used again after a deletion": wrap(func(s store.Store, _ *callCounter) store.Store {
			return newRenumbers(s, func(newest, _ int64) int64 { return newest + 1 })
		}),
		"records are listed in another order": wrap(func(s store.Store, _ *callCounter) store.Store {
			return listsDeepKeysLast{s}
		}),
		"if_revision of a second write is ignored": wrap(func(s store.Store, _ *callCounter) store.Store {
			return checksFirstRevision{s}
		}),
		"an expired record is read": wrap(func(s store.Store, counter *callCounter) store.Store {
			return readsExpiredRecord{s, counter, map[string]*parleyv1.Record{}}
		}),
		"a request of a tenant is applied twice": wrap(func(s store.Store, counter *callCounter) store.Store {
			return forgetsTenantRequest{s, counter}
		}),
		"a record loses its labels in a fork": wrap(func(s store.Store, _ *callCounter) store.Store {
			return forksWithoutLabels{s, map[string]bool{}}
		}),
		"records of a conversation exceed their limit": {open: func(
			tb testing.TB, dir string, o store.Options,
		) store.Store {
			tb.Helper()
			o.MaxRecordBytes += 1000
			return openMemory(tb, dir, o)
		}, test: recordModel},
		"requests of records push out others": {
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return mixesRequests{s} }),
			test: "Law19Records/RequestWindows",
		},
		"records of a tenant exceed their limit": {
			open: withLimits(func(l *store.Limits) { l.MaxRecordBytes = 0 }), test: "Law19FullTenant",
		},
		"records do not count in the bytes of a tenant": {open: ignoringBytesOfRecords, test: "Law19Bytes"},
	}
	for _, end := range []string{"DELETED", "EXPIRED", "EVICTED", "purge", "overwrite"} {
		stores["records outlive their conversation: "+end] = faultyStore{open: leavingRecords(end), test: recordModel}
	}
	return stores
}

// withLimits returns an opener of stores in memory with other limits of tenants than those of the test.
func withLimits(change func(*store.Limits)) opener {
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		limits := o.WithDefaults().Limits
		o.Limits = func(tenant string) store.Limits {
			l := limits(tenant)
			change(&l)
			return l
		}
		return openMemory(tb, dir, o)
	}
}

// ignoresBytes does not apply the limit of bytes to writes with records.
type ignoresBytes struct {
	store.Store
	ignores *bool
}

func ignoringBytesOfRecords(tb testing.TB, dir string, o store.Options) store.Store {
	tb.Helper()
	ignores := new(bool)
	open := withLimits(func(l *store.Limits) {
		if *ignores {
			l.MaxBytes = 0
		}
	})
	return ignoresBytes{open(tb, dir, o), ignores}
}

func (s ignoresBytes) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	*s.ignores = true
	defer func() { *s.ignores = false }()
	return s.Store.WriteRecords(ctx, w)
}

// mixesRequests stores the requests of writes of records together with those of other methods.
type mixesRequests struct{ store.Store }

func (s mixesRequests) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if w.Request != nil {
		w.Request.Method = "other than " + w.Request.Method
	}
	return s.Store.WriteRecords(ctx, w)
}

// dropsRecords drops the records of one append in ten.
type dropsRecords struct {
	store.Store
	counter *callCounter
}

func (s dropsRecords) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if len(a.Records) > 0 && s.counter.nth(10) {
		a.Records = nil
	}
	return s.Store.Append(ctx, a)
}

// recordsFirst writes the records of an append, if all are of the tenant, in a commit before that of its messages,
// which may be refused.
type recordsFirst struct{ store.Store }

func (s recordsFirst) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if len(a.Messages) == 0 || len(a.Records) == 0 || a.Request != nil ||
		slices.ContainsFunc(a.Records, func(w *parleyv1.RecordWrite) bool { return !w.GetTenantScope() }) {
		return s.Store.Append(ctx, a)
	}
	written, err := s.WriteRecords(ctx, &store.WriteRecords{Tenant: a.Tenant, Writes: a.Records})
	if err != nil {
		return s.Store.Append(ctx, a) // It has another error if more than one applies.
	}
	a.Records = nil
	result, err := s.Store.Append(ctx, a)
	if err == nil {
		result.TenantRevision = written.TenantRevision
	}
	return result, err
}

// renumbers stores the records of tenants with other revisions than those of the law.
type renumbers struct {
	store.Store
	// number returns the stored revision of a write with this revision. newest is the newest stored one.
	number func(newest, revision int64) int64

	mu     sync.Mutex
	stored map[tenantRevision]int64
}

// tenantRevision is a revision of the law.
type tenantRevision struct {
	tenant   string
	revision int64
}

func newRenumbers(s store.Store, number func(newest, revision int64) int64) *renumbers {
	return &renumbers{Store: s, number: number, stored: map[tenantRevision]int64{}}
}

// of returns the stored revision.
func (s *renumbers) of(tenant string, revision int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.stored[tenantRevision{tenant, revision}], revision)
}

// newest returns the newest stored revision of the records that exist.
func (s *renumbers) newest(ctx context.Context, tenant string) (newest int64) {
	all, _, err := s.ListRecords(ctx, &store.ListRecords{Tenant: tenant, KeysOnly: true, Limit: 100, MaxBytes: 1 << 20})
	for _, r := range all {
		newest = max(newest, r.GetRevision())
	}
	if err != nil {
		return 0
	}
	return newest
}

// renumber notes the stored revision of a write, unless it was replayed, and returns it.
func (s *renumbers) renumber(tenant string, newest, revision int64, replayed bool) int64 {
	if revision == 0 {
		return 0
	}
	if !replayed {
		number := s.number(newest, revision)
		s.mu.Lock()
		s.stored[tenantRevision{tenant, revision}] = number
		s.mu.Unlock()
	}
	return s.of(tenant, revision)
}

func (s *renumbers) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	newest := s.newest(ctx, w.Tenant)
	written, err := s.Store.WriteRecords(ctx, w)
	if err == nil {
		written.TenantRevision = s.renumber(w.Tenant, newest, written.TenantRevision, written.Replayed)
	}
	return written, err
}

func (s *renumbers) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	newest := s.newest(ctx, a.Tenant)
	result, err := s.Store.Append(ctx, a)
	if err == nil {
		result.TenantRevision = s.renumber(a.Tenant, newest, result.TenantRevision, result.Replayed)
	}
	return result, err
}

func (s *renumbers) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	s.renumberAll(l.Tenant, l.ConversationID, records)
	return records, more, err
}

func (s *renumbers) GetRecords(ctx context.Context, g *store.GetRecords) (store.RecordFrames, []string, error) {
	found, omitted, err := s.Store.GetRecords(ctx, g)
	if err != nil {
		return nil, nil, err
	}
	records, err := found.Records()
	if err != nil {
		return nil, nil, err
	}
	s.renumberAll(g.Tenant, g.ConversationID, records)
	found, err = proto.Marshal(&parleyv1.GetRecordsResponse{Records: records})
	return found, omitted, err
}

// renumberAll sets the stored revisions of records, if they are those of a tenant.
func (s *renumbers) renumberAll(tenant, conversationID string, records []*parleyv1.Record) {
	for _, r := range records {
		if conversationID == "" {
			r.Revision = s.of(tenant, r.GetRevision())
		}
	}
}

// listsDeepKeysLast lists keys with "/" after the others.
type listsDeepKeysLast struct{ store.Store }

func (s listsDeepKeysLast) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	slices.SortStableFunc(records, func(a, b *parleyv1.Record) int {
		deep := func(r *parleyv1.Record) int {
			if len(r.GetKey()) > 1 {
				return 1
			}
			return 0
		}
		return deep(a) - deep(b)
	})
	return records, more, err
}

// leavesRecords returns the records of a conversation that has ended in one way, if a new one with its id has none.
type leavesRecords struct {
	store.Store
	end   string                        // the kind of the change, or the call that causes it
	call  string                        // the running call, if it has a name of its own
	known map[string][]*parleyv1.Record // by conversation id: the records in the last list
	left  map[string][]*parleyv1.Record // the same, of conversations that have ended in that way
}

// leavingRecords returns an opener of stores in memory that are leavesRecords.
func leavingRecords(end string) opener {
	return func(tb testing.TB, dir string, o store.Options) store.Store {
		tb.Helper()
		s := &leavesRecords{end: end, known: map[string][]*parleyv1.Record{}, left: map[string][]*parleyv1.Record{}}
		observe := o.WithDefaults().Observe
		o.Observe = func(changes []store.Change) {
			for _, c := range changes {
				s.noteEnd(c)
			}
			observe(changes)
		}
		s.Store = openMemory(tb, dir, o)
		return s
	}
}

// noteEnd notes the end of a conversation.
func (s *leavesRecords) noteEnd(c store.Change) {
	switch kind := strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_"); kind {
	case "DELETED", "EXPIRED", "EVICTED":
		delete(s.left, c.ConversationID)
		if cmp.Or(s.call, kind) == s.end {
			s.left[c.ConversationID] = s.known[c.ConversationID]
		}
		delete(s.known, c.ConversationID)
	}
}

func (s *leavesRecords) Purge(ctx context.Context, p *store.Purge) (store.Purged, error) {
	s.call = "purge"
	defer func() { s.call = "" }()
	return s.Store.Purge(ctx, p)
}

func (s *leavesRecords) Import(ctx context.Context, i *store.Import) (*store.Result, error) {
	s.call = "overwrite"
	defer func() { s.call = "" }()
	return s.Store.Import(ctx, i)
}

func (s *leavesRecords) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	if err == nil && l.ConversationID != "" && l.Prefix+l.After == "" {
		if len(records) == 0 {
			return s.left[l.ConversationID], more, nil
		}
		s.known[l.ConversationID] = records
	}
	return records, more, err
}

// checksFirstRevision checks only the revision that the first write of a batch requires.
type checksFirstRevision struct{ store.Store }

func (s checksFirstRevision) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	for _, write := range w.Writes[1:] {
		write.IfRevision = nil
	}
	return s.Store.WriteRecords(ctx, w)
}

// readsExpiredRecord returns, in one list in ten, a record of the tenant that has expired.
type readsExpiredRecord struct {
	store.Store
	counter *callCounter
	known   map[string]*parleyv1.Record // the last state of each record in lists
}

func (s readsExpiredRecord) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	if err != nil || l.ConversationID+l.Prefix+l.After != "" || l.Descending || more {
		return records, more, err
	}
	found := make(map[string]*parleyv1.Record)
	for _, r := range records {
		found[r.GetKey()] = r
	}
	for key, r := range s.known {
		if found[key] == nil && r.GetExpireTime() != nil && s.counter.nth(10) {
			return append(records, r), more, nil
		}
	}
	maps.Copy(s.known, found)
	return records, more, nil
}

// forgetsTenantRequest does not store one request of a write of the tenant's records in five.
type forgetsTenantRequest struct {
	store.Store
	counter *callCounter
}

func (s forgetsTenantRequest) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	if w.ConversationID == "" && w.Request != nil && s.counter.nth(5) {
		w.Request = nil
	}
	return s.Store.WriteRecords(ctx, w)
}

// forksWithoutLabels copies the records of a fork without their labels.
type forksWithoutLabels struct {
	store.Store
	forks map[string]bool // uids
}

func (s forksWithoutLabels) Create(ctx context.Context, c *store.Create) (*store.Result, error) {
	result, err := s.Store.Create(ctx, c)
	if err == nil && result.Created && !result.Replayed && c.RecordsOf != "" {
		s.forks[result.Conversation.GetUid()] = true
	}
	return result, err
}

func (s forksWithoutLabels) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	if err != nil || l.ConversationID == "" {
		return records, more, err
	}
	of, err := s.Read(ctx, &store.Read{Tenant: l.Tenant, ConversationID: l.ConversationID})
	if err != nil {
		return nil, false, err
	}
	for _, r := range records {
		if s.forks[of.Conversation.GetUid()] && r.GetRevision() == 1 { // A later write of the fork has another.
			r.Labels = nil
		}
	}
	return records, more, nil
}
