package interactionlog

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
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
