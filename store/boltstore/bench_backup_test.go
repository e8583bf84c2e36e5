package boltstore

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhq/parley/store"
)

const (
	backupConversations = 100_000
	backupCallers       = 64
)

// BenchmarkBackup appends messages of 500 B to 100,000 conversations of 20, a file of more than a
// gigabyte, from 64 callers. It alternates between the duration of a backup, which is read to its
// end, and the same duration without a backup. "p99-ratio" is the median of the ratio of the
// appends' 99th percentile during a backup to that without. The least and the greatest ratio are
// reported, too.
func BenchmarkBackup(b *testing.B) {
	s := newLargeStore(b)
	var ratios, alone, during []float64
	var rateAlone, rateDuring float64
	var span time.Duration // duration of the last backup; the first one is not measured
	appendWhile(b, s, func() { span = timeBackup(b, s) })
	for i := 0; b.Loop(); i++ {
		measure := []func(){
			func() {
				p99, rate := appendWhile(b, s, func() { <-time.After(span) })
				alone, rateAlone = append(alone, p99), rate
			},
			func() {
				p99, rate := appendWhile(b, s, func() { span = timeBackup(b, s) })
				during, rateDuring = append(during, p99), rate
			},
		}
		if i%2 > 0 {
			slices.Reverse(measure)
		}
		for _, m := range measure {
			m()
		}
		ratios = append(ratios, during[i]/alone[i])
		stats, err := s.Stats(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.Logf("round %d: p99 %.1f ms alone, %.1f ms during a backup of %.1f s: ratio %.2f; "+
			"%.0f and %.0f appends/s; file %d MiB, %d MiB in use",
			i+1, alone[i], during[i], span.Seconds(), ratios[i], rateAlone, rateDuring,
			stats.FileBytes>>20, stats.FileBytesInUse>>20)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "p99-ratio")
	b.ReportMetric(ratios[0], "p99-ratio-least")
	b.ReportMetric(ratios[len(ratios)-1], "p99-ratio-greatest")
	b.ReportMetric(0, "ns/op")
}

// newLargeStore makes a store with 100,000 conversations of 20 messages.
func newLargeStore(b *testing.B) *Store {
	b.Helper()
	s := open(b, newPath(b), store.Options{})
	a := newBackupAppend("")
	for range 19 {
		a.Messages = append(a.Messages, a.Messages[0])
	}
	var group sync.WaitGroup
	for caller := range backupCallers {
		group.Go(func() {
			for id := caller; id < backupConversations; id += backupCallers {
				own := *a
				own.ConversationID = strconv.Itoa(id)
				if _, err := s.Append(b.Context(), &own); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	s.db.NoSync = false
	if err := s.db.Sync(); err != nil {
		b.Fatal(err)
	}
	return s
}

// newBackupAppend returns an append of a message that has 500 B in the file.
func newBackupAppend(id string) *store.Append {
	return &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("words ", 35))}
}

// appendWhile appends until do returns. It returns the 99th percentile of the appends in
// milliseconds, and the appends per second.
func appendWhile(b *testing.B, s *Store, do func()) (p99, rate float64) {
	b.Helper()
	var group sync.WaitGroup
	var ended atomic.Bool
	took := make([][]time.Duration, backupCallers)
	start := time.Now()
	for caller := range backupCallers {
		group.Go(func() {
			for !ended.Load() {
				started := time.Now()
				id := fmt.Sprint(rand.IntN(backupConversations))
				if _, err := s.Append(b.Context(), newBackupAppend(id)); err != nil {
					b.Error(err)
					return
				}
				took[caller] = append(took[caller], time.Since(started))
			}
		})
	}
	do()
	ended.Store(true)
	group.Wait()
	all := slices.Sorted(func(yield func(time.Duration) bool) {
		for _, of := range took {
			for _, d := range of {
				if !yield(d) {
					return
				}
			}
		}
	})
	return all[len(all)*99/100].Seconds() * 1000, float64(len(all)) / time.Since(start).Seconds()
}

// timeBackup makes a backup, reads all of it, and returns how long that took.
func timeBackup(b *testing.B, s *Store) time.Duration {
	b.Helper()
	start := time.Now()
	c, err := s.Backup(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	made := time.Since(start)
	if n, err := io.Copy(io.Discard, c); err != nil || n != c.Size {
		b.Fatalf("read %d bytes of %d, %v", n, c.Size, err)
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	b.Logf("backup made in %v", made)
	return time.Since(start)
}
