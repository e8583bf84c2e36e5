package interactionlog

import (
	"bytes"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/entry"
	"github.com/parleyhq/parley/store"
)

const (
	// maxOpenFiles is the maximum number of open files. Around midnight entries go to two files.
	maxOpenFiles = 2
	// maxWriteBytes is the size above which a batch is written in parts, each of complete entries.
	maxWriteBytes = 8 << 20
	// maxRetainedBuffer is the maximum size of the buffer that is retained between batches.
	maxRetainedBuffer = 1 << 20
)

// writer appends entries to the files and has the checkpoint. mu guards all of its fields except options and
// lost. Replacing a file requires mu, too, so that no entry is written to the old one.
type writer struct {
	options *Options     // constant
	lost    atomic.Int64 // entries that were lost since the start

	mu      sync.Mutex
	encoder *entry.Encoder
	buffer  []byte
	files   []*dayfile.Appender // the last one was written to most recently
	loss    lossState
	pending pending
	lock    *os.File // the directory, locked against other processes
	closed  bool
}

// Committed writes an entry for each MESSAGE_APPENDED and CLEARED change of this process. It is an observer of the
// store, see [store.Options]. When it returns, the operating system has the entries, so that they survive a crash of
// the process, or they are counted as lost. It waits for the disk only if the system makes a write wait,
// and at the end of an Erase.
func (l *Log) Committed(changes []store.Change) {
	l.writer.mu.Lock()
	defer l.writer.mu.Unlock()
	l.writer.writeBatch(changes)
}

// writeBatch writes the entries in one write, or in two if the batch spans midnight. The caller holds w.mu.
func (w *writer) writeBatch(changes []store.Change) {
	w.buffer = append(w.buffer[:0], '\n') // The line break that dayfile.Appender.Append expects.
	entries := w.buffer
	var current dayfile.Day
	var earliest time.Time
	for i := range changes {
		c := &changes[i]
		if c.Elsewhere {
			continue // The process that made the change writes its entry.
		}
		if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
			w.excludeImport(c, changes[i+1:])
		}
		if !entry.Logged(c.Kind) {
			continue
		}
		end := len(entries)
		longer, at, err := w.encoder.Append(entries, c)
		if err != nil {
			w.recordLoss(1, err)
			continue
		}
		if earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
		d := dayfile.DayOf(at)
		if end > 1 && (d != current || len(longer) > maxWriteBytes) {
			w.write(current, longer[:end])
			longer = append(longer[:1], longer[end:]...)
		}
		entries, current = longer, d
	}
	if len(entries) > 1 {
		w.write(current, entries)
	}
	if w.buffer = entries; cap(entries) > maxRetainedBuffer {
		w.buffer = nil
	}
	if !earliest.IsZero() {
		w.recordBatchTime(earliest)
	}
}

// write writes entries, which begin with a line break, to the file of a day, or counts them as lost. If
// the log is failing, all of them must be written with a loss entry. Otherwise a part may be written, and
// the rest gets a second attempt. The caller of this and of the methods below holds w.mu.
func (w *writer) write(d dayfile.Day, entries []byte) {
	if w.loss.missing > 0 {
		w.writeWithLossEntry(d, entry.Timestamp(entries[1:]), entries)
		return
	}
	n, err := w.append(d, entries, false)
	if err != nil {
		rest := entries[n:] // Begins with the line break of the last entry that was written.
		n, err = w.append(d, rest, false)
		entries = rest
	}
	if err != nil {
		w.recordLoss(bytes.Count(entries[n+1:], []byte{'\n'}), err)
	}
}

// append appends entries to the file of a day, as dayfile.Appender.Append does. After an error it closes the
// file, so that the next call opens it again.
func (w *writer) append(d dayfile.Day, entries []byte, all bool) (kept int, err error) {
	if w.closed {
		return 0, errClosed
	}
	f, size, err := w.file(d)
	if err != nil {
		return 0, err
	}
	if w.options.CheckSpace != nil {
		if err := w.options.CheckSpace(w.options.Dir, len(entries)); err != nil {
			return 0, err
		}
	}
	kept, err = f.Append(size, entries, all)
	if kept > 0 {
		w.recordWritten(f, size, bytes.Count(entries[1:1+kept], []byte{'\n'}))
	}
	if err != nil {
		w.closeFile(f)
	}
	return kept, err
}

// file returns the file that has the name of a day now, and its size.
func (w *writer) file(d dayfile.Day) (f *dayfile.Appender, size int64, err error) {
	if i := slices.IndexFunc(w.files, func(f *dayfile.Appender) bool { return f.Day == d }); i >= 0 {
		f = w.files[i]
		if size, same := f.Revalidate(); same {
			return f, size, nil
		}
		w.closeFile(f)
	}
	if f, err = dayfile.OpenAppender(w.options.Dir, d); err != nil {
		return nil, 0, err
	}
	if len(w.files) == maxOpenFiles {
		w.closeFile(w.files[0])
	}
	w.files = append(w.files, f)
	w.pending.dirChanged = true
	return f, f.Info.Size(), nil
}

// closeFile closes a file. It ignores an error, because the system already has all that was written.
func (w *writer) closeFile(f *dayfile.Appender) {
	w.files = slices.DeleteFunc(w.files, func(other *dayfile.Appender) bool { return other == f })
	_ = f.Close()
}
