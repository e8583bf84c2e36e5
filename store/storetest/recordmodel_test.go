package storetest_test

import (
	"context"
	"maps"
	"slices"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// recordModel is the test that finds the bugs of records.
const recordModel = "ModelRecords"

// faultyRecordStores returns stores with one bug of their records each, by the name of the bug.
func faultyRecordStores() map[string]faultyStore {
	wrap := func(wrap func(store.Store, *callCounter) store.Store) faultyStore {
		return faultyStore{open: wrapMemory(wrap), model: recordModel}
	}
	return map[string]faultyStore{
		"a message is stored without its record": wrap(func(s store.Store, counter *callCounter) store.Store {
			return dropsRecords{s, counter}
		}),
		"a record is stored without its message": wrap(func(s store.Store, _ *callCounter) store.Store {
			return recordsFirst{s}
		}),
		"a revision is used again after a deletion": wrap(func(s store.Store, _ *callCounter) store.Store {
			return reusesRevisions{s}
		}),
		"records are listed in another order": wrap(func(s store.Store, _ *callCounter) store.Store {
			return listsDeepKeysLast{s}
		}),
		"records outlive their conversation": wrap(func(s store.Store, _ *callCounter) store.Store {
			return leavesRecords{s, map[string][]*parleyv1.Record{}}
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
			return forksWithoutLabels{s}
		}),
	}
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

// reusesRevisions numbers the revisions of a tenant from the newest record that exists.
type reusesRevisions struct{ store.Store }

func (s reusesRevisions) WriteRecords(ctx context.Context, w *store.WriteRecords) (*store.WrittenRecords, error) {
	newest := int64(0)
	all, _, err := s.ListRecords(ctx, &store.ListRecords{Tenant: w.Tenant, KeysOnly: true, Limit: 100, MaxBytes: 1 << 20})
	for _, r := range all {
		newest = max(newest, r.GetRevision())
	}
	written, err2 := s.Store.WriteRecords(ctx, w)
	if err == nil && err2 == nil && !written.Replayed && written.TenantRevision != 0 {
		written.TenantRevision = newest + 1
	}
	return written, err2
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

// leavesRecords returns the records of a deleted conversation if a new one with its id has none.
type leavesRecords struct {
	store.Store
	left map[string][]*parleyv1.Record
}

func (s leavesRecords) Delete(ctx context.Context, d *store.Delete) error {
	records, _, err := s.Store.ListRecords(ctx, &store.ListRecords{
		Tenant: d.Tenant, ConversationID: d.ConversationID, Limit: 100, MaxBytes: 1 << 20,
	})
	if err == nil {
		s.left[d.ConversationID] = records
	}
	return s.Store.Delete(ctx, d)
}

func (s leavesRecords) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	if err == nil && len(records) == 0 && l.Prefix+l.After == "" {
		records = s.left[l.ConversationID]
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

// forksWithoutLabels returns the records of conversations with one version, as forks have, without their labels.
type forksWithoutLabels struct{ store.Store }

func (s forksWithoutLabels) ListRecords(ctx context.Context, l *store.ListRecords) ([]*parleyv1.Record, bool, error) {
	records, more, err := s.Store.ListRecords(ctx, l)
	for _, r := range records {
		if l.ConversationID != "" && r.GetRevision() == 1 {
			r.Labels = nil
		}
	}
	return records, more, err
}
