package interactionlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
	"github.com/parleyhq/parley/server/internal/interactionlog/scan"
)

const (
	// copyBytes is the number of bytes that are copied at a time.
	copyBytes = 256 << 10
	// maxLockedBytes is the number of bytes of a file that may remain to be copied under the lock.
	maxLockedBytes = 256 << 10
	// maxUnlockedRounds is the maximum number of rounds in which a growing file is copied without the lock.
	maxUnlockedRounds = 10
)

// rewrite is the state of rewriting one file.
type rewrite struct {
	*erasure

	day    dayfile.Day
	from   *dayfile.File
	path   string
	to     *os.File // the new file; nil: it is not created yet, or has replaced the old one
	offset int64    // how much of the old file is processed
	hash   maphash.Hash
	// erased counts the entries removed.
	erased int64
}

// run writes the new file, most of it while entries are appended to the old one.
func (w *rewrite) run(ctx context.Context) error {
	temporary := filepath.Join(w.options.Dir, dayfile.TemporaryName(filepath.Base(w.path)))
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var err error
	if w.to, err = os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, dayfile.FileMode); err != nil {
		return err
	}
	if err := w.to.Chmod(dayfile.FileMode); err != nil { // The umask may have removed permissions.
		return err
	}
	size := w.from.Size
	for round := 0; round == 0 || round < maxUnlockedRounds && size-w.offset > maxLockedBytes; round++ {
		if err := w.copyComplete(ctx, size); err != nil {
			return err
		}
		if size, err = w.currentSize(); err != nil {
			return err
		}
	}
	if err := w.compare(ctx); err != nil {
		return err
	}
	if size, err = w.currentSize(); err != nil {
		return err
	}
	if err := w.copyComplete(ctx, size); err != nil {
		return err
	}
	return w.replace(ctx)
}

// compare returns scan.ErrChanged if the old file was edited in place.
func (w *rewrite) compare(ctx context.Context) error {
	var now maphash.Hash
	now.SetSeed(w.seed)
	if err := w.copy(ctx, &now, 0, w.offset); err != nil {
		return err
	}
	if now.Sum64() != w.hash.Sum64() {
		return scan.ErrChanged
	}
	return nil
}

// currentSize returns the size of the old file.
func (w *rewrite) currentSize() (int64, error) {
	info, err := w.from.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// copyComplete copies what is retained of the complete lines up to an offset, and makes it durable.
func (w *rewrite) copyComplete(ctx context.Context, size int64) error {
	end, err := w.lastBreak(size)
	if err != nil {
		return err
	}
	if err := w.copy(ctx, &w.hash, w.offset, end); err != nil {
		return err
	}
	if last, err := w.lastBreak(end); err != nil || last != end {
		return cmp.Or(err, scan.ErrChanged) // From this offset on, compare detects an edit.
	}
	release, err := w.reader.AcquireScan(ctx)
	if err != nil {
		return err
	}
	err = w.copyRetained(ctx, end, true)
	release()
	return cmp.Or(err, w.to.Sync())
}

// lastBreak returns the offset after the last line break before end, or w.offset if there is none after
// that.
func (w *rewrite) lastBreak(end int64) (int64, error) {
	for end > w.offset {
		from := max(w.offset, end-int64(len(w.buffer)))
		n, err := w.from.ReadAt(w.buffer[:end-from], from)
		if errors.Is(err, io.EOF) {
			return 0, scan.ErrChanged
		} else if err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(w.buffer[:n], '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return w.offset, nil
}

// copyRetained copies the lines of the old file that are not erased, up to a size.
func (w *rewrite) copyRetained(ctx context.Context, size int64, parallel bool) error {
	s := &scan.Section{File: w.from, Size: size, First: w.offset, End: size, Filter: w.conversation.MayMatch}
	for raw, err := range w.entries(w.from, w.scanner.Lines(ctx, s, parallel)) {
		if err == nil {
			err = w.copy(ctx, w.to, w.offset, raw.From)
		}
		if err != nil {
			return err
		}
		w.offset = raw.Next
		w.erased++
	}
	err := w.copy(ctx, w.to, w.offset, size)
	w.offset = size
	return err
}

// replace copies the rest of the old file and replaces it with the new one, while nothing is appended.
// The new file is completely durable, so the tail of the old one is no longer pending.
func (w *rewrite) replace(ctx context.Context) error {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	info, err := w.from.Stat()
	if err != nil {
		return err
	}
	lost, err := w.checkFailedSync(info)
	if err != nil {
		return err
	}
	w.writer.mu.Lock()
	defer w.writer.mu.Unlock()
	if w.writer.closed {
		return errClosed
	}
	if info, err = w.from.Stat(); err != nil {
		return err
	}
	current, err := os.Lstat(w.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return scan.ErrChanged
	case err != nil:
		return err
	case !os.SameFile(info, current), info.Size() < w.offset:
		return scan.ErrChanged
	}
	if err := w.copyRetained(ctx, info.Size(), false); err != nil {
		return err
	}
	if err := errors.Join(w.to.Sync(), w.to.Close()); err != nil {
		return err
	}
	if err := w.excludeFound(); err != nil {
		return err
	}
	if err := os.Rename(w.to.Name(), w.path); err != nil {
		return err
	}
	w.to = nil
	if lost != nil {
		w.writer.requireCatchUp(lost)
	}
	if t := w.writer.pending.days[w.day]; t != nil && os.SameFile(t.file, info) {
		delete(w.writer.pending.days, w.day)
	}
	w.writer.pending.dirChanged = true // Until a sync of the directory has succeeded, which also saves the checkpoint.
	return dayfile.SyncDir(w.options.Dir)
}

// checkFailedSync checks what a failed sync has left of the old file, since the new one is durable and
// ends that failure. No failed sync covers what is appended later. lost is errEntriesLost. The caller
// holds w.syncMu.
func (w *rewrite) checkFailedSync(info fs.FileInfo) (lost, err error) {
	w.writer.mu.Lock()
	var failed tail
	if t := w.writer.pending.days[w.day]; t != nil {
		failed = *t
	}
	w.writer.mu.Unlock()
	if !failed.failed || !os.SameFile(failed.file, info) {
		return nil, nil
	}
	err = failed.check(w.from.File, info, func([]byte, int64) error { return nil })
	if errors.Is(err, errEntriesLost) {
		return err, nil
	}
	return nil, err
}

// copy copies a part of the old file. It returns scan.ErrChanged if the file is shorter now.
func (w *rewrite) copy(ctx context.Context, to io.Writer, from, end int64) error {
	for from < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := w.from.ReadAt(w.buffer[:min(int64(len(w.buffer)), end-from)], from)
		if errors.Is(err, io.EOF) {
			return scan.ErrChanged
		} else if err != nil {
			return err
		}
		if _, err := to.Write(w.buffer[:n]); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}
