package interactionlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"sync"
)

const (
	// maxTold is of how many lines of a file operators are told, and maxToldDays of how many
	// files that is remembered.
	maxWarned     = 100
	maxWarnedDays = 1000
)

// told remembers of which lines operators have been told, by where they start.
type warnedLines struct {
	mu   sync.Mutex
	days map[day][]int64
}

// lines returns those of a day, sorted.
func (t *warnedLines) ofDay(d day) []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.days[d])
}

// add remembers a line; false if it is known, or if there are too many.
func (t *warnedLines) add(d day, offset int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := t.days[d]
	i, known := slices.BinarySearch(lines, offset)
	if known || len(lines) == maxWarned {
		return false
	}
	if t.days == nil || lines == nil && len(t.days) == maxWarnedDays {
		t.days = make(map[day][]int64) // Better told twice than remembered for ever.
	}
	t.days[d] = slices.Insert(lines, i, offset)
	return true
}

// fault is what is wrong with a line.
type fault struct {
	offset int64
	err    error
}

// faults are those of a file that a query has met and operators know nothing of.
type faults struct {
	day      day
	warned   []int64
	unwarned []fault
}

func (f *faults) add(offset int64, err error) {
	if _, known := slices.BinarySearch(f.warned, offset); !known && len(f.warned)+len(f.unwarned) < maxWarned {
		f.unwarned = append(f.unwarned, fault{offset, err})
	}
}

// warn tells operators of faults, with the numbers of the lines, for which the file is read
// once more, up to the last of them.
func (r *reader) warnFaults(ctx context.Context, file io.ReaderAt, f *faults) error {
	if len(f.unwarned) == 0 {
		return nil
	}
	slices.SortFunc(f.unwarned, func(a, b fault) int { return cmp.Compare(a.offset, b.offset) })
	c := r.chunk()
	defer r.pool.Put(c)
	number, at := 1, int64(0)
	for _, fault := range f.unwarned {
		for at < fault.offset {
			n, err := file.ReadAt(c.buffer[:min(int64(len(c.buffer)), fault.offset-at)], at)
			if errors.Is(err, io.EOF) {
				return ctx.Err() // It was cut off meanwhile, and the line is gone.
			}
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			number, at = number+bytes.Count(c.buffer[:n], []byte{'\n'}), at+int64(n)
		}
		if r.warned.add(f.day, fault.offset) {
			r.log.Warn("line of the interaction log skipped", "file", filepath.Join(r.dir, f.day.fileName()), "line", number, "error", fault.err)
		}
	}
	if count := len(f.warned) + len(f.unwarned); count == maxWarned {
		r.log.Warn("further lines of the interaction log that cannot be read are skipped silently",
			"file", filepath.Join(r.dir, f.day.fileName()), "lines_told", count)
	}
	return nil
}
