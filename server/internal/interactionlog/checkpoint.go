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
)

const (
	checkpointName = "checkpoint.json"
	// checkpointBytes is the length of its file, which is written over: a disk that is full
	// has room for that, and a sector is written as a whole or not at all.
	checkpointBytes = 256
	// idleFor is how long before now the checkpoint is where nothing is written.
	idleMargin = time.Minute
)

// checkpoint is what is remembered of the files beside them.
type checkpoint struct {
	// Clean: the log was closed with nothing missing.
	Clean bool `json:"clean"`
	// Whole: no line is missing, even after a power cut, of a message that was committed before
	// the first one of this time.
	CompleteUntil time.Time `json:"whole_until"`
	// Off: messages may have come to the store while there was no log, so that they have no lines.
	// It is set until CatchUp has noted those that are dated after Whole. Nothing is missing.
	Off bool `json:"off,omitzero"`
	// Lost and Since are those of failing.
	Lost  int64     `json:"lost_lines"`
	Since time.Time `json:"lost_since,omitzero"`
}

// pending is what a crash may take.
type pending struct {
	saved checkpoint // as the next start will find it
	// unsure: the files may lack more than what came since then, and nothing but CatchUp can
	// tell.
	needsCatchUp bool
	// days has the parts of the files that may not be durable yet, by day. earliest is the earliest
	// time of their entries, newest the earliest time in the newest batch.
	days             map[day]*tail
	earliest, newest time.Time
	dirChanged       bool // the directory has a new file
	// What the process before has lost, and says so nowhere.
	previousLoss struct {
		lost  int64
		since time.Time
	}
	// What is remembered of imports and erasures: the latest time until which it is needed, its
	// bytes, and with how many of them it is compacted.
	exclusionsUntil time.Time
	exclusionBytes  int
	compactAt       int
	// forgotten says that an import could not be remembered; operators were told.
	exclusionFailed bool
}

func (l *Log) checkpointPath() string { return filepath.Join(l.options.Dir, checkpointName) }

// begin reads the checkpoint that the process before has left, and leaves one that says that
// this process has not come to its end. A log without one is new: it lacks nothing.
func (l *Log) loadCheckpoint() error {
	p := &l.pending
	now := l.options.Now()
	found, size, err := readCheckpoint(l.checkpointPath())
	if p.needsCatchUp = err == nil && !found.Clean && !found.Off; p.needsCatchUp {
		p.saved = found
		p.previousLoss.lost, p.previousLoss.since = found.Lost, found.Since
	} else {
		// What the store keeps from before is in the files, or was never to be.
		p.saved.CompleteUntil, p.saved.Off = now.Add(1), err != nil || found.Off
		l.loss.missing, l.loss.since = found.Lost, found.Since // A process without a log has left them.
	}
	p.exclusionBytes, p.exclusionsUntil, p.compactAt = max(0, size-checkpointBytes), now.Add(maxImportAhead), compactInterval
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if saved := l.save(true); saved != nil {
		return errors.Join(err, saved)
	}
	return errors.Join(err, syncDir(l.options.Dir))
}

// readCheckpoint returns the checkpoint that a file begins with, and the size of the file.
func readCheckpoint(path string) (c checkpoint, size int, err error) {
	f, info, err := openFile(path, os.O_RDONLY)
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
		return c, 0, fmt.Errorf("%s: %w: lines that were lost before this start will not be added", path, err)
	}
	return c, int(info.Size()), nil
}

// save writes the checkpoint. Before Open has returned, and then with l.mu held.
func (l *Log) save(durable bool) error {
	p := &l.pending
	p.saved.Lost, p.saved.Since = p.previousLoss.lost+l.loss.missing, l.loss.since
	if p.previousLoss.lost > 0 {
		p.saved.Since = p.previousLoss.since
	}
	text, err := p.saved.encode()
	if err != nil {
		return err
	}
	f, _, err := openFile(l.checkpointPath(), os.O_WRONLY|os.O_CREATE)
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

// text returns the checkpoint as the first part of its file.
func (c *checkpoint) encode() ([]byte, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	text = append(text, bytes.Repeat([]byte{' '}, max(0, checkpointBytes-1-len(text)))...)
	return append(text, '\n'), nil
}

// note remembers that lines were written, or lost, of which the earliest is of that time.
func (l *Log) recordBatchTime(earliest time.Time) {
	p := &l.pending
	p.newest = earliest
	if p.earliest.IsZero() || earliest.Before(p.earliest) {
		p.earliest = earliest
	}
	if earliest.Before(p.saved.CompleteUntil) && !l.closed { // The clock was set back.
		p.saved.CompleteUntil = earliest
		_ = l.save(false) // If this fails, the next sync saves the checkpoint or reports the error.
	}
}

// sync makes durable what was written until now, while messages go on coming, and says so in
// the checkpoint.
func (l *Log) sync() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	u := l.beginSync()
	if u == nil {
		return l.advanceIdle()
	}
	return l.finishSync(u, u.run(l.options.Dir))
}

// unsynced is what is to be made durable.
type syncRound struct {
	days          map[day]*tail
	earliest      time.Time // earliest time of their entries
	dirChanged    bool
	completeUntil time.Time // new time of the checkpoint after the sync; zero: unchanged
	lostEntries   error     // errDoubt for the files that were removed from days
}

// takeUnsynced returns what has been written since it was called last; nil if nothing has.
func (l *Log) beginSync() *syncRound {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.pending
	if len(p.days) == 0 && !p.dirChanged && p.saved.Lost == p.previousLoss.lost+l.loss.missing {
		return nil
	}
	u := &syncRound{days: p.days, earliest: p.earliest, dirChanged: p.dirChanged, completeUntil: p.newest}
	if now := l.options.Now(); now.Before(u.completeUntil) {
		u.completeUntil = now // The clock was set back: what comes next may be as early.
	}
	p.days, p.dirChanged, p.earliest = nil, false, time.Time{}
	return u
}

// sync makes all parts durable that it can and keeps the others in u. It returns the errors of the
// others.
func (u *syncRound) run(dir string) error {
	var err error
	for d, t := range u.days {
		fault := t.sync(filepath.Join(dir, d.fileName()))
		if errors.Is(fault, errEntriesLost) {
			u.lostEntries = errors.Join(u.lostEntries, fault)
		} else if fault != nil {
			err = errors.Join(err, fault)
			continue
		}
		delete(u.days, d)
	}
	if u.dirChanged {
		fault := syncDir(dir)
		if u.dirChanged = fault != nil && !errors.Is(fault, fs.ErrNotExist); u.dirChanged {
			err = errors.Join(err, fault)
		}
	}
	return err
}

// synced advances the checkpoint, but not to the time of an entry that was written in the meantime
// or is not durable. The next sync tries the parts that are left in u again.
func (l *Log) finishSync(u *syncRound, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &l.pending
	if u.lostEntries != nil {
		l.requireCatchUp(u.lostEntries)
	}
	for d, t := range u.days {
		l.restoreTail(d, t)
	}
	if left := len(u.days) > 0 || u.dirChanged; left {
		p.dirChanged = p.dirChanged || u.dirChanged
		if p.earliest.IsZero() || !u.earliest.IsZero() && u.earliest.Before(p.earliest) {
			p.earliest = u.earliest
		}
	}
	if !p.earliest.IsZero() && p.earliest.Before(u.completeUntil) {
		u.completeUntil = p.earliest
	}
	// Records of imports before the checkpoint have been removed, so the checkpoint never moves back here.
	if !p.needsCatchUp && l.loss.missing == 0 && u.completeUntil.After(p.saved.CompleteUntil) {
		p.saved.CompleteUntil = u.completeUntil
	}
	return errors.Join(err, l.save(false))
}

// idle moves the checkpoint on when there is nothing to make durable, so that CatchUp does not
// look far back. A commit that takes longer than idleFor is not on its way.
func (l *Log) advanceIdle() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, now := &l.pending, l.options.Now()
	if p.needsCatchUp || l.loss.missing > 0 || len(p.days) > 0 || now.Sub(p.saved.CompleteUntil) < 2*idleMargin {
		return nil
	}
	p.saved.CompleteUntil = now.Add(-idleMargin)
	return l.save(false)
}

// syncFile makes a file durable that has been written to. It may have been removed since.
func syncFile(path string) error {
	f, _, err := openFile(path, os.O_RDONLY)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrRefused):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// end records in the checkpoint that the log was closed, if it lacks no entry and all entries are
// durable.
func (l *Log) saveClosed() error {
	p := &l.pending
	p.saved.Clean = !p.needsCatchUp && l.loss.missing == 0 && len(p.days) == 0 && !p.dirChanged
	return l.save(true)
}
