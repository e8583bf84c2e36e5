package boltstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// BenchmarkAppend appends 500 B messages to conversations of 20. It alternates between the store
// and db.Batch of bbolt with the same work on the same bytes. "group/batch" is the rate of the
// store divided by that of db.Batch.
func BenchmarkAppend(b *testing.B) {
	const slice = 200 * time.Millisecond
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			group, batch := newBenchStore(b), newBenchStore(b)
			var appends [2]int64
			var spent [2]time.Duration
			for b.Loop() {
				for i, write := range []func(id string) error{group.throughStore, batch.throughBatch} {
					start := time.Now()
					appends[i] += appendFor(b, callers, slice, write)
					spent[i] += time.Since(start)
				}
			}
			rate := func(i int) float64 { return float64(appends[i]) / spent[i].Seconds() }
			b.ReportMetric(rate(0), "group/s")
			b.ReportMetric(rate(1), "batch/s")
			b.ReportMetric(rate(0)/rate(1), "group/batch")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// appendFor lets callers append for a duration, each to its own conversations, and returns the
// number of appends.
func appendFor(b *testing.B, callers int, d time.Duration, write func(id string) error) int64 {
	b.Helper()
	var n atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(d)
	for caller := range callers {
		group.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				if err := write(fmt.Sprint((i*callers + caller) % benchConversations)); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	group.Wait()
	return n.Load()
}

const benchConversations = 2048

// benchStore is a store with conversations of 20 messages.
type benchStore struct {
	b *testing.B
	s *Store
}

func newBenchStore(b *testing.B) *benchStore {
	b.Helper()
	s := open(b, newPath(b), store.Options{})
	for id := range benchConversations {
		a := newAppend(fmt.Sprint(id))
		for range 19 {
			a.Messages = append(a.Messages, a.Messages[0])
		}
		if _, err := s.Append(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
	s.db.NoSync = false
	if err := s.db.Sync(); err != nil {
		b.Fatal(err)
	}
	return &benchStore{b: b, s: s}
}

func newAppend(id string) *store.Append {
	return &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", 45))}
}

func (s *benchStore) throughStore(id string) error {
	_, err := s.s.Append(s.b.Context(), newAppend(id))
	return err
}

// throughBatch does the same as Store.Append in a transaction of db.Batch.
func (s *benchStore) throughBatch(id string) error {
	a := newAppend(id)
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return err
	}
	return s.s.db.Batch(func(tx *bolt.Tx) error {
		t := s.s.beginTxn(tx)
		old, err := t.load(a.Tenant, id, all)
		if err != nil {
			return err
		}
		now := time.Now()
		out, err := record.Append(old.live(now), a, drafts, nil, "", now, &s.s.options.Options)
		if err != nil {
			return err
		}
		if err := t.write(&change{tenant: a.Tenant}, old, out, nil, now); err != nil {
			return err
		}
		return t.finish()
	})
}

// BenchmarkRead reads conversations of 20 messages of 500 B.
func BenchmarkRead(b *testing.B) {
	s := newBenchStore(b).s
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for i := 0; p.Next(); i++ {
			r := &store.Read{Tenant: "acme", ConversationID: fmt.Sprint(i % benchConversations), Newest: -1}
			if _, err := s.Read(b.Context(), r); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCreateAtCapacity lets 64 callers create conversations at a capacity of 20,000. It
// alternates between the minute in which the others expire, 40 s before they do, and another
// minute. The metric "within/before" is the time in the first minute divided by that in the other.
func BenchmarkCreateAtCapacity(b *testing.B) {
	const capacity, callers, slice = 20_000, 64, 640
	minute := time.Unix(1_800_000_000, 0).Truncate(time.Minute)
	sides := []struct {
		s    *Store
		made atomic.Int64
		took []float64
	}{{}, {}}
	for i, later := range []time.Duration{30 * time.Minute, time.Hour} {
		c := &clock{now: minute.Add(50 * time.Second)}
		s := open(b, newPath(b), store.Options{Now: c.Now, TTL: time.Hour, MaxConversations: capacity})
		sides[i].s = s
		createMany(b, s, &sides[i].made, callers, capacity)
		c.advance(later - 40*time.Second)
		s.db.NoSync = false
		if err := s.db.Sync(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		for i := range sides {
			start := time.Now()
			createMany(b, sides[i].s, &sides[i].made, callers, slice)
			sides[i].took = append(sides[i].took, time.Since(start).Seconds())
		}
	}
	ratios := make([]float64, len(sides[0].took))
	for i := range ratios {
		ratios[i] = sides[0].took[i] / sides[1].took[i]
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "within/before")
	b.ReportMetric(ratios[0], "min")
	b.ReportMetric(ratios[len(ratios)-1], "max")
	b.ReportMetric(0, "ns/op")
}

// createMany lets callers create n conversations, each with its own id.
func createMany(b *testing.B, s *Store, made *atomic.Int64, callers, n int) {
	b.Helper()
	var group sync.WaitGroup
	end := made.Load() + int64(n)
	for range callers {
		group.Go(func() {
			for id := made.Add(1); id <= end; id = made.Add(1) {
				if _, err := s.Create(b.Context(), &store.Create{
					Tenant: "acme", Conversation: &parleyv1.Conversation{Id: fmt.Sprint(id)},
				}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	made.Store(end)
}

// BenchmarkNoisyNeighbour appends for one tenant while eight callers append to a conversation of
// another tenant. It alternates between a conversation with 64,000 values of structured data and
// one with a text of the same size. The metric "values/text" is the time of the first tenant's
// append beside the values divided by that beside the text.
func BenchmarkNoisyNeighbour(b *testing.B) {
	const callers, appends = 8, 20
	values := &parleyv1.Message{Role: parleyv1.Role_ROLE_ASSISTANT}
	for i := range 64 {
		values.StructuredData = append(values.StructuredData, &parleyv1.StructuredData{Type: fmt.Sprint("type ", i)})
	}
	structured := newNoisyStore(b, values, 1000)
	stats, err := structured.Stats(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	text := newNoisyStore(b, &parleyv1.Message{Content: strings.Repeat("x", int(stats.Bytes)/1000)}, 1000)
	var took [2][]float64
	for b.Loop() {
		for i, s := range []*Store{structured, text} {
			took[i] = append(took[i], timeBesideNoisy(b, s, callers, appends).Seconds())
		}
	}
	ratios := make([]float64, len(took[0]))
	for i := range ratios {
		ratios[i] = took[0][i] / took[1][i]
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "values/text")
	b.ReportMetric(ratios[0], "min")
	b.ReportMetric(ratios[len(ratios)-1], "max")
	b.ReportMetric(0, "ns/op")
}

// newNoisyStore returns a store with a conversation that has n copies of a message.
func newNoisyStore(b *testing.B, m *parleyv1.Message, n int) *Store {
	b.Helper()
	s := open(b, newPath(b), store.Options{MaxMessages: n})
	for range n / 100 {
		a := &store.Append{Tenant: "noisy", ConversationID: "c"}
		for range 100 {
			a.Messages = append(a.Messages, m)
		}
		if _, err := s.Append(b.Context(), a); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

// timeBesideNoisy makes appends of one tenant while callers of the noisy one append, and returns
// the time that they take.
func timeBesideNoisy(b *testing.B, s *Store, callers, appends int) time.Duration {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Append(ctx, &store.Append{
					Tenant: "noisy", ConversationID: "c", Messages: text("hello"),
				}); err != nil && ctx.Err() == nil {
					b.Error(err)
					return
				}
			}
		})
	}
	start := time.Now()
	for range appends {
		if _, err := s.Append(b.Context(), &store.Append{
			Tenant: "quiet", ConversationID: "c", Messages: text("hello"),
		}); err != nil {
			b.Fatal(err)
		}
	}
	took := time.Since(start)
	stop()
	group.Wait()
	return took
}
