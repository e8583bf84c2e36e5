package storetest_test

import (
	"context"
	"sync"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

// gap is the time between the two steps of stores that should make only one: long enough for other goroutines.
const gap = time.Millisecond

// faultyConcurrentStores returns stores with one bug each that only concurrent calls see, by the name of the bug.
func faultyConcurrentStores() map[string]faultyStore {
	found := func(test string, wrap func(s store.Store) store.Store) faultyStore {
		return faultyStore{
			open: wrapMemory(func(s store.Store, _ *callCounter) store.Store { return wrap(s) }), test: test,
		}
	}
	return map[string]faultyStore{
		"a replacement takes two commits": found("Law18Replacing/with_other_writers_and_readers",
			func(s store.Store) store.Store { return &replacesInTwoSteps{Store: s, after: map[string]int32{}} }),
		"an increment is lost": found("Law19Counters",
			func(s store.Store) store.Store { return checksRevisionBefore{s} }),
		"a message is read without its record": found("Law19TogetherRead",
			func(s store.Store) store.Store { return &recordsLater{Store: s, old: map[string][]*parleyv1.Record{}} }),
		"two writes have the same revision": found("Law19TenantRevisions",
			func(s store.Store) store.Store {
				return newRenumbers(s, func(_, revision int64) int64 {
					if revision%50 == 0 {
						return revision - 1
					}
					return revision
				})
			}),
		"a request is applied twice at the same time": found("Law19SameRequest",
			func(s store.Store) store.Store {
				return &checksRequestBefore{Store: s, first: map[string]store.WrittenRecords{}}
			}),
	}
}

// replacesInTwoSteps shows readers the removal of a replacement before its messages. Everything else is as in one step,
// also versions and changes.
type replacesInTwoSteps struct {
	store.Store
	mu    sync.Mutex
	after map[string]int32 // by conversation id: after which sequence messages are removed already
}

func (s *replacesInTwoSteps) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	if a.ReplaceAfter == nil {
		return s.Store.Append(ctx, a)
	}
	s.mu.Lock()
	s.after[a.ConversationID] = *a.ReplaceAfter
	s.mu.Unlock()
	<-time.After(gap)
	result, err := s.Store.Append(ctx, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.after, a.ConversationID)
	return result, err
}

func (s *replacesInTwoSteps) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	s.mu.Lock()
	after, removed := s.after[r.ConversationID]
	s.mu.Unlock()
	snapshot, err := s.Store.Read(ctx, r)
	if err != nil || !removed {
		return snapshot, err
	}
	var kept store.Frames
	for frame := range snapshot.Messages.All() {
		if frame.Sequence() <= after {
			kept = append(kept, frame...)
		}
	}
	snapshot.Messages = kept
	return snapshot, nil
}

// checksRevisionBefore checks the revisions of a write in a step before it.
type checksRevisionBefore struct{ store.Store }

func (s checksRevisionBefore) WriteRecords(
	ctx context.Context, w *store.WriteRecords,
) (*store.WrittenRecords, error) {
	for _, write := range w.Writes {
		frames, _, err := s.GetRecords(ctx, &store.GetRecords{
			Tenant: w.Tenant, ConversationID: w.ConversationID, Keys: []string{write.GetKey()}, MaxBytes: 1 << 20,
		})
		if err != nil {
			return nil, err
		}
		found, err := frames.Records()
		if err != nil {
			return nil, err
		}
		current := int64(0)
		if len(found) > 0 {
			current = found[0].GetRevision()
		}
		if write.IfRevision != nil && write.GetIfRevision() != current {
			return nil, &store.RevisionError{Key: write.GetKey(), Current: current, Required: write.GetIfRevision()}
		}
		write.IfRevision = nil
	}
	<-time.After(gap)
	return s.Store.WriteRecords(ctx, w)
}

// recordsLater shows readers the messages of an append before its records.
type recordsLater struct {
	store.Store
	mu  sync.Mutex
	old map[string][]*parleyv1.Record // by conversation id: the records that readers still see
}

func (s *recordsLater) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	before, _, err := s.ListRecords(ctx, &store.ListRecords{
		Tenant: a.Tenant, ConversationID: a.ConversationID, Limit: 100, MaxBytes: 1 << 20,
	})
	if err != nil || len(before) == 0 {
		return s.Store.Append(ctx, a)
	}
	s.mu.Lock()
	s.old[a.ConversationID] = before
	s.mu.Unlock()
	result, err := s.Store.Append(ctx, a)
	<-time.After(gap)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.old, a.ConversationID)
	return result, err
}

func (s *recordsLater) Read(ctx context.Context, r *store.Read) (*store.Snapshot, error) {
	snapshot, err := s.Store.Read(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.old[r.ConversationID]; err == nil && old != nil && len(r.RecordPrefixes) > 0 {
		snapshot.Records = old
	}
	return snapshot, err
}

// checksRequestBefore looks up the request of a write in a step before it.
type checksRequestBefore struct {
	store.Store
	mu    sync.Mutex
	first map[string]store.WrittenRecords // by conversation and request
}

func (s *checksRequestBefore) WriteRecords(
	ctx context.Context, w *store.WriteRecords,
) (*store.WrittenRecords, error) {
	key := w.ConversationID + " " + w.Request.ID
	s.mu.Lock()
	first, ok := s.first[key]
	s.mu.Unlock()
	if ok {
		first.Replayed = true
		return &first, nil
	}
	<-time.After(gap)
	without := *w
	without.Request = nil
	written, err := s.Store.WriteRecords(ctx, &without)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first[key] = *written
	return written, nil
}
