package interactionlog

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

// TestCatchUpProgress checks that CatchUp logs its progress every second, while it lists conversations and
// while it reads files.
func TestCatchUpProgress(t *testing.T) {
	s := newTestService(t, logDir(t))
	older := entrytest.Sample{At: "2026-11-20T01:00:00.000000Z", Content: strings.Repeat("older ", 150)}.String()
	path := s.log.path(dayfile.DayOf(noon).FileName())
	must(t, os.WriteFile(path, []byte(strings.Repeat(older, 4000)), dayfile.FileMode))
	s.detached = true
	for i := range 4 {
		s.add("acme", fmt.Sprint("c", i), "missing")
	}
	s.log.crash()
	s.open()
	// Each call of the clock advances it by half a second.
	var looks atomic.Int64
	now := s.now
	s.log.options.Now = func() time.Time { return now.Add(time.Duration(looks.Add(1)) * time.Second / 2) }
	must(t, s.catchUp())
	var reports, reading int
	for line := range strings.Lines(s.log.output.take()) {
		if strings.Contains(line, "comparing with the store") {
			reports++
		}
		if strings.Contains(line, "conversations=4 read_bytes=") && !strings.Contains(line, "total_bytes=0") {
			reading++
		}
	}
	if reports < 4 || reading < 2 || int64(reports) > looks.Load()/2 {
		t.Errorf("%d reports, %d of them while reading files, in %d s, want one a second", reports, reading, looks.Load()/2)
	}
	must(t, s.log.Close())
}
