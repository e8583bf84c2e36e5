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

// BenchmarkBackup appends messages of 500 B to 100,000 conversations of 20, a file of more than
// a gigabyte, from 64 callers: for as long as a backup takes, which is read to its end, and, in
// turns with that, for as long without. "p99-ratio" is the median of how many times as long the
// slowest hundredth of the appends takes during a backup; the least and the greatest are beside it.
func BenchmarkBackup(b *testing.B) {
	s := newLargeStore(b)
	var ratios, alone, during []float64
	var rateAlone, rateDuring float64
	var span time.Duration // of the last backup, the first of which is not counted
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
		b.Logf("round %d: p99 %.1f ms alone, %.1f ms during a backup of %.1f s: ratio %.2f; %.0f and %.0f appends/s; file %d MiB, %d MiB in use",
			i+1, alone[i], during[i], span.Seconds(), ratios[i], rateAlone, rateDuring, stats.FileBytes>>20, stats.FileBytesInUse>>20)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "p99-ratio")
	b.ReportMetric(ratios[0], "p99-ratio-least")
	b.ReportMetric(ratios[len(ratios)-1], "p99-ratio-greatest")
	b.ReportMetric(0, "ns/op")
}

// newLarge makes a store with 100,000 conversations of 20 messages.
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

// newBackupAppend appends a message that is 500 B long in the file.
func newBackupAppend(id string) *store.Append {
	return &store.Append{Tenant: "acme", ConversationID: id, Messages: text(strings.Repeat("words ", 35))}
}

// appendWhile appends until do returns, and returns the time in milliseconds in which 99 of 100 appends
// were durable, and how many were in a second.
func appendWhile(b *testing.B, s *Store, do func()) (p99, rate float64) {
	b.Helper()
	var group sync.WaitGroup
	var ended atomic.Bool
	took := make([][]time.Duration, backupCallers)
	start := time.Now()
	for caller := range backupCallers {
		group.Go(func() {
			for !ended.Load() {
				begun := time.Now()
				id := fmt.Sprint(rand.IntN(backupConversations))
				if _, err := s.Append(b.Context(), newBackupAppend(id)); err != nil {
					b.Error(err)
					return
				}
				took[caller] = append(took[caller], time.Since(begun))
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

// backUp makes a backup, reads all of it, and returns how long that took.
func timeBackup(b *testing.B, s *Store) time.Duration {
	b.Helper()
	start := time.Now()
	c, err := s.Backup(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	made := time.Since(start)
	if n, err := io.Copy(io.Discard, c); err != nil || n != c.Size {
		b.Fatalf("%d bytes of %d: %v", n, c.Size, err)
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	b.Logf("made in %v", made)
	return time.Since(start)
}
