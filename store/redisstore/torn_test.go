package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/redisstore/redistest"
)

// tornRecords is the number of records that each commit of TestTornReads writes: several pages.
const tornRecords = 60

// history has the sequences of a conversation at each of its versions.
type history struct {
	mu       sync.Mutex
	versions map[int32][]int32
}

func (h *history) at(version int32) []int32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.versions[version]
}

// write appends and removes messages n times. It writes all records with each append.
func (h *history) write(ctx context.Context, s store.Store, n int) error {
	sequences, last := []int32{}, int32(0)
	for i := range n {
		a := &store.Append{Tenant: "acme", ConversationID: "c", Messages: message("hello"), CreateWith: &parleyv1.Conversation{
			Retention: &parleyv1.Retention{KeepAll: true},
		}}
		for range 2 * pageElements {
			if i > 0 {
				break
			}
			a.Messages = append(a.Messages, message("hello")...)
		}
		for k := range tornRecords {
			a.Records = append(a.Records, putRecord(fmt.Sprintf("k%02d", k), fmt.Sprint(i)))
		}
		next := slices.Clone(sequences)
		removal := &store.Update{Tenant: "acme", ConversationID: "c"}
		switch i % 4 {
		case 1: // In the middle, also of those that are counted aside.
			at := (7 * i) % len(next)
			removal.Sequences = []int32{next[at]}
			next = slices.Delete(next, at, at+1)
		case 3: // The newest.
			removal.KeepThrough = &next[len(next)-3]
			next = slices.Clone(next[:len(next)-2])
		default:
			for range a.Messages {
				last++
				next = append(next, last)
			}
		}
		h.mu.Lock()
		h.versions[int32(i+1)] = next
		h.mu.Unlock()
		sequences = next
		var err error
		if i%2 == 1 {
			_, err = s.Update(ctx, removal)
		} else {
			_, err = s.Append(ctx, a)
		}
		if err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
	}
	return nil
}

// tornReads are reads with what they must return of all sequences.
func tornReads() map[string]struct {
	read store.Read
	want func(all []int32) []int32
} {
	between := func(all []int32, after, before int32) (found []int32) {
		for _, s := range all {
			if s > after && (before == 0 || s < before) {
				found = append(found, s)
			}
		}
		return found
	}
	newest := func(all []int32, n int) []int32 { return all[max(0, len(all)-n):] }
	oldest := func(all []int32, n int) []int32 { return all[:min(n, len(all))] }
	return map[string]struct {
		read store.Read
		want func(all []int32) []int32
	}{
		"all":    {store.Read{Newest: -1}, func(all []int32) []int32 { return all }},
		"newest": {store.Read{Newest: 5}, func(all []int32) []int32 { return newest(all, 5) }},
		"range": {store.Read{Newest: -1, After: 100, Before: 400}, func(all []int32) []int32 {
			return between(all, 100, 400)
		}},
		"newest of a range": {store.Read{Newest: 3, Before: 300}, func(all []int32) []int32 {
			return newest(between(all, 0, 300), 3)
		}},
		"oldest": {store.Read{Newest: 300, Oldest: true, After: 20}, func(all []int32) []int32 {
			return oldest(between(all, 20, 0), 300)
		}},
		"none": {store.Read{}, func([]int32) []int32 { return nil }},
	}
}

// TestTornReads reads in many ways while another goroutine writes. Each read must be of one version.
func TestTornReads(t *testing.T) {
	t.Parallel()
	engine := redistest.Start(t)
	s, writer := openAt(t, store.Options{}, engine.Addr()), openAt(t, store.Options{}, engine.Addr())
	h := &history{versions: map[int32][]int32{}}
	ctx := t.Context()
	done := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(name string, check func() error) {
		wg.Go(func() {
			versions := 0
			for ended := false; !ended || versions == 0; versions++ {
				select {
				case <-done:
					ended = true
				default:
				}
				if err := check(); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
			t.Logf("%s: %d reads", name, versions)
		})
	}
	begun := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		if err := h.write(ctx, startWriter{writer, begun}, 200); err != nil {
			t.Error(err)
		}
	})
	<-begun
	for name, r := range tornReads() {
		loop(name, func() error {
			q := r.read
			q.Tenant, q.ConversationID, q.WithOldestSequence = "acme", "c", true
			return h.check(ctx, s, &q, r.want)
		})
	}
	loop("limited bytes", func() error {
		return h.check(ctx, s, &store.Read{Tenant: "acme", ConversationID: "c", Newest: -1, MaxBytes: 3000}, nil)
	})
	loop("records with prefixes", func() error { return checkRecordsOfRead(ctx, s) })
	loop("list of records", func() error { return checkListOfRecords(ctx, s) })
	wg.Wait()
}

// startWriter closes begun after its first append.
type startWriter struct {
	store.Store

	begun chan struct{}
}

func (w startWriter) Append(ctx context.Context, a *store.Append) (*store.Result, error) {
	r, err := w.Store.Append(ctx, a)
	if err != nil || r.Conversation.GetVersion() == 1 {
		close(w.begun)
	}
	return r, err
}

// check reads and compares the messages with those of the version that was read. If want is nil, they must be the
// newest, any number of them.
func (h *history) check(ctx context.Context, s store.Store, q *store.Read, want func([]int32) []int32) error {
	snapshot, err := s.Read(ctx, q)
	if err != nil {
		return err
	}
	all := h.at(snapshot.Conversation.GetVersion())
	var got []int32
	for frame := range snapshot.Messages.All() {
		got = append(got, frame.Sequence())
	}
	expected := all[max(0, len(all)-len(got)):]
	if want != nil {
		expected = want(all)
	}
	if !slices.Equal(got, expected) || int(snapshot.Conversation.GetMessageCount()) != len(all) || want == nil && len(got) == 0 {
		return fmt.Errorf("version %d has %v, want %v, count %d of %d", snapshot.Conversation.GetVersion(), got, expected,
			snapshot.Conversation.GetMessageCount(), len(all))
	}
	if q.WithOldestSequence && q.Newest != 0 && snapshot.OldestSequence != all[0] {
		return fmt.Errorf("oldest sequence = %d, want %d", snapshot.OldestSequence, all[0])
	}
	return nil
}

// checkRecords checks that all records are of one commit, which is the last one before a version; 0 skips that.
func checkRecords(records []*parleyv1.Record, version int32) error {
	if len(records) != tornRecords {
		return fmt.Errorf("%d records, want %d", len(records), tornRecords)
	}
	for _, r := range records {
		if r.GetRevision() != records[0].GetRevision() || !bytes.Equal(r.GetValue(), records[0].GetValue()) {
			return fmt.Errorf("record %v is not of the same commit as %v", r, records[0])
		}
		if version != 0 && r.GetRevision() != int64(version) && r.GetRevision() != int64(version-1) {
			return fmt.Errorf("revision = %d of version %d", r.GetRevision(), version)
		}
	}
	return nil
}

func checkRecordsOfRead(ctx context.Context, s store.Store) error {
	snapshot, err := s.Read(ctx, &store.Read{
		Tenant: "acme", ConversationID: "c", Newest: 2, RecordPrefixes: []string{"k0", "k1", "k2", "k3", "k4", "k5"},
	})
	if err != nil {
		return err
	}
	return checkRecords(snapshot.Records, snapshot.Conversation.GetVersion())
}

func checkListOfRecords(ctx context.Context, s store.Store) error {
	for _, descending := range []bool{false, true} {
		records, _, err := s.ListRecords(ctx, &store.ListRecords{
			Tenant: "acme", ConversationID: "c", Limit: 100, MaxBytes: 1 << 20, Descending: descending,
		})
		if err == nil {
			err = checkRecords(records, 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
