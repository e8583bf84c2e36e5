package interactionlog

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
	"github.com/parleyhq/parley/store"
)

// BenchmarkCatchUp compares the log with the store after a crash that lost no entry, alternately for
// some messages and for four times as many. The metric "4x" is the ratio of the two times. The
// metric "4x/read" is the ratio of the longer time to that of only reading the same file in chunks.
func BenchmarkCatchUp(b *testing.B) {
	one, four := newTestService(b, logDir(b)), newTestService(b, logDir(b))
	text := strings.Repeat("all happy families are alike ", 1000) // 29 kB
	for i := range 4000 {
		if i%4 == 0 {
			one.add("acme", fmt.Sprint("c", i), text)
		}
		four.add("acme", fmt.Sprint("c", i), text)
	}
	spent := func(s *testService) time.Duration {
		s.log.crash()
		s.open()
		start := time.Now()
		must(b, s.catchUp())
		return time.Since(start)
	}
	var growth, reads []float64
	buffer := make([]byte, scan.ChunkBytes)
	for b.Loop() {
		small, large := spent(one), spent(four)
		start := time.Now()
		f, err := os.Open(four.log.path(dayfile.DayOf(noon).FileName()))
		must(b, err)
		for n := 1; n > 0; {
			n, _ = f.Read(buffer)
		}
		must(b, f.Close())
		read := time.Since(start)
		growth, reads = append(growth, large.Seconds()/small.Seconds()), append(reads, large.Seconds()/read.Seconds())
	}
	must(b, one.log.Close(), four.log.Close())
	for unit, ratios := range map[string][]float64{"4x": growth, "4x/read": reads} {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], unit)
		b.ReportMetric(ratios[0], unit+"-least")
		b.ReportMetric(ratios[len(ratios)-1], unit+"-most")
	}
}

// BenchmarkCatchUpTenants catches up after a crash that lost no entry, with one conversation in each of 10,000
// tenants and with 10,000 conversations in one tenant. The store is in a file.
func BenchmarkCatchUpTenants(b *testing.B) {
	const conversations = 10_000
	for _, tenants := range []int{1, conversations} {
		b.Run(fmt.Sprint(tenants), func(b *testing.B) {
			dir := b.TempDir()
			s, l, err := openBoth(b.Context(), dir)
			must(b, err)
			var group errgroup.Group
			group.SetLimit(256)
			for i := range conversations {
				group.Go(func() error {
					_, err := s.Append(b.Context(), &store.Append{
						Tenant: fmt.Sprint("tenant", i%tenants), ConversationID: fmt.Sprint("c", i),
						Messages: []*parleyv1.Message{{Id: "m", Role: parleyv1.Role_ROLE_USER, Content: "hello"}},
					})
					return err
				})
			}
			must(b, group.Wait(), s.Close(), l.Close())
			s, l, err = openBoth(b.Context(), dir)
			must(b, err)
			for b.Loop() {
				l.writer.requireCatchUp(nil)
				must(b, l.CatchUp(b.Context(), s))
			}
			must(b, s.Close(), l.Close())
		})
	}
}
