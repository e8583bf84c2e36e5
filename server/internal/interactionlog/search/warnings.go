package search

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

const (
	// maxWarned is the maximum number of skipped lines of a file that are logged. maxWarnedDays is the
	// maximum number of files for which logged lines are recorded.
	maxWarned     = 100
	maxWarnedDays = 1000
)

// warnedLines records the skipped lines that were logged, by their offsets.
type warnedLines struct {
	mu   sync.Mutex
	days map[dayfile.Day][]int64
}

// ofDay returns the offsets of a day's lines, sorted.
func (t *warnedLines) ofDay(d dayfile.Day) []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.days[d])
}

// add records a line. It returns false if the line is recorded already or the limit is reached.
func (t *warnedLines) add(d dayfile.Day, offset int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.days[d]
	i, recorded := slices.BinarySearch(lines, offset)
	if recorded || len(lines) == maxWarned {
		return false
	}
	if t.days == nil || lines == nil && len(t.days) == maxWarnedDays {
		t.days = make(map[dayfile.Day][]int64) // Repeated warnings are better than unlimited memory.
	}
	t.days[d] = slices.Insert(lines, i, offset)
	return true
}

// fault is a line that is skipped, with the reason.
type fault struct {
	offset int64
	err    error
}

// faults are the faults of a file that a query has found and that were not logged before.
type faults struct {
	day      dayfile.Day
	warned   []int64
	unwarned []fault
}

func (f *faults) add(offset int64, err error) {
	if _, recorded := slices.BinarySearch(f.warned, offset); !recorded && len(f.warned)+len(f.unwarned) < maxWarned {
		f.unwarned = append(f.unwarned, fault{offset, err})
	}
}

// warnFaults logs faults with the numbers of their lines. For these it reads the file again, up to the
// last fault.
func (r *Reader) warnFaults(ctx context.Context, file io.ReaderAt, f *faults) error {
	if len(f.unwarned) == 0 {
		return nil
	}
	slices.SortFunc(f.unwarned, func(a, b fault) int { return cmp.Compare(a.offset, b.offset) })
	number, at := 1, int64(0)
	for _, fault := range f.unwarned {
		breaks, err := r.scanner.CountBreaks(ctx, file, at, fault.offset)
		if errors.Is(err, io.EOF) {
			return ctx.Err() // The file was truncated in the meantime.
		} else if err != nil {
			return err
		}
		number, at = number+breaks, fault.offset
		if r.warned.add(f.day, fault.offset) {
			r.log.Warn("line of the interaction log skipped",
				"file", filepath.Join(r.dir, f.day.FileName()), "line", number, "error", fault.err)
		}
	}
	if count := len(f.warned) + len(f.unwarned); count == maxWarned {
		r.log.Warn("further skipped lines of this file of the interaction log are not logged",
			"file", filepath.Join(r.dir, f.day.FileName()), "limit", count)
	}
	return nil
}
