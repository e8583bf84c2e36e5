package interactionlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entrytest"
)

// bytesRead returns how many bytes this process has read by system calls.
func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	if err != nil {
		t.Skipf("count of bytes read is not available: %v", err)
	}
	return n
}

// bytesReadByCatchUp returns how many bytes a CatchUp reads of the day's file after a crash, and the
// file's size.
func (s *testService) bytesReadByCatchUp(t *testing.T) (read, size int64) {
	t.Helper()
	s.log.crash()
	s.open()
	info, err := os.Stat(filepath.Join(s.dir, dayfile.DayOf(noon).FileName()))
	must(t, err)
	before := bytesRead(t)
	must(t, s.catchUp())
	return bytesRead(t) - before, info.Size()
}

// TestCatchUpReadsOnce checks that CatchUp reads the files once, however many messages it compares.
func TestCatchUpReadsOnce(t *testing.T) {
	s := newTestService(t, logDir(t))
	s.detached = true
	s.add("acme", "lost", "missing")
	s.detached = false
	text := strings.Repeat("all happy families are alike ", 1600)
	for i := range 500 {
		s.add("acme", fmt.Sprint("c", i), text)
	}
	// CatchUp reads a part of the next chunk with each chunk, for the end of its last entry.
	if read, size := s.bytesReadByCatchUp(t); size < 20<<20 || read > size*3/2 {
		t.Errorf("CatchUp read %d bytes of a file of %d, want each byte once", read, size)
	}
	if got := fileContents(t, s.dir)[dayfile.DayOf(noon).FileName()]; len(got) != 501 || got[500] != "missing" {
		t.Errorf("file has %d entries, want 501, the last one that was missing", len(got))
	}
	must(t, s.log.Close())
}

// TestCatchUpReadsTheEnd checks that CatchUp reads only the end of a large file if no entry is missing.
func TestCatchUpReadsTheEnd(t *testing.T) {
	s := newTestService(t, logDir(t))
	older := entrytest.Sample{At: "2026-11-20T01:00:00.000000Z", Content: strings.Repeat("older ", 150)}.String()
	path := s.log.path(dayfile.DayOf(noon).FileName())
	must(t, os.WriteFile(path, []byte(strings.Repeat(older, 40_000)), dayfile.FileMode))
	for i := range 100 {
		s.add("acme", fmt.Sprint("c", i), "newer")
	}
	if read, size := s.bytesReadByCatchUp(t); size < 32<<20 || read > size/4 {
		t.Errorf("CatchUp read %d bytes of a file of %d, want only its end", read, size)
	}
	must(t, s.log.Close())
}
