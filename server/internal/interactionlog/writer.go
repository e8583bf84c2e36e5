package interactionlog

import (
	"bytes"
	"slices"
	"time"

	parleyv1 "github.com/parleyhq/parley/gen/parley/v1"
	"github.com/parleyhq/parley/store"
)

const (
	// maxOpen is how many files are kept open: at midnight lines go to two.
	maxOpenFiles = 2
	// maxWriteBytes is when a batch is written in parts, each whole lines.
	maxWriteBytes = 8 << 20
	// keptBuffer is the most memory for lines that is kept from one batch to the next.
	maxRetainedBuffer = 1 << 20
)

// Committed writes a line for each MESSAGE_APPENDED change: an observer of the store, see
// [store.Options]. When it returns the lines are with the operating system, and outlast a
// crash of the process, or they are counted as lost. It waits for no disk but where the system
// makes a write wait, and at the end of an Erase.
func (l *Log) Committed(changes []store.Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writeBatch(changes)
}

// commit writes the lines in one write, in two when midnight lies between them. l.mu is held.
func (l *Log) writeBatch(changes []store.Change) {
	l.buffer = append(l.buffer[:0], '\n') // See appendFile.append.
	lines := l.buffer
	var current day
	var earliest time.Time
	for i := range changes {
		c := &changes[i]
		if c.Kind == parleyv1.ChangeKind_CHANGE_KIND_CREATED {
			l.excludeImport(c, changes[i+1:])
		}
		if c.Kind != parleyv1.ChangeKind_CHANGE_KIND_MESSAGE_APPENDED {
			continue
		}
		end := len(lines)
		longer, at, err := l.encoder.appendEntry(lines, c)
		if err != nil {
			l.recordLoss(1, err)
			continue
		}
		if earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
		d := dayOf(at)
		if end > 1 && (d != current || len(longer) > maxWriteBytes) {
			l.write(current, longer[:end])
			longer = append(longer[:1], longer[end:]...)
		}
		lines, current = longer, d
	}
	if len(lines) > 1 {
		l.write(current, lines)
	}
	if l.buffer = lines; cap(lines) > maxRetainedBuffer {
		l.buffer = nil
	}
	if !earliest.IsZero() {
		l.recordBatchTime(earliest)
	}
}

// write puts lines, which come behind a line break, into the file of a day, or counts them as
// lost. While the log fails they must get there all together with a line that says so, else
// those that find room do, and the others get a second try.
func (l *Log) write(d day, lines []byte) {
	if l.loss.missing > 0 {
		l.writeWithLossEntry(d, lines[1+len(timestampKey):][:len(timestampLayout)], lines)
		return
	}
	n, err := l.append(d, lines, false)
	if err != nil {
		rest := lines[n:] // Begins with the line break of the last line that was written.
		n, err = l.append(d, rest, false)
		lines = rest
	}
	if err != nil {
		l.recordLoss(bytes.Count(lines[n+1:], []byte{'\n'}), err)
	}
}

// append writes lines to the file of a day, as appendFile.append does. After an error the file
// is opened anew.
func (l *Log) append(d day, lines []byte, all bool) (kept int, err error) {
	if l.closed {
		return 0, errClosed
	}
	f, size, err := l.file(d)
	if err != nil {
		return 0, err
	}
	kept, err = f.append(size, lines, all)
	if kept > 0 {
		l.recordWritten(f, size, bytes.Count(lines[1:1+kept], []byte{'\n'}))
	}
	if err != nil {
		l.closeFile(f)
	}
	return kept, err
}

// file returns the file of a day and its size. It is the one that has the name now, whatever
// was done to the one before.
func (l *Log) file(d day) (f *appendFile, size int64, err error) {
	if i := slices.IndexFunc(l.files, func(f *appendFile) bool { return f.day == d }); i >= 0 {
		f = l.files[i]
		if size, same := f.revalidate(); same {
			return f, size, nil
		}
		l.closeFile(f)
	}
	if f, err = openAppend(l.options.Dir, d); err != nil {
		return nil, 0, err
	}
	if len(l.files) == maxOpenFiles {
		l.closeFile(l.files[0])
	}
	l.files = append(l.files, f)
	l.pending.dirChanged = true
	return f, f.info.Size(), nil
}

// letGo closes a file. What was written to it is with the system, which tells nothing new here.
func (l *Log) closeFile(f *appendFile) {
	l.files = slices.DeleteFunc(l.files, func(other *appendFile) bool { return other == f })
	_ = f.Close()
}
