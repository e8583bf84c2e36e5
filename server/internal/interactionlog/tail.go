package interactionlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
)

// maxRewritten is the maximum length in bytes of a tail that is written again after a failed sync. If the
// tail is longer, the next start compares the log with the store instead.
const maxRewritten = 64 << 20

// errEntriesLost reports that entries may be missing and that only CatchUp can find them.
var errEntriesLost = errors.New("entries that were not durable have changed or are missing")

// tail is the part of a file that may not be durable yet.
type tail struct {
	// file identifies the file, so that another file with the same name is not mistaken for it.
	file fs.FileInfo
	// from is the offset of the first entry, to the offset after the last one.
	from, to int64
	// entries is the number of entries that the log has written between from and to.
	entries int
	// failed is true after a failed sync.
	failed bool
}

// requireCatchUp makes the next start search for missing entries. The caller holds w.mu.
func (w *writer) requireCatchUp(cause error) {
	w.pending.needsCatchUp = true
	const message = "interaction log may lack entries after a failed sync; " +
		"the next start adds those that the store retains"
	w.options.Log.Warn(message, "error", cause)
}

// recordWritten records entries that were appended to a file at an offset. The caller holds w.mu.
func (w *writer) recordWritten(f *dayfile.Appender, from int64, entries int) {
	p := &w.pending
	t := p.days[f.Day]
	if t != nil && !os.SameFile(t.file, f.Info) {
		if t.failed {
			w.requireCatchUp(fmt.Errorf("%s: %w", f.Path, errEntriesLost))
		}
		t = nil
	}
	if t == nil {
		if p.days == nil {
			p.days = make(map[dayfile.Day]*tail)
		}
		t = &tail{file: f.Info, from: from}
		p.days[f.Day] = t
	}
	t.to, t.entries = f.End, t.entries+entries
}

// restoreTail returns a tail that could not be made durable to pending, joined with the entries written
// since. The caller holds w.mu.
func (w *writer) restoreTail(d dayfile.Day, t *tail) {
	p := &w.pending
	t.failed = true
	if next := p.days[d]; next != nil {
		if !os.SameFile(t.file, next.file) {
			w.requireCatchUp(fmt.Errorf("%s: %w", d.FileName(), errEntriesLost))
			return
		}
		t.to, t.entries = next.to, t.entries+next.entries
	}
	if p.days == nil {
		p.days = make(map[dayfile.Day]*tail)
	}
	p.days[d] = t
}

// sync makes the tail durable. If the file was removed, it does nothing. After a failed sync it first
// writes the tail again: the system may have dropped data that it could not write, and reports that only
// once, so a successful sync alone proves nothing. Errors: errEntriesLost, those of the file.
func (t *tail) sync(path string) error {
	flag := os.O_RDONLY
	if t.failed {
		flag = os.O_RDWR
	}
	f, info, err := dayfile.OpenFile(path, flag)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrRefused):
		return nil
	case err != nil:
		return err
	}
	if t.failed {
		err = t.rewrite(f, info)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

// rewrite writes the tail as it is read from the file. Errors: those of check.
func (t *tail) rewrite(f *os.File, info fs.FileInfo) error {
	return t.check(f, info, func(text []byte, at int64) error {
		_, err := f.WriteAt(text, at)
		return err
	})
}

// check visits the lines of the tail. It returns errEntriesLost if the file contains fewer
// complete entries than the log has written.
func (t *tail) check(f *os.File, info fs.FileInfo, visit func(text []byte, at int64) error) error {
	if !os.SameFile(t.file, info) || info.Size() < t.to || t.to-t.from > maxRewritten {
		return fmt.Errorf("%s: %w", f.Name(), errEntriesLost)
	}
	lines, complete := bufio.NewReaderSize(io.NewSectionReader(f, t.from, t.to-t.from), copyBytes), 0
	for at := t.from; at < t.to; {
		text, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) || len(text) == 0 {
			return err
		}
		if _, err := entry.Parse(bytes.TrimSpace(text)); err == nil {
			complete++
		}
		if err := visit(text, at); err != nil {
			return err
		}
		at += int64(len(text))
	}
	if complete < t.entries {
		return fmt.Errorf("%s: %w", f.Name(), errEntriesLost)
	}
	return nil
}
