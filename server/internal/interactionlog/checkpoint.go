package interactionlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parleyhq/parley/server/internal/interactionlog/dayfile"
)

const (
	checkpointName = "checkpoint.json"
	// checkpointBytes is the length of the checkpoint in its file. It is overwritten in place: that
	// needs no space on a full disk, and the disk writes a sector completely or not at all.
	checkpointBytes = 256
	// idleMargin is the distance of the checkpoint from the current time while nothing is written.
	idleMargin = time.Minute
)

// checkpoint is the state of the log that a process leaves to the next one.
type checkpoint struct {
	// Clean is true if the log was closed and no entry is missing.
	Clean bool `json:"clean"`
	// CompleteUntil is the time before which no message lacks its entry, even after a power cut.
	CompleteUntil time.Time `json:"whole_until"`
	// Off is true if messages may have been committed without a log, so that they have no entries.
	// It stays true until CatchUp has excluded those that are dated after CompleteUntil. While it is
	// true, no entry is missing.
	Off bool `json:"off,omitzero"`
	// Lost and Since are those of lossState: the number of entries that were lost and not reported
	// in a file, and the time of the first of them.
	Lost  int64     `json:"lost_lines"`
	Since time.Time `json:"lost_since,omitzero"`
}

// pending is the state that a crash may lose. writer.mu guards it.
type pending struct {
	saved checkpoint // as it is in the file
	// needsCatchUp is true if entries since saved.CompleteUntil may be missing that this process has
	// not counted as lost: after an unclean stop of the previous process, or after a failed sync. Only
	// CatchUp can find them, so the checkpoint does not advance.
	needsCatchUp bool
	// days has the parts of the files that may not be durable yet, by day. earliest is the earliest
	// time of their entries, newest the earliest time in the newest batch.
	days             map[dayfile.Day]*tail
	earliest, newest time.Time
	dirChanged       bool // the directory has a new file or name that may not be durable
	// previousLoss is what the previous process lost and no file reports.
	previousLoss struct {
		lost  int64
		since time.Time
	}
	// exclusionsUntil is the latest time until which an exclusion is needed. exclusionBytes is the
	// size of all of them. When it reaches compactAt, they are compacted.
	exclusionsUntil time.Time
	exclusionBytes  int
	compactAt       int
	// exclusionFailed is true if an import could not be excluded and a warning was logged.
	exclusionFailed bool
}

func (w *writer) checkpointPath() string { return filepath.Join(w.options.Dir, checkpointName) }

// loadCheckpoint reads the checkpoint of the previous process and saves one that is not clean. A log
// without a checkpoint is new: no entry is missing.
func (w *writer) loadCheckpoint() error {
	p := &w.pending
	now := w.options.Now()
	found, size, err := readCheckpoint(w.checkpointPath())
	if p.needsCatchUp = err == nil && !found.Clean && !found.Off; p.needsCatchUp {
		p.saved = found
		p.previousLoss.lost, p.previousLoss.since = found.Lost, found.Since
	} else {
		// Messages that the store retains from before have entries, or must not get any.
		p.saved.CompleteUntil, p.saved.Off = now.Add(1), err != nil || found.Off
		w.loss.missing, w.loss.since = found.Lost, found.Since // A process without a log has left them.
	}
	p.exclusionBytes, p.exclusionsUntil = max(0, size-checkpointBytes), now.Add(maxImportAhead)
	p.compactAt = compactInterval
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if saved := w.save(true); saved != nil {
		return errors.Join(err, saved)
	}
	return errors.Join(err, dayfile.SyncDir(w.options.Dir))
}

// readCheckpoint returns the checkpoint at the beginning of a file, and the size of the file.
func readCheckpoint(path string) (c checkpoint, size int, err error) {
	f, info, err := dayfile.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return c, 0, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, checkpointBytes))
	if err != nil {
		return c, 0, err
	}
	err = json.Unmarshal(text, &c)
	if err == nil && c.CompleteUntil.IsZero() {
		err = errors.New("whole_until is missing")
	}
	if err != nil {
		return c, 0, fmt.Errorf("%s: %w: entries that were lost before this start stay missing", path, err)
	}
	return c, int(info.Size()), nil
}

// save writes the checkpoint. The caller holds w.mu, except in Open.
func (w *writer) save(durable bool) error {
	p := &w.pending
	p.saved.Lost, p.saved.Since = p.previousLoss.lost+w.loss.missing, w.loss.since
	if p.previousLoss.lost > 0 {
		p.saved.Since = p.previousLoss.since
	}
	text, err := p.saved.encode()
	if err != nil {
		return err
	}
	f, _, err := dayfile.OpenFile(w.checkpointPath(), os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err == nil && p.exclusionBytes > 0 && p.saved.CompleteUntil.After(p.exclusionsUntil) {
		err = f.Truncate(checkpointBytes)
		p.exclusionBytes = 0
	}
	if durable && err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// encode returns the checkpoint in the form and length that it has in its file.
func (c *checkpoint) encode() ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	text = append(text, bytes.Repeat([]byte{' '}, max(0, checkpointBytes-1-len(text)))...)
	return append(text, '\n'), nil
}

// recordBatchTime records the time of the earliest entry in a batch that was written or lost. The caller
// holds w.mu.
func (w *writer) recordBatchTime(earliest time.Time) {
	p := &w.pending
	p.newest = earliest
	if p.earliest.IsZero() || earliest.Before(p.earliest) {
		p.earliest = earliest
	}
	if earliest.Before(p.saved.CompleteUntil) && !w.closed { // The clock was set back.
		p.saved.CompleteUntil = earliest
		_ = w.save(false) // If this fails, the next sync saves the checkpoint or reports the error.
	}
}

// sync makes durable what was written until now and advances the checkpoint. Messages are committed
// in the meantime.
func (l *Log) sync() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	r := l.writer.beginSync()
	if r == nil {
		return l.writer.advanceIdle()
	}
	return l.writer.finishSync(r, r.run(l.options.Dir))
}

// syncRound is what one call of sync makes durable.
type syncRound struct {
	days          map[dayfile.Day]*tail
	earliest      time.Time // earliest time of their entries
	dirChanged    bool
	completeUntil time.Time // new time of the checkpoint after the sync; zero: unchanged
	lostEntries   error     // errEntriesLost for the files that were removed from days
}

// beginSync returns what was written since the last call, or nil if nothing was.
func (w *writer) beginSync() *syncRound {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	if len(p.days) == 0 && !p.dirChanged && p.saved.Lost == p.previousLoss.lost+w.loss.missing {
		return nil
	}
	r := &syncRound{days: p.days, earliest: p.earliest, dirChanged: p.dirChanged, completeUntil: p.newest}
	if now := w.options.Now(); now.Before(r.completeUntil) {
		r.completeUntil = now // The clock was set back: the next messages may be as early.
	}
	p.days, p.dirChanged, p.earliest = nil, false, time.Time{}
	return r
}

// run makes all parts durable that it can and keeps the others in r. It returns the errors of the
// others.
func (r *syncRound) run(dir string) error {
	var err error
	for d, t := range r.days {
		fault := t.sync(filepath.Join(dir, d.FileName()))
		if errors.Is(fault, errEntriesLost) {
			r.lostEntries = errors.Join(r.lostEntries, fault)
		} else if fault != nil {
			err = errors.Join(err, fault)
			continue
		}
		delete(r.days, d)
	}
	if r.dirChanged {
		fault := dayfile.SyncDir(dir)
		if r.dirChanged = fault != nil && !errors.Is(fault, fs.ErrNotExist); r.dirChanged {
			err = errors.Join(err, fault)
		}
	}
	return err
}

// finishSync advances the checkpoint, but not to the time of an entry that was written in the
// meantime or is not durable. The next sync retries the parts that are left in r.
func (w *writer) finishSync(r *syncRound, err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &w.pending
	if r.lostEntries != nil {
		w.requireCatchUp(r.lostEntries)
	}
	for d, t := range r.days {
		w.restoreTail(d, t)
	}
	if left := len(r.days) > 0 || r.dirChanged; left {
		p.dirChanged = p.dirChanged || r.dirChanged
		if p.earliest.IsZero() || !r.earliest.IsZero() && r.earliest.Before(p.earliest) {
			p.earliest = r.earliest
		}
	}
	if !p.earliest.IsZero() && p.earliest.Before(r.completeUntil) {
		r.completeUntil = p.earliest
	}
	// Exclusions that end before the checkpoint have been dropped, so the checkpoint must not move back here.
	if !p.needsCatchUp && w.loss.missing == 0 && r.completeUntil.After(p.saved.CompleteUntil) {
		p.saved.CompleteUntil = r.completeUntil
	}
	return errors.Join(err, w.save(false))
}

// advanceIdle advances the checkpoint when there is nothing to make durable, so that CatchUp has
// little to read. It assumes that no commit takes longer than idleMargin.
func (w *writer) advanceIdle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, now := &w.pending, w.options.Now()
	if p.needsCatchUp || w.loss.missing > 0 || len(p.days) > 0 || now.Sub(p.saved.CompleteUntil) < 2*idleMargin {
		return nil
	}
	p.saved.CompleteUntil = now.Add(-idleMargin)
	return w.save(false)
}

// saveClosed saves the last checkpoint. It is clean if no entry is missing and all are durable. The
// caller holds w.mu.
func (w *writer) saveClosed() error {
	p := &w.pending
	p.saved.Clean = !p.needsCatchUp && w.loss.missing == 0 && len(p.days) == 0 && !p.dirChanged
	return w.save(true)
}
