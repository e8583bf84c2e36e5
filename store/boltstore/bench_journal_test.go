package boltstore

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
)

// BenchmarkStart opens the store of a killed process whose journal is full: 256 MiB of appends of 500 B
// to PARLEY_BENCH_CONVERSATIONS conversations, 100,000 by default. The metric "MiB" is the memory that
// the store takes then.
func BenchmarkStart(b *testing.B) {
	conversations := 100_000
	if n, err := strconv.Atoi(os.Getenv("PARLEY_BENCH_CONVERSATIONS")); err == nil {
		conversations = n
	}
	const budget = 256 << 20
	path := newPath(b)
	o := Options{JournalBudget: 2 * budget, JournalAge: time.Hour}
	s, err := Open(path, o)
	if err != nil {
		b.Fatal(err)
	}
	s.db.NoSync = true
	appendAll := func(round int) {
		var group sync.WaitGroup
		for caller := range 64 {
			group.Go(func() {
				for i := caller; i < conversations; i += 64 {
					a := newAppend(strconv.Itoa(i))
					a.Messages[0].Content += fmt.Sprint(round)
					if _, err := s.Append(b.Context(), a); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	appendAll(0) // This creates the conversations, which the journal does not.
	created := heap()
	for round := 1; !b.Failed(); round++ {
		appendAll(round)
		if current, _ := s.folder.usage(); current >= 0.5 {
			break
		}
	}
	if err := s.db.Sync(); err != nil {
		b.Fatal(err)
	}
	bytes, _ := s.tally.pending.Bytes()
	b.Logf("%d conversations, %d operations, %d MiB of the journal, %d MiB of memory", conversations, s.journal.Next()-1,
		bytes>>20, (heap()-created)>>20)
	kill(b, s)
	s = nil
	empty := heap()
	var took time.Duration
	for b.Loop() {
		start := time.Now()
		again, err := Open(path, o)
		if err != nil {
			b.Fatal(err)
		}
		took += time.Since(start)
		b.ReportMetric(float64(heap()-empty)/(1<<20), "MiB")
		kill(b, again)
	}
	b.ReportMetric(took.Seconds()/float64(b.N), "s/start")
}
