package boltstore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/parleyhq/parley/store"
	"github.com/parleyhq/parley/store/internal/record"
)

// BenchmarkAppend appends 500 B messages to conversations of 20, through the store and, in
// turns with it, through db.Batch of bbolt with the same work on the same bytes. "group/batch"
// is how many times as fast the store is.
func BenchmarkAppend(b *testing.B) {
	const slice = 200 * time.Millisecond
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			group, batch := newSide(b), newSide(b)
			var appends [2]int64
			var spent [2]time.Duration
			for b.Loop() {
				for i, write := range []func(id string) error{group.throughStore, batch.throughBatch} {
					start := time.Now()
					appends[i] += hammer(b, callers, slice, write)
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

// hammer has callers append to conversations, each to its own, for a while.
func hammer(b *testing.B, callers int, d time.Duration, write func(id string) error) int64 {
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

// side is a store of its own with conversations of 20 messages.
type side struct {
	b *testing.B
	s *Store
}

func newSide(b *testing.B) *side {
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
	return &side{b: b, s: s}
}

func newAppend(id string) *store.Append {
	return &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("word ", 45))}
}

func (s *side) throughStore(id string) error {
	_, err := s.s.Append(s.b.Context(), newAppend(id))
	return err
}

// throughBatch does to the conversation what the store does.
func (s *side) throughBatch(id string) error {
	a := newAppend(id)
	drafts, err := record.NewDrafts(a.Messages)
	if err != nil {
		return err
	}
	return s.s.db.Batch(func(tx *bolt.Tx) error {
		t := s.s.begin(tx)
		old, err := t.load(a.Tenant, id, record.Unmarshal)
		if err != nil {
			return err
		}
		now := time.Now()
		out, err := record.Append(old.live(now), a, drafts, "", now, &s.s.options.Options)
		if err != nil {
			return err
		}
		if err := t.write(a.Tenant, old, out, now); err != nil {
			return err
		}
		return t.finish()
	})
}

// BenchmarkRead reads conversations of 20 messages of 500 B.
func BenchmarkRead(b *testing.B) {
	s := newSide(b).s
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
